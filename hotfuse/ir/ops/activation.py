"""Activation functions: elementwise maps between layers. Half types are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir import contents, special
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, broadcast_shapes, define, flops_per_element, infer_broadcast, infer_same
from hotfuse.ir.ops.elementwise import binary, rng, unary, widened
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]


def relu(x: Array, out: Array | None = None) -> Any:
    return np.maximum(x, x.dtype.type(0), out=out)


def sigmoid(x: Array, out: Array | None = None) -> Any:
    with np.errstate(over="ignore"):
        result = np.exp(-x, out=out)
        result += x.dtype.type(1)
        return np.reciprocal(result, out=out)


def silu(x: Array, *, alpha: float = 1.0) -> Any:
    return x * sigmoid(x if alpha == 1.0 else x * x.dtype.type(alpha))


def gelu(x: Array, *, approximate: str = "none", out: Array | None = None) -> Any:
    return special.gelu_by_tanh(x, out) if approximate == "tanh" else special.gelu(x, out)


def leaky_relu(x: Array, *, alpha: float = 0.01) -> Any:
    return np.where(x >= 0, x, x * x.dtype.type(alpha))


def elu(x: Array, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    kind = x.dtype.type
    with np.errstate(over="ignore"):
        below = kind(alpha * scale) * np.expm1(np.minimum(x, kind(0)) * kind(input_scale))
    return np.where(x > 0, x * kind(scale), below)


def softplus(x: Array, *, beta: float = 1.0, threshold: float = 20.0) -> Any:
    kind = x.dtype.type
    scaled = x * kind(beta)
    soft = np.log1p(np.exp(-np.abs(scaled))) + np.maximum(scaled, kind(0))
    return np.where(scaled > threshold, x, soft / kind(beta))


def mish(x: Array) -> Any:
    return x * np.tanh(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, x.dtype.type(0)))


def hard_sigmoid(x: Array, *, alpha: float = 1 / 6, beta: float = 0.5) -> Any:
    kind = x.dtype.type
    return np.minimum(np.maximum(x * kind(alpha) + kind(beta), kind(0)), kind(1))


def prelu(x: Array, slope: Array) -> Any:
    return np.where(x < 0, x * slope, x)


unary("sigmoid", widened(sigmoid), "1 / (1 + exp(-x))", 15, onnx=("Sigmoid",))
unary("silu", widened(silu), "x / (1 + exp(-alpha * x))", 16, attrs={"alpha": 1.0}, doc="x * sigmoid(alpha * x)")
unary("relu", relu, "max(x, 0)", infer=infer_same, onnx=("Relu",))
unary(
    "gelu", widened(gelu), "0.5 * x * (1 + erf(x * 0.7071067811865476))", 22, attrs={"approximate": "none"},
    doc="approximate = tanh takes the tanh form",
)  # fmt: skip
unary(
    "ndtr", widened(special.ndtr), "0.5 * (1 + erf(x * 0.7071067811865476))", 22, torch=("aten.special_ndtr.default",),
    domain=(0.0, 4.0), doc="the share of a normal distribution below x; the sum cancels where x < 0",
)  # fmt: skip
unary("leaky_relu", widened(leaky_relu), "where(x >= 0, x, alpha * x)", 2, attrs={"alpha": 0.1})
unary(
    "elu", widened(elu), "where(x > 0, scale * x, alpha * scale * expm1(min(x, 0) * input_scale))", 16,
    attrs={"alpha": 0.7, "scale": 1.5, "input_scale": 0.8}, doc="also selu (scale) and celu (input_scale = 1 / alpha)",
)  # fmt: skip
unary(
    "softplus", widened(softplus),
    "where(x * beta > threshold, x, (max(x * beta, 0) + log1p(exp(-abs(x * beta)))) / beta)", 30,
    attrs={"beta": 1.0, "threshold": 20.0}, doc="log(1 + exp(beta * x)) / beta; x itself above the threshold",
)  # fmt: skip
unary("mish", widened(mish), "x * tanh(max(x, 0) + log1p(exp(-abs(x))))", 48, doc="x * tanh(softplus(x))")
unary(
    "hard_sigmoid", widened(hard_sigmoid), "min(max(alpha * x + beta, 0), 1)", 4, torch=("aten.hardsigmoid.default",),
    attrs={"alpha": 1 / 6, "beta": 0.5},
)  # fmt: skip
binary("prelu", widened(prelu), "where(x < 0, x * y, x)", 2, infer=infer_broadcast, torch=("aten._prelu_kernel.default",))


def clip(x: Array, low: Array | None = None, high: Array | None = None, out: Array | None = None) -> Any:
    """Where low > high the result is high. What equals a bound stays as it is: -0.0 is not below 0.0."""
    if low is None and high is None:
        return np.copy(x)
    if x.dtype.kind not in "fiu":  # types that numpy itself does not know
        result = x if low is None else np.maximum(x, low, out=out)
        return result if high is None else np.minimum(result, high, out=out)
    least, most = (-np.inf, np.inf) if x.dtype.kind == "f" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    ends = (x.dtype.type(least) if low is None else low, x.dtype.type(most) if high is None else high)
    return np.clip(x, *ends, out=out)


def _clip_infer(call: Call) -> Sequence[Type]:
    x, shapes = call.tensor(0), [call.shape(0)]
    for i in (1, 2):
        if call.has(i):
            if call.dtype(i) != x.dtype:
                raise call.fail(f"a bound has type {call.dtype(i)}, the input {x.dtype}; cast one of them")
            shapes.append(call.shape(i))
    return (TensorType(x.dtype, broadcast_shapes(*shapes)),)


def _clip_samples() -> Iterable[Sample]:
    x = rng().uniform(-3, 3, (3, 4)).astype(np.float32)
    low, high = np.float32(-1).reshape(()), np.full((3, 1), 0.5, np.float32)
    for bounds in ((low, high), (low,), (None, high), (None, None), (high, low)):
        yield Sample((x, *bounds))


define(
    OpDef(
        "clip", _clip_infer, clip, Pattern.ELEMENTWISE, "not below the second input, then not above the third",
        scalar="min(max(x, y), z)", contents=contents.elementwise(contents.clipped), flops=flops_per_element(2),
        torch=("aten.clamp.Tensor",), samples=_clip_samples,
    )
)  # fmt: skip
