"""Nodes of a group become steps of a body, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hotfuse.codegen.body import Body, Fold, Given, Limit, Lookup, Number, Place, Read, Scan, Step, Write
from hotfuse.codegen.body_axes import flipped, permuted
from hotfuse.codegen.body_folds import FOLDING
from hotfuse.codegen.body_reads import READING
from hotfuse.codegen.body_windows import WINDOWS
from hotfuse.codegen.scalar_body import expand, expand_op
from hotfuse.codegen.tile import Cast, Fill, Map
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.layout import Layout, broadcast_strides, point_strides
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
        self._makers = {layouts[name].root: name for name in self.inside if name in layouts}
        self.part = part  # the axis and place where the points begin that this is about
        self.values = values
        self.layouts = layouts
        self.domain = domain
        self.folded = folded
        self.steps: list[Step] = []
        self.held: dict[str, str] = {}
        self.put: dict[str, tuple[str, Layout]] = {}  # results that are another value of the group, laid out so
        self._numbers = itertools.count()

    def contain(self, nodes: Sequence[Node]) -> None:
        """Say which nodes the group has."""
        self.inside = {name: node for node in nodes for name in node.outputs}
        self._makers = {self.layouts[name].root: name for name in (*self.held, *self.inside) if name in self.layouts}

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
            layout = self.layouts[value]
            strides = self.strides(layout)
            maker = self._makers.get(layout.root)
            if maker is not None and self.part is not None:
                raise TileError(f"{value} is a part of what the group makes")
            if maker is not None:
                return self._seen_through(value, maker, layout, strides)
            self.read(value, layout, strides)
        return self.held[value]

    def _seen_through(self, value: str, maker: str, layout: Layout, strides: tuple[Dim, ...]) -> str:
        """A view of what the group makes itself is that, where every point looks at its own element."""
        shape = self.type(maker).shape
        assert shape is not None
        if maker not in self.held or layout.offset != 0 or strides != point_strides(shape, self.domain, self.folded):
            raise TileError(f"{value} is another place of what the group makes")
        return self.held[maker]

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

    def makers(self, value: str) -> list[Node]:
        """The group's nodes that a value is made by, in order."""
        found: dict[str, Node] = {}

        def visit(name: str) -> None:
            node = self.inside.get(name)
            if node is not None and node.id not in found:
                for used in node.uses:
                    visit(used)
                found[node.id] = node

        visit(value)
        return list(found.values())

    def read_as(self, name: str, value: str, offset: Dim, strides: tuple[Dim, ...]) -> None:
        """A step of another meaning than the value itself, read from where the value lies."""
        self.steps.append(Read(name, self.layouts[value].root, self.type(value).dtype, offset, strides))

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
        lower = FOLDING.get(node.op) or WINDOWS.get(node.op)
        if lower is not None:
            result, dtype = lower(self, node)
            self.held[node.id] = self.cast(result, dtype, self.type(node.id).dtype)[0]
            return
        reader = READING.get(node.op)
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
        """A held value to memory of its own, or to where it is put. A row's value drops the folded axes."""
        type = self.type(value)
        assert type.shape is not None
        if value in self.put:
            source, layout = self.put[value]
            return Write(self.held[source], layout.root, type.dtype, layout.strides, layout.offset)
        strides = point_strides(type.shape, self.domain, self.folded)
        return Write(self.held[value], self.layouts[value].root, type.dtype, strides)


def make_body(nodes: Sequence[Node], outputs: Sequence[str], builder: BodyBuilder, reverse: bool = False) -> Body:
    """The body of a group: its nodes in order, and writes of what others read. With `reverse` it is walked from the end."""
    builder.contain(nodes)
    parts = {n.id for node in nodes if node.op == "concat" for name in node.uses for n in builder.makers(name)}
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
