"""Programs over the same rows become one: what they hand to each other stays in the cache of the core that made it.

    before    program a { grid i.t     ... store x to h[...] }     program b { grid i.t     ... y = load h[...] ... }
    after     program c { grid i.t     ... store x to h[...]     ... y = load h[...] ... }     h is scratch: one task's rows

First each program gets its own part of `h` (`keep_inside`), while its rows are one simple loop; then it is scheduled as any
other; at last the bodies are put one behind the other (`chain`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotfuse.codegen.loop_limits import is_at_least, slope
from hotfuse.codegen.tile import Access, Buffer, For, Index, Instruction, Load, Prefetch, Store, TileProgram, sizes_of, walk
from hotfuse.codegen.tile_loops import find_loop
from hotfuse.codegen.tile_names import defined, renamed
from hotfuse.codegen.tile_text import show
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, lower_bound, substitute, symbol, upper_bound
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Inside:
    """What links of a chain share: the rows of a task, and the buffers that stay inside, with the length of their rows."""

    rows: int
    widths: Mapping[str, int]


def keep_inside(program: TileProgram, var: str, inside: Inside) -> TileProgram:
    """Buffers whose rows only one task touches become its scratch.

    before    output h f32[m*w]     for i in [t*rows : min(m, t*rows + rows) : 1] { ... h[i*w + c] ... }
    after     scratch h f32[rows*w]     for i in [t*rows : min(m, t*rows + rows) : 1] { ... h[(i - t*rows)*w + c] ... }
    requires  the loop over `var` is the whole body and at most `rows` turns long; each access to `h` moves by one row with it
              and stays in that row; nobody reads an index from `h`
    """
    rows, widths = inside.rows, inside.widths
    loop = find_loop(program, var)
    first = loop.start
    if program.body != (loop,) or not is_at_least(first + rows - loop.stop, 0, program.grid):
        raise TileError(f"the loop over {var} is not a task's {rows} rows")
    found = _moved(loop.body, var, first, widths, {})
    buffers = tuple(replace(b, size=rows * widths[b.name], kind="scratch") if b.name in widths else b for b in program.buffers)
    made = replace(program, buffers=buffers, body=(replace(loop, body=found),))
    return replace(made, sizes=sizes_of(made.buffers, made.grid, made.body))


def _moved(
    body: Sequence[Instruction], var: str, first: Dim, widths: Mapping[str, int], lasts: Mapping[str, Dim]
) -> tuple[Instruction, ...]:
    """The body with accesses to what stays inside counted from the task's first row. `lasts` are inner loops' last values."""
    made: list[Instruction] = []
    for it in body:
        if isinstance(it, For):
            made.append(replace(it, body=_moved(it.body, var, first, widths, {**lasts, it.var: it.stop - 1})))
        elif isinstance(it, Load | Store | Prefetch | Index) and it.at.buffer in widths:
            if isinstance(it, Index):
                raise TileError(f"`{show(it)}`: an index is read from what stays inside")
            width = widths[it.at.buffer]
            _require_row(it, it.at, var, width, lasts)
            made.append(replace(it, at=replace(it.at, offset=it.at.offset - first * width)))
        else:
            made.append(it)
    return tuple(made)


def _require_row(it: Instruction, at: Access, var: str, width: int, lasts: Mapping[str, Dim]) -> None:
    if slope(at.offset, var) != width or at.shape[0] != 1:
        raise TileError(f"`{show(it)}`: it does not move by a row of {width} elements with {var}")
    rest = at.offset - symbol(var) * width
    low, last = lower_bound(rest), rest + at.cols * (at.shape[1] - 1)
    for name, value in reversed(list(lasts.items())):
        last = substitute(last, {name: value})
    high = upper_bound(last)
    bounded = any(b.limit == width and b.start == rest for b in at.bounds)
    if low is None or low < 0 or ((high is None or high >= width) and not bounded):
        raise TileError(f"`{show(it)}`: it may leave its row of {width} elements")


def chain(name: str, programs: Sequence[TileProgram]) -> TileProgram:
    """One program that does in each task what the tasks of several did, one after the other.

    before    program a { grid t n     A }     program b { grid t n     B }     after    program c { grid t n     A     B }
    requires  the grids are the same; what is scratch of one is scratch of all; nothing else that one writes do others touch
    """
    first = programs[0]
    if any(p.grid != first.grid for p in programs):
        raise TileError("the programs of a chain are not over the same tasks")
    body: list[Instruction] = []
    buffers: dict[str, Buffer] = {}
    for number, program in enumerate(programs):
        body += renamed(program.body, {n: f"{n}.{number}" for n in defined(program.body)})
        for buffer in program.buffers:
            before = buffers.setdefault(buffer.name, buffer)
            if before != buffer:
                raise TileError(f"{buffer.name} is {before.kind} of one program of a chain and {buffer.kind} of another")
    _require_writers(programs, buffers)
    in_order = tuple(sorted(buffers.values(), key=lambda b: b.kind == "scratch"))
    notes = tuple(dict.fromkeys(note for p in programs for note in p.notes))
    return TileProgram(name, sizes_of(in_order, first.grid, body), in_order, first.grid, tuple(body), notes)


def _require_writers(programs: Sequence[TileProgram], buffers: Mapping[str, Buffer]) -> None:
    """Scratch is written before it is read."""
    written: set[str] = set()
    for program in programs:
        for it in walk(program.body):
            if isinstance(it, Load) and buffers[it.at.buffer].kind == "scratch" and it.at.buffer not in written:
                own = any(isinstance(x, Store) and x.at.buffer == it.at.buffer for x in walk(program.body))
                if not own:
                    raise TileError(f"{it.at.buffer} is read before a program of the chain writes it")
        written |= {it.at.buffer for it in walk(program.body) if isinstance(it, Store)}
