"""Reductions: fold some axes of a tensor with an associative scalar body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, contents_by_reference, define
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.movement import normal_axes
from hotfuse.ir.types import BOOL, I64, TensorType, Type, numel

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...] | None


def reduced_type(call: Call, axes: Axes, keepdims: bool) -> TensorType:
    """The type of the input with `axes` folded (all of them when None)."""
    x = call.tensor(0)
    if x.shape is None:
        return x if keepdims else TensorType(x.dtype, None)
    places = range(len(x.shape)) if axes is None else normal_axes(call, axes, len(x.shape))
    if keepdims:
        return TensorType(x.dtype, tuple(1 if i in places else d for i, d in enumerate(x.shape)))
    return TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in places))


def infer_reduction(call: Call) -> Sequence[Type]:
    return (reduced_type(call, call.attrs.get("axes"), call.attrs.get("keepdims", True)),)


def reduction_flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(0)
    return 0 if shape is None else numel(shape)


def reduction_samples() -> Iterable[Sample]:
    x = np.random.default_rng(0).uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)
    yield Sample((x,), {"axes": (1,), "keepdims": True})
    yield Sample((x,), {"axes": (0, -1), "keepdims": False})
    yield Sample((x,), {"axes": None, "keepdims": False})


def reduce_sum(x: Array, *, axes: Axes = None, keepdims: bool = True, out: Array | None = None) -> Any:
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype, out=out)


def reduce_mean(x: Array, *, axes: Axes = None, keepdims: bool = True) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        if x.dtype.kind in "iu":
            return np.mean(x, axis=axes, keepdims=keepdims).astype(x.dtype)
        return np.mean(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def reduce_max(x: Array, *, axes: Axes = None, keepdims: bool = True) -> Any:
    return np.max(x, axis=axes, keepdims=keepdims, initial=_least(x) if _empty(x, axes) else None)


def reduce_min(x: Array, *, axes: Axes = None, keepdims: bool = True) -> Any:
    return np.min(x, axis=axes, keepdims=keepdims, initial=_greatest(x) if _empty(x, axes) else None)


def reduce_prod(x: Array, *, axes: Axes = None, keepdims: bool = True) -> Any:
    return np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _empty(x: Array, axes: Axes) -> bool:
    return x.size == 0


def _least(x: Array) -> Any:
    return False if x.dtype == bool else np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf


def _greatest(x: Array) -> Any:
    return True if x.dtype == bool else np.iinfo(x.dtype).max if x.dtype.kind in "iu" else np.inf


_SUM = Loops("a + b", 0.0)
for _name, _function, _loops, _torch, _symbolic in (
    ("reduce_sum", widened(reduce_sum), _SUM, "aten.sum.dim_IntList", True),
    ("reduce_mean", widened(reduce_mean), Loops("a + b", 0.0, finish="a / n"), "aten.mean.dim", False),
    ("reduce_max", reduce_max, Loops("max(a, b)", "-inf"), "aten.amax.default", False),
    ("reduce_min", reduce_min, Loops("min(a, b)", "inf"), "aten.amin.default", False),
    ("reduce_prod", widened(reduce_prod), Loops("a * b", 1.0), "aten.prod.default", True),
):
    define(
        OpDef(
            _name, infer_reduction, _function, Pattern.REDUCTION, loops=_loops, flops=reduction_flops,
            contents=contents_by_reference if _symbolic else None, torch=(_torch,), samples=reduction_samples,
        )
    )  # fmt: skip


def infer_arg(call: Call) -> Sequence[Type]:
    axis = call.attrs.get("axis")
    found = reduced_type(call, None if axis is None else (axis,), call.attrs.get("keepdims", False))
    return (TensorType(I64, found.shape),)


def argmax(x: Array, *, axis: int | None = None, keepdims: bool = False, last: bool = False) -> Any:
    return _arg(np.argmax, x, axis, keepdims, last)


def argmin(x: Array, *, axis: int | None = None, keepdims: bool = False, last: bool = False) -> Any:
    return _arg(np.argmin, x, axis, keepdims, last)


def _arg(function: Any, x: Array, axis: int | None, keepdims: bool, last: bool) -> Any:
    if not last:
        return np.asarray(function(x, axis=axis, keepdims=keepdims), dtype=np.int64)
    size = x.size if axis is None else x.shape[axis]
    flipped = function(np.flip(x, axis), axis=axis, keepdims=keepdims)
    return np.asarray(size - 1 - flipped, dtype=np.int64)


for _name, _function in (("argmax", argmax), ("argmin", argmin)):
    define(
        OpDef(
            _name, infer_arg, _function, Pattern.REDUCTION, "place of the extreme element, the first one unless `last`",
            loops=Loops("max(a, b)" if _name == "argmax" else "min(a, b)", "-inf" if _name == "argmax" else "inf"),
            flops=reduction_flops, torch=(f"aten.{_name}.default",),
            samples=lambda: [
                Sample((np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]]),), {"axis": 1, "keepdims": False, "last": True}),
                Sample((np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]]),), {"axis": None, "keepdims": False, "last": False}),
            ],
        )
    )  # fmt: skip


def infer_any(call: Call) -> Sequence[Type]:
    return (TensorType(BOOL, reduced_type(call, call.attrs.get("axes"), call.attrs.get("keepdims", False)).shape),)


def reduce_any(x: Array, *, axes: Axes = None, keepdims: bool = False) -> Any:
    return np.any(x, axis=axes, keepdims=keepdims)


def reduce_all(x: Array, *, axes: Axes = None, keepdims: bool = False) -> Any:
    return np.all(x, axis=axes, keepdims=keepdims)


for _name, _function, _loops in (
    ("reduce_any", reduce_any, Loops("or_(a, b)", 0.0)),
    ("reduce_all", reduce_all, Loops("and_(a, b)", 1.0)),
):
    define(
        OpDef(
            _name, infer_any, _function, Pattern.REDUCTION, loops=_loops, flops=reduction_flops,
            torch=(f"aten.{_name[7:]}.dims",),
            samples=lambda: [Sample((np.array([[True, False], [True, True]]),), {"axes": (1,), "keepdims": False})],
        )
    )  # fmt: skip
