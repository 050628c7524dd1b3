"""TileProgram -> LLVM IR for a CPU with vectors.

A block lives in registers: each row is a few vectors of `lanes` elements and one shorter vector for the rest; a block with one
column is a scalar per row. Elementwise instructions are lazy: nothing is written when one is met, and when a store, a dot, a
reduction or a loop needs a piece (row, column, width), the whole chain of that piece is written at once. So a fused chain over
a block of 24 vectors needs the registers of one vector, and parts that nobody reads cost nothing.

The entry point is `void NAME(ptr table, ptr scratch, i64 begin, i64 end)`: tasks begin .. end - 1. The table holds 8-byte
words: the address of a status word, a pointer per argument, a number per size. The body is a function of its own, whose
pointers LLVM may then take to be distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from hotfuse.codegen.llvm_access import Memory, is_transposed, squares
from hotfuse.codegen.llvm_dim import Scope, emit_dim
from hotfuse.codegen.llvm_map import emit_cast, emit_map
from hotfuse.codegen.llvm_text import I1, I64, PTR, LType, Operand, Writer, literal
from hotfuse.codegen.tile import (
    Block,
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
    scratch_offsets,
    uses,
    walk,
)
from hotfuse.ir.dim import Dim, lower_bound, symbol
from hotfuse.records import dataclass

Piece = tuple[int, int, int]  # row, column, width (0 is one element)
Pieces = dict[Piece, Operand]
_TASK, _BEGIN, _END = "$task", "$begin", "$end"  # the loop over tasks; no program can name these


def emit(program: TileProgram, lanes: int, isa: str = "other") -> str:
    """The module's text. `lanes` is the number of 32-bit elements of a vector, `isa` as in `Spec`."""
    emitter = _Emitter(program, lanes, isa)
    emitter.function()
    w = emitter.w
    pointers = [f"ptr %b.{b.name}" for b in program.arguments]
    numbers = [f"i64 %s.{s}" for s in program.sizes]
    formal = ", ".join(["ptr %status", *(f"{p[:3]} noalias {p[4:]}" for p in pointers), *numbers])
    words = ["  %status = load ptr, ptr %table, align 8"]
    for place, word in enumerate([*pointers, *numbers], 1):
        type, name = word.split()
        words.append(f"  %w{place} = getelementptr i64, ptr %table, i64 {place}")
        words.append(f"  {name} = load {type}, ptr %w{place}, align 8")
    actual = ", ".join(["ptr %status", *pointers, *numbers, "ptr %scratch", "i64 %begin", "i64 %end"])
    return "\n".join(
        [
            f"define internal void @body({formal}, ptr noalias %scratch, i64 %begin, i64 %end) #0 {{",
            "entry:",
            "  %nowhere = alloca [64 x i8], align 64",
            *w.lines,
            "  ret void",
            "}",
            f"define void @{program.name}(ptr %table, ptr %scratch, i64 %begin, i64 %end) #1 {{",
            *words,
            f"  call void @body({actual})",
            "  ret void",
            "}",
            *w.declared,
            f'attributes #0 = {{ noinline nounwind "prefer-vector-width"="{32 * lanes}" }}',
            "attributes #1 = { nounwind }",
            "!0 = !{i32 1}",
            "",
        ]
    )


@dataclass
class _Value:
    """A block while code is written: how to make a piece of it, the pieces that are there, and what it is read or made from."""

    shape: Block
    make: Callable[[int, int, int], Operand]
    pieces: Pieces = field(default_factory=dict)
    buffer: str = ""
    args: tuple[str, ...] = ()


class _Emitter:
    """State: the writer, and by name the blocks, symbols and dims that are there where it writes now."""

    def __init__(self, program: TileProgram, lanes: int, isa: str) -> None:
        self.program = program
        self.lanes = lanes
        self.w = Writer(isa)
        self.memory = Memory(self.w, {b.name: b for b in program.buffers}, self.dim)
        self.values: dict[str, _Value] = {}
        self.symbols: dict[str, Operand] = {}
        self.dims: Scope = {}
        self.to_come: list[Sequence[Instruction]] = []  # of each body that we are in

    def function(self) -> None:
        for size in self.program.sizes:
            self.symbols[size] = Operand(I64, f"%s.{size}")
        for buffer in self.program.arguments:
            self.memory.bases[buffer.name] = Operand(PTR, f"%b.{buffer.name}")
        for name, offset in scratch_offsets(self.program)[0].items():
            self.memory.bases[name] = self.w.address(Operand(PTR, "%scratch"), "u8", self.dim(offset))
        self.symbols |= {_BEGIN: Operand(I64, "%begin"), _END: Operand(I64, "%end")}
        self._loop(For(_TASK, symbol(_BEGIN), symbol(_END), 1, self.program.body), symbol(_BEGIN), symbol(_END), 1)

    def dim(self, dim: Dim) -> Operand:
        return emit_dim(self.w, dim, self.symbols, self.dims)

    # blocks and their pieces

    def chunks(self, cols: int) -> Iterator[tuple[int, int]]:
        """(column, width) of the vectors of a row."""
        if cols == 1:
            yield 0, 0
            return
        whole = cols - cols % self.lanes
        for start in range(0, whole, self.lanes):
            yield start, self.lanes
        if whole < cols:
            yield whole, cols - whole

    def places(self, shape: Block) -> Iterator[Piece]:
        for row in range(shape[0]):
            for col, width in self.chunks(shape[1]):
                yield row, col, width

    def piece(self, name: str, row: int, col: int, width: int) -> Operand:
        """A piece of a block, written now if it is not there; blocks with one row or column broadcast."""
        value = self.values[name]
        rows, cols = value.shape
        place = (row if rows > 1 else 0, *((col, width) if cols > 1 else (0, 0)))
        found = value.pieces.get(place)
        if found is None:
            found = value.pieces[place] = self._lane_of(value, place) or value.make(*place)
        return self.w.splat(found, width)

    def _lane_of(self, value: _Value, place: Piece) -> Operand | None:
        """One element out of a vector that is there."""
        row, col, width = place
        if not width and value.shape[1] > 1:
            for (r, c, n), operand in value.pieces.items():
                if r == row and c <= col < c + n:
                    return self.w.lane(operand, col - c)
        return None

    def all_pieces(self, name: str) -> Pieces:
        return {place: self.piece(name, *place) for place in self.places(self.values[name].shape)}

    def settle(self, name: str, shape: Block, pieces: Pieces) -> None:
        """Define a block all of whose pieces are there."""

        def missing(row: int, col: int, width: int) -> Operand:
            raise AssertionError(f"piece ({row}, {col}, {width}) of {name} was not made")

        self.values[name] = _Value(shape, missing, pieces)

    def before_write(self, buffers: set[str]) -> None:
        """Make the loads of these buffers happen now that somebody still wants."""
        loads = [name for name, value in self.values.items() if value.buffer in buffers]
        if loads:
            wanted = self._wanted()
            for name in loads:
                if name in wanted:
                    self.all_pieces(name)

    def _wanted(self) -> set[str]:
        """The blocks that are here and that what is to come reads, through chains that are not written yet too."""
        found: set[str] = set()
        pending = [n for body in self.to_come for i in walk(tuple(body)) for n in uses(i)]
        while pending:
            name = pending.pop()
            if name in self.values and name not in found:
                found.add(name)
                pending.extend(self.values[name].args)
        return found

    # instructions

    def body(self, instructions: Sequence[Instruction]) -> None:
        self.to_come.append(())
        for place, instruction in enumerate(instructions):
            self.to_come[-1] = instructions[place + 1 :]
            self.instruction(instruction)
        self.to_come.pop()

    def instruction(self, it: Instruction) -> None:
        match it:
            case Load(name, at):
                self.values[name] = _Value(at.shape, lambda r, c, n: self._load(it, r, c, n), buffer=at.buffer)
            case Fill(name, dtype, shape, number):
                self.values[name] = _Value(shape, lambda r, c, n: literal(LType(dtype.name, n), number))
            case Iota(name, _, shape):
                self.values[name] = _Value(shape, lambda r, c, n: self._iota(it, r, c, n))
            case Cast(name, dtype, arg):
                shape = self.values[arg].shape
                self.values[name] = _Value(
                    shape, lambda r, c, n: emit_cast(self.w, self.piece(arg, r, c, n), dtype.name), args=(arg,)
                )
            case Map(name, op, args):
                shape = _joined(self.values[a].shape for a in args)
                self.values[name] = _Value(
                    shape, lambda r, c, n: emit_map(self.w, op, [self.piece(a, r, c, n) for a in args]), args=args
                )
            case Store(at):
                self.before_write({at.buffer})
                self._store(it)
            case Prefetch(at, level):
                self.memory.prefetch(at, level)
            case Dot():
                self._dot(it)
            case Reduce():
                self._reduce(it)
            case Index():
                self._index(it)
            case For():
                self._for(it)

    def _load(self, it: Load, row: int, col: int, width: int) -> Operand:
        if not width or not is_transposed(it.at):
            return self.memory.load(it.at, it.fill, row, col, width)
        made = self.memory.load_square(it.at, it.fill, row, col, width)
        self.values[it.name].pieces.update({(r, col, width): x for r, x in made.items()})
        return made[row]

    def _store(self, it: Store) -> None:
        if not is_transposed(it.at):
            for row, col, width in self.places(it.at.shape):
                self.memory.store(self.piece(it.value, row, col, width), it.at, row, col, it.stream)
            return
        for col, width in self.chunks(it.at.shape[1]):
            for row, height in squares(it.at.shape[0], width):
                rows = [self.piece(it.value, row + i, col, width) for i in range(height)]
                self.memory.store_square(rows, it.at, row, col, it.stream)

    def _iota(self, it: Iota, row: int, col: int, width: int) -> Operand:
        first = self.w.convert(self.dim(it.start + it.rows * row + it.cols * col), it.dtype.name)
        if not width:
            return first
        steps = self.w.convert(self.w.numbers("i64", width, 0, it.cols), it.dtype.name)
        return self.w.add(self.w.splat(first, width), steps)

    def _dot(self, it: Dot) -> None:
        (rows, inner), cols = self.values[it.a].shape, self.values[it.b].shape[1]
        sums = {place: self.piece(it.acc, *place) for place in self.places((rows, cols))}
        for k in range(inner):
            for row in range(rows):
                one = self.piece(it.a, row, k, 0)
                spread = {width: self.w.splat(one, width) for _, width in self.chunks(cols)}
                for col, width in self.chunks(cols):
                    place = (row, col, width)
                    sums[place] = emit_map(self.w, "fma", (spread[width], self.piece(it.b, k, col, width), sums[place]))
        self.settle(it.name, (rows, cols), sums)

    def _reduce(self, it: Reduce) -> None:
        rows, cols = self.values[it.arg].shape
        pieces: Pieces = {}
        if it.axis == 0:
            for col, width in self.chunks(cols):
                pieces[0, col, width] = self._tree(it.op, [self.piece(it.arg, r, col, width) for r in range(rows)])
            self.settle(it.name, (1, cols), pieces)
            return
        for row in range(rows):
            parts = [self.piece(it.arg, row, col, width) for col, width in self.chunks(cols)]
            equal = [p for p in parts if p.type == parts[0].type]
            ends = [self._tree(it.op, equal), *parts[len(equal) :]]
            pieces[row, 0, 0] = self._tree(it.op, [self._across(it.op, x) for x in ends])
        self.settle(it.name, (rows, 1), pieces)

    def _tree(self, op: str, parts: list[Operand]) -> Operand:
        while len(parts) > 1:
            pairs = [self._combined(op, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(parts) & ~1 :]
        return parts[0]

    def _combined(self, op: str, a: Operand, b: Operand) -> Operand:
        return emit_map(self.w, {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(op, op), (a, b))

    def _across(self, op: str, x: Operand) -> Operand:
        """All lanes of a vector combined: halves folded onto each other while that goes, then one by one."""
        while x.type.lanes > 1 and x.type.lanes % 2 == 0:
            half = LType(x.type.element, x.type.lanes // 2)
            sides = []
            for start in (0, half.lanes):
                picks = ", ".join(f"i32 {i}" for i in range(start, start + half.lanes))
                sides.append(self.w.make(half, f"shufflevector {x}, {x.type} poison, <{half.lanes} x i32> <{picks}>"))
            x = self._combined(op, *sides)
        return self._tree(op, [self.w.lane(x, i) for i in range(x.type.lanes)]) if x.type.lanes else x

    def _index(self, it: Index) -> None:
        w, limit = self.w, self.dim(it.limit)
        raw = w.convert(self.memory.load(it.at, 0, 0, 0, 0), "i64")
        place = w.select(w.compare("lt", raw, literal(I64, 0)), w.add(raw, limit), raw)
        inside = w.make(I1, f"icmp ult {place}, {limit.text}")
        w.store(literal(I64, 1), w.make(PTR, f"select i1 {inside.text}, ptr %nowhere, ptr %status"), 8)
        self.symbols[it.name] = w.select(inside, place, literal(I64, 0))

    # loops

    def _for(self, it: For) -> None:
        inner = tuple(walk(it.body))
        self.before_write({i.at.buffer for i in inner if isinstance(i, Store)})
        own = {c.name for c in it.carry}
        for name in dict.fromkeys(n for i in inner for n in uses(i)):
            if name in self.values and name not in own:
                self.all_pieces(name)
        if it.unroll == 1:
            self._loop(it, it.start, it.stop, 1)
            return
        length, turns = it.stop - it.start, it.step * it.unroll
        whole = length // turns * turns
        self._loop(it, it.start, it.start + whole, it.unroll)
        if whole != length:
            carry = tuple(Carry(c.name, c.name, c.next) for c in it.carry)
            self._loop(For(it.var, 0, 0, it.step, it.body, carry), it.start + whole, it.stop, 1)

    def _loop(self, it: For, start: Dim, stop: Dim, copies: int) -> None:
        """Bottom-tested, `copies` turns written out; entered only where there is a first turn, unless there surely is one."""
        w = self.w
        before = {c.name: self.all_pieces(c.init) for c in it.carry}
        shapes = {c.name: self.values[c.init].shape for c in it.carry}
        first, last = self.dim(start), self.dim(stop)
        head, exit = w.label("loop"), w.label("done")
        least = lower_bound(stop - start)
        guarded = least is None or least <= 0
        came_from = w.block
        if guarded:
            w.branch(w.compare("lt", first, last), head, exit)
        else:
            w.jump(head)
        w.place(head)
        var = w.reserve(I64)
        self.memory.turns[it.var] = start + it.step * symbol(f"{it.var}.turn#")  # no program can name this
        phis = {name: {place: w.reserve(x.type) for place, x in pieces.items()} for name, pieces in before.items()}
        scope = self._enter()
        turn = phis
        for copy in range(copies):
            for name, pieces in turn.items():
                self.settle(name, shapes[name], dict(pieces))
            inside = self._enter()
            self.symbols[it.var] = w.add(var, literal(I64, copy * it.step)) if copy else var
            if it.var == _TASK:
                self._grid()
            self.body(it.body)
            turn = {c.name: {place: self.piece(c.next, *place) for place in before[c.name]} for c in it.carry}
            self._leave(inside)
        following = w.add(var, literal(I64, it.step * copies))
        again = w.compare("lt", following, last)
        latch = w.block
        w.branch(again, head, exit)
        self._leave(scope)
        w.fill_in(var, f"phi i64 [ {first.text}, %{came_from} ], [ {following.text}, %{latch} ]")
        for name, pieces in phis.items():
            for place, phi in pieces.items():
                sources = f"[ {before[name][place].text}, %{came_from} ], [ {turn[name][place].text}, %{latch} ]"
                w.fill_in(phi, f"phi {phi.type} {sources}")
        w.place(exit)
        for name, pieces in before.items():
            final: Pieces = {}
            for place, init in pieces.items():
                skipped = f", [ {init.text}, %{came_from} ]" if guarded else ""
                final[place] = w.make(init.type, f"phi {init.type} [ {turn[name][place].text}, %{latch} ]{skipped}")
            self.settle(name, shapes[name], final)

    def _grid(self) -> None:
        """The grid's variables from the number of the task, the last axis fastest."""
        rest: Dim = symbol(_TASK)
        for axis in reversed(self.program.grid[1:]):
            count = axis.count if axis.count != 0 else 1  # of no tasks none has a place
            self.symbols[axis.var] = self.dim(rest % count)
            rest = rest // count
        if self.program.grid:
            self.symbols[self.program.grid[0].var] = self.dim(rest)

    def _enter(self) -> tuple[dict[str, _Value], dict[str, Operand], Scope]:
        """Begin a scope: what is written from here on is not there after `_leave`."""
        saved = self.values, self.symbols, self.dims
        self.values = {n: replace(v, pieces=dict(v.pieces)) for n, v in self.values.items()}
        self.symbols, self.dims = dict(self.symbols), dict(self.dims)
        return saved

    def _leave(self, saved: tuple[dict[str, _Value], dict[str, Operand], Scope]) -> None:
        self.values, self.symbols, self.dims = saved


def _joined(shapes: Iterable[Block]) -> Block:
    rows, cols = zip(*shapes, strict=True)
    return max(rows), max(cols)
