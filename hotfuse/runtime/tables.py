"""Tables: what the kernels of a segment are told, bound to sizes: numbers, places of values, and where they wait for others.

    parts, sizes -> place   what stays inside lies in an arena
                 -> bind    a table for each part, and the barriers between them

State: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile import TileProgram, scratch_offsets
from hotfuse.ir.arena import Interval, plan_arena
from hotfuse.ir.dim import evaluate
from hotfuse.ir.graph import Node
from hotfuse.ir.types import TensorType
from hotfuse.records import dataclass
from hotfuse.runtime.kernels import Kernel

Span = tuple[str, int, int]  # a value, or "" and a place in the arena


@dataclass(frozen=True)
class Part:
    """One kernel of a segment and what it is applied to; `nodes` are those of its unit, all of whose parts share them. Those of
    the same `row`, not 0, run side by side where nothing keeps them from it. One that `fetches` what the other part of its row
    reads is woven with it."""

    recipe: Recipe
    kernel: Kernel
    nodes: tuple[Node, ...] = ()
    row: int = 0
    fetches: bool = False


@dataclass(frozen=True)
class Bound:
    address: int
    words: tuple[int, ...]  # the table, pointers of arguments left 0
    places: tuple[tuple[str, int], ...]  # argument, word
    tasks: int
    barrier: bool
    lanes: tuple[int, int]  # every, unit: see `driver.Step`
    row: int = 0
    member: int = 0
    other: int = -1  # the part that it is woven with, by its place; see `driver.Step`


@dataclass(frozen=True)
class Figures:
    """Of a program at exact sizes: those of its own, in order, and what follows from them."""

    sizes: tuple[int, ...]
    tasks: int
    lanes: tuple[int, int]
    scratch: int


def figures_of(parts: Sequence[Part], sizes: Mapping[str, int]) -> list[Figures]:
    """Of each part. Layers are the same program at the same sizes."""
    known: dict[tuple[int, Any], Figures] = {}
    found = []
    for part in parts:
        program, own = part.recipe.program, part.recipe.sizes
        if (id(program), own) not in known:
            known[id(program), own] = _figures(program, [evaluate(dim, sizes) for dim in own])
        found.append(known[id(program), own])
    return found


def _figures(program: TileProgram, own: Sequence[int]) -> Figures:
    sizes = dict(zip(program.sizes, own, strict=True))
    scratch = evaluate(scratch_offsets(program)[1], sizes)
    return Figures(tuple(own), evaluate(program.tasks, sizes), _lanes(program, sizes), scratch)


def place(
    parts: Sequence[Part], inputs: Sequence[str], outputs: Sequence[str], types: Mapping[str, TensorType]
) -> tuple[dict[str, int], int]:
    """Places in the arena for what stays inside, and its size. Parts that run side by side share no memory."""
    outside = {*inputs, *outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    place = 0
    for part, before in zip(parts, (None, *parts), strict=False):
        place += before is None or not part.row or part.row != before.row
        for name in part.recipe.arguments:
            if name not in outside:
                first.setdefault(name, place)
                last[name] = place
    names = list(first)
    offsets, total = plan_arena([Interval(first[n], last[n], types[n].nbytes) for n in names])
    return dict(zip(names, offsets, strict=True)), total


def bind(
    parts: Sequence[Part], figures: Sequence[Figures], inner: Mapping[str, int], types: Mapping[str, TensorType]
) -> tuple[Bound, ...]:
    """Tables and barriers. A barrier belongs to the step before it. Parts of one unit write places of their own."""
    spans = {name: ("", start, start + max(1, types[name].nbytes)) for name, start in inner.items()}
    made: list[Bound] = []
    read: set[Span] = set()
    written: set[Span] = set()
    unit: tuple[Node, ...] = ()
    own_written: set[Span] = set()  # by parts of the same unit
    for part, own in zip(parts, figures, strict=True):
        recipe = part.recipe
        reads, writes = ({spans.get(n) or (n, 0, 1) for n in names} for names in (recipe.reads, recipe.writes))
        if part.nodes is not unit or not unit:
            written |= own_written
            unit, own_written = part.nodes, set()
        if made and (_meet(reads, written | own_written) or _meet(writes, written) or _meet(writes, read)):
            made[-1] = replace(made[-1], barrier=True)
            read, written, own_written = set(), set(), set()
        read |= reads
        own_written |= writes
        arguments = len(recipe.arguments)
        words = (0,) * (1 + arguments) + own.sizes
        places = tuple((name, 1 + i) for i, name in enumerate(recipe.arguments))
        member = id(part.nodes)
        made.append(Bound(part.kernel.address, words, places, own.tasks, False, own.lanes, part.row, member))
    for place, other in _woven(parts, made).items():
        made[place] = replace(made[place], other=other)
    return tuple(made)


def _woven(parts: Sequence[Part], made: Sequence[Bound]) -> dict[int, int]:
    """The places of parts that fetch for the only part of another unit in their row, and of those, where that reads something
    that they fetch and none of the two waits for what the other one or something between them does."""
    found: dict[int, int] = {}
    for place, part in enumerate(parts):
        if not part.fetches or not part.row:
            continue
        others = [at for at, other in enumerate(parts) if other.row == part.row and other.nodes is not part.nodes]
        if len(others) != 1 or set(parts[others[0]].recipe.reads).isdisjoint(part.recipe.reads):
            continue
        first, last = sorted((place, others[0]))
        if not any(made[at].barrier for at in range(first, last)):
            found[place] = others[0]
    return found


def _lanes(program: TileProgram, sizes: Mapping[str, int]) -> tuple[int, int]:
    """How threads share the tasks: the last axis of the grid counts fastest."""
    unit = 1
    for axis in reversed(program.grid):
        count = evaluate(axis.count, sizes)
        if axis.shared and unit:
            return count * unit, unit
        unit *= count
    return 0, 1


def _meet(a: set[Span], b: set[Span]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)
