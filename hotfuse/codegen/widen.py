"""Turns of a loop as one block: the rewrite that makes vectors of single elements, and register tiles of vectors.

    before    for i in [a : b : 1] { x = load u[i*s]     y = map exp x     store y to w[i] }
    after     for i in [a : b : 8] { x = load u[i*s; 0, s] 1x8     y = map exp x     store y to w[i; 0, 1] 1x8 }

Every block that depends on the variable gets `by` elements along one axis; what does not depend on it stays as it is and
broadcasts. Where the turns do not surely fill whole blocks, accesses get the bound i + lane < b.

A carried block that is a fold (sum, product, maximum, minimum, any, all) becomes `by` folds side by side, which a `reduce`
joins after the loop: sums are then added in another order.

Requires: steps of 1; blocks with one element along the axis; addresses that move evenly with the variable, and stores that do
move; loops and indices inside that do not depend on it; and turns that do not touch each other's results: the loop is free, or
each turn stores elements of its own that no other turn reads.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace

from hotfuse.codegen.loop_limits import is_at_least, is_multiple, slope
from hotfuse.codegen.scalar_ops import FOLDS, neutral
from hotfuse.codegen.schedule import require_unseen
from hotfuse.codegen.tile import (
    Access,
    Block,
    Bound,
    Carry,
    Cast,
    Dot,
    Fill,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Prefetch,
    Reduce,
    Store,
    TileProgram,
    uses,
    walk,
)
from hotfuse.codegen.tile_loops import find_loop, put
from hotfuse.codegen.tile_names import names_of, renamed, unused
from hotfuse.codegen.tile_text import dims_in, show
from hotfuse.codegen.tile_types import BlockType, types
from hotfuse.errors import TileError
from hotfuse.ir.dim import lower_bound, symbol, symbols_of
from hotfuse.ir.types import BOOL, I64
from hotfuse.records import dataclass

_FOLD_OF = {combine: fold for fold, combine in FOLDS.items()}


def widen(program: TileProgram, var: str, by: int, axis: int) -> TileProgram:
    """See the module's docstring. Axis 0 is rows, 1 columns."""
    loop = find_loop(program, var)
    if by < 1 or axis not in (0, 1):
        raise TileError(f"{by} turns along axis {axis} make no block")
    if loop.step != 1:
        raise TileError(f"the loop over {var} has steps of {loop.step}; only turns next to each other make a block")
    _require_apart(loop, {b.name for b in program.scratch} if loop.free else {b.name for b in program.buffers})
    bound = None
    if not is_multiple(loop.stop - loop.start, by):
        first = 0 if is_at_least(loop.start, 0, program.grid) else loop.start  # a bound is never below 0
        bound = Bound(symbol(var) - first, *_along(axis, 1, 0), loop.stop - first)
    fills = {it.name: it for it in walk(program.body) if isinstance(it, Fill)}
    wide = _Wide(var, by, axis, bound, types(program), fills, names_of(program))
    return put(program, loop, tuple(wide.loop(loop)))


def _along(axis: int, value: int, other: int) -> tuple[int, int]:
    return (value, other) if axis == 0 else (other, value)


def _require_apart(loop: For, buffers: Container[str]) -> None:
    """Each turn stores elements of its own, and reads of what is stored only those. The turns of a free loop do so in memory
    that tasks share; in scratch they may follow each other at the same place."""
    inner = {it.var if isinstance(it, For) else it.name for it in walk(loop.body) if isinstance(it, For | Index)}
    stores = [it for it in walk(loop.body) if isinstance(it, Store) and it.at.buffer in buffers]
    for it in stores:
        step = slope(it.at.offset, loop.var)
        least = None if step is None else lower_bound(step)
        named = {s.name for s in symbols_of((it.at.offset,))}
        span = _span(it.at)
        if least is None or span is None or least <= span or named & inner:
            raise TileError(f"`{show(it)}`: turns of the loop over {loop.var} may store the same elements")
        for other in walk(loop.body):
            if isinstance(other, Load | Index | Store) and other.at.buffer == it.at.buffer and other.at != it.at:
                raise TileError(f"`{show(other)}`: turns of the loop over {loop.var} may meet in {it.at.buffer}")


def _span(at: Access) -> int | None:
    """How far apart the first and the last element of a block are, if that is a number and none lies before the first. A
    bound along the columns of a row lets no more through than its limit."""
    rows, cols = (0 if extent == 1 else step for step, extent in zip((at.rows, at.cols), at.shape, strict=True))
    if not isinstance(rows, int) or not isinstance(cols, int) or rows < 0 or cols < 0:
        return None
    span = rows * (at.shape[0] - 1) + cols * (at.shape[1] - 1)
    for b in at.bounds:
        least = lower_bound(b.start)
        if (at.shape[0], cols, b.cols) == (1, 1, 1) and isinstance(b.limit, int) and least is not None and least >= 0:
            span = min(span, b.limit - 1)
    return span


@dataclass
class _Wide:
    """Widens instructions in order. State: the blocks that are wide, and the names that were made beside those `taken`."""

    var: str
    by: int
    axis: int
    bound: Bound | None
    known: Mapping[str, BlockType]
    fills: Mapping[str, Fill]
    taken: set[str]
    wide: set[str] = field(default_factory=set)
    made: int = 0

    def fresh(self, what: str) -> str:
        while True:
            self.made += 1
            name = f"{self.var}.{what}{self.made}"
            if name not in self.taken:
                return name

    def mark(self, name: str) -> None:
        """A block of the program becomes wide."""
        extent = self.known[name][1][self.axis]
        if extent != 1:
            raise TileError(f"{name} has {extent} elements along axis {self.axis} already")
        self.wide.add(name)

    def loop(self, it: For) -> list[Instruction]:
        """The loop itself, its carried folds joined after it."""
        before: list[Instruction] = []
        after: list[Instruction] = []
        carry: list[Carry] = []
        names = unused((c.name for c in it.carry), ".v", self.taken)
        folds: dict[str, tuple[str, str]] = {}
        for c in it.carry:
            op, value = self._fold(c, it)
            self.mark(c.next)
            dtype, shape = self.known[c.name]
            start = neutral(_FOLD_OF[op], dtype)
            zero, inner = self.fresh("z"), names[c.name]
            before.append(Fill(zero, dtype, self._shape(shape), start))
            folds[c.next] = op, value
            carry.append(Carry(inner, zero, c.next))
            self.wide.add(inner)
            init = self.fills.get(c.init)
            if init is not None and init.value == start:
                after.append(Reduce(c.name, _FOLD_OF[op], self.axis, inner))
            else:
                part = self.fresh("p")
                after += [Reduce(part, _FOLD_OF[op], self.axis, inner), Map(c.name, op, (c.init, part))]
        body: list[Instruction] = []
        for one in renamed(it.body, names):
            if isinstance(one, Map) and one.name in folds:
                op, value = folds[one.name]
                (carried,) = (names[c.name] for c in it.carry if c.next == one.name)
                body.append(Map(one.name, op, (carried, self._folded(op, value, body))))
            else:
                body += self.one(one)
        return [*before, replace(it, step=self.by, body=tuple(body), carry=tuple(carry)), *after]

    def _fold(self, c: Carry, it: For) -> tuple[str, str]:
        """The operation of a carried fold, and what it takes in."""
        made = next((x for x in it.body if isinstance(x, Map) and x.name == c.next), None)
        if made is None or made.op not in _FOLD_OF or c.name not in made.args:
            raise TileError(f"{c.name}, which the loop over {it.var} carries, is no fold; its turns depend on each other")
        require_unseen(it, c)
        return made.op, made.args[1 - made.args.index(c.name)]

    def _folded(self, op: str, value: str, body: list[Instruction]) -> str:
        """What a fold takes in, wide, and neutral where there is no turn."""
        name = self.spread(value, body)
        if self.bound is None:
            return name
        dtype = self.known[value][0]
        place, limit, inside, start, result = (self.fresh(x) for x in ("i", "n", "b", "z", "s"))
        body += [
            Iota(place, I64, _along(self.axis, self.by, 1), self.bound.start, self.bound.rows, self.bound.cols),
            Iota(limit, I64, (1, 1), self.bound.limit, 0, 0),
            Map(inside, "lt", (place, limit)),
            Fill(start, dtype, (1, 1), neutral(_FOLD_OF[op], dtype)),
            Map(result, "where", (inside, name, start)),
        ]
        return result

    def one(self, it: Instruction) -> list[Instruction]:
        match it:
            case Map() | Cast():
                if self._any(uses(it)):
                    self.mark(it.name)
                return [it]
            case Load():
                if not self._moves(it):
                    return [it]
                self.wide.add(it.name)
                return [replace(it, at=self.access(it))]
            case Prefetch():
                return [replace(it, at=self.access(it)) if self._moves(it) else it]
            case Iota():
                return [self._iota(it)]
            case Store():
                if slope(it.at.offset, self.var) == 0:
                    raise TileError(f"`{show(it)}`: every turn of the loop over {self.var} stores at the same place")
                return self._stored(it)
            case Dot():
                return self._dot(it)
            case Reduce():
                return [self._reduce(it)]
            case Index():
                if self._moves(it):
                    raise TileError(f"`{show(it)}`: an index that differs between the turns of the loop over {self.var}")
                return [it]
            case For():
                return self._inner(it)
            case Fill():
                return [it]

    def _stored(self, it: Store) -> list[Instruction]:
        body: list[Instruction] = []
        value = self.spread(it.value, body)
        return [*body, replace(it, at=self.access(it), value=value)]

    def _dot(self, it: Dot) -> list[Instruction]:
        moving, still = (it.a, it.b) if self.axis == 0 else (it.b, it.a)
        if still in self.wide:
            raise TileError(f"`{show(it)}`: {still} differs between the turns of the loop over {self.var} along its inner axis")
        if not self._any((moving, it.acc)):
            return [it]
        body: list[Instruction] = []
        one, acc = self.spread(moving, body), self.spread(it.acc, body)
        self.mark(it.name)
        return [*body, Dot(it.name, *((one, it.b) if self.axis == 0 else (it.a, one)), acc)]

    def _reduce(self, it: Reduce) -> Reduce:
        if it.arg in self.wide:
            if it.axis == self.axis:
                raise TileError(
                    f"`{show(it)}`: it reduces the axis that the turns of the loop over {self.var} are to lie along"
                )
            self.mark(it.name)
        return it

    def _iota(self, it: Iota) -> Iota:
        if not self._moves(it):
            return it
        step = slope(it.start, self.var)
        if not isinstance(step, int) or it.shape[self.axis] != 1:
            raise TileError(f"`{show(it)}`: it does not move evenly with {self.var}")
        self.wide.add(it.name)
        rows, cols = (step, it.cols) if self.axis == 0 else (it.rows, step)
        return Iota(it.name, it.dtype, self._shape(it.shape), it.start, rows, cols)

    def _inner(self, it: For) -> list[Instruction]:
        """A loop inside: what it carries is wide if its first or any later value is."""
        if self.var in {s.name for s in symbols_of((it.start, it.stop))}:
            raise TileError(f"the limits of the loop over {it.var} depend on {self.var}")
        carried = {c.name for c in it.carry if c.init in self.wide}
        while True:
            outside, made = set(self.wide), self.made
            self.wide |= carried
            body = [x for one in it.body for x in self.one(one)]
            more = {c.name for c in it.carry if c.next in self.wide}
            if more <= carried:
                break
            carried |= more
            self.wide, self.made = outside, made
        before: list[Instruction] = []
        carry = []
        for c in it.carry:
            if c.name in carried:
                carry.append(Carry(c.name, self.spread(c.init, before), self.spread(c.next, body)))
            else:
                carry.append(c)
        return [*before, replace(it, body=tuple(body), carry=tuple(carry))]

    def spread(self, name: str, body: list[Instruction]) -> str:
        """A block as a wide one, written if it is not."""
        if name in self.wide:
            return name
        dtype, shape = self.known[name]
        if shape[self.axis] != 1:
            raise TileError(f"{name} has {shape[self.axis]} elements along axis {self.axis} already")
        wide = self.fresh("w")
        self.wide.add(wide)
        fill = self.fills.get(name)
        if fill is not None:
            body.append(Fill(wide, dtype, self._shape(shape), fill.value))
            return wide
        zeros, always = self.fresh("z"), self.fresh("t")
        body += [Fill(zeros, dtype, self._shape(shape), 0), Fill(always, BOOL, self._shape((1, 1)), 1)]
        body.append(Map(wide, "where", (always, name, zeros)))
        return wide

    def access(self, it: Load | Store | Prefetch) -> Access:
        at = it.at
        step = slope(at.offset, self.var)
        steps = [slope(b.start, self.var) for b in at.bounds]
        steady = not any(slope(d, self.var) != 0 for d in (at.rows, at.cols, *(b.limit for b in at.bounds)))
        if step is None or not all(isinstance(s, int) for s in steps) or not steady:
            raise TileError(f"`{show(it)}`: it does not move evenly with {self.var}")
        if at.shape[self.axis] != 1:
            raise TileError(f"`{show(it)}`: its block has {at.shape[self.axis]} elements along axis {self.axis} already")
        bounds = tuple(self._bounded(b, s) for b, s in zip(at.bounds, steps, strict=True) if isinstance(s, int))
        if self.bound is not None and not isinstance(it, Prefetch):
            bounds += (self.bound,)
        rows, cols = (step, at.cols) if self.axis == 0 else (at.rows, step)
        return Access(at.buffer, at.offset, rows, cols, self._shape(at.shape), bounds)

    def _bounded(self, b: Bound, step: int) -> Bound:
        return replace(b, rows=step) if self.axis == 0 else replace(b, cols=step)

    def _shape(self, shape: Block) -> Block:
        return (self.by, shape[1]) if self.axis == 0 else (shape[0], self.by)

    def _moves(self, it: Instruction) -> bool:
        return self.var in {s.name for s in symbols_of(dims_in(it))}

    def _any(self, names: Iterable[str]) -> bool:
        return any(n in self.wide for n in names)
