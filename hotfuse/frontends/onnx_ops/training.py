"""ONNX optimizer steps (ai.onnx.preview.training), written out. R is the learning rate, T how many steps were taken before.

Each takes R, T and then, for every parameter, its value, its gradient and its state; the results are the new values and states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.convert import cast_to
from hotfuse.ir.graph import Value
from hotfuse.ir.types import DType, TensorType

DOMAIN = "ai.onnx.preview.training"
Step = Callable[[OnnxNode, "Numbers", Sequence[Value]], Sequence[Value]]


class Numbers:
    """Arithmetic with scalars of one parameter's element type."""

    def __init__(self, n: OnnxNode, dtype: DType) -> None:
        self.n = n
        self.rate, self.count = (cast_to(n, n.input(i), dtype) for i in (0, 1))

    def scaled(self, factor: float, value: Value) -> Value:
        return self.n.add("mul", value, self.n.scalar(factor, value))

    def regularized(self, x: Value, gradient: Value) -> Value:
        return self.n.add("add", self.scaled(self.n.attr("norm_coefficient", 0.0), x), gradient)

    def first_step(self, then: Value, other: Value) -> Value:
        """`then` before any step was taken, else `other`."""
        started = self.n.add("greater", self.count, self.n.scalar(0, self.count))
        return self.n.add("where", started, other, then)


def _each(n: OnnxNode, states: int, step: Step) -> Imported:
    """Run `step` for each parameter; inputs and results are ordered by role first, then by parameter."""
    roles = 2 + states
    count, left = divmod(len(n.inputs) - 2, roles)
    if left or count < 1:
        raise InvalidModel(f"{n.op_type}: {len(n.inputs)} inputs are not R, T and {roles} for each parameter")
    results = []
    for i in range(count):
        given = [n.input(2 + role * count + i) for role in range(roles)]
        assert isinstance(given[0].type, TensorType)
        results.append(step(n, Numbers(n, given[0].type.dtype), given))
    return [result[role] for role in range(1 + states) for result in results]


@onnx_op("Adagrad", domain=DOMAIN)
def adagrad(n: OnnxNode) -> Imported:
    return _each(n, 1, _adagrad)


def _adagrad(n: OnnxNode, numbers: Numbers, given: Sequence[Value]) -> Sequence[Value]:
    x, gradient, squares = given
    one = n.scalar(1, x)
    rate = n.add("div", numbers.rate, n.add("add", one, numbers.scaled(n.attr("decay_factor", 0.0), numbers.count)))
    slope = numbers.regularized(x, gradient)
    squares = n.add("add", squares, n.add("mul", slope, slope))
    root = n.add("add", n.add("sqrt", squares), n.scalar(n.attr("epsilon", 1e-6), x))
    return n.add("sub", x, n.add("div", n.add("mul", rate, slope), root)), squares


@onnx_op("Adam", domain=DOMAIN)
def adam(n: OnnxNode) -> Imported:
    return _each(n, 2, _adam)


def _adam(n: OnnxNode, numbers: Numbers, given: Sequence[Value]) -> Sequence[Value]:
    x, gradient, average, squares = given
    alpha, beta, one = n.attr("alpha", 0.9), n.attr("beta", 0.999), n.scalar(1, x)
    slope = numbers.regularized(x, gradient)
    average = n.add("add", numbers.scaled(alpha, average), numbers.scaled(1 - alpha, slope))
    squares = n.add("add", numbers.scaled(beta, squares), numbers.scaled(1 - beta, n.add("mul", slope, slope)))
    root = n.add("add", n.add("sqrt", squares), n.scalar(n.attr("epsilon", 1e-6), x))
    left = [n.add("sub", one, n.add("pow", n.scalar(base, x), numbers.count)) for base in (beta, alpha)]
    corrected = n.add("div", n.add("mul", numbers.rate, n.add("sqrt", left[0])), left[1])
    rate = numbers.first_step(numbers.rate, corrected)
    x = n.add("sub", x, n.add("mul", rate, n.add("div", average, root)))
    return numbers.scaled(1 - n.attr("norm_coefficient_post", 0.0), x), average, squares


@onnx_op("Momentum", domain=DOMAIN)
def momentum(n: OnnxNode) -> Imported:
    return _each(n, 1, _momentum)


def _momentum(n: OnnxNode, numbers: Numbers, given: Sequence[Value]) -> Sequence[Value]:
    x, gradient, velocity = given
    alpha = n.required("alpha")
    slope = numbers.regularized(x, gradient)
    weight = numbers.first_step(n.scalar(1, x), n.scalar(n.required("beta"), x))
    velocity = n.add("add", numbers.scaled(alpha, velocity), n.add("mul", weight, slope))
    direction = velocity
    if n.attr("mode") == "nesterov":
        direction = n.add("add", slope, numbers.scaled(alpha, velocity))
    return n.add("sub", x, n.add("mul", numbers.rate, direction)), velocity
