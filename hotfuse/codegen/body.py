"""What a fused group computes at each point of its domain, apart from any loops: reads, elementwise steps, folds, writes.

The domain is a shape. Each read and write has one stride per axis of it (0 where it is broadcast), so a body does not care how
the loops run. The last `folded` axes are those that folds reduce: a step whose value is the same along them belongs to the row.
Pointwise kernels, row kernels and the epilogues of products are all made from bodies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hotfuse.codegen.scalar_body import expand, expand_op
from hotfuse.codegen.tile import Cast, Fill, Map
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.layout import Layout, broadcast_strides
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import F32, F64, DType, Shape, TensorType, numel


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index read from `root`, an integer tensor, that moves a read by `stride` for each place; in [-limit, limit)."""

    root: str
    offset: Dim
    strides: tuple[Dim, ...]
    limit: Dim
    stride: Dim


@dataclass(frozen=True, slots=True)
class Read:
    name: str
    root: str
    dtype: DType
    offset: Dim
    strides: tuple[Dim, ...]
    lookups: tuple[Lookup, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A block that the kernel itself has at this point, such as a product's accumulators."""

    name: str


@dataclass(frozen=True, slots=True)
class Product:
    """The sum of a * b over `length` steps of k, by which a moves `a_step` elements and b `b_step`."""

    name: str
    a: Read
    b: Read
    length: Dim
    a_step: Dim
    b_step: Dim
    dtype: DType


@dataclass(frozen=True, slots=True)
class Number:
    """A size as a number of type `dtype`."""

    name: str
    dtype: DType
    value: Dim


@dataclass(frozen=True, slots=True)
class Fold:
    """`arg` folded over the last `folded` axes with sum, prod, max, min, any or all."""

    name: str
    op: str
    arg: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """The running fold of `arg` along the one folded axis; an exclusive one leaves out the point itself."""

    name: str
    op: str
    arg: str
    dtype: DType
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a point along the folded axes."""

    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """A step's value that goes to memory: to the value `root`, or to a part of it."""

    step: str
    root: str
    dtype: DType
    strides: tuple[Dim, ...]
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """Only points where 0 <= start + strides . point < limit are real: nothing is read or written at others."""

    start: Dim
    strides: tuple[int, ...]
    limit: Dim


Step: TypeAlias = Read | Given | Product | Number | Fold | Scan | Place | Map | Cast | Fill


@dataclass(frozen=True)
class Body:
    domain: Shape
    folded: int
    steps: tuple[Step, ...]
    writes: tuple[Write, ...]
    limits: tuple[Limit, ...] = ()


class BodyBuilder:
    """Adds nodes to a body, in the graph's order. State: the steps so far, and the step that holds each value."""

    def __init__(self, values: Mapping[str, Value], layouts: Mapping[str, Layout], domain: Shape, folded: int = 0) -> None:
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
            layout, dtype = self.layouts[value], self.type(value).dtype
            self.held[value] = name = self.fresh()
            self.steps.append(Read(name, layout.root, dtype, layout.offset, self.strides(layout)))
        return self.held[value]

    def strides(self, layout: Layout) -> tuple[Dim, ...]:
        if len(layout.shape) > len(self.domain):
            raise TileError(f"{layout.root} has more axes than the group's domain")
        return broadcast_strides(layout, self.domain)

    def map(self, text: str, dtype: DType, **names: str) -> str:
        """A step from a formula over named steps, all of `dtype`."""
        made, result = expand(text, names, dict.fromkeys(names, dtype), {}, self.fresh)
        self.steps += [s for s in made if isinstance(s, Map | Cast | Fill)]
        return result

    def fold(self, op: str, arg: str, dtype: DType) -> str:
        name = self.fresh()
        self.steps.append(Fold(name, op, arg, dtype))
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
        self.steps.append(Number(name, dtype, numel(self.domain[len(self.domain) - self.folded :])))
        return name

    def add(self, node: Node) -> None:
        """Compute a node; its result is held, not written."""
        lower = _LOWERED.get(node.op)
        if lower is not None:
            result, dtype = lower(self, node)
            self.held[node.id] = self.cast(result, dtype, self.type(node.id).dtype)[0]
            return
        if node.op == "gather":
            self._gather(node)
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

    def _gather(self, node: Node) -> None:
        """A read that moves with an index read before it."""
        source, places = (self.layouts[n] for n in node.uses)
        axis = node.attrs.get("axis", 0) % len(source.shape)
        shape = self.type(node.id).shape
        assert shape is not None
        none: tuple[Dim, ...] = (0,) * len(places.shape)
        through = (*source.strides[:axis], *none, *source.strides[axis + 1 :])
        index = (*(0,) * axis, *places.strides, *(0,) * (len(source.shape) - axis - 1))
        lookup = Lookup(
            places.root,
            places.offset,
            self.strides(Layout(places.root, 0, shape, index)),
            source.shape[axis],
            source.strides[axis],
        )
        strides = self.strides(Layout(source.root, 0, shape, through))
        self.held[node.id] = name = self.fresh()
        dtype = self.type(_first(node)).dtype
        self.steps.append(Read(name, source.root, dtype, source.offset, strides, (lookup,)))

    def write(self, value: str) -> Write:
        """A held value to memory of its own. A row's value drops the folded axes."""
        type = self.type(value)
        assert type.shape is not None
        rank = len(self.domain)
        dropped = self.folded and len(type.shape) == rank - self.folded
        last = rank - self.folded if dropped else rank
        strides: list[Dim] = [0] * rank
        step: Dim = 1
        for place, size in zip(range(last - 1, -1, -1), reversed(type.shape), strict=False):
            strides[place] = 0 if size == 1 and self.domain[place] != 1 else step
            step = step * size
        return Write(self.held[value], self.layouts[value].root, type.dtype, tuple(strides))


def make_body(nodes: Sequence[Node], outputs: Sequence[str], builder: BodyBuilder) -> Body:
    """The body of a group: its nodes in order, and writes of what others read."""
    for node in nodes:
        if node.id not in builder.held:
            builder.add(node)
    return Body(builder.domain, builder.folded, tuple(builder.steps), tuple(builder.write(name) for name in outputs))


# operators that fold: each returns the step of its result and that step's type


def _centered(b: BodyBuilder, x: str, dtype: DType, length: str) -> str:
    mean = b.map("x / y", dtype, x=b.fold("sum", x, dtype), y=length)
    return b.map("x - y", dtype, x=x, y=mean)


def _scaled(b: BodyBuilder, step: str, dtype: DType, node: Node, first: int = 1) -> str:
    for place, formula in ((first, "x * y"), (first + 1, "x + y")):
        if place < len(node.inputs) and (name := node.inputs[place]) is not None:
            parameter = b.cast(b.step(name), b.type(name).dtype, dtype)[0]
            step = b.map(formula, dtype, x=step, y=parameter)
    return step


def _epsilon(b: BodyBuilder, node: Node, default: float, dtype: DType) -> str:
    name = b.fresh()
    b.steps.append(Fill(name, dtype, (1, 1), float(node.attrs.get("epsilon", default))))
    return name


def _layer_norm(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    length = b.row_length(dtype)
    centered = _centered(b, x, dtype, length)
    square = b.fold("sum", b.map("x * x", dtype, x=centered), dtype)
    factor = b.map("1 / sqrt(x / y + z)", dtype, x=square, y=length, z=_epsilon(b, node, 1e-5, dtype))
    return _scaled(b, b.map("x * y", dtype, x=centered, y=factor), dtype, node), dtype


def _rms_norm(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    square = b.fold("sum", b.map("x * x", dtype, x=x), dtype)
    factor = b.map("1 / sqrt(x / y + z)", dtype, x=square, y=b.row_length(dtype), z=_epsilon(b, node, 1e-5, dtype))
    return _scaled(b, b.map("x * y", dtype, x=x, y=factor), dtype, node), dtype


def _softmax(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    power = b.map("exp(x - y)", dtype, x=x, y=b.fold("max", x, dtype))
    return b.map("x / y", dtype, x=power, y=b.fold("sum", power, dtype)), dtype


def _log_softmax(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    shifted = b.map("x - y", dtype, x=x, y=b.fold("max", x, dtype))
    total = b.fold("sum", b.map("exp(x)", dtype, x=shifted), dtype)
    return b.map("x - log(y)", dtype, x=shifted, y=total), dtype


def _reduction(op: str) -> Callable[[BodyBuilder, Node], tuple[str, DType]]:
    def lower(b: BodyBuilder, node: Node) -> tuple[str, DType]:
        name = _first(node)
        dtype = b.type(name).dtype
        step, dtype = b.wide(name) if dtype.is_float else (b.step(name), dtype)
        return b.fold(op, step, dtype), dtype

    return lower


def _mean(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    if not b.type(_first(node)).dtype.is_float:
        raise TileError("the mean of whole numbers is left to tier 0")
    total, dtype = _reduction("sum")(b, node)
    return b.map("x / y", dtype, x=total, y=b.row_length(dtype)), dtype


def _first(node: Node) -> str:
    name = node.inputs[0]
    assert name is not None
    return name


_LOWERED: dict[str, Callable[[BodyBuilder, Node], tuple[str, DType]]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "reduce_sum": _reduction("sum"),
    "reduce_prod": _reduction("prod"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_any": _reduction("any"),
    "reduce_all": _reduction("all"),
    "reduce_mean": _mean,
}
