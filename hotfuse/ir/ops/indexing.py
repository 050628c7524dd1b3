"""Operators that read or write at places given as data. Negative places count from the end; places outside are refused.

gather           y[i.., j.., k..] = x[i.., indices[j..], k..]
gather_elements  y[i, j, k] = x[i, indices[i, j, k], k]
gather_nd        y[b.., j.., k..] = x[b.., *indices[b.., j..], k..]
scatter_*        a copy of x with updates written to (or folded with what is at) the places the gather would read
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, Contents, OpDef, Pattern, Sample, contents_by_reference, define
from hotfuse.ir.ops.movement import no_flops, normal_axis
from hotfuse.ir.types import Shape, TensorType, Type

Array = np.ndarray[Any, Any]

FOLDS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _places(indices: Array) -> Array:
    return indices if indices.dtype == np.int64 else indices.astype(np.int64)


def _tracked(*known: int) -> Callable[[Call], Sequence[Contents | None]]:
    """Contents by the reference, where the inputs `known` (places, not data) are plain numbers."""

    def contents(call: Call) -> Sequence[Contents | None]:
        if any(call.ints(i) is None for i in known) or call.attrs.get("reduction", "none") != "none":
            return (None,)
        return contents_by_reference(call)

    return contents


def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    return np.asarray(np.take(x, _places(indices), axis=axis))


def _gather_infer(call: Call) -> Sequence[Type]:
    x, indices = call.tensor(0), call.shape(1)
    if not call.dtype(1).is_integer:
        raise call.fail(f"places must be integers, not {call.dtype(1)}")
    if x.shape is None or indices is None:
        return (TensorType(x.dtype, None),)
    axis = normal_axis(call, call.attrs.get("axis", 0), len(x.shape))
    if not x.shape:
        raise call.fail("a scalar has no axis to read along")
    _refuse_outside(call, x.shape[axis], call.ints(1))
    return (TensorType(x.dtype, (*x.shape[:axis], *indices, *x.shape[axis + 1 :])),)


def _refuse_outside(call: Call, size: Dim, places: Sequence[int] | None) -> None:
    for place in places or ():
        if isinstance(size, int) and not -size <= place < size:
            raise call.fail(f"place {place} is outside of {size} elements")


define(
    OpDef(
        "gather", _gather_infer, gather, Pattern.GATHER, "slices of x along an axis, at the given places",
        contents=_tracked(1), flops=no_flops,
        samples=lambda: [
            Sample((np.arange(12.0).reshape(3, 4), np.array([[0, -1], [2, 2]])), {"axis": 1}),
            Sample((np.arange(12.0).reshape(3, 4), np.array(1)), {"axis": 0}),
            Sample((np.zeros((3, 4)), np.zeros((0,), np.int32)), {"axis": 0}),
        ],
    )
)  # fmt: skip


def gather_elements(x: Array, indices: Array, *, axis: int) -> Array:
    where = tuple(slice(0, d) if i != axis % x.ndim else slice(None) for i, d in enumerate(indices.shape))
    return np.take_along_axis(x[where], _places(indices), axis)


def _elements_infer(call: Call) -> Sequence[Type]:
    x, indices = call.tensor(0), call.shape(1)
    if not call.dtype(1).is_integer:
        raise call.fail(f"places must be integers, not {call.dtype(1)}")
    if x.shape is not None:
        axis = normal_axis(call, call.attrs["axis"], len(x.shape))
        if indices is not None and len(indices) != len(x.shape):
            raise call.fail(f"places of rank {len(indices)} do not fit a tensor of rank {len(x.shape)}")
        for other, (size, wanted) in enumerate(zip(x.shape, indices or x.shape, strict=True)):
            if other != axis and isinstance(size, int) and isinstance(wanted, int) and wanted > size:
                raise call.fail(f"there are places for {wanted} slices along axis {other}, and x has {size}")
        if len(x.shape) == 1:
            _refuse_outside(call, x.shape[axis], call.ints(1))
    return (TensorType(x.dtype, indices),)


define(
    OpDef(
        "gather_elements", _elements_infer, gather_elements, Pattern.GATHER, "one element of x for each place, along an axis",
        contents=_tracked(1), flops=no_flops, samples=lambda: [
            Sample((np.arange(12.0).reshape(3, 4), np.array([[0, -1], [3, 1]])), {"axis": 1}),
            Sample((np.arange(12.0).reshape(3, 4), np.array([[0, -1, 2, 2]])), {"axis": 0}),
        ],
    )
)  # fmt: skip


def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    places = _places(indices)
    batch = np.ogrid[tuple(slice(0, d) for d in x.shape[:batch_dims])] if batch_dims else []
    inner = places.ndim - 1 - batch_dims
    spread = [b.reshape(b.shape + (1,) * inner) for b in batch]
    return np.array(x[(*spread, *(places[..., i] for i in range(places.shape[-1])))])


def _gather_nd_infer(call: Call) -> Sequence[Type]:
    x, indices = call.tensor(0), call.shape(1)
    if x.shape is None or not indices or not isinstance(indices[-1], int):
        return (TensorType(x.dtype, None),)
    used = call.attrs.get("batch_dims", 0) + indices[-1]
    if used > len(x.shape):
        raise call.fail(f"places of {indices[-1]} numbers do not fit a tensor of rank {len(x.shape)}")
    return (TensorType(x.dtype, (*indices[:-1], *x.shape[used:])),)


define(
    OpDef(
        "gather_nd", _gather_nd_infer, gather_nd, Pattern.GATHER, "slices of x at places of several numbers each",
        flops=no_flops,
        samples=lambda: [
            Sample((np.arange(24.0).reshape(2, 3, 4), np.array([[0, -1], [1, 2]]))),
            Sample((np.arange(24.0).reshape(2, 3, 4), np.array([[[1], [0]], [[2], [2]]])), {"batch_dims": 1}),
        ],
    )
)  # fmt: skip


def _write(result: Array, where: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        result[where] = updates
    else:
        FOLDS[reduction].at(result, where, updates)
    return result


def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int, reduction: str = "none") -> Array:
    where: list[Any] = list(np.ogrid[tuple(slice(0, d) for d in indices.shape)]) if indices.ndim else []
    if x.ndim:
        where[axis] = _places(indices)
    return _write(x.copy(), tuple(where), updates, reduction)


def _scatter_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    reduction = call.attrs.get("reduction", "none")
    if reduction != "none" and reduction not in FOLDS:
        raise call.fail(f"there is no reduction {reduction!r}; there are none, {', '.join(FOLDS)}")
    if not call.dtype(1).is_integer:
        raise call.fail(f"places must be integers, not {call.dtype(1)}")
    if call.dtype(2) != x.dtype:
        raise call.fail(f"updates are {call.dtype(2)}, the tensor {x.dtype}")
    if x.shape is not None and "axis" in call.attrs:
        normal_axis(call, call.attrs["axis"], len(x.shape))
        _fits(call, call.shape(1), call.shape(2))
    return (x,)


def _fits(call: Call, indices: Shape | None, updates: Shape | None) -> None:
    if indices is None or updates is None:
        return
    same = len(indices) == len(updates) and all(
        NO_FACTS.decide(a, b) is not False for a, b in zip(indices, updates, strict=True)
    )
    if not same:
        raise call.fail(f"there are places for {list(indices)} elements, but updates of shape {list(updates)}")


define(
    OpDef(
        "scatter_elements", _scatter_infer, scatter_elements, Pattern.SCATTER,
        "updates written to one place each along an axis", contents=_tracked(1), flops=no_flops,
        samples=lambda: [
            Sample((np.zeros((3, 3)), np.array([[1, 0, 2], [0, 2, -2]]), np.arange(6.0).reshape(2, 3)), {"axis": 0}),
            *(
                Sample((np.ones((1, 5)), np.array([[1, 1]]), np.array([[3.0, 0.5]])), {"axis": 1, "reduction": r})
                for r in FOLDS
            ),
        ],
    )
)  # fmt: skip


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    places = _places(indices)
    return _write(x.copy(), tuple(places[..., i] for i in range(places.shape[-1])), updates, reduction)


def _scatter_nd_infer(call: Call) -> Sequence[Type]:
    (found,) = _scatter_infer(call)
    x, indices = call.shape(0), call.shape(1)
    if x is not None and indices and isinstance(indices[-1], int):
        if indices[-1] > len(x):
            raise call.fail(f"places of {indices[-1]} numbers do not fit a tensor of rank {len(x)}")
        _fits(call, (*indices[:-1], *x[indices[-1] :]), call.shape(2))
    return (found,)


define(
    OpDef(
        "scatter_nd", _scatter_nd_infer, scatter_nd, Pattern.SCATTER, "updates written to places of several numbers each",
        flops=no_flops,
        samples=lambda: [
            Sample((np.zeros((4, 3)), np.array([[3], [1]]), np.arange(6.0).reshape(2, 3))),
            *(Sample((np.ones(8), np.array([[4], [4], [-1]]), np.array([9.0, 0.5, 2.0])), {"reduction": r}) for r in FOLDS),
        ],
    )
)  # fmt: skip


def cache_update(x: Array, update: Array, starts: Array | None = None, *, axis: int = -2, circular: bool = False) -> Array:
    """`update[b]` written along `axis` from `starts[b]` on; round the end when circular."""
    result = x.copy()
    target, source = np.moveaxis(result, axis, 1), np.moveaxis(update, axis, 1)
    steps, size = np.arange(source.shape[1]), target.shape[1]
    for b in range(len(target)):
        places = steps if starts is None else steps + int(starts[b])
        target[b, places % size if circular else places] = source[b]
    return result


def _cache_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if call.dtype(1) != x.dtype:
        raise call.fail(f"the update is {call.dtype(1)}, the cache {x.dtype}")
    if x.shape is not None and normal_axis(call, call.attrs.get("axis", -2), len(x.shape)) == 0:
        raise call.fail("axis 0 is the batch; the update must run along another axis")
    return (x,)


define(
    OpDef(
        "cache_update", _cache_infer, cache_update, Pattern.SCATTER, "each batch's update written from its own start on",
        flops=no_flops,
        samples=lambda: [
            Sample((np.zeros((2, 4, 3)), np.arange(12.0).reshape(2, 2, 3), np.array([1, 3])), {"axis": 1, "circular": True}),
            Sample((np.zeros((2, 4, 3)), np.arange(12.0).reshape(2, 2, 3)), {"axis": -2}),
        ],
    )
)  # fmt: skip


def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """`values` holds what stands everywhere, then what stands at the index; indices outside mark nothing."""
    count, rank = int(depth.item()), indices.ndim + 1
    ladder = np.arange(count).reshape([count if i == axis % rank else 1 for i in range(rank)])
    places = np.expand_dims(np.where(indices < 0, indices + count, indices), axis)
    return np.asarray(np.where(ladder == places, values[1], values[0]))


def _one_hot_infer(call: Call) -> Sequence[Type]:
    shape, depth = call.shape(0), call.contents(1)
    if shape is None:
        return (TensorType(call.dtype(2), None),)
    if depth is not None and isinstance(depth[0], int) and depth[0] < 0:
        raise call.fail(f"the depth {depth[0]} is negative")
    axis = normal_axis(call, call.attrs.get("axis", -1), len(shape) + 1)
    return (TensorType(call.dtype(2), (*shape[:axis], call.fresh() if depth is None else depth[0], *shape[axis:])),)


define(
    OpDef(
        "one_hot", _one_hot_infer, one_hot, Pattern.GATHER, "one marked element for each index, along a new axis",
        flops=no_flops,
        samples=lambda: [
            Sample((np.array([0, 2, -1, 9]), np.array(3), np.array([0.0, 5.0], np.float32)), {"axis": -1}),
            Sample((np.array([[0, 2]]), np.array(4), np.array([1, 7])), {"axis": 1}),
        ],
    )
)  # fmt: skip
