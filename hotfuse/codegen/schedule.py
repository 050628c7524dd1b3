"""Schedules: rewrites of a tile program that change how it runs, not what it computes.

A lowering writes a program in its plainest form: a task for each point, blocks of one element, loops in the order of the
formula. What makes it fast is a list of rewrites, applied one after the other:

    program = coarsen(program, "i", 64)           # 64 rows a task
    program = peel(program, "i", 8, "i.rest")     # whole tiles of 8 rows, and the rest
    program = widen(program, "i", 8, axis=0)      # (in `widen`) a tile is one block of 8 rows
    program = prefetch(program, "k", ahead)       # (in `schedule_memory`) what comes next comes nearer meanwhile

Each function says what it makes of what, and what it requires; where that does not hold, or cannot be proved, it raises
TileError and the program stays as it was. Programs are values: nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotfuse.codegen.loop_limits import is_at_least, is_multiple
from hotfuse.codegen.tile import (
    Axis,
    Carry,
    Dot,
    Fill,
    For,
    Index,
    Instruction,
    Load,
    Map,
    Prefetch,
    Store,
    TileProgram,
    uses,
    walk,
)
from hotfuse.codegen.tile_loops import find_loop, put, replaced
from hotfuse.codegen.tile_names import defined, names_of, renamed, substituted, unused, with_loops
from hotfuse.codegen.tile_text import dims_in
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, ceildiv, lower_bound, maximum, minimum, symbol, symbols_of, upper_bound

# the grid


def coarsen(program: TileProgram, var: str, by: Dim) -> TileProgram:
    """Several neighbouring tasks become one.

    before    grid i n                  body
    after     grid i.t ceil(n / by)     for i in [i.t*by : min(n, i.t*by + by) : 1] free { body }
    requires  `by` is at least 1, if that is known
    """
    axis = _axis(program, var)
    if isinstance(by, int) and by < 1:
        raise TileError(f"{by} tasks of {var} cannot become one")
    tile, most = f"{var}.t", by if isinstance(by, int) else None
    if most is not None and isinstance(axis.count, int) and axis.count <= most:
        grid = tuple(a for a in program.grid if a is not axis)
        return replace(program, grid=grid, body=(For(var, 0, axis.count, 1, program.body, free=True),))
    _require_new(program, tile)
    first = symbol(tile) * by
    last = first + by if axis.count % by == 0 else minimum(axis.count, first + by)
    grid = tuple(Axis(tile, ceildiv(axis.count, by), axis.shared) if a is axis else a for a in program.grid)
    return replace(program, grid=grid, body=(For(var, first, last, 1, program.body, free=True),))


def reorder(program: TileProgram, order: Sequence[str]) -> TileProgram:
    """The grid's axes in another order; the last one moves fastest.

    before    grid i, j     after    grid j, i
    requires  `order` names every axis once
    """
    axes = {a.var: a for a in program.grid}
    if sorted(order) != sorted(axes):
        raise TileError(f"the grid is {', '.join(axes)}; {', '.join(order)} is no order of it")
    return replace(program, grid=tuple(axes[v] for v in order))


def parallelize(program: TileProgram, var: str) -> TileProgram:
    """Turns of a loop become tasks.

    before    grid g     for i in [a : b : s] free { body }
    after     grid g, i.t max(0, ceil((b - a) / s))     body with i = a + s*i.t
    requires  the loop is free and is the whole body, and its length is of sizes alone
    """
    loop = find_loop(program, var)
    if program.body != (loop,):
        raise TileError(f"the loop over {var} is not the whole body")
    _require_free(loop)
    count = ceildiv(length_of(program, loop), loop.step)
    inner = {a.var for a in program.grid} & {s.name for s in symbols_of((count,))}
    if inner:
        raise TileError(f"the length of the loop over {var} depends on {', '.join(sorted(inner))}")
    tile = f"{var}.t"
    _require_new(program, tile)
    body = substituted(loop.body, {var: loop.start + symbol(tile) * loop.step})
    return replace(program, grid=(*program.grid, Axis(tile, count)), body=body)


def partition(program: TileProgram, var: str) -> TileProgram:
    """Threads share the tasks along one axis of the grid: each has a part of it, and goes through the others with that.

    before    grid i c     after    grid i c shared
    requires  i is an axis of the grid, and no other axis is shared
    """
    if var not in {a.var for a in program.grid}:
        raise TileError(f"{var} is no axis of the grid")
    if any(a.shared for a in program.grid):
        raise TileError("another axis of the grid is shared already")
    return replace(program, grid=tuple(replace(a, shared=True) if a.var == var else a for a in program.grid))


# loops


def split(program: TileProgram, var: str, by: int, outer: str) -> TileProgram:
    """A loop becomes a loop over runs of `by` and one over each run.

    before    for i in [a : b : s] { body }
    after     for o in [a : b : by] { for i in [o : min(b, o + by) : s] { body } }
    requires  `by` is a multiple of the step
    """
    loop = find_loop(program, var)
    _require_runs(loop, by)
    _require_new(program, outer)
    names = unused((c.name for c in loop.carry), ".i", names_of(program))
    carry = tuple(Carry(names[c.name], c.name, names.get(c.next, c.next)) for c in loop.carry)
    start = symbol(outer)
    stop = start + by if (loop.stop - loop.start) % by == 0 else minimum(loop.stop, start + by)
    inner = replace(loop, start=start, stop=stop, body=renamed(loop.body, names), carry=carry)
    around = tuple(Carry(c.name, c.init, names[c.name]) for c in loop.carry)
    return put(program, loop, (For(outer, loop.start, loop.stop, by, (inner,), around, free=loop.free),))


def interchange(program: TileProgram, outer: str, inner: str) -> TileProgram:
    """Two loops change places.

    before    for i in I free { for j in J free { body } }     after    for j in J free { for i in I free { body } }
    requires  both are free, nothing stands between them, and J does not depend on i
    """
    first, second = find_loop(program, outer), find_loop(program, inner)
    if first.body != (second,):
        raise TileError(f"the loop over {inner} is not the whole body of the loop over {outer}")
    _require_free(first, second)
    if outer in {s.name for s in symbols_of((second.start, second.stop))}:
        raise TileError(f"the limits of the loop over {inner} depend on {outer}")
    return put(program, first, (replace(second, body=(replace(first, body=second.body),)),))


def peel(program: TileProgram, var: str, by: int, rest: str) -> TileProgram:
    """The turns that make no whole run of `by` get a loop of their own. Nothing changes where there are surely none.

    before    for i in [a : b : s] { body }
    after     for i in [a : a + (b - a)//by*by : s] { body }     for rest in [a + (b - a)//by*by : b : s] { body }
              (with max(0, b - a) for b - a, where b may be below a)
    requires  `by` is a multiple of the step
    """
    loop = find_loop(program, var)
    _require_runs(loop, by)
    length = loop.stop - loop.start
    if is_multiple(length, by):
        return program
    _require_new(program, rest)
    whole_runs = length_of(program, loop) // by * by
    middle = loop.start + whole_runs
    taken = names_of(program)
    inner = unused((it.var for it in walk(loop.body) if isinstance(it, For)), ".r", taken)
    second = with_loops(loop.body, {var: rest, **inner})
    names = unused(defined(loop.body), ".r", taken)
    whole = unused((c.name for c in loop.carry), ".w", taken)
    last = tuple(Carry(c.name, whole[c.name], names.get(c.next, c.next)) for c in loop.carry)
    tail = replace(loop, var=rest, start=middle, body=renamed(second, names), carry=last)
    most = upper_bound(whole_runs)
    if most is not None and most <= 0:
        carry = tuple(Carry(c.name, d.init, c.next) for c, d in zip(last, loop.carry, strict=True))
        return put(program, loop, (replace(tail, start=loop.start, carry=carry),))
    carry = tuple(Carry(whole[c.name], c.init, whole.get(c.next, c.next)) for c in loop.carry)
    return put(program, loop, (replace(loop, stop=middle, body=renamed(loop.body, whole), carry=carry), tail))


def unroll(program: TileProgram, var: str, turns: int) -> TileProgram:
    """`turns` turns are written out at a time.

    before    for i in I { body }     after    for i in I unroll turns { body }
    requires  at least one turn
    """
    if turns < 1:
        raise TileError(f"{turns} turns cannot be written out at a time")
    loop = find_loop(program, var)
    return put(program, loop, (replace(loop, unroll=turns),))


def inline(program: TileProgram, var: str) -> TileProgram:
    """A loop of exactly one turn becomes its body.

    before    for i in [a : a + 1 : 1] { body }     after    body with i = a
    requires  the loop surely has one turn
    """
    loop = find_loop(program, var)
    if ceildiv(loop.stop - loop.start, loop.step) != 1:
        raise TileError(f"the loop over {var} may have more than one turn, or none")
    firsts = {c.name: c.init for c in loop.carry}
    body = renamed(substituted(loop.body, {var: loop.start}), firsts)
    after = {c.name: firsts.get(c.next, c.next) for c in loop.carry}
    moved = replace(program, body=replaced(program.body, loop, body))
    return replace(moved, body=renamed(moved.body, after))


def hoist(program: TileProgram, var: str) -> TileProgram:
    """What every turn of a loop computes alike is computed once before it.

    before    for i in I { t = index u[j]     x = load v[t + i] ... }     after    t = index u[j]     for i in I { x = ... }
    requires  nothing: instructions that read memory stay where they are unless the loop surely has a turn, and where the loop
              or anything in it stores to what they read
    """
    loop = find_loop(program, var)
    least = lower_bound(loop.stop - loop.start)
    surely = least is not None and least >= 1
    stored = {it.at.buffer for it in walk(loop.body) if isinstance(it, Store)}
    moving, before, inside = {var, *(c.name for c in loop.carry)}, list[Instruction](), list[Instruction]()
    for it in loop.body:
        named = {*uses(it), *(s.name for s in symbols_of(dims_in(it)))}
        stays = isinstance(it, Store | Prefetch | For)
        if isinstance(it, Load | Index):
            stays = not surely or it.at.buffer in stored
        if stays or named & moving:
            inside.append(it)
            moving |= defined((it,))
        else:
            before.append(it)
    return put(program, loop, (*before, replace(loop, body=tuple(inside))))


def in_parts(program: TileProgram, var: str, by: int) -> TileProgram:
    """A long sum becomes a sum of parts: the error of a sum grows with the length of its chains of additions.

    before    for k in [a : b : s] carry (acc = z -> n) { body }
    after     for k.p in [a : b : by] carry (acc = z -> acc.s) {
                  for k in [k.p : min(b, k.p + by) : s] carry (acc.p = z -> n) { body }     acc.s = map add acc acc.p }
    requires  each carried block is a sum that begins with zeros, and nothing in the body uses what is summed so far; `by` is a
              multiple of the step. The result is rounded otherwise than before
    """
    loop = find_loop(program, var)
    _require_runs(loop, by)
    fills = {it.name: it for it in walk(program.body) if isinstance(it, Fill)}
    makers = {it.name: it for it in loop.body if isinstance(it, Dot | Map)}
    for c in loop.carry:
        zero, made = fills.get(c.init), makers.get(c.next)
        adds = (isinstance(made, Dot) and made.acc == c.name) or (
            isinstance(made, Map) and made.op == "add" and c.name in made.args
        )
        if zero is None or zero.value != 0 or not adds:
            raise TileError(f"{c.name} is no sum that begins with zeros")
        require_unseen(loop, c)
    _require_new(program, f"{var}.p")
    taken = names_of(program)
    parts, sums = (unused((c.name for c in loop.carry), ending, taken) for ending in (".p", ".s"))
    start = symbol(f"{var}.p")
    carry = tuple(Carry(parts[c.name], c.init, c.next) for c in loop.carry)
    part = replace(loop, start=start, stop=minimum(loop.stop, start + by), body=renamed(loop.body, parts), carry=carry)
    adds_up = tuple(Map(sums[c.name], "add", (c.name, parts[c.name])) for c in loop.carry)
    around = tuple(Carry(c.name, c.init, sums[c.name]) for c in loop.carry)
    return put(program, loop, (For(f"{var}.p", loop.start, loop.stop, by, (part, *adds_up), around),))


# what rewrites require


def _axis(program: TileProgram, var: str) -> Axis:
    found = next((a for a in program.grid if a.var == var), None)
    if found is None:
        raise TileError(f"the grid has no axis {var}")
    return found


def _require_new(program: TileProgram, name: str) -> None:
    if name in names_of(program):
        raise TileError(f"the program has a {name} already")


def _require_runs(loop: For, by: int) -> None:
    if by < 1 or by % loop.step:
        raise TileError(f"the loop over {loop.var} has steps of {loop.step}, which {by} is no multiple of")


def require_unseen(loop: For, c: Carry) -> None:
    """Nothing in the body of a loop uses a carried block but what makes the next one, once, and nothing uses that."""
    readers = [it for it in walk(loop.body) if c.name in uses(it) or c.next in uses(it)]
    if len(readers) != 1 or uses(readers[0]).count(c.name) != 1 or [x.next for x in loop.carry].count(c.next) != 1:
        raise TileError(f"{c.name}, which the loop over {loop.var} carries, is used before the loop ends")


def length_of(program: TileProgram, loop: For) -> Dim:
    """stop - start, or 0 where the stop is below the start."""
    length = loop.stop - loop.start
    return length if is_at_least(length, 0, program.grid) else maximum(length, 0)


def _require_free(*loops: For) -> None:
    for loop in loops:
        if not loop.free:
            raise TileError(f"the turns of the loop over {loop.var} may depend on each other")
