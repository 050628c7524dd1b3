"""ATen operators that read or write at places given as data, and those that sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.frontends.torch_node import Decline, Imported, TorchNode, aten, axis_of, dtype_of_value, rank_of, shape_of_value
from hotfuse.frontends.torch_ops.movement import permuted
from hotfuse.ir.graph import Value
from hotfuse.ir.op import broadcast_shapes
from hotfuse.ir.types import I64, Shape
from hotfuse.records import dataclass

_SCALAR = Decline("of a scalar")


@aten("aten.embedding.default")
def embedding(n: TorchNode, weight: Value, indices: Value, *rest: Any) -> Imported:
    return n.add("gather", weight, indices, axis=0)


@aten("aten.index_select.default")
def index_select(n: TorchNode, x: Value, dim: int, index: Value) -> Imported:
    if rank_of(x) == 0 or rank_of(index) != 1:
        return _SCALAR
    return n.add("gather", x, index, axis=axis_of(dim, rank_of(x)))


@dataclass(frozen=True)
class Places:
    """Integer indices of neighbouring axes, as places of several numbers each. `axes` moves the indexed axes of the tensor
    to the
    front; `result_axes` does so for the places' own axes in a result, where they stand in for the indexed ones."""

    value: Value
    shape: Shape
    axes: tuple[int, ...]
    result_axes: tuple[int, ...]


def places_of(n: TorchNode, x: Value, indices: Sequence[Value | None]) -> Places | Decline:
    given = [(axis, value) for axis, value in enumerate(indices) if value is not None]
    if not given or any(not dtype_of_value(v).is_integer for _, v in given):
        return Decline("a mask chooses the elements")
    first, count, rank = given[0][0], len(given), rank_of(x)
    if [axis for axis, _ in given] != list(range(first, first + count)):
        return Decline("indices of axes that are apart")
    shape = broadcast_shapes(*(shape_of_value(v) for _, v in given))
    assert shape is not None
    wide = len(shape)
    parts = [n.add("unsqueeze", n.add("expand", n.cast(v, I64), n.dims(shape)), axes=(wide,)) for _, v in given]
    axes = (*range(first, first + count), *range(first), *range(first + count, rank))
    result_axes = (*range(first, first + wide), *range(first), *range(first + wide, wide + rank - count))
    return Places(n.add("concat", *parts, axis=wide), shape, axes, result_axes)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@aten("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(n: TorchNode, x: Value, indices: Sequence[Value | None]) -> Imported:
    """One index along one axis is a gather; indices of neighbouring axes are places of several numbers each."""
    given = [(axis, value) for axis, value in enumerate(indices) if value is not None]
    if len(given) == 1 and dtype_of_value(given[0][1]).is_integer:
        ((axis, only),) = given
        return n.add("gather", x, only, axis=axis)
    places = places_of(n, x, indices)
    if isinstance(places, Decline):
        return places
    found = n.add("gather_nd", permuted(n, x, places.axes), places.value, batch_dims=0)
    return permuted(n, found, _inverse(places.result_axes))


@aten("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(n: TorchNode, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Imported:
    places = places_of(n, x, indices)
    if isinstance(places, Decline):
        return places
    leading = permuted(n, x, places.axes)
    count = len([v for v in indices if v is not None])
    target = (*places.shape, *shape_of_value(leading)[count:])
    whole = tuple(target[i] for i in _inverse(places.result_axes))
    updates = permuted(n, n.add("expand", n.cast(values, n.dtype), n.dims(whole)), places.result_axes)
    found = n.add("scatter_nd", leading, places.value, updates, reduction="add" if accumulate else "none")
    return permuted(n, found, _inverse(places.axes))


@aten("aten.gather.default")
def gather(n: TorchNode, x: Value, dim: int, places: Value, sparse: bool) -> Imported:
    if rank_of(x) == 0 or rank_of(places) == 0:
        return _SCALAR
    return n.add("gather_elements", x, places, axis=axis_of(dim, rank_of(x)))


@aten("aten.scatter.src", "aten.scatter.value")
def scatter(n: TorchNode, x: Value, dim: int, places: Value, source: Any) -> Imported:
    return _scatter(n, x, dim, places, source, "none")


@aten("aten.scatter_add.default")
def scatter_add(n: TorchNode, x: Value, dim: int, places: Value, source: Value) -> Imported:
    return _scatter(n, x, dim, places, source, "add")


def _scatter(n: TorchNode, x: Value, dim: int, places: Value, source: Any, reduction: str) -> Imported:
    if rank_of(x) == 0 or rank_of(places) == 0:
        return _SCALAR
    if isinstance(source, Value):
        if shape_of_value(source) != shape_of_value(places):
            return Decline("only part of the source is used")
        updates = n.cast(source, n.dtype)
    else:
        updates = n.add("expand", n.number(source, n.dtype), n.dims(shape_of_value(places)))
    return n.add("scatter_elements", x, places, updates, axis=axis_of(dim, rank_of(x)), reduction=reduction)


@aten("aten.topk.default")
def topk(n: TorchNode, x: Value, k: Any, dim: int, largest: bool, ordered: bool) -> Imported:
    if rank_of(x) == 0:
        return _SCALAR
    attrs = {"axis": axis_of(dim, rank_of(x)), "largest": bool(largest), "sorted": bool(ordered)}
    return n.add_many("topk", (x, n.dims((k,))), 2, **attrs)


@aten("aten.sort.default")
def sort(n: TorchNode, x: Value, dim: int, descending: bool) -> Imported:
    return n.add_many("sort", (x,), 2, axis=axis_of(dim, rank_of(x)), descending=bool(descending), stable=True)


@aten("aten.sort.stable")
def stable_sort(n: TorchNode, x: Value, stable: bool | None, dim: int, descending: bool) -> Imported:
    return n.add_many("sort", (x,), 2, axis=axis_of(dim, rank_of(x)), descending=bool(descending), stable=True)


@aten("aten.roll.default")
def roll(n: TorchNode, x: Value, shifts: Any, dims: Any) -> Imported:
    if not all(isinstance(s, int) for s in shifts) or rank_of(x) == 0:
        return Decline("the shift depends on sizes")
    axes = tuple(axis_of(d, rank_of(x)) for d in dims) if dims else None
    if axes is not None and len(set(axes)) != len(axes):
        return Decline("one axis is rolled twice")
    return n.add("roll", x, shifts=tuple(shifts), axes=axes)
