"""Pointwise and row kernels: a body becomes loops.

Axes that every access walks evenly are joined. The last axis, or the folded ones joined, is the columns: vectors run along it.
The axis before it is the rows, and all others are axes of the grid. A row is walked once for each depth of folds:

    for each row                      softmax:  walk 1: most = max(x)
        walk 1 .. n: folds                      walk 2: e = exp(x - most), kept in scratch; total = sum(e)
        last walk:   writes                     last:   e / total

What a later walk needs is computed again from what was read, unless it is dear: then it is kept in scratch, which a row never
outgrows the nearest cache of. A row of few vectors stays in registers as one block, and each thing is computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hotfuse.codegen.body import Body, Fold, Given, Lookup, Number, Read, Step
from hotfuse.codegen.scalar_ops import result_dtype
from hotfuse.codegen.tile import (
    Access,
    Axis,
    Bound,
    Buffer,
    Carry,
    Cast,
    Fill,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Reduce,
    Store,
    TileProgram,
    sizes_of,
    uses,
)
from hotfuse.errors import TileError
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, minimum, symbol
from hotfuse.ir.layout import collapse
from hotfuse.ir.types import BOOL, I64, DType, Shape, numel

TASK_ELEMENTS = 4096  # of the domain, about: long against the cost of handing out a task, short against a cache
DEAR = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "gelu_erf", "gelu_tanh", "pow", "sin", "cos"}
)
_STARTS = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf"), "any": 0, "all": 1}
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True)
class Nest:
    """A body over its joined axes: sizes, and the strides of reads, lookups and writes along them."""

    shape: Shape
    body: Body


def joined(body: Body) -> Nest:
    """The body over as few axes as its accesses allow, at least a row axis and a column axis."""
    rank = len(body.domain)
    many = [r.strides for r in body.steps if isinstance(r, Read)] + [w.strides for w in body.writes]
    many += [look.strides for r in body.steps if isinstance(r, Read) for look in r.lookups]
    kinds = [axis >= rank - body.folded for axis in range(rank)]
    runs = collapse(body.domain, many, kinds)
    if body.folded and len(runs) > 1 and rank - body.folded not in [r[0] for r in runs[-1:]]:
        raise TileError("the folded axes are not walked evenly, so that they make no row")
    shape = tuple(numel(tuple(body.domain[a] for a in run)) for run in runs)
    extra = max(0, 2 - len(runs))

    def along(strides: Sequence[Dim]) -> tuple[Dim, ...]:
        return (0,) * extra + tuple(strides[run[-1]] for run in runs)

    steps = tuple(
        replace(s, strides=along(s.strides), lookups=tuple(replace(k, strides=along(k.strides)) for k in s.lookups))
        if isinstance(s, Read)
        else s
        for s in body.steps
    )
    writes = tuple(replace(w, strides=along(w.strides)) for w in body.writes)
    return Nest((1,) * extra + shape, Body((1,) * extra + shape, 1 if body.folded else 0, steps, writes))


def lower_rows(name: str, body: Body, dtypes: Callable[[str], tuple[DType, Dim]], spec: Spec) -> TileProgram:
    """The program of a body without given blocks. `dtypes` tells element type and size of each value in memory."""
    nest = joined(body)
    *outer, rows, cols = nest.shape
    if cols == 0:
        raise TileError("rows without columns are left to tier 0")
    lanes = spec.vector_bytes // 4
    variables = [f"o{i}" for i in range(len(outer))]
    writer = _Rows(nest, lanes, variables)

    start: Dim
    stop: Dim
    if body.folded or _short(cols, lanes):
        per_task = maximum(1, floordiv(TASK_ELEMENTS, maximum(cols, 1)))
        grid = (*(Axis(v, n) for v, n in zip(variables, outer, strict=True)), Axis("i", ceildiv(rows, per_task)))
        start, stop = 0, cols
    else:
        width = minimum(cols, TASK_ELEMENTS)
        per_task = maximum(1, floordiv(TASK_ELEMENTS, maximum(width, 1)))
        grid = (
            *(Axis(v, n) for v, n in zip(variables, outer, strict=True)),
            Axis("i", ceildiv(rows, per_task)),
            Axis("j", ceildiv(cols, TASK_ELEMENTS)),
        )
        start = symbol("j") * TASK_ELEMENTS
        stop = minimum(cols, start + TASK_ELEMENTS)

    first: Dim = symbol("i") * per_task
    if rows == 1:
        grid, first, per_task = tuple(a for a in grid if a.var != "i"), 0, 1
    inner = writer.row(start, stop)
    loop = For("r", first, minimum(rows, first + per_task), 1, inner)
    buffers = _buffers(nest.body, dtypes) + tuple(writer.scratch)
    notes = (f"rows {rows}, columns {cols}: {writer.note}",)
    return TileProgram(name, sizes_of(buffers, grid, (loop,)), buffers, grid, (loop,), notes)


def _short(cols: Dim, lanes: int) -> bool:
    return isinstance(cols, int) and cols <= 32 * lanes


def _buffers(body: Body, dtypes: Callable[[str], tuple[DType, Dim]]) -> tuple[Buffer, ...]:
    read = dict.fromkeys(
        root for s in body.steps if isinstance(s, Read) for root in (s.root, *(look.root for look in s.lookups))
    )
    written = dict.fromkeys(w.root for w in body.writes)
    found = [Buffer(root, *dtypes(root)) for root in read if root not in written]
    return tuple(found + [Buffer(root, *dtypes(root), "output") for root in written])


@dataclass
class _Scope:
    """Where instructions go: the list of a loop's body, the steps that are blocks there, and the columns it covers."""

    written: list[Instruction] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()


class _Rows:
    """Writes the instructions of one row. State: fresh names, and the scratch that was asked for."""

    def __init__(self, nest: Nest, lanes: int, outer: Sequence[str]) -> None:
        self.nest, self.body = nest, nest.body
        self.lanes = lanes
        self.variables = [*(symbol(v) for v in outer), symbol("r"), symbol("c")]
        self.by_name: dict[str, Step] = {s.name: s for s in self.body.steps}
        self.scratch: list[Buffer] = []
        self.note = ""
        self._in_registers = False  # a row is one block, without a loop over columns
        self._numbers = itertools.count()
        self._varying: dict[str, bool] = {}
        self._depths: dict[str, int] = {}

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"

    # what is known of steps

    def args(self, step: Step) -> tuple[str, ...]:
        return (step.arg,) if isinstance(step, Fold) else uses(step) if isinstance(step, Map | Cast) else ()

    def varying(self, name: str) -> bool:
        """Whether a step differs between columns."""
        if name not in self._varying:
            step = self.by_name[name]
            if isinstance(step, Read):
                found = step.strides[-1] != 0 or any(k.strides[-1] != 0 for k in step.lookups)
            else:
                found = not isinstance(step, Fold) and any(self.varying(a) for a in self.args(step))
            self._varying[name] = found
        return self._varying[name]

    def depth(self, name: str) -> int:
        """How many folds lie one behind the other up to this step."""
        if name not in self._depths:
            step = self.by_name[name]
            below = max((self.depth(a) for a in self.args(step)), default=0)
            self._depths[name] = below + isinstance(step, Fold)
        return self._depths[name]

    # rows

    def row(self, start: Dim, stop: Dim) -> tuple[Instruction, ...]:
        folds = [s for s in self.body.steps if isinstance(s, Fold)]
        cols = self.nest.shape[-1]
        top = _Scope()
        if isinstance(cols, int) and _short(cols, self.lanes) and cols <= 24 * self.lanes:
            self.note, self._in_registers = "a row is one block", True
            whole = _Scope(top.written, {})
            for fold in folds:
                self._fold_block(fold, whole)
            self._write(whole, cols)
            return tuple(top.written)
        width = 4 * self.lanes
        deepest = max((self.depth(f.name) for f in folds), default=0)
        walks = [[f for f in folds if self.depth(f.name) == d] for d in range(1, deepest + 1)]
        kept = self._kept(walks)
        self.note = f"{len(walks) + 1} walks of {width} columns, {len(kept)} kept"
        done: set[str] = set()
        for turn in walks:
            self._walk(turn, start, stop, width, top, kept, done)
        self._last(start, stop, width, top, kept, done)
        return tuple(top.written)

    def _kept(self, walks: Sequence[Sequence[Fold]]) -> dict[str, str]:
        """Dear steps that more than one walk needs, with the scratch they are kept in."""
        needs: dict[str, set[int]] = {}
        for turn, folds in enumerate(walks):
            for fold in folds:
                self._mark(fold.arg, turn, needs)
        for write in self.body.writes:
            self._mark(write.step, len(walks), needs)
        kept: dict[str, str] = {}
        for name, turns in needs.items():
            step = self.by_name[name]
            if len(turns) > 1 and isinstance(step, Map) and step.op in DEAR and self.varying(name):
                kept[name] = f"keep{len(kept)}"
                self.scratch.append(Buffer(kept[name], self._dtype(name), self.nest.shape[-1], "scratch"))
        return kept

    def _mark(self, name: str, turn: int, needs: dict[str, set[int]]) -> None:
        if turn in needs.setdefault(name, set()):
            return
        needs[name].add(turn)
        step = self.by_name[name]
        if not isinstance(step, Fold):
            for arg in self.args(step):
                self._mark(arg, turn, needs)

    def _dtype(self, name: str) -> DType:
        step = self.by_name[name]
        match step:
            case Read() | Number() | Fold() | Cast() | Fill():
                return step.dtype
            case Map():
                return result_dtype(step.op, [self._dtype(a) for a in step.args])
        raise TileError(f"the type of {name} is not known")

    def _walk(
        self, folds: Sequence[Fold], start: Dim, stop: Dim, width: int, top: _Scope, kept: dict[str, str], done: set[str]
    ) -> None:
        """One walk along the row for folds of equal depth."""
        for fold in folds:
            self._rowwise(fold.arg, top)
        sums = {f.name: self.fresh() for f in folds}
        for fold in folds:
            top.written.append(Fill(sums[fold.name], fold.dtype, (1, width), _start(fold)))
        found: set[str] = set()

        def body(scope: _Scope, names: dict[str, str]) -> dict[str, str]:
            after = {}
            for fold in folds:
                value = self._block(fold.arg, scope, width, kept, done, found)
                if scope.bounds:
                    value = self._inside(value, fold, scope, width)
                name = self.fresh()
                scope.written.append(Map(name, _COMBINE[fold.op], (names[fold.name], value)))
                after[fold.name] = name
            return after

        finals = self._columns(start, stop, width, top, sums, body)
        done |= found
        for fold in folds:
            name = top.blocks[fold.name] = self.fresh()
            top.written.append(Reduce(name, fold.op, 1, finals[fold.name]))

    def _last(self, start: Dim, stop: Dim, width: int, top: _Scope, kept: dict[str, str], done: set[str]) -> None:
        for write in self.body.writes:
            self._rowwise(write.step, top)
            if not self.varying(write.step):
                block = self._block(write.step, top, 1, kept, done, set())
                top.written.append(Store(self._at(write.root, write.offset, write.strides, 1, ()), block))
        wide = [w for w in self.body.writes if self.varying(w.step) or w.strides[-1] != 0]
        if not wide:
            return

        def body(scope: _Scope, _: dict[str, str]) -> dict[str, str]:
            for write in wide:
                block = self._block(write.step, scope, width, kept, done, set())
                if not self.varying(write.step):
                    block = self._spread(block, write.step, scope, width)
                scope.written.append(Store(self._at(write.root, write.offset, write.strides, width, scope.bounds), block))
            return {}

        self._columns(start, stop, width, top, {}, body)

    def _columns(
        self,
        start: Dim,
        stop: Dim,
        width: int,
        top: _Scope,
        carried: dict[str, str],
        body: Callable[[_Scope, dict[str, str]], dict[str, str]],
    ) -> dict[str, str]:
        """A loop over whole blocks of columns, and one turn more for the rest, masked. Returns the carried blocks' names."""
        middle = start + (stop - start) // width * width
        for first, last, bounds in (
            (start, middle, ()),
            (middle, stop, (Bound(symbol("c"), 0, 1, stop),)),
        ):
            if first == last:
                continue
            inside = {fold: self.fresh() for fold in carried}
            scope = _Scope([], dict(top.blocks), bounds)
            after = body(scope, inside)
            carry = tuple(Carry(inside[f], carried[f], after[f]) for f in carried)
            top.written.append(For("c", first, last, width, tuple(scope.written), carry))
            carried = inside
        return carried

    def _fold_block(self, fold: Fold, whole: _Scope) -> None:
        cols = self.nest.shape[-1]
        assert isinstance(cols, int)
        block = self._block(fold.arg, whole, cols, {}, set(), set())
        if not self.varying(fold.arg):
            block = self._spread(block, fold.arg, whole, cols)
        name = whole.blocks[fold.name] = self.fresh()
        whole.written.append(Reduce(name, fold.op, 1, block))

    def _write(self, whole: _Scope, cols: int) -> None:
        for write in self.body.writes:
            block = self._block(write.step, whole, cols, {}, set(), set())
            wide = write.strides[-1] != 0
            if wide and not self.varying(write.step):
                block = self._spread(block, write.step, whole, cols)
            at = self._at(write.root, write.offset, write.strides, cols if wide else 1, ())
            whole.written.append(Store(at, block))

    # steps as blocks

    def _rowwise(self, name: str, top: _Scope) -> None:
        """Compute what a step needs that is the same for all columns before the loop over them."""
        step = self.by_name[name]
        if isinstance(step, Fold) or name in top.blocks:
            return
        if not self.varying(name):
            self._block(name, top, 1, {}, set(), set())
            return
        if isinstance(step, Read):
            self._indices(step, top)
        for arg in self.args(step):
            self._rowwise(arg, top)

    def _block(self, name: str, scope: _Scope, width: int, kept: dict[str, str], done: set[str], found: set[str]) -> str:
        """The block of a step, its instructions written if it is not there."""
        if name in scope.blocks:
            return scope.blocks[name]
        step = self.by_name[name]
        block = self.fresh()
        if name in kept and name in done:
            scope.written.append(Load(block, self._at(kept[name], 0, self._own(), width, scope.bounds)))
        else:
            match step:
                case Read():
                    self._indices(step, scope)
                    moved: Dim = step.offset
                    for look in step.lookups:
                        moved = moved + symbol(scope.blocks[_index_key(look)]) * look.stride
                    wide = width if self.varying(name) else 1
                    scope.written.append(Load(block, self._at(step.root, moved, step.strides, wide, scope.bounds)))
                case Number():
                    whole = self.fresh()
                    scope.written += [Iota(whole, I64, (1, 1), step.value, 0, 0), Cast(block, step.dtype, whole)]
                case Fill():
                    scope.written.append(Fill(block, step.dtype, (1, 1), step.value))
                case Cast():
                    scope.written.append(Cast(block, step.dtype, self._block(step.arg, scope, width, kept, done, found)))
                case Map():
                    args = tuple(self._block(a, scope, width, kept, done, found) for a in step.args)
                    scope.written.append(Map(block, step.op, args))
                case Fold() | Given():
                    raise TileError(f"step {name} is not there yet")
            if name in kept:
                found.add(name)
                scope.written.append(Store(self._at(kept[name], 0, self._own(), width, scope.bounds), block))
        scope.blocks[name] = block
        return block

    def _indices(self, step: Read, scope: _Scope) -> None:
        for look in step.lookups:
            key = _index_key(look)
            if look.strides[-1] != 0:
                raise TileError("an index that differs between columns is left to tier 0")
            if key not in scope.blocks:
                scope.blocks[key] = name = self.fresh()
                scope.written.append(Index(name, self._at(look.root, look.offset, look.strides, 1, ()), look.limit))

    def _own(self) -> tuple[Dim, ...]:
        """Strides of scratch that holds one row."""
        return (0,) * (len(self.nest.shape) - 1) + (1,)

    def _at(self, root: str, offset: Dim, strides: Sequence[Dim], width: int, bounds: tuple[Bound, ...]) -> Access:
        *outer, last = strides
        for variable, stride in zip(self.variables, outer, strict=False):
            offset = offset + variable * stride
        if width > 1 and not self._in_registers:
            offset = offset + symbol("c") * last
        return Access(root, offset, 0, last if width > 1 else 0, (1, width), bounds if width > 1 else ())

    def _inside(self, value: str, fold: Fold, scope: _Scope, width: int) -> str:
        """The block with the fold's start where the columns end."""
        place, limit, inside, start, result = (self.fresh() for _ in range(5))
        (bound,) = scope.bounds
        scope.written += [
            Iota(place, I64, (1, width), bound.start, 0, 1),
            Iota(limit, I64, (1, 1), bound.limit, 0, 0),
            Map(inside, "lt", (place, limit)),
            Fill(start, fold.dtype, (1, 1), _start(fold)),
            Map(result, "where", (inside, value, start)),
        ]
        return result

    def _spread(self, block: str, step: str, scope: _Scope, width: int) -> str:
        """A block of one element as one of `width` equal ones."""
        zeros, both, result = (self.fresh() for _ in range(3))
        dtype = self._dtype(step)
        scope.written += [Fill(zeros, dtype, (1, width), 0), Fill(both, BOOL, (1, width), 1)]
        scope.written.append(Map(result, "where", (both, block, zeros)))
        return result


def _index_key(look: Lookup) -> str:
    return f"index {look.root} {look.offset} {look.strides}"


def _start(fold: Fold) -> float:
    start = _STARTS[fold.op]
    if not fold.dtype.is_float and fold.op in ("max", "min") and fold.dtype.kind != "bool":
        bits, signed = fold.dtype.bits, fold.dtype.kind == "int"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return low if fold.op == "max" else high
    return start
