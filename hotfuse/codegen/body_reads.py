"""Operators that are reads with access maps of their own, or that look at where a point is. `READING` is the list of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hotfuse.codegen.body import Limit, Lookup, Number, Place
from hotfuse.codegen.tile import Fill
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Node
from hotfuse.ir.layout import Layout
from hotfuse.ir.types import I64, Shape

if TYPE_CHECKING:
    from hotfuse.codegen.body_builder import BodyBuilder


def _concat(b: BodyBuilder, node: Node) -> None:
    """Each input at its own points; what is computed for an input is computed there."""
    axis = node.attrs["axis"] % len(b.type(node.id).shape or ()) + len(b.domain) - len(b.type(node.id).shape or ())
    found = ""
    start: Dim = 0
    for name in node.uses:
        shape = b.type(name).shape
        assert shape is not None
        size = shape[axis - len(b.domain)]
        own = b.part_of(axis, start, size)
        for maker in b.makers(name):
            own.add(maker)
        step = own.step(name)
        found = step if not found else b.where(b.limit(axis, start, size), step, found)
        start = start + size
    b.held[node.id] = found


def _gather(b: BodyBuilder, node: Node) -> None:
    """A read that moves with an index read before it."""
    source, places = (b.layouts[n] for n in node.uses)
    axis = node.attrs.get("axis", 0) % len(source.shape)
    none: tuple[Dim, ...] = (0,) * len(places.shape)
    through = (*source.strides[:axis], *none, *source.strides[axis + 1 :])
    index = (*(0,) * axis, *places.strides, *(0,) * (len(source.shape) - axis - 1))
    _look_up(b, node, through, index, axis)


def _gather_elements(b: BodyBuilder, node: Node) -> None:
    """A read whose place along one axis is an index, which has a place of its own for every point."""
    source, places = (b.layouts[n] for n in node.uses)
    axis = node.attrs.get("axis", 0) % len(source.shape)
    through = tuple(0 if a == axis else stride for a, stride in enumerate(source.strides))
    _look_up(b, node, through, places.strides, axis)


def _gather_nd(b: BodyBuilder, node: Node) -> None:
    """A read whose places along several axes are indices that lie side by side."""
    source, places = (b.layouts[n] for n in node.uses)
    batch, count = node.attrs.get("batch_dims", 0), places.shape[-1]
    if not isinstance(count, int):
        raise TileError("indices of as many numbers as only run time tells are left to tier 0")
    rest = source.strides[batch + count :]
    through = (*source.strides[:batch], *(0,) * (len(places.shape) - 1 - batch), *rest)
    index = (*places.strides[:-1], *(0,) * len(rest))
    _look_up(b, node, through, index, *range(batch, batch + count))


def _look_up(b: BodyBuilder, node: Node, through: Sequence[Dim], index: Sequence[Dim], *axes: int) -> None:
    """A read of the first input through strides, moved along `axes` by indices of the second, which lie side by side."""
    source, places = (b.layouts[n] for n in node.uses)
    shape = _shape(b, node)
    strides = b.strides(Layout(places.root, 0, shape, tuple(index)))
    apart = places.strides[-1] if places.strides else 0
    lookups = tuple(
        Lookup(places.root, places.offset + number * apart, strides, source.shape[axis], source.strides[axis])
        for number, axis in enumerate(axes)
    )
    b.read(node.id, source, b.strides(Layout(source.root, 0, shape, tuple(through))), lookups=lookups)


def _pad(b: BodyBuilder, node: Node) -> None:
    """A read with limits: nothing is read outside of the tensor, and there the result is the value to fill with."""
    source, shape = b.layouts[node.inputs[0] or ""], _shape(b, node)
    pads, axes = b.contents(node, 1), b.contents(node, 3)
    if node.attrs.get("mode", "constant") != "constant" or pads is None or (b.has(node, 3) and axes is None):
        raise TileError("padding with copies, or by numbers that are not known, is left to tier 0")
    extra = len(b.domain) - len(shape)
    offset, limits = source.offset, []
    for number, axis in enumerate(range(len(shape)) if axes is None else [int(str(a)) % len(shape) for a in axes]):
        offset = offset - pads[number] * source.strides[axis]
        if (pads[number], pads[number + len(pads) // 2]) != (0, 0):
            along = tuple(int(a == axis + extra) for a in range(len(b.domain)))
            limits.append(Limit(-pads[number], along, source.shape[axis]))
    strides = b.strides(Layout(source.root, 0, shape, source.strides))
    b.read(node.id, Layout(source.root, offset, shape, source.strides), strides, limits=tuple(limits))
    if b.has(node, 2):
        outside = b.step(node.inputs[2] or "")
        for limit in limits:
            b.held[node.id] = b.where(limit, b.held[node.id], outside)


def _trilu(b: BodyBuilder, node: Node) -> None:
    """The column less the row says on which side of the diagonal a point is."""
    rank, name = len(b.domain), node.inputs[0] or ""
    beyond, first, nothing = b.fresh(), b.fresh(), b.fresh()
    b.steps += [Place(beyond, (*(0,) * (rank - 2), -1, 1)), Fill(nothing, b.type(name).dtype, (1, 1), 0)]
    known = b.contents(node, 1)
    if known is not None or not b.has(node, 1):
        b.steps.append(Number(first, I64, 0 if known is None else known[0]))
    else:
        first = b.cast(b.step(node.inputs[1] or ""), b.type(node.inputs[1] or "").dtype, I64)[0]
    kept = b.map("x >= y" if node.attrs.get("upper", True) else "x <= y", I64, x=beyond, y=first)
    b.held[node.id] = b.select(kept, b.step(name), nothing)


def _one_hot(b: BodyBuilder, node: Node) -> None:
    """The value to mark with where the place along the new axis is the index, which may count from the end."""
    indices, _, values = (b.layouts[n] for n in node.uses)
    shape = _shape(b, node)
    axis, extra = node.attrs.get("axis", -1) % len(shape), len(b.domain) - len(shape)
    index, place, depth = b.fresh(), b.fresh(), b.fresh()
    spread = Layout(indices.root, 0, shape, (*indices.strides[:axis], 0, *indices.strides[axis:]))
    b.read_as(index, node.inputs[0] or "", indices.offset, b.strides(spread))
    wanted, dtype = b.cast(index, b.type(node.inputs[0] or "").dtype, I64)
    b.steps += [
        Place(place, tuple(int(a == axis + extra) for a in range(len(b.domain)))),
        Number(depth, I64, shape[axis]),
    ]
    counted = b.map("where(x < 0, x + y, x)", dtype, x=wanted, y=depth)
    marks = []
    for number in range(2):
        marks.append(b.fresh())
        b.read_as(marks[-1], node.inputs[2] or "", values.offset + number * values.strides[0], (0,) * len(b.domain))
    b.held[node.id] = b.select(b.map("x == y", dtype, x=counted, y=place), marks[1], marks[0])


def _shape(b: BodyBuilder, node: Node) -> Shape:
    shape = b.type(node.id).shape
    assert shape is not None
    return shape


READING: dict[str, Callable[[BodyBuilder, Node], None]] = {
    "concat": _concat,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "pad": _pad,
    "trilu": _trilu,
}
