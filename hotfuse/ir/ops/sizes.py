"""Operators over sizes: they read shapes, not data, and their integer results are tracked symbolically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.ir.contents import fit
from hotfuse.ir.dim import Dim, ceildiv, maximum
from hotfuse.ir.op import Call, Contents, OpDef, Pattern, Sample, define
from hotfuse.ir.ops.movement import few_elements
from hotfuse.ir.types import F32, I64, DType, TensorType, Type, numel, tensor

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
    array = np.array([fit(d, I64) for d in dims], dtype=np.int64)  # the arithmetic that `dims` stands for wraps around
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
    if not isinstance(step, int):
        return None
    if step == 0:
        raise call.fail("a step of 0 never reaches the limit")
    return maximum(ceildiv(limit - start, step), 0)


def _arange_infer(call: Call) -> Sequence[Type]:
    count = _arange_count(call)
    return (TensorType(call.dtype(0), (call.fresh() if count is None else count,)),)


def _arange_contents(call: Call) -> Sequence[Contents | None]:
    count, start, step = _arange_count(call), call.contents(0), call.contents(2)
    if not isinstance(count, int) or not few_elements((count,)) or start is None or step is None:
        return (None,)
    return (tuple(start[0] + i * step[0] for i in range(count)),)


define(
    OpDef(
        "arange", _arange_infer, arange, Pattern.SOURCE, "start, start + step, ... up to but not including limit",
        contents=_arange_contents, flops=lambda call, types: 0,
        samples=lambda: [Sample((np.array(1), np.array(9), np.array(3))), Sample((np.array(5), np.array(1), np.array(-2)))],
    )
)  # fmt: skip


def full(shape: Array, *, value: complex, dtype: DType) -> Array:
    return np.full(tuple(int(d) for d in shape), value, dtype=dtype.numpy)


def _shaped(call: Call, dtype: DType) -> TensorType:
    """The type of a tensor whose shape is input 0."""
    shape = call.contents(0)
    if shape is None:
        rank = (call.shape(0) or (None,))[0]
        return TensorType(dtype, call.unknown(rank if isinstance(rank, int) else None))
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise call.fail(f"the shape {shape} has a negative size")
    return TensorType(dtype, shape)


def _full_contents(call: Call) -> Sequence[Contents | None]:
    shape = call.ints(0)
    return ((int(call.attrs["value"]),) * int(numel(shape)) if shape is not None and few_elements(shape) else None,)  # type: ignore[arg-type]


define(
    OpDef(
        "full", lambda call: (_shaped(call, call.attrs["dtype"]),), full, Pattern.SOURCE, "a tensor of one value",
        contents=_full_contents, flops=lambda call, types: 0,
        samples=lambda: [
            Sample((np.array([2, 3]),), {"value": 1.5, "dtype": F32}),
            Sample((np.array([], np.int64),), {"value": 7, "dtype": I64}),
        ],
    )
)  # fmt: skip


def eye(shape: Array, *, dtype: DType, k: int = 0) -> Array:
    rows, columns = (int(d) for d in shape)
    return np.eye(rows, columns, k, dtype=dtype.numpy)


def _eye_infer(call: Call) -> Sequence[Type]:
    found = _shaped(call, call.attrs["dtype"])
    if found.shape is not None and len(found.shape) != 2:
        raise call.fail(f"a diagonal needs two axes, not the shape {list(found.shape)}")
    return (found,)


define(
    OpDef(
        "eye", _eye_infer, eye, Pattern.SOURCE, "ones on the k-th diagonal, zeros elsewhere", flops=lambda call, types: 0,
        samples=lambda: [Sample((np.array([3, 4]),), {"dtype": F32, "k": 1})],
    )
)  # fmt: skip
