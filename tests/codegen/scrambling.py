"""Bodies with their plain programs, and rewrites of programs at random: as many as the schedule has, in any order.

`Draft.body` makes one computation in a type of one's choice: the same in float64 is what tells rounding from mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hotfuse.codegen.body import Body, Fold, Product, Read, Scan, Step, Write
from hotfuse.codegen.nest import Info, make_nest
from hotfuse.codegen.schedule import coarsen, hoist, in_parts, inline, interchange, parallelize, peel, reorder, split, unroll
from hotfuse.codegen.schedule_memory import prefetch, stage, stream
from hotfuse.codegen.schedule_values import prune, share
from hotfuse.codegen.tile import Access, For, Load, Map, TileProgram, walk
from hotfuse.codegen.widen import widen
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.types import DType

M, N, C = symbol("m"), symbol("n"), 3
SHAPES: dict[str, Dim] = {"x": M * N * C, "row": M, "column": N * C, "depth": C, "one": 1, "left": M * N, "right": N * C}
STRIDES: dict[str, tuple[Dim, Dim, Dim]] = {
    "x": (N * C, C, 1), "row": (1, 0, 0), "column": (0, C, 1), "depth": (0, 0, 1), "one": (0, 0, 0),
}  # fmt: skip
EXACT = ("add", "sub", "mul", "max", "min", "neg", "abs")
ROUNDED = (*EXACT, "exp", "tanh")


@dataclass(frozen=True)
class Draft:
    """A body over m x n x 3 points: maps of what is read, folds over the last `folded` axes one behind the other with maps
    of their own, or a product; and what is written."""

    reads: tuple[str, ...]
    maps: tuple[tuple[str, int, int], ...]
    folds: tuple[str, ...] = ()
    folded: int = 0
    product: bool = False
    scan: bool = False

    def body(self, dtype: DType) -> Body:
        steps: list[Step] = [Read(f"in{i}", root, dtype, 0, STRIDES[root]) for i, root in enumerate(self.reads)]
        if self.product:  # of left: m x n and right: n x 3, so that the middle axis is summed
            domain: tuple[Dim, ...] = (M, C)
            flat_reads = [root if root in ("row", "depth", "one") else "depth" for root in self.reads]
            steps = [Read(f"in{i}", root, dtype, 0, (STRIDES[root][0], STRIDES[root][2])) for i, root in enumerate(flat_reads)]
            a, b = Read("a", "left", dtype, 0, (N, 0)), Read("b", "right", dtype, 0, (0, 1))
            steps.append(Product("dot", a, b, N, 1, C, dtype))
        else:
            domain = (M, N, C)
        values = [s.name for s in steps]
        for number, (op, left, right) in enumerate(self.maps):
            args = (values[left % len(values)],) if op in ("neg", "abs", "exp", "tanh") else (
                values[left % len(values)], values[right % len(values)])  # fmt: skip
            steps.append(Map(f"map{number}", op, args))
            values.append(steps[-1].name)
        for number, op in enumerate(self.folds):
            steps += [Fold(f"fold{number}", op, values[-1], dtype), Map(f"less{number}", "sub", (values[-1], f"fold{number}"))]
            values.append(f"less{number}")
        if self.scan:
            steps.append(Scan("scan", "sum", values[-1], dtype))
            values.append("scan")
        flat = (C, 1) if self.product else (N * C, C, 1)
        writes = [Write(values[-1], "y", dtype, flat)]
        if self.folds:
            kept = len(domain) - self.folded
            rows: tuple[Dim, ...] = (1, 0, 0) if kept == 1 else (N, 1, 0)
            writes.append(Write(f"fold{len(self.folds) - 1}", "total", dtype, rows))
        return Body(domain, self.folded, tuple(steps), tuple(writes))

    def info(self, dtype: DType) -> Info:
        sizes = {**SHAPES, "y": M * C if self.product else M * N * C, "total": M if self.folded == 2 else M * N}
        return lambda root: (dtype, sizes[root])

    def program(self, dtype: DType, keep: bool) -> TileProgram:
        return make_nest("nest", self.body(dtype), self.info(dtype), keep).program


Rewrite = Callable[[TileProgram], TileProgram]


def candidates(program: TileProgram, by: int, turn: int) -> Iterator[tuple[str, Rewrite]]:
    """Rewrites that may or may not be allowed, in a fixed order."""
    axes = [a.var for a in program.grid]
    loops = [it for it in walk(program.body) if isinstance(it, For)]
    for axis in axes:
        yield "coarsen", lambda p, axis=axis: coarsen(p, axis, by)
    if len(axes) > 1:
        yield "reorder", lambda p: reorder(p, axes[::-1])
    for loop in loops:
        var = loop.var
        yield "widen", lambda p, var=var: widen(p, var, by, by % 2)
        yield "peel", lambda p, var=var: peel(p, var, by, f"r{turn}")
        yield "split", lambda p, var=var: split(p, var, by, f"o{turn}")
        yield "in_parts", lambda p, var=var: in_parts(p, var, by)
        yield "hoist", lambda p, var=var: hoist(p, var)
        yield "unroll", lambda p, var=var: unroll(p, var, by)
        yield "inline", lambda p, var=var: inline(p, var)
        yield "parallelize", lambda p, var=var: parallelize(p, var)
        for other in loop.body:
            if isinstance(other, For):
                yield "interchange", lambda p, var=var, other=other: interchange(p, var, other.var)
        near = Access(program.buffers[0].name, symbol(var) + by, 0, 1, (1, 4))
        yield "prefetch", lambda p, var=var, near=near: prefetch(p, var, near)
        for root in sorted({it.at.buffer for it in walk(loop.body) if isinstance(it, Load)}):
            yield "stage", lambda p, var=var, root=root: stage(p, var, root, f"s{turn}", N * C * by)
    for buffer in program.buffers:
        if buffer.kind == "output":
            yield "stream", lambda p, name=buffer.name: stream(p, name)
    yield "share", share
    yield "prune", prune


def scrambled(program: TileProgram, picks: Sequence[tuple[int, int]]) -> Iterator[tuple[str, TileProgram]]:
    """Rewrites one after the other; those that are refused leave the program alone."""
    for turn, (pick, by) in enumerate(picks):
        options = list(candidates(program, by, turn))
        name, rewrite = options[pick % len(options)]
        try:
            changed = rewrite(program)
        except TileError:
            continue
        if changed != program:
            program = changed
            yield name, program
