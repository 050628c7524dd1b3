"""TileProgram: the fusion instruction set, a loop program over small blocks.

A program runs once for every point of its grid (a task; tasks are independent and run in any order, on any thread). Its body is
loops and instructions. Values are blocks: two-dimensional arrays of a fixed, small shape, `rows x cols`, that a code generator
keeps in registers. Memory is flat buffers: arguments, and scratch that each thread has for itself. A block meets memory through
an `Access`, an affine map:

    element (i, j) of the block  <->  buffer[offset + rows*i + cols*j]     where every bound holds

so broadcast (stride 0), transpose (strides exchanged), slice (offset), pad and concat (bounds with a fill) are access maps and
not copies. Offsets, strides, bounds and loop limits are dims (`ir/dim`) over the program's sizes, its grid and loop variables,
and integers read by `Index`. Sizes are run-time arguments; a size that is a plain number is baked in.

    name = load access fill           store access value           prefetch access
    name = fill dtype shape value     name = iota dtype shape start rows cols
    name = map op args                name = cast dtype arg
    name = dot a b acc                name = reduce op axis arg
    name = index access limit         for var in [start : stop : step] carry ... { body }

Blocks of one `map` broadcast together where an extent is 1. What a program computes does not depend on how it is scheduled:
vector width, unrolling, prefetches, and which loops are the grid are annotations that `codegen/schedule` rewrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

from hotfuse.ir.dim import Dim, ceildiv, symbols_of
from hotfuse.ir.types import DType
from hotfuse.records import dataclass

Block: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Flat memory of `size` elements. `kind` is input, output or scratch, which is the thread's own and starts undefined."""

    name: str
    dtype: DType
    size: Dim
    kind: str = "input"


@dataclass(frozen=True, slots=True)
class Bound:
    """Holds for element (i, j) where 0 <= start + rows*i + cols*j < limit."""

    start: Dim
    rows: int
    cols: int
    limit: Dim


@dataclass(frozen=True, slots=True)
class Access:
    """Which elements of a buffer a block stands for; see the module docstring."""

    buffer: str
    offset: Dim
    rows: Dim
    cols: Dim
    shape: Block
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """The block at `at`; elements outside the bounds are `fill`, and their memory is not touched."""

    name: str
    at: Access
    fill: float = 0.0


@dataclass(frozen=True, slots=True)
class Store:
    """Write a block. `stream` says that nobody reads it soon: past the caches, where the machine can."""

    at: Access
    value: str
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring a block's memory near (`level` 1 or 2). Changes nothing else; memory outside a buffer may be named."""

    at: Access
    level: int = 2


@dataclass(frozen=True, slots=True)
class Fill:
    name: str
    dtype: DType
    shape: Block
    value: float


@dataclass(frozen=True, slots=True)
class Iota:
    """Integers: element (i, j) is start + rows*i + cols*j."""

    name: str
    dtype: DType
    shape: Block
    start: Dim
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Map:
    """An elementwise operation of `codegen/scalar_ops`."""

    name: str
    op: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    name: str
    dtype: DType
    arg: str


@dataclass(frozen=True, slots=True)
class Dot:
    """acc + a @ b for a: m x k, b: k x n, acc: m x n, summed over k in order, each step one fused multiply-add."""

    name: str
    a: str
    b: str
    acc: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """sum, prod, max, min (NaN wins), any or all over axis 0 or 1, whose extent becomes 1. Targets order sums as they like."""

    name: str
    op: str
    axis: int
    arg: str


@dataclass(frozen=True, slots=True)
class Index:
    """An integer read from memory that later dims may name. It lies in [-limit, limit); a negative one counts from the end.
    Outside of that the program reports failure and goes on with 0."""

    name: str
    at: Access
    limit: Dim


@dataclass(frozen=True, slots=True)
class Carry:
    """A block that a loop hands from one turn to the next: `name` is `init` in the first turn, then the last turn's `next`, and
    after the loop the final one."""

    name: str
    init: str
    next: str


@dataclass(frozen=True, slots=True)
class For:
    """var = start, start + step, ... while var < stop. `unroll` turns are written out at a time; the result is the same.
    The turns of a `free` loop do not touch each other's results, like tasks: they may run in any order, or at once."""

    var: str
    start: Dim
    stop: Dim
    step: int
    body: tuple[Instruction, ...]
    carry: tuple[Carry, ...] = ()
    unroll: int = 1
    free: bool = False


Instruction: TypeAlias = Load | Store | Prefetch | Fill | Iota | Map | Cast | Dot | Reduce | Index | For


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the grid: `var` takes 0 .. count - 1. Each thread has a part of an axis that is `shared` for its own, as long
    as there is work in it: of several programs, tasks with the same place along it meet in the same cache."""

    var: str
    count: Dim
    shared: bool = False


@dataclass(frozen=True)
class TileProgram:
    """`sizes` are the names of run-time sizes; `notes` say why the schedule is as it is."""

    name: str
    sizes: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    grid: tuple[Axis, ...]
    body: tuple[Instruction, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers that a caller passes."""
        return tuple(b for b in self.buffers if b.kind != "scratch")

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.kind == "scratch")

    @property
    def tasks(self) -> Dim:
        total: Dim = 1
        for axis in self.grid:
            total = total * axis.count
        return total


def walk(body: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """Every instruction, loops before what is in them."""
    for instruction in body:
        yield instruction
        if isinstance(instruction, For):
            yield from walk(instruction.body)


def uses(instruction: Instruction) -> tuple[str, ...]:
    """The blocks that an instruction reads (of a loop, those it carries)."""
    match instruction:
        case Map(_, _, args):
            return args
        case Cast(_, _, arg) | Reduce(_, _, _, arg):
            return (arg,)
        case Dot(_, a, b, acc):
            return a, b, acc
        case Store(_, value):
            return (value,)
        case For():
            return tuple(name for carry in instruction.carry for name in (carry.init, carry.next))
        case _:
            return ()


def scratch_offsets(program: TileProgram) -> tuple[dict[str, Dim], Dim]:
    """Where each scratch buffer begins in the thread's scratch, and the bytes of it all; each begins on a line of 64 bytes."""
    offsets: dict[str, Dim] = {}
    total: Dim = 0
    for buffer in program.scratch:
        offsets[buffer.name] = total
        total = total + ceildiv(buffer.size * buffer.dtype.bytes, 64) * 64
    return offsets, total


def sizes_of(buffers: Sequence[Buffer], grid: Sequence[Axis], body: Sequence[Instruction]) -> tuple[str, ...]:
    """The symbols that a program needs from outside: all it names but grid and loop variables and indices."""
    dims: list[Dim] = [b.size for b in buffers] + [a.count for a in grid]
    own = {a.var for a in grid}
    for it in walk(tuple(body)):
        match it:
            case Load(_, at) | Store(at) | Index(_, at):
                dims += [at.offset, at.rows, at.cols, *(d for b in at.bounds for d in (b.start, b.limit))]
                if isinstance(it, Index):
                    dims.append(it.limit)
                    own.add(it.name)
            case Iota():
                dims.append(it.start)
            case For():
                dims += [it.start, it.stop]
                own.add(it.var)
            case _:
                pass
    return tuple(sorted({s.name for s in symbols_of(dims)} - own))
