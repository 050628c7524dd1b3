"""A body as the plainest program that computes it: a task for each point, blocks of one element, one loop for each walk.

Axes that every access walks evenly are joined into one. Those that folds reduce are loops inside a task; all others are the
grid. A task walks along the folded axes once for each depth of folds:

    softmax:  walk 1: most = max(x)     walk 2: e = exp(x - most), kept in scratch; total = sum(e)     last: e / total

What a later walk needs is computed again from what was read, unless it is dear: then it is kept in scratch. Everything else,
vectors and tasks of a sensible size among it, is up to the schedule (`lower_rows`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import field

from hotfuse.codegen.body import Body, Fold, Given, Limit, Lookup, Number, Place, Product, Read, Scan, Step, Write
from hotfuse.codegen.body_axes import args_of, moves, reads, varying
from hotfuse.codegen.scalar_ops import FOLDS, neutral, result_dtype
from hotfuse.codegen.tile import (
    Access,
    Axis,
    Bound,
    Buffer,
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
    Store,
    TileProgram,
    sizes_of,
)
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.types import I64, DType, numel
from hotfuse.records import dataclass

Info = Callable[[str], tuple[DType, Dim]]  # element type and size of a value in memory
DEAR = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "gelu_erf", "gelu_tanh", "pow", "sin", "cos"}
)


@dataclass(frozen=True)
class Nest:
    """A plain program: its grid variables are those of `kept` axes, and each of `walks` is the loops along the folded ones."""

    program: TileProgram
    kept: tuple[str, ...]
    walks: tuple[tuple[str, ...], ...]


def make_nest(name: str, body: Body, info: Info, keep: bool) -> Nest:
    """The plain program of a joined body. With `keep`, dear steps that two walks need lie in scratch in between."""
    writer = _Writer(body, keep)
    task = writer.task()
    kept = body.domain[: len(body.domain) - body.folded]
    grid = tuple(Axis(v, size) for v, size in zip(writer.kept, kept, strict=True))
    buffers = (*_buffers(body, info), *writer.scratch)
    program = TileProgram(name, sizes_of(buffers, grid, task), buffers, grid, task)
    return Nest(program, writer.kept, tuple(writer.walks))


def _buffers(body: Body, info: Info) -> tuple[Buffer, ...]:
    read = dict.fromkeys(root for r in reads(body) for root in (r.root, *(look.root for look in r.lookups)))
    written = dict.fromkeys(w.root for w in body.writes)
    found = [Buffer(root, *info(root)) for root in read if root not in written]
    return tuple(found + [Buffer(root, *info(root), "output") for root in written])


@dataclass
class _Scope:
    """A body while it is written: instructions, the steps that are blocks there, the point, and what scans carry."""

    point: list[Dim]
    written: list[Instruction] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)
    scans: dict[str, tuple[str, str]] = field(default_factory=dict)  # carried name and next one


class _Writer:
    """Writes one task. State: fresh names, the scratch that was asked for, and the walks so far."""

    def __init__(self, body: Body, keep: bool) -> None:
        self.body, self.keep = body, keep
        rank = len(body.domain) - body.folded
        if body.folded != 1 and any(isinstance(s, Scan) for s in body.steps):
            raise TileError("a running total goes along one axis")
        self.kept = tuple(f"i{axis}" for axis in range(rank))
        self.lengths = body.domain[rank:]
        self.by_name: dict[str, Step] = {s.name: s for s in body.steps}
        self.scratch: list[Buffer] = []
        self.walks: list[tuple[str, ...]] = []
        self._numbers = itertools.count()
        self._varying = varying(body)
        self._depths: dict[str, int] = {}
        self._kept_in: dict[str, str] = {}  # scratch of a step
        self._stored: set[str] = set()

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"

    # what is known of steps

    def depth(self, name: str) -> int:
        """How many folds lie one behind the other up to this step."""
        if name not in self._depths:
            step = self.by_name[name]
            below = max((self.depth(a) for a in args_of(step)), default=0)
            self._depths[name] = below + isinstance(step, Fold)
        return self._depths[name]

    def dtype(self, name: str) -> DType:
        step = self.by_name[name]
        match step:
            case Read() | Product() | Number() | Fold() | Scan() | Cast() | Fill():
                return step.dtype
            case Place():
                return I64
            case Map():
                return result_dtype(step.op, [self.dtype(a) for a in step.args])
        raise TileError(f"the type of {name} is not known")

    # the task

    def task(self) -> tuple[Instruction, ...]:
        folds = [s for s in self.body.steps if isinstance(s, Fold)]
        deepest = max((self.depth(f.name) for f in folds), default=0)
        levels = [[f for f in folds if self.depth(f.name) == d] for d in range(1, deepest + 1)]
        if self.keep:
            self._choose_kept(levels)
        top = _Scope([symbol(v) for v in self.kept])
        for level in levels:
            self._walk(top, level, ())
        rows = [w for w in self.body.writes if not (w.step in self._varying or moves(self.body, w.strides))]
        for write in rows:
            self._write(write, top)
        points = [w for w in self.body.writes if w not in rows]
        if points:
            self._walk(top, (), points)
        return tuple(top.written)

    def _choose_kept(self, levels: Sequence[Sequence[Fold]]) -> None:
        """Dear steps that more than one walk needs get scratch."""
        needs: dict[str, set[int]] = {}
        for turn, folds in enumerate(levels):
            for fold in folds:
                self._mark(fold.arg, turn, needs)
        for write in self.body.writes:
            self._mark(write.step, len(levels), needs)
        for name, turns in needs.items():
            step = self.by_name[name]
            if len(turns) > 1 and isinstance(step, Map) and step.op in DEAR and name in self._varying:
                self._kept_in[name] = scratch = f"keep{len(self.scratch)}"
                self.scratch.append(Buffer(scratch, self.dtype(name), numel(self.lengths), "scratch"))

    def _mark(self, name: str, turn: int, needs: dict[str, set[int]]) -> None:
        if turn in needs.setdefault(name, set()):
            return
        needs[name].add(turn)
        step = self.by_name[name]
        if not isinstance(step, Fold):
            for arg in args_of(step):
                self._mark(arg, turn, needs)

    def _walk(self, top: _Scope, folds: Sequence[Fold], writes: Sequence[Write]) -> None:
        """Loops along the folded axes, for folds of equal depth or for writes. Without folded axes, the point itself."""
        for name in (*(f.arg for f in folds), *(w.step for w in writes)):
            self._rowwise(name, top)
        if not self.lengths:
            for write in writes:
                self._write(write, top)
            return
        number = len(self.walks)
        loops = tuple(f"c{number}" + (f".{axis}" if axis else "") for axis in range(len(self.lengths)))
        self.walks.append(loops)
        inner = _Scope([*top.point, *(symbol(v) for v in loops)], [], dict(top.blocks))
        carried: list[tuple[str, str, str]] = []  # first, carried, next
        for fold in folds:
            value, acc, following = self.block(fold.arg, inner), self.fresh(), self.fresh()
            inner.written.append(Map(following, FOLDS[fold.op], (acc, value)))
            carried.append((self._start(fold, top), acc, following))
        for write in writes:
            self._write(write, inner)
        for name, (acc, following) in inner.scans.items():
            step = self.by_name[name]
            assert isinstance(step, Scan)
            carried.append((self._start(step, top), acc, following))
        self._stored |= {n for n in self._kept_in if n in inner.blocks}
        finals = self._loops(loops, inner.written, carried, top)
        for fold, final in zip(folds, finals, strict=False):
            top.blocks[fold.name] = final

    def _start(self, fold: Fold | Scan, top: _Scope) -> str:
        name = self.fresh()
        top.written.append(Fill(name, fold.dtype, (1, 1), neutral(fold.op, fold.dtype)))
        return name

    def _loops(
        self, loops: Sequence[str], body: list[Instruction], carried: Sequence[tuple[str, str, str]], top: _Scope
    ) -> list[str]:
        """The loops around a body, outermost first; each hands on what is carried. Returns the final blocks."""
        names = [[acc if level == len(loops) - 1 else self.fresh() for _, acc, _ in carried] for level in range(len(loops))]
        made: tuple[Instruction, ...] = tuple(body)
        following = [n for _, _, n in carried]
        for level in reversed(range(len(loops))):
            before = names[level - 1] if level else [first for first, _, _ in carried]
            carry = tuple(Carry(a, b, n) for a, b, n in zip(names[level], before, following, strict=True))
            made = (For(loops[level], 0, self.lengths[level], 1, made, carry),)
            following = names[level]
        top.written += made
        return following

    def _rowwise(self, name: str, top: _Scope) -> None:
        """Compute what a step needs that is the same all along a walk before it."""
        step = self.by_name[name]
        if isinstance(step, Fold) or name in top.blocks:
            return
        if name not in self._varying:
            self.block(name, top)
            return
        if isinstance(step, Read):
            for look in step.lookups:
                if not moves(self.body, look.strides):
                    self._index(look, top)
        for arg in args_of(step):
            self._rowwise(arg, top)

    def _write(self, write: Write, scope: _Scope) -> None:
        block = self.block(write.step, scope)
        scope.written.append(Store(self._at(write.root, write.offset, write.strides, scope), block))

    # steps as blocks

    def block(self, name: str, scope: _Scope) -> str:
        """The block of a step, its instructions written if it is not there."""
        if name in scope.blocks:
            return scope.blocks[name]
        if name in self._stored:
            block = self.fresh()
            scope.written.append(Load(block, self._own(name, scope)))
        else:
            block = self._compute(self.by_name[name], scope)
            if name in self._kept_in:
                scope.written.append(Store(self._own(name, scope), block))
        scope.blocks[name] = block
        return block

    def _compute(self, step: Step, scope: _Scope) -> str:
        block = self.fresh()
        match step:
            case Read():
                moved: Dim = step.offset
                for look in step.lookups:
                    moved = moved + symbol(self._index(look, scope)) * look.stride
                at = self._at(step.root, moved, step.strides, scope, (*self.body.limits, *step.limits))
                scope.written.append(Load(block, at, step.fill))
            case Product():
                return self._product(step, scope)
            case Number():
                whole = self.fresh()
                scope.written += [Iota(whole, I64, (1, 1), step.value, 0, 0), Cast(block, step.dtype, whole)]
            case Place():
                scope.written.append(Iota(block, I64, (1, 1), _moved(step.start, step.strides, scope.point), 0, 0))
            case Fill():
                scope.written.append(Fill(block, step.dtype, (1, 1), step.value))
            case Cast():
                scope.written.append(Cast(block, step.dtype, self.block(step.arg, scope)))
            case Map():
                scope.written.append(Map(block, step.op, tuple(self.block(a, scope) for a in step.args)))
            case Scan():
                before = self.fresh()
                scope.written.append(Map(block, FOLDS[step.op], (before, self.block(step.arg, scope))))
                scope.scans[step.name] = before, block
                return before if step.exclusive else block
            case Fold() | Given():
                raise TileError(f"step {step.name} is not there yet")
        return block

    def _product(self, step: Product, scope: _Scope) -> str:
        (zero, acc, total), k = (self.fresh() for _ in range(3)), symbol("k")
        inner = _Scope(scope.point)
        names = []
        for read, move in ((step.a, step.a_step), (step.b, step.b_step)):
            name = self.fresh()
            at = self._at(read.root, read.offset + k * move, read.strides, inner, ())
            inner.written.append(Load(name, at))
            if read.dtype != step.dtype:
                inner.written.append(Cast(f"{name}.x", step.dtype, name))
            names.append(name if read.dtype == step.dtype else f"{name}.x")
        inner.written.append(Dot(total, names[0], names[1], acc))
        scope.written.append(Fill(zero, step.dtype, (1, 1), 0))
        scope.written.append(For("k", 0, step.length, 1, tuple(inner.written), (Carry(acc, zero, total),)))
        return acc

    def _index(self, look: Lookup, scope: _Scope) -> str:
        key = f"index {look.root} {look.offset} {look.strides} {look.limit}"  # each table counts from its own end
        if key not in scope.blocks:
            scope.blocks[key] = name = self.fresh()
            scope.written.append(Index(name, self._at(look.root, look.offset, look.strides, scope), look.limit))
        return scope.blocks[key]

    def _place(self, scope: _Scope) -> Dim:
        """The number of the point along the folded axes."""
        place: Dim = 0
        for variable, length in zip(scope.point[len(self.kept) :], self.lengths, strict=True):
            place = place * length + variable
        return place

    def _own(self, name: str, scope: _Scope) -> Access:
        return Access(self._kept_in[name], self._place(scope), 0, 0, (1, 1))

    def _at(
        self, root: str, offset: Dim, strides: Sequence[Dim], scope: _Scope, limits: Sequence[Limit] | None = None
    ) -> Access:
        """Of the body's own limits, those count that move with the access: others hold for whole rows."""
        bounds = []
        for limit in self.body.limits if limits is None else limits:
            own = limit in self.body.limits
            if not own or any(a != 0 and b != 0 for a, b in zip(limit.strides, strides, strict=True)):
                bounds.append(Bound(_moved(limit.start, limit.strides, scope.point), 0, 0, limit.limit))
        return Access(root, _moved(offset, strides, scope.point), 0, 0, (1, 1), tuple(bounds))


def _moved(start: Dim, strides: Sequence[Dim], point: Sequence[Dim]) -> Dim:
    for variable, stride in zip(point, strides, strict=False):
        start = start + variable * stride
    return start
