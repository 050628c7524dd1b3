"""Nodes of a group become steps of a body, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from hotfuse.codegen.body import Body, Fold, Given, Limit, Lookup, Number, Place, Read, Scan, Step, Write
from hotfuse.codegen.body_axes import flipped, permuted
from hotfuse.codegen.body_folds import FOLDING
from hotfuse.codegen.scalar_body import expand, expand_op
from hotfuse.codegen.tile import Cast, Fill, Map
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.layout import Layout, broadcast_strides
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import F32, F64, I64, DType, Shape, TensorType, numel


class BodyBuilder:
    """Adds nodes to a body, in the graph's order. State: the steps so far, and the step that holds each value."""

    def __init__(
        self,
        values: Mapping[str, Value],
        layouts: Mapping[str, Layout],
        domain: Shape,
        folded: tuple[int, ...] = (),
        inside: Mapping[str, Node] | None = None,
        part: tuple[int, Dim] | None = None,
    ) -> None:
        self.inside = inside or {}  # the group's nodes by what they make
        self.part = part  # the axis and place where the points begin that this is about
        self.values = values
        self.layouts = layouts
        self.domain = domain
        self.folded = folded
        self.steps: list[Step] = []
        self.held: dict[str, str] = {}
        self._numbers = itertools.count()

    def fresh(self) -> str:
        return f"t{next(self._numbers)}"

    def type(self, name: str) -> TensorType:
        type = self.values[name].type
        if not isinstance(type, TensorType) or type.shape is None:
            raise TileError(f"{name} is no tensor of known rank")
        return type

    def give(self, value: str) -> str:
        """Say that the kernel has this value as a block."""
        name = self.held[value] = self.fresh()
        self.steps.append(Given(name))
        return name

    def step(self, value: str) -> str:
        """The step that holds a value; one from outside the group is read through its layout."""
        if value not in self.held:
            self.read(value, self.layouts[value], self.strides(self.layouts[value]))
        return self.held[value]

    def read(
        self,
        value: str,
        layout: Layout,
        strides: tuple[Dim, ...],
        lookups: tuple[Lookup, ...] = (),
        limits: tuple[Limit, ...] = (),
        fill: float = 0.0,
    ) -> None:
        """Say that a value is what is read so."""
        self.held[value] = name = self.fresh()
        offset = layout.offset
        if self.part is not None:
            axis, start = self.part
            offset = offset - start * strides[axis]
            limits = (*limits, self.limit(axis, start, self.domain[axis]))
        self.steps.append(Read(name, layout.root, self.type(value).dtype, offset, strides, lookups, limits, fill))

    def limit(self, axis: int, start: Dim, size: Dim) -> Limit:
        """Holds for points from `start` on along an axis, `size` of them."""
        return Limit(-start, tuple(int(a == axis) for a in range(len(self.domain))), size)

    def part_of(self, axis: int, start: Dim, size: Dim) -> BodyBuilder:
        """A builder of steps for the points from `start` on along an axis, `size` of them, among the steps of this one."""
        if self.part is not None:
            raise TileError("a part of a part is left to tier 0")
        domain = (*self.domain[:axis], size, *self.domain[axis + 1 :])
        made = BodyBuilder(self.values, self.layouts, domain, self.folded, self.inside, (axis, start))
        made.steps, made._numbers = self.steps, self._numbers
        return made

    def has(self, node: Node, place: int) -> bool:
        return place < len(node.inputs) and node.inputs[place] is not None

    def contents(self, node: Node, place: int) -> Sequence[Dim] | None:
        """The elements of an integer input, where they are known."""
        name = node.inputs[place] if place < len(node.inputs) else None
        return self.values[name].contents if name is not None else None

    def strides(self, layout: Layout) -> tuple[Dim, ...]:
        if len(layout.shape) > len(self.domain):
            raise TileError(f"{layout.root} has more axes than the group's domain")
        return broadcast_strides(layout, self.domain)

    def map(self, text: str, dtype: DType, **names: str) -> str:
        """A step from a formula over named steps, all of `dtype`."""
        made, result = expand(text, names, dict.fromkeys(names, dtype), {}, self.fresh)
        self.steps += [s for s in made if isinstance(s, Map | Cast | Fill)]
        return result

    def select(self, condition: str, x: str, y: str) -> str:
        name = self.fresh()
        self.steps.append(Map(name, "where", (condition, x, y)))
        return name

    def where(self, limit: Limit, inside: str, outside: str) -> str:
        """One step where a limit holds, another one elsewhere."""
        place, length = self.fresh(), self.fresh()
        self.steps += [Place(place, limit.strides, limit.start), Number(length, I64, limit.limit)]
        return self.select(self.map("and_(x >= 0, x < y)", I64, x=place, y=length), inside, outside)

    def fold(self, op: str, arg: str, dtype: DType) -> str:
        name = self.fresh()
        self.steps.append(Fold(name, op, arg, dtype))
        return name

    def scan(self, op: str, arg: str, dtype: DType, exclusive: bool) -> str:
        name = self.fresh()
        self.steps.append(Scan(name, op, arg, dtype, exclusive))
        return name

    def place(self, axes: Sequence[int]) -> str:
        """The number of a point along some axes, the last one fastest."""
        strides: list[Dim] = [0] * len(self.domain)
        step: Dim = 1
        for axis in reversed(axes):
            strides[axis] = step
            step = step * self.domain[axis]
        name = self.fresh()
        self.steps.append(Place(name, tuple(strides)))
        return name

    def wide(self, value: str) -> tuple[str, DType]:
        """A value as f32, or f64 if it is that."""
        dtype = self.type(value).dtype
        return self.cast(self.step(value), dtype, F64 if dtype == F64 else F32)

    def cast(self, step: str, source: DType, to: DType) -> tuple[str, DType]:
        if source == to:
            return step, to
        name = self.fresh()
        self.steps.append(Cast(name, to, step))
        return name, to

    def row_length(self, dtype: DType) -> str:
        """The number of elements that a fold takes in."""
        name = self.fresh()
        self.steps.append(Number(name, dtype, numel(tuple(self.domain[a] for a in self.folded))))
        return name

    def add(self, node: Node) -> None:
        """Compute a node; its result is held, not written."""
        lower = FOLDING.get(node.op)
        if lower is not None:
            result, dtype = lower(self, node)
            self.held[node.id] = self.cast(result, dtype, self.type(node.id).dtype)[0]
            return
        reader = _READING.get(node.op)
        if reader is not None:
            reader(self, node)
            return
        record = OPS[node.op]
        if record.pattern is not Pattern.ELEMENTWISE:
            raise TileError(f"{node.op} is no elementwise operator")
        names, dtypes = {}, {}
        for variable, name in zip("xyz", node.inputs, strict=False):
            if name is not None:
                names[variable], dtypes[variable] = self.step(name), self.type(name).dtype
        made, result = expand_op(record, names, dtypes, node.attrs, self.fresh)
        self.steps += [s for s in made if isinstance(s, Map | Cast | Fill)]
        self.held[node.id] = result

    def write(self, value: str) -> Write:
        """A held value to memory of its own. A row's value drops the folded axes."""
        type = self.type(value)
        assert type.shape is not None
        rank = len(self.domain)
        dropped = bool(self.folded) and len(type.shape) == rank - len(self.folded)
        axes = [a for a in range(rank) if not (dropped and a in self.folded)]
        strides: list[Dim] = [0] * rank
        step: Dim = 1
        for place, size in zip(reversed(axes), reversed(type.shape), strict=False):
            strides[place] = 0 if size == 1 and self.domain[place] != 1 else step
            step = step * size
        return Write(self.held[value], self.layouts[value].root, type.dtype, tuple(strides))


def make_body(nodes: Sequence[Node], outputs: Sequence[str], builder: BodyBuilder, reverse: bool = False) -> Body:
    """The body of a group: its nodes in order, and writes of what others read. With `reverse` it is walked from the end."""
    builder.inside = {name: node for node in nodes for name in node.outputs}
    parts = {n.id for node in nodes if node.op == "concat" for name in node.uses for n in _makers(name, builder.inside)}
    for node in nodes:
        if node.id not in builder.held and node.id not in parts:
            builder.add(node)
    writes = tuple(builder.write(name) for name in outputs)
    rank, folded = len(builder.domain), builder.folded
    order = [a for a in range(rank) if a not in folded] + list(folded)
    body = Body(builder.domain, len(folded), tuple(builder.steps), writes)
    if reverse:
        for axis in folded:
            body = flipped(body, axis)
    return body if order == list(range(rank)) else permuted(body, order)


def _makers(value: str, inside: Mapping[str, Node]) -> list[Node]:
    """The group's nodes that a value is made by, in order."""
    found: dict[str, Node] = {}

    def visit(name: str) -> None:
        node = inside.get(name)
        if node is not None and node.id not in found:
            for used in node.uses:
                visit(used)
            found[node.id] = node

    visit(value)
    return list(found.values())


# operators that are reads with access maps of their own


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
        for maker in _makers(name, b.inside):
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


def _look_up(b: BodyBuilder, node: Node, through: Sequence[Dim], index: Sequence[Dim], axis: int) -> None:
    source, places = (b.layouts[n] for n in node.uses)
    shape = b.type(node.id).shape
    assert shape is not None
    strides = b.strides(Layout(places.root, 0, shape, tuple(index)))
    lookup = Lookup(places.root, places.offset, strides, source.shape[axis], source.strides[axis])
    b.read(node.id, source, b.strides(Layout(source.root, 0, shape, tuple(through))), lookups=(lookup,))


def _pad(b: BodyBuilder, node: Node) -> None:
    """A read with limits: nothing is read outside of the tensor, and there the result is the value to fill with."""
    source, shape = b.layouts[node.inputs[0] or ""], b.type(node.id).shape
    assert shape is not None
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


_READING: dict[str, Callable[[BodyBuilder, Node], None]] = {
    "concat": _concat,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "pad": _pad,
}
READING = frozenset(_READING)
