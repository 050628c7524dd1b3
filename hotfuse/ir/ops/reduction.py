"""Reductions: fold some axes of a tensor (`axes`; None: all of them) with an associative scalar body."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir import contents
from hotfuse.ir.dim import Dim
from hotfuse.ir.op import Call, Contents, Loops, OpDef, Pattern, Sample, contents_by_reference, define
from hotfuse.ir.ops.elementwise import infer_float, widened
from hotfuse.ir.ops.movement import normal_axes
from hotfuse.ir.types import BOOL, I64, TensorType, Type, numel

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...] | None


def reduced_type(call: Call, axes: Axes, keepdims: bool) -> TensorType:
    """The type of the input with `axes` folded (all of them when None)."""
    x = call.tensor(0)
    if x.shape is None:
        return x if keepdims else TensorType(x.dtype, () if axes is None else None)
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
    yield Sample((x,), {"axes": (), "keepdims": False})


def _over_axes(fold: Callable[..., Any]) -> Callable[..., Any]:
    """A reference from `fold(x, axes, keepdims, out)`."""

    def run(x: Array, *, axes: Axes = None, keepdims: bool = True, out: Array | None = None) -> Any:
        with np.errstate(all="ignore"):
            return fold(x, axes, keepdims, out)

    return widened(run)


def _sum(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype, out=out)


def _prod(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    return np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype, out=out)


def _mean(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    """The mean of no elements is NaN; of whole numbers it is cut toward zero."""
    count = math.prod(x.shape[a] for a in (range(x.ndim) if axes is None else axes))
    if x.dtype.kind in "iu":
        return np.trunc(np.sum(x, axis=axes, keepdims=keepdims, dtype=np.float64) / count).astype(x.dtype)
    return np.divide(np.sum(x, axis=axes, keepdims=keepdims, out=out), x.dtype.type(count), out=out)


def _max(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    return _extreme(np.max, x, axes, keepdims, out, least=True)


def _min(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    return _extreme(np.min, x, axes, keepdims, out, least=False)


def _extreme(fold: Any, x: Array, axes: Axes, keepdims: bool, out: Array | None, least: bool) -> Any:
    """Of no elements: the least (greatest) number there is."""
    if x.size:
        return fold(x, axis=axes, keepdims=keepdims, out=out)
    if x.dtype == bool:
        start: Any = not least
    elif x.dtype.kind in "iu":
        start = np.iinfo(x.dtype).min if least else np.iinfo(x.dtype).max
    else:
        start = -np.inf if least else np.inf
    return fold(x, axis=axes, keepdims=keepdims, out=out, initial=start)


def _logsumexp(x: Array, axes: Axes, keepdims: bool, out: Array | None) -> Any:
    """log(sum(exp(x))), shifted by the largest element so that nothing overflows."""
    if not x.size:
        return np.log(np.sum(x, axis=axes, keepdims=keepdims, out=out), out=out)
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=keepdims))
    return np.add(total, top.reshape(np.shape(total)), out=out)


def _track(call: Call) -> Sequence[Contents | None]:
    (found,) = contents_by_reference(call)
    return (None if found is None else tuple(contents.fit(d, call.dtype(0)) for d in found),)


def infer_float_reduction(call: Call) -> Sequence[Type]:
    infer_float(call)
    return infer_reduction(call)


for _name, _fold, _loops, _torch, _infer, _tracked in (
    ("reduce_sum", _sum, Loops("a + b", 0.0), "aten.sum.dim_IntList", infer_reduction, _track),
    ("reduce_mean", _mean, Loops("a + b", 0.0, finish="a / n"), "aten.mean.dim", infer_reduction, None),
    ("reduce_max", _max, Loops("max(a, b)", "-inf"), "aten.amax.default", infer_reduction, None),
    ("reduce_min", _min, Loops("min(a, b)", "inf"), "aten.amin.default", infer_reduction, None),
    ("reduce_prod", _prod, Loops("a * b", 1.0), "aten.prod.default", infer_reduction, _track),
    (
        "logsumexp", _logsumexp, Loops("a + b", 0.0, map="exp(x)", finish="log(a)"), "aten.logsumexp.default",
        infer_float_reduction, None,
    ),
):  # fmt: skip
    define(
        OpDef(
            _name, _infer, _over_axes(_fold), Pattern.REDUCTION, loops=_loops, flops=reduction_flops, contents=_tracked,
            torch=(_torch,), samples=reduction_samples,
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


for _name, _arg_function in (("argmax", argmax), ("argmin", argmin)):
    define(
        OpDef(
            _name, infer_arg, _arg_function, Pattern.REDUCTION, "place of the extreme element, the first one unless `last`",
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


for _name, _flag_function, _loops in (
    ("reduce_any", reduce_any, Loops("or_(a, b)", 0.0)),
    ("reduce_all", reduce_all, Loops("and_(a, b)", 1.0)),
):
    define(
        OpDef(
            _name, infer_any, _flag_function, Pattern.REDUCTION, loops=_loops, flops=reduction_flops,
            torch=(f"aten.{_name[7:]}.dims",),
            samples=lambda: [Sample((np.array([[True, False], [True, True]]),), {"axes": (1,), "keepdims": False})],
        )
    )  # fmt: skip
