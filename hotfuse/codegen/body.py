"""What a fused group computes at each point of its domain, apart from any loops: reads, elementwise steps, folds, writes.

The domain is a shape. Each read and write has one stride per axis of it (0 where it is broadcast), so a body does not care how
the loops run, nor in which order its axes are: the last `folded` ones are those that folds reduce, and a step whose value is
the same along them belongs to the row. Pointwise kernels, row kernels and products with epilogues are all made from bodies.
"""

from __future__ import annotations

from typing import TypeAlias

from hotfuse.codegen.tile import Cast, Fill, Map
from hotfuse.ir.dim import Dim
from hotfuse.ir.types import DType, Shape
from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index read from `root`, an integer tensor, that moves a read by `stride` for each place; in [-limit, limit)."""

    root: str
    offset: Dim
    strides: tuple[Dim, ...]
    limit: Dim
    stride: Dim


@dataclass(frozen=True, slots=True)
class Limit:
    """Holds for points where 0 <= start + strides . point < limit; nothing is read or written at others."""

    start: Dim
    strides: tuple[int, ...]
    limit: Dim


@dataclass(frozen=True, slots=True)
class Read:
    """The element of `root` that belongs to a point; `fill` where a limit says that there is none."""

    name: str
    root: str
    dtype: DType
    offset: Dim
    strides: tuple[Dim, ...]
    lookups: tuple[Lookup, ...] = ()
    limits: tuple[Limit, ...] = ()
    fill: float = 0.0


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
    """Where a point is, as an i64: start + strides . point."""

    name: str
    strides: tuple[Dim, ...]
    start: Dim = 0


@dataclass(frozen=True, slots=True)
class Write:
    """A step's value that goes to memory: to the value `root`, or to a part of it."""

    step: str
    root: str
    dtype: DType
    strides: tuple[Dim, ...]
    offset: Dim = 0


Step: TypeAlias = Read | Given | Product | Number | Fold | Scan | Place | Map | Cast | Fill


@dataclass(frozen=True)
class Body:
    domain: Shape
    folded: int
    steps: tuple[Step, ...]
    writes: tuple[Write, ...]
    limits: tuple[Limit, ...] = ()
