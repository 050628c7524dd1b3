"""ONNX products of quantized tensors, written out in int32: (x - zero point of x) times (w - zero point of w), then rescaled.

y = saturate(round(product * (scale_x * scale_w / scale_y)) + zero_point_y)
"""

from __future__ import annotations

from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.window import weight_window
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, I32, DType, TensorType


def _cast(n: OnnxNode, value: Value, to: DType) -> Value:
    assert isinstance(value.type, TensorType)
    return value if value.type.dtype == to else n.add("cast", value, to=to)


def _rank(value: Value) -> int | None:
    return value.type.rank if isinstance(value.type, TensorType) else None


def _length(value: Value) -> object:
    return value.type.shape[0] if isinstance(value.type, TensorType) and value.type.shape else None


def _along(n: OnnxNode, value: Value, before: int, after: int) -> Value:
    """A scalar or one-element tensor as a scalar; a vector with axes of size 1 around it."""
    if _rank(value) == 1 and _length(value) == 1:
        return n.add("squeeze", value, axes=(0,))
    if _rank(value) != 1:
        return value
    axes = (*range(before), *range(before + 1, before + 1 + after))
    return n.add("unsqueeze", value, axes=axes) if axes else value


def _centered(n: OnnxNode, value: Value, zero_point: Value | None, before: int, after: int) -> Value:
    wide = _cast(n, value, I32)
    if zero_point is None:
        return wide
    return n.add("sub", wide, _cast(n, _along(n, zero_point, before, after), I32))


def _rescaled(n: OnnxNode, total: Value, scales: tuple[Value, Value, Value], zero_point: Value) -> Imported:
    x, w, y = (_cast(n, s, F32) for s in scales)
    factor = n.add("div", n.add("mul", x, w), y)
    rounded = n.add("round", n.add("mul", _cast(n, total, F32), factor))
    assert isinstance(zero_point.type, TensorType)
    to = zero_point.type.dtype
    low, high = (0, 2**to.bits - 1) if to.kind == "uint" else (-(2 ** (to.bits - 1)), 2 ** (to.bits - 1) - 1)
    shifted = n.add("add", rounded, _cast(n, _along(n, zero_point, 0, 0), F32))
    clipped = n.add("clip", shifted, n.constant(low, F32), n.constant(high, F32))
    return n.add("cast", clipped, to=to)


@onnx_op("MatMulInteger")
def matmul_integer(n: OnnxNode) -> Imported:
    a = _centered(n, n.input(0), n.optional(2), 0, 1)
    return n.add("matmul", a, _centered(n, n.input(1), n.optional(3), 0, 0))


@onnx_op("QLinearMatMul")
def qlinear_matmul(n: OnnxNode) -> Imported:
    if not (n.dtype(0).is_integer and n.dtype(3).is_integer):
        return Decline("only integer types are multiplied exactly here")
    a = _centered(n, n.input(0), n.input(2), 0, 1)
    b = _centered(n, n.input(3), n.input(5), 0, 0)
    scales = (_along(n, n.input(1), 0, 1), _along(n, n.input(4), 0, 0), _along(n, n.input(6), 0, 0))
    return _rescaled(n, n.add("matmul", a, b), scales, n.input(7))


@onnx_op("ConvInteger")
def conv_integer(n: OnnxNode) -> Imported:
    attrs = weight_window(n, 0, 1)
    rank = n.rank(0)
    if isinstance(attrs, Decline) or rank is None:
        return Decline("the rank of the input is not known")
    x = _centered(n, n.input(0), n.optional(2), 0, 0)
    w = _centered(n, n.input(1), n.optional(3), 0, rank - 1)
    return n.add("conv", x, w, None, groups=n.attr("group", 1), **attrs)


@onnx_op("QLinearConv")
def qlinear_conv(n: OnnxNode) -> Imported:
    attrs = weight_window(n, 0, 3)
    rank = n.rank(0)
    if isinstance(attrs, Decline) or rank is None:
        return Decline("the rank of the input is not known")
    x = _centered(n, n.input(0), n.input(2), 0, 0)
    w = _centered(n, n.input(3), n.input(5), 0, rank - 1)
    total = n.add("conv", x, w, n.optional(8), groups=n.attr("group", 1), **attrs)
    scales = (_along(n, n.input(1), 0, 0), _along(n, n.input(4), 0, rank - 2), _along(n, n.input(6), 0, 0))
    return _rescaled(n, total, scales, n.input(7))
