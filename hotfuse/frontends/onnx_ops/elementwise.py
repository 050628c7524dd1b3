"""ONNX elementwise operators and activations. Those that need nothing but their inputs are named by their records instead."""

from __future__ import annotations

import functools
import math

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Value

_ARITHMETIC = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "Equal": "equal", "Less": "less", "Greater": "greater",
}  # fmt: skip


@onnx_op(*_ARITHMETIC)
def arithmetic(n: OnnxNode) -> Imported:
    x, y = n.input(0), n.input(1)
    if n.version < 7 and n.attr("broadcast", 0) and "axis" in n.attributes:
        y = _aligned(n, y)
    return n.add(_ARITHMETIC[n.op_type], x, y)


def _aligned(n: OnnxNode, y: Value) -> Value:
    """Before opset 7 the second input could be laid along the first from a given axis on."""
    rank, own = n.rank(0), n.rank(1)
    if rank is None or own is None:
        raise InvalidModel(f"{n.op_type}: 'axis' needs inputs of known rank; add shapes to the graph inputs")
    axis = n.attr("axis") % rank if rank else 0
    if axis + own > rank:
        raise InvalidModel(f"{n.op_type}: an input of rank {own} does not fit rank {rank} from axis {axis} on")
    return n.add("unsqueeze", y, axes=tuple(range(own, rank - axis))) if axis + own < rank else y


@onnx_op("Max", "Min", "Sum", "Mean")
def variadic(n: OnnxNode) -> Imported:
    op = {"Max": "maximum", "Min": "minimum"}.get(n.op_type, "add")
    result = functools.reduce(lambda a, b: n.add(op, a, b), (n.input(i) for i in range(1, len(n.inputs))), n.input(0))
    return n.add("div", result, n.scalar(len(n.inputs), result)) if n.op_type == "Mean" else result


@onnx_op("Mod")
def mod(n: OnnxNode) -> Imported:
    return n.add("fmod" if n.attr("fmod", 0) else "mod", n.input(0), n.input(1))


@onnx_op("BitShift")
def bit_shift(n: OnnxNode) -> Imported:
    op = {"LEFT": "shift_left", "RIGHT": "shift_right"}.get(n.attr("direction"))
    if op is None:
        raise InvalidModel(f"BitShift: the direction must be LEFT or RIGHT, not {n.attr('direction')!r}")
    return n.add(op, n.input(0), n.input(1))


@onnx_op("Clip")
def clip(n: OnnxNode) -> Imported:
    x = n.input(0)
    if n.version >= 11:
        low, high = n.optional(1), n.optional(2)
    else:
        low, high = (n.scalar(n.attr(name), x) if name in n.attributes else None for name in ("min", "max"))
    return x if low is None and high is None else n.add("clip", x, low, high)


@onnx_op("LeakyRelu")
def leaky_relu(n: OnnxNode) -> Imported:
    return n.add("leaky_relu", n.input(0), alpha=n.attr("alpha", 0.01))


@onnx_op("Elu")
def elu(n: OnnxNode) -> Imported:
    return n.add("elu", n.input(0), alpha=n.attr("alpha", 1.0))


@onnx_op("Selu")
def selu(n: OnnxNode) -> Imported:
    alpha, gamma = (1.67326319217681884765625, 1.05070102214813232421875) if n.version >= 6 else (1.6732, 1.0507)
    return n.add("elu", n.input(0), alpha=n.attr("alpha", alpha), scale=n.attr("gamma", gamma))


@onnx_op("Celu")
def celu(n: OnnxNode) -> Imported:
    alpha = n.attr("alpha", 1.0)
    if alpha == 0:
        raise InvalidModel("Celu: alpha must not be 0, the input is divided by it")
    return n.add("elu", n.input(0), alpha=alpha, input_scale=1 / alpha)


@onnx_op("Softplus")
def softplus(n: OnnxNode) -> Imported:
    return n.add("softplus", n.input(0), threshold=40.0)  # above it log(1 + exp(x)) is x, in float64 too


@onnx_op("Mish")
def mish(n: OnnxNode) -> Imported:
    return n.add("mish", n.input(0))


@onnx_op("Gelu")
def gelu(n: OnnxNode) -> Imported:
    approximate = n.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise InvalidModel(f"attribute 'approximate' must be 'none' or 'tanh', not {approximate!r}")
    return n.add("gelu", n.input(0), approximate=approximate)


@onnx_op("Swish")
def swish(n: OnnxNode) -> Imported:
    return n.add("silu", n.input(0), alpha=n.attr("alpha", 1.0))


@onnx_op("HardSigmoid")
def hard_sigmoid(n: OnnxNode) -> Imported:
    return n.add("hard_sigmoid", n.input(0), alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


@onnx_op("HardSwish")
def hard_swish(n: OnnxNode) -> Imported:
    x = n.input(0)
    return n.add("mul", x, n.add("hard_sigmoid", x, alpha=1 / 6, beta=0.5))


@onnx_op("Softsign")
def softsign(n: OnnxNode) -> Imported:
    x = n.input(0)
    return n.add("div", x, n.add("add", n.add("abs", x), n.scalar(1.0, x)))


@onnx_op("ThresholdedRelu")
def thresholded_relu(n: OnnxNode) -> Imported:
    x = n.input(0)
    return n.add("where", n.add("greater", x, n.scalar(n.attr("alpha", 1.0), x)), x, n.scalar(0.0, x))


@onnx_op("Shrink")
def shrink(n: OnnxNode) -> Imported:
    x, lambd, bias = n.input(0), n.attr("lambd", 0.5), n.attr("bias", 0.0)
    above = n.add("where", n.add("greater", x, n.scalar(lambd, x)), n.add("sub", x, n.scalar(bias, x)), n.scalar(0, x))
    return n.add("where", n.add("less", x, n.scalar(-lambd, x)), n.add("add", x, n.scalar(bias, x)), above)


@onnx_op("PRelu")
def prelu(n: OnnxNode) -> Imported:
    x, slope = n.input(0), n.input(1)
    rank = n.rank(0)
    if n.version < 7 and n.rank(1) == 1 and n.type(1).shape != (1,):  # one slope for each channel
        if rank is None:
            return Decline("slopes of channels need an input of known rank")
        slope = n.add("unsqueeze", slope, axes=tuple(range(1, rank - 1)))
    return n.add("prelu", x, slope)


@onnx_op("IsInf")
def is_inf(n: OnnxNode) -> Imported:
    x = n.input(0)
    positive, negative = n.attr("detect_positive", 1), n.attr("detect_negative", 1)
    if positive and negative:
        return n.add("isinf", x)
    if not positive and not negative:
        return n.add("less", x, n.scalar(-math.inf, x))  # holds for nothing
    return n.add("equal", x, n.scalar(math.inf if positive else -math.inf, x))


@onnx_op("Dropout")
def dropout(n: OnnxNode) -> Imported:
    """At inference the data passes through, and the mask keeps everything."""
    x = n.input(0)
    if n.version >= 12 and n.has(2):
        training, ratio = n.ints(2), n.constant_of(1)
        if training is None:
            return Decline("only a run tells whether Dropout trains")
        if training[0] and (ratio is None or float(ratio.item()) != 0.0):
            return Decline("Dropout that trains draws random numbers")
    elif n.version < 7 and not n.attr("is_test", 0) and n.attr("ratio", 0.5) != 0.0:
        return Decline("Dropout that trains draws random numbers")
    if not n.wants(1):
        return x
    one = n.constant(np.array(True)) if n.version >= 10 else n.scalar(1.0, x)
    return x, n.add("expand", one, n.add("shape_of", x))
