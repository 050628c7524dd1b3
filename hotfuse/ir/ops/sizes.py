"""Operators over sizes: they read shapes, not data, and their integer results are tracked symbolically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.ir.dim import Dim, ceildiv, maximum
from hotfuse.ir.op import Call, Contents, OpDef, Pattern, Sample, define
from hotfuse.ir.types import I64, TensorType, Type, numel, tensor

Array = np.ndarray[Any, Any]


def shape_of(x: Any, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(np.shape(x)[slice(start, end)], dtype=np.int64)


def _shape_of_infer(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    if shape is None:
        return (TensorType(I64, (call.fresh(),)),)
    return (tensor(I64, len(shape[slice(call.attrs.get("start", 0), call.attrs.get("end"))])),)


def _shape_of_contents(call: Call) -> Sequence[Contents | None]:
    shape = call.shape(0)
    return (None if shape is None else shape[slice(call.attrs.get("start", 0), call.attrs.get("end"))],)


define(
    OpDef(
        "shape_of", _shape_of_infer, shape_of, Pattern.SHAPE, "the sizes of the first input, axes start to end",
        contents=_shape_of_contents, flops=lambda call, types: 0,
        samples=lambda: [Sample((np.zeros((2, 3, 4)),)), Sample((np.zeros((2, 3, 4)),), {"start": 1, "end": -1})],
    )
)  # fmt: skip


def size(x: Any) -> Array:
    return np.array(np.size(x), dtype=np.int64)


def _size_contents(call: Call) -> Sequence[Contents | None]:
    shape = call.shape(0)
    return (None if shape is None else (numel(shape),),)


define(
    OpDef(
        "size", lambda call: (tensor(I64),), size, Pattern.SHAPE, "how many elements the input has",
        contents=_size_contents, flops=lambda call, types: 0, onnx=("Size",), samples=lambda: [Sample((np.zeros((2, 3)),))],
    )
)  # fmt: skip


def dims(*, dims: tuple[Dim, ...], scalar: bool = False) -> Array:
    if not all(isinstance(d, int) for d in dims):
        raise InvalidModel(f"the sizes {dims} are not all known; a plan resolves them when it is bound")
    array = np.array(dims, dtype=np.int64)
    return array.reshape(()) if scalar else array


def _dims_infer(call: Call) -> Sequence[Type]:
    return (tensor(I64) if call.attrs.get("scalar") else tensor(I64, len(call.attrs["dims"])),)


define(
    OpDef(
        "dims", _dims_infer, dims, Pattern.SHAPE, "an int64 tensor of sizes, known once the input shapes are",
        contents=lambda call: (tuple(call.attrs["dims"]),), flops=lambda call, types: 0,
        samples=lambda: [Sample((), {"dims": (2, 3)}), Sample((), {"dims": (7,), "scalar": True})],
    )
)  # fmt: skip


def arange(start: Array, limit: Array, step: Array) -> Array:
    return np.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)


def _arange_count(call: Call) -> Dim | None:
    ends = [call.contents(i) for i in range(3)]
    if any(e is None for e in ends):
        return None
    start, limit, step = (e[0] for e in ends if e is not None)
    if not isinstance(step, int) or step == 0:
        return None
    return maximum(ceildiv(limit - start, step), 0)


def _arange_infer(call: Call) -> Sequence[Type]:
    count = _arange_count(call)
    return (TensorType(call.dtype(0), (call.fresh() if count is None else count,)),)


def _arange_contents(call: Call) -> Sequence[Contents | None]:
    numbers = [call.ints(i) for i in range(3)]
    if any(n is None for n in numbers):
        return (None,)
    start, limit, step = (n[0] for n in numbers if n is not None)
    found = range(start, limit, step)
    return (tuple(found) if len(found) <= 256 else None,)


define(
    OpDef(
        "arange", _arange_infer, arange, Pattern.SOURCE, "start, start + step, ... up to but not including limit",
        contents=_arange_contents, flops=lambda call, types: 0, onnx=("Range",),
        samples=lambda: [Sample((np.array(1), np.array(9), np.array(3)))],
    )
)  # fmt: skip
