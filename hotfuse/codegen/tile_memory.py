"""Rules of memory that can be decided without running a tile program. What cannot be decided is let pass; `interpret` finds it.

An access is judged at its corners: grid and loop variables at their first or last value, block elements at the corners of the
block. At a corner an index is a dim over the sizes alone, and `ir/dim` may know its range. A program is refused only where it
would be wrong at every size at which the instruction runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping

from hotfuse.codegen.tile import Access, Buffer, For, Index, Instruction, Load, Store, TileProgram, walk
from hotfuse.codegen.tile_text import dims_in, show
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, floordiv, lower_bound, substitute, symbols_of, upper_bound
from hotfuse.records import dataclass

MAX_CORNERS = 64  # of the variables of one access; with more, only the first and the last turn of all together


@dataclass(frozen=True, slots=True)
class _Range:
    """A variable takes values from `first` to `last`, dims over variables further out."""

    var: str
    first: Dim
    last: Dim


def check_memory(program: TileProgram) -> None:
    """Raise TileError for a store to an input and for each wrong access that can be decided."""
    buffers = {b.name: b for b in program.buffers}
    ranges = tuple(_Range(a.var, 0, a.count - 1) for a in program.grid)
    if any(_is_never(a.count) for a in program.grid):
        return
    seen: set[tuple[bool, Access, tuple[_Range, ...]]] = set()
    for instruction, around in _reached(program.body, ranges):
        if isinstance(instruction, Load | Store | Index):
            key = (isinstance(instruction, Store), instruction.at, around)
            if key in seen:
                continue
            seen.add(key)
            try:
                _check_access(instruction, buffers[instruction.at.buffer], around)
            except TileError as error:
                raise TileError(f"`{show(instruction)}`: {error}") from error
    _check_scratch(program)
    _check_races(program)


def _reached(body: tuple[Instruction, ...], around: tuple[_Range, ...]) -> Iterator[tuple[Instruction, tuple[_Range, ...]]]:
    """The instructions that may run, with the variables around each, outermost first."""
    for instruction in body:
        yield instruction, around
        if isinstance(instruction, For) and not _is_never(instruction.stop - instruction.start):
            turns = floordiv(instruction.stop - instruction.start - 1, instruction.step)
            last = instruction.start + turns * instruction.step
            yield from _reached(instruction.body, (*around, _Range(instruction.var, instruction.start, last)))


def _is_never(count: Dim) -> bool:
    most = upper_bound(count)
    return most is not None and most < 1


# inside the buffer


def _check_access(instruction: Load | Store | Index, buffer: Buffer, around: tuple[_Range, ...]) -> None:
    at = instruction.at
    if isinstance(instruction, Store):
        if buffer.kind == "input":
            raise TileError(f"{at.buffer} is an input; stores go to outputs and scratch")
        if not at.bounds and ((at.rows == 0 and at.shape[0] > 1) or (at.cols == 0 and at.shape[1] > 1)):
            raise TileError("several elements of the block are stored at one place")
    for corner in _corners(at, around):
        start, rows, cols = (_at_corner(d, corner) for d in (at.offset, at.rows, at.cols))
        for i, j in itertools.product({0, at.shape[0] - 1}, {0, at.shape[1] - 1}):
            place = start + rows * i + cols * j
            outside = _is_negative(place) or _is_negative(buffer.size - 1 - place)
            if outside and all(_surely_holds(_at_corner(b.start + b.rows * i + b.cols * j, corner),
                                             _at_corner(b.limit, corner)) for b in at.bounds):  # fmt: skip
                raise TileError(f"element ({i}, {j}) is at {place} of {at.buffer}, which has {buffer.size} elements")


def _corners(at: Access, around: tuple[_Range, ...]) -> Iterator[tuple[tuple[str, Dim], ...]]:
    """Values for the variables that an access depends on, innermost first: that is the order to put them in."""
    dims = [at.offset, at.rows, at.cols, *(d for b in at.bounds for d in (b.start, b.limit))]
    named = {s.name for s in symbols_of(dims)}
    needed: list[_Range] = []
    for each in reversed(around):
        if each.var in named:
            needed.append(each)
            named |= {s.name for s in symbols_of((each.first, each.last))}
    choices: Iterable[tuple[bool, ...]] = itertools.product((False, True), repeat=len(needed))
    if 2 ** len(needed) > MAX_CORNERS:
        choices = ((False,) * len(needed), (True,) * len(needed))
    variables = {r.var for r in around}
    for ends in choices:
        corner = tuple((r.var, r.last if end else r.first) for r, end in zip(needed, ends, strict=True))
        if all(_is_turn(r, corner, variables) for r in needed):
            yield corner


def _is_turn(each: _Range, corner: tuple[tuple[str, Dim], ...], variables: set[str]) -> bool:
    """Whether a loop runs at this corner of the loops around it. One whose range is of sizes alone is taken to run: where it
    does not, neither does the access."""
    if not variables & {s.name for s in symbols_of((each.first, each.last))}:
        return True
    least = lower_bound(_at_corner(each.last - each.first, corner))
    return least is not None and least >= 0


@functools.lru_cache(maxsize=4096)
def _at_corner(dim: Dim, corner: tuple[tuple[str, Dim], ...]) -> Dim:
    for var, value in corner:
        dim = substitute(dim, {var: value})
    return dim


def _is_negative(dim: Dim) -> bool:
    most = upper_bound(dim)
    return most is not None and most < 0


def _surely_holds(place: Dim, limit: Dim) -> bool:
    low, room = lower_bound(place), lower_bound(limit - 1 - place)
    return low is not None and low >= 0 and room is not None and room >= 0


# scratch, and what tasks share


def _check_scratch(program: TileProgram) -> None:
    """A load of scratch needs a store that can come before it: earlier in the text, or in a loop around both."""
    written: set[str] = set()
    scratch = {b.name for b in program.scratch}

    def visit(body: tuple[Instruction, ...], by_loops: frozenset[str]) -> None:
        for instruction in body:
            if isinstance(instruction, For):
                stores = {i.at.buffer for i in walk(instruction.body) if isinstance(i, Store)}
                visit(instruction.body, by_loops | stores)
            elif isinstance(instruction, Store):
                written.add(instruction.at.buffer)
            elif isinstance(instruction, Load | Index):
                name = instruction.at.buffer
                if name in scratch - written - by_loops:
                    raise TileError(f"`{show(instruction)}`: scratch {name} is read and nothing was stored there before")

    visit(program.body, frozenset())


def _check_races(program: TileProgram) -> None:
    """Where the elements that a store names do not move with a grid variable, or by less than the block, two tasks meet."""
    outputs = {b.name for b in program.buffers if b.kind == "output"}
    for axis in program.grid:
        most = upper_bound(axis.count)
        if most is not None and most < 2:
            continue
        moving = {axis.var}
        for instruction, _ in _reached(program.body, ()):
            moves = bool(moving & {s.name for s in symbols_of(dims_in(instruction))})
            if isinstance(instruction, For) and moves:
                moving.add(instruction.var)
            elif isinstance(instruction, Index) and moves:
                moving.add(instruction.name)
            elif isinstance(instruction, Store) and instruction.at.buffer in outputs:
                if not moves:
                    raise TileError(f"`{show(instruction)}`: tasks along {axis.var} store the same elements")
                if moving & {s.name for s in symbols_of(dims_in(instruction))} == {axis.var}:
                    _check_overlap(instruction, axis.var)


def _check_overlap(store: Store, var: str) -> None:
    """Tasks `var` and `var + 1`, all else equal, must not share an element; decided where strides and shift are numbers."""
    at = store.at
    one: Mapping[str, Dim] = {var: 1}
    shift = substitute(at.offset, one) - substitute(at.offset, {var: 0})
    steady = substitute(at.offset, {var: 2}) - substitute(at.offset, one) == shift
    if at.bounds or not steady or not (isinstance(shift, int) and isinstance(at.rows, int) and isinstance(at.cols, int)):
        return
    for i in range(-at.shape[0] + 1, at.shape[0]):
        rest = shift - at.rows * i
        apart, odd = divmod(rest, at.cols) if at.cols else (0, rest)
        if odd == 0 and abs(apart) < at.shape[1]:
            raise TileError(f"`{show(store)}`: tasks along {var} are {shift} elements apart and their blocks overlap")
