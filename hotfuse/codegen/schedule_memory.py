"""Rewrites of how a program meets memory; `schedule` says what rewrites are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotfuse.codegen.loop_limits import is_at_least
from hotfuse.codegen.schedule import length_of
from hotfuse.codegen.tile import (
    Access,
    Buffer,
    For,
    Index,
    Instruction,
    Load,
    Prefetch,
    Store,
    TileProgram,
    walk,
)
from hotfuse.codegen.tile_loops import find_loop, mapped, put, replaced
from hotfuse.codegen.tile_names import names_of, substituted, unused
from hotfuse.codegen.tile_text import dims_in
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, ceildiv, symbol, symbols_of


def prefetch(program: TileProgram, var: str, at: Access, level: int = 2) -> TileProgram:
    """Each turn of a loop brings memory nearer that will be needed later.

    before    for k in K { body }     after    for k in K { prefetch at     body }
    requires  the buffer is there; nothing else: a prefetch changes no result, and may name memory that is not there
    """
    if at.buffer not in {b.name for b in program.buffers}:
        raise TileError(f"there is no buffer {at.buffer}")
    loop = find_loop(program, var)
    return put(program, loop, (replace(loop, body=(Prefetch(at, level), *loop.body)),))


def fetch_for_another(
    program: TileProgram, var: str, buffer: Buffer, place: Dim, each: Dim, lines: int, level: int = 2
) -> TileProgram:
    """Each turn of a loop brings memory nearer that this program never reads: another one does, right after a task of this one
    and on the same thread.

    before    for k in K { body }     after    for k in K { prefetch b[place]     prefetch b[place + each] ...     body }
    requires  an input that is new, or one that is there and is the same; at least one line; and dims that are known in the
              loop. No result changes: a prefetch may name memory that is not there
    """
    if lines < 1:
        raise TileError(f"{lines} lines are none")
    known = {b.name: b for b in program.buffers}
    if buffer.kind != "input" or known.get(buffer.name, buffer) != buffer:
        raise TileError(f"{buffer.name} is no input that another program may read, or not the one that is there")
    if buffer.name not in known:
        program = replace(program, buffers=(*program.buffers, buffer))
    new = {s.name for s in symbols_of((buffer.size,))} - set(program.sizes)
    program = replace(program, sizes=(*program.sizes, *sorted(new)))
    loop = find_loop(program, var)
    around = _variables_around(program, loop)
    strangers = {s.name for s in symbols_of((place, each))} - around - set(program.sizes)
    if strangers:
        raise TileError(f"{', '.join(sorted(strangers))} is not known in the loop over {var}")
    fetches = tuple(Prefetch(Access(buffer.name, place + each * i, 0, 1, (1, 1)), level) for i in range(lines))
    return put(program, loop, (replace(loop, body=(*fetches, *loop.body)),))


def _variables_around(program: TileProgram, loop: For) -> set[str]:
    """The variables of the grid, of a loop, and of the loops around it."""

    def path(body: Iterable[Instruction]) -> set[str] | None:
        for it in body:
            if it is loop:
                return {loop.var}
            found = path(it.body) if isinstance(it, For) else None
            if found is not None and isinstance(it, For):
                return {it.var, *found}
        return None

    return {axis.var for axis in program.grid} | (path(program.body) or set())


def stream(program: TileProgram, buffer: str) -> TileProgram:
    """Stores to an output go past the caches: it is so large that nothing of it would be there when it is read.

    before    store x to y[...]     after    store x to y[...] stream
    requires  `buffer` is an output that the program does not read
    """
    if buffer not in {b.name for b in program.arguments if b.kind == "output"}:
        raise TileError(f"{buffer} is no output")
    if any(isinstance(it, Load | Index) and it.at.buffer == buffer for it in walk(program.body)):
        raise TileError(f"the program reads {buffer}, which it would then fetch from far away")

    def marked(it: Instruction) -> Instruction:
        return replace(it, stream=True) if isinstance(it, Store) and it.at.buffer == buffer else it

    return replace(program, body=mapped(program.body, marked))


def stage(program: TileProgram, var: str, buffer: str, scratch: str, size: Dim) -> TileProgram:
    """What every turn of a loop reads of a buffer is packed once, in the order in which it is read.

    before    for i in I { for k in K { x = load b[f(k)] ... } }
    after     for k.c in K { y = load b[f(k.c)]     store y to s[k.c] }     for i in I { for k in K { x = load s[k] ... } }
    requires  the loop surely has a turn; one load of the buffer in it, that does not depend on i, in loops whose limits are
              known before them; no store to the buffer; and `size` elements of a new scratch that surely hold it all
    """
    loop = find_loop(program, var)
    inner, load = _path_to_load(loop, buffer)
    if scratch in {b.name for b in program.buffers}:
        raise TileError(f"there is a buffer {scratch} already")
    if not is_at_least(loop.stop - loop.start, 1, program.grid):
        raise TileError(f"the loop over {var} may have no turn, and then nothing of {buffer} may be read")
    if any(isinstance(it, Store) and it.at.buffer == buffer for it in walk(program.body)):
        raise TileError(f"{buffer} is written too")
    parts: tuple[Instruction, ...] = (load, *inner)
    known = {s.name for s in symbols_of(d for x in parts for d in dims_in(x))}
    moving = {
        var,
        *(it.var for it in walk(loop.body) if isinstance(it, For)),
        *(it.name for it in walk(loop.body) if isinstance(it, Index)),
    }
    if known & (moving - {x.var for x in inner}):
        raise TileError(f"what is read of {buffer} is not the same in every turn of the loop over {var}")
    uneven = {x.var for x in inner} & {s.name for s in symbols_of(d for x in inner for d in dims_in(x))}
    if uneven:
        raise TileError(f"how often {buffer} is read depends on {', '.join(sorted(uneven))}")
    rows, cols = load.at.shape
    place: Dim = 0
    needed: Dim = rows * cols
    for x in inner:
        turns = ceildiv(length_of(program, x), x.step)
        place, needed = place * turns + (symbol(x.var) - x.start) // x.step, needed * turns
    if not is_at_least(size - needed, 0, program.grid):
        raise TileError(f"{size} elements of scratch may be too few for {needed} of {buffer}")
    packed = Access(scratch, place * (rows * cols), cols, 1, (rows, cols))
    fresh = unused([load.name, *(x.var for x in inner)], ".c", names_of(program))
    copies = {x.var: symbol(fresh[x.var]) for x in inner}
    name = fresh[load.name]
    copy: tuple[Instruction, ...] = substituted((Load(name, load.at, load.fill), Store(packed, name)), copies)
    for x in reversed(inner):
        limits = substituted((replace(x, body=()),), copies)[0]
        assert isinstance(limits, For)
        copy = (replace(limits, var=fresh[x.var], body=copy, carry=(), unroll=1, free=False),)
    dtype = next(b.dtype for b in program.buffers if b.name == buffer)
    changed = replaced((loop,), load, (Load(load.name, packed),))
    made = replace(program, buffers=(*program.buffers, Buffer(scratch, dtype, size, "scratch")))
    made = replace(made, body=replaced(program.body, loop, (*copy, *changed)))
    new = {s.name for s in symbols_of((size,))} - set(program.sizes)
    return replace(made, sizes=(*program.sizes, *sorted(new)))


def _path_to_load(loop: For, buffer: str) -> tuple[list[For], Load]:
    """The one load of a buffer in a loop, and the loops between them."""
    found: list[tuple[list[For], Load]] = []

    def visit(body: Iterable[Instruction], path: list[For]) -> None:
        for it in body:
            if isinstance(it, For):
                visit(it.body, [*path, it])
            elif isinstance(it, Load) and it.at.buffer == buffer:
                found.append((path, it))

    visit(loop.body, [])
    if len(found) != 1:
        raise TileError(f"the loop over {loop.var} loads {buffer} in {len(found)} places; one is needed")
    return found[0]
