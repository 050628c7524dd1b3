"""Conversions between element types, and linear quantization.

    cast        x as another type; float8 saturates unless told otherwise
    bitcast     the same bits read as another type of the same width
    quantize    saturate(round(x / scale) + zero)
    dequantize  (x - zero) * scale

A scale is one number, one per place along `axis`, or, with `block` > 0, one per block of that many places along `axis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir import contents
from hotfuse.ir.op import Call, Contents, OpDef, Pattern, Sample, define, flops_per_element
from hotfuse.ir.ops.movement import no_flops, normal_axis
from hotfuse.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, STRING, U8, DType, TensorType, Type

Array = np.ndarray[Any, Any]

_SATURATING = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")


def cast(x: Array, *, to: DType, saturate: bool = True, rounding: str = "up") -> Array:
    """`rounding` (up, down, nearest) applies to f8e8m0 alone, which holds powers of two."""
    x = np.asarray(x)
    target = to.numpy
    if to is STRING:
        return x.astype(np.str_).astype(object)
    if x.dtype == object:
        x = x.astype(np.int64 if to.is_integer else np.float64 if to is F64 else np.float32)
    if x.dtype.isbuiltin != 1 and target.isbuiltin != 1:
        x = x.astype(np.float32)  # holds every small type exactly; they do not all convert to each other
    with np.errstate(all="ignore"):
        if to.name == "f8e8m0":
            return _power_of_two(x.astype(np.float32), saturate, rounding).view(target)
        if saturate and to.name in _SATURATING:
            x = _within(x, target)
        return x.astype(target)


def _within(x: Array, target: np.dtype[Any]) -> Array:
    """x clipped to what a float8 type can hold; NaN stays."""
    import ml_dtypes

    limit = float(ml_dtypes.finfo(target).max)
    wide = x if x.dtype.kind == "f" else x.astype(np.float32)
    return np.asarray(np.minimum(np.maximum(wide, wide.dtype.type(-limit)), wide.dtype.type(limit)))


def _power_of_two(x: Array, saturate: bool, rounding: str) -> Array:
    """The exponent bits of |x| after rounding to a power of two; 255 is NaN."""
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.uint16)
    fraction = bits & 0x7FFFFF
    if rounding == "nearest":
        up = (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0))
    else:
        up = (fraction > 0) & (rounding == "up")
    up &= exponent < (0xFE if saturate else 0xFF)
    return np.asarray(exponent + up).astype(np.uint8)


def _cast_infer(call: Call) -> Sequence[Type]:
    return (TensorType(call.attrs["to"], call.shape(0)),)


def _cast_contents(call: Call) -> Sequence[Contents | None]:
    if not (call.dtype(0).is_integer or call.dtype(0) is BOOL):
        return (None,)
    if call.attrs["to"] is BOOL:
        return contents.flags(contents.holds)(call)
    return contents.elementwise(lambda x: x, lambda c: c.attrs["to"])(call)


def _cast_samples() -> Iterable[Sample]:
    x = np.array([-2.5, -1.0, -0.0, 0.4, 1.5, 100.0], np.float32)
    for to in (F64, F16, BF16, I64, I32, I8, BOOL):
        yield Sample((x,), {"to": to})
    yield Sample((np.array([[1, 0], [-3, 300]]),), {"to": U8})
    yield Sample((np.array(True),), {"to": F32})
    for name in _SATURATING:
        for saturate in (True, False):
            yield Sample((np.array([1.0, 1e6, -np.inf, np.nan], np.float32),), {"to": DTYPES[name], "saturate": saturate})
    for name in ("f4e2m1", "i4", "u4"):
        yield Sample((np.array([0.0, 1.0, 2.0, 6.0], np.float32),), {"to": DTYPES[name]})


define(
    OpDef(
        "cast", _cast_infer, cast, Pattern.ELEMENTWISE, "the same numbers as another element type", scalar="x",
        contents=_cast_contents, flops=flops_per_element(1), torch=("aten._to_copy.default",), samples=_cast_samples,
    )
)  # fmt: skip


def bitcast(x: Array, *, to: DType) -> Array:
    return np.asarray(x).view(to.numpy)


def _bitcast_infer(call: Call) -> Sequence[Type]:
    source, to = call.dtype(0), call.attrs["to"]
    if STRING in (source, to) or source.bits != to.bits:
        raise call.fail(f"the bits of {source} cannot be read as {to}: the widths must be equal")
    return (TensorType(to, call.shape(0)),)


define(
    OpDef(
        "bitcast", _bitcast_infer, bitcast, Pattern.MOVEMENT, "the same bits read as another type of the same width",
        flops=no_flops, view=True, torch=("aten.view.dtype",),
        samples=lambda: [
            Sample((np.array([1.0, -2.5], np.float32),), {"to": I32}),
            Sample((np.array([[255, 1]], np.uint8),), {"to": I8}),
        ],
    )
)  # fmt: skip


def spread(scale: Array, like: Array, axis: int, block: int) -> Array:
    """Scales (or zero points) in a shape that broadcasts with `like`."""
    if scale.size == 1 and block == 0:
        return scale.reshape(())
    if block:
        return np.repeat(scale, block, axis=axis)[(slice(None),) * (axis % like.ndim) + (slice(like.shape[axis]),)]
    return scale.reshape([-1 if i == axis % like.ndim else 1 for i in range(like.ndim)])


def quantize(
    x: Array, scale: Array, zero: Array | None = None, *, to: DType, axis: int = 1, block: int = 0, saturate: bool = True
) -> Array:
    """The division is carried out in the type of the scale."""
    with np.errstate(all="ignore"):
        ratio = np.asarray(x).astype(scale.dtype) / spread(scale, x, axis, block)
        if to.is_integer:
            low = -(1 << (to.bits - 1)) if to.kind == "int" else 0
            whole = np.rint(ratio).astype(np.float32)  # exact far beyond the widest range, 16 bits
            if zero is not None:
                whole = whole + spread(zero, x, axis, block).astype(np.float32)
            return np.asarray(np.clip(whole, low, low + (1 << to.bits) - 1)).astype(to.numpy)
    return cast(ratio, to=to, saturate=saturate)


def _check_scale(call: Call, x: TensorType) -> None:
    scale = call.shape(1)
    if not call.dtype(1).is_float:
        raise call.fail(f"the scale must be a float, not {call.dtype(1)}")
    if scale is not None and x.shape is not None and scale not in ((), (1,)):
        axis = normal_axis(call, call.attrs.get("axis", 1), len(x.shape))
        if call.attrs.get("block", 0):
            if len(scale) != len(x.shape):
                raise call.fail(f"blocked scales of rank {len(scale)} do not fit {x}")
        elif len(scale) != 1 or (isinstance(scale[0], int) and isinstance(x.shape[axis], int) and scale[0] != x.shape[axis]):
            raise call.fail(f"scales of shape {scale} do not fit axis {axis} of {x}")


def _quantize_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    _check_scale(call, x)
    return (TensorType(call.attrs["to"], x.shape),)


def _quantize_samples() -> Iterable[Sample]:
    x = np.random.default_rng(0).uniform(-60, 60, (2, 4, 3)).astype(np.float32)
    one, many = np.float32(0.5).reshape(()), np.array([0.5, 0.25, 1.0, 2.0], np.float32)
    yield Sample((x, one, np.array(7, np.uint8)), {"to": U8})
    yield Sample((x, many, np.zeros(4, np.int8)), {"to": I8, "axis": 1})
    yield Sample((x, np.full((2, 2, 3), 0.5, np.float32)), {"to": I8, "axis": -2, "block": 2})
    yield Sample((x, one), {"to": DTYPES["f8e4m3fn"]})


define(
    OpDef(
        "quantize", _quantize_infer, quantize, Pattern.ELEMENTWISE, "saturate(round(x / scale) + zero), halves to even",
        flops=flops_per_element(6), samples=_quantize_samples,
    )
)  # fmt: skip


def dequantize(x: Array, scale: Array, zero: Array | None = None, *, to: DType, axis: int = 1, block: int = 0) -> Array:
    wide = np.asarray(x).astype(np.float32)
    if zero is not None:
        wide = wide - spread(zero, x, axis, block).astype(np.float32)
    factor = spread(scale, x, axis, block)
    return np.asarray(wide * factor.astype(np.float64 if to is F64 else np.float32)).astype(to.numpy)


def _dequantize_samples() -> Iterable[Sample]:
    x = np.random.default_rng(0).integers(-128, 127, (2, 4, 3)).astype(np.int8)
    one, many = np.float32(0.5).reshape(()), np.array([0.5, 0.25, 1.0, 2.0], np.float32)
    yield Sample((x, one, np.array(7, np.int8)), {"to": F32})
    yield Sample((x, many), {"to": F32, "axis": 1})
    yield Sample((x, np.full((2, 2, 3), 0.5, np.float16), np.ones((2, 2, 3), np.int8)), {"to": F16, "axis": 1, "block": 2})


define(
    OpDef(
        "dequantize", _quantize_infer, dequantize, Pattern.ELEMENTWISE, "(x - zero) * scale",
        flops=flops_per_element(2), samples=_dequantize_samples,
    )
)  # fmt: skip
