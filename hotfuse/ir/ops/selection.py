"""Operators that sort and select: the order of the results depends on the data, of some also their number.

Equal elements keep their order; NaN counts as the greatest element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define
from hotfuse.ir.ops.movement import no_flops, normal_axis
from hotfuse.ir.types import I64, TensorType, Type, numel

Array = np.ndarray[Any, Any]


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The places of the elements in order along `axis`."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backward = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backward, axis))


def sort(x: Array, *, axis: int = -1, descending: bool = False, stable: bool = True) -> tuple[Array, Array]:
    if not x.ndim:
        return x.copy(), np.zeros((), np.int64)
    order = order_of(x, axis, descending)
    return np.take_along_axis(x, order, axis), order


def _sort_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape:
        normal_axis(call, call.attrs.get("axis", -1), len(x.shape))
    return (x, TensorType(I64, x.shape))


define(
    OpDef(
        "sort", _sort_infer, sort, Pattern.OTHER, "the elements in order along an axis, and where they were",
        flops=no_flops,
        samples=lambda: [
            Sample((np.array([[3, 1, 3, 2], [0, 0, 9, 9]]),), {"axis": 1, "descending": True}),
            Sample((np.array([[3.0, 1.0], [np.nan, 0.0]]),), {"axis": 0}),
        ],
    )
)  # fmt: skip


def topk(x: Array, k: Array, *, axis: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    order = order_of(x, axis, largest)
    count = int(k.item())
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"{count} elements are asked for, axis {axis} has {x.shape[axis]}")
    order = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, order, axis), order


def _topk_infer(call: Call) -> Sequence[Type]:
    x, k = call.tensor(0), call.contents(1)
    if x.shape is None:
        return (x, TensorType(I64, None))
    axis = normal_axis(call, call.attrs.get("axis", -1), len(x.shape))
    count: Dim = call.fresh() if k is None else k[0]
    size = x.shape[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise call.fail(f"{count} elements are asked for, axis {axis} of {x} has {size}")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(I64, shape))


define(
    OpDef(
        "topk", _topk_infer, topk, Pattern.OTHER, "the k greatest or least elements along an axis, in order, and their places",
        flops=no_flops,
        samples=lambda: [
            Sample((np.array([[3, 1, 3, 2], [0, 0, 9, 9]]), np.array([3])), {"axis": 1, "largest": True}),
            Sample((np.array([[3.0, 1.0], [2.0, 0.0]]), np.array(1)), {"axis": 0, "largest": False}),
        ],
    )
)  # fmt: skip


def nonzero(x: Array) -> Array:
    if not x.ndim:
        return np.zeros((0, int(bool(x))), dtype=np.int64)
    return np.stack(np.nonzero(x)).astype(np.int64, copy=False)


def _nonzero_infer(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    return (TensorType(I64, (call.fresh() if shape is None else len(shape), call.fresh())),)


define(
    OpDef(
        "nonzero", _nonzero_infer, nonzero, Pattern.OTHER, "the places of all elements that are not zero, one row per axis",
        flops=no_flops,
        samples=lambda: [Sample((np.array([[1, 0], [0, 3]]),)), Sample((np.array(2.0),)), Sample((np.zeros((2, 0)),))],
    )
)  # fmt: skip


def unique(x: Array, *, axis: int | None = None, sorted: bool = True) -> tuple[Array, Array, Array, Array]:
    """The distinct elements (slices along `axis`), where each first is, which one each element is, how often each is."""
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return values, *(a.astype(np.int64, copy=False) for a in (first, inverse, counts))  # type: ignore[return-value]


def _unique_infer(call: Call) -> Sequence[Type]:
    x, axis = call.tensor(0), call.attrs.get("axis")
    found = call.fresh()
    numbers = TensorType(I64, (found,))
    if x.shape is None:
        values = TensorType(x.dtype, (found,) if axis is None else None)
        return (values, numbers, TensorType(I64, (call.fresh(),)), numbers)
    if axis is None:
        return (TensorType(x.dtype, (found,)), numbers, TensorType(I64, (numel(x.shape),)), numbers)
    axis = normal_axis(call, axis, len(x.shape))
    values = TensorType(x.dtype, (*x.shape[:axis], found, *x.shape[axis + 1 :]))
    return (values, numbers, TensorType(I64, (x.shape[axis],)), numbers)


define(
    OpDef(
        "unique", _unique_infer, unique, Pattern.OTHER, "distinct elements, in order or as they first appear",
        flops=no_flops,
        samples=lambda: [
            Sample((np.array([2.0, 1.0, 1.0, 3.0, 2.0]),), {"sorted": False}),
            Sample((np.array([[1, 0], [1, 0], [2, 3]]),), {"axis": 0}),
        ],
    )
)  # fmt: skip
