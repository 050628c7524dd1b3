"""Random tile programs that keep every rule, with inputs, for holding a code generator against the interpreter.

Results can be compared bit for bit: floats are small whole numbers (and NaN and infinities), so that sums do not depend on
their order, and only operations that are rounded correctly are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hotfuse.codegen.interpret import evaluate, poison
from hotfuse.codegen.scalar_ops import SCALAR_OPS, result_dtype
from hotfuse.codegen.tile import (
    Access,
    Axis,
    Block,
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
    Prefetch,
    Reduce,
    Store,
    TileProgram,
)
from hotfuse.ir.dim import Dim, ceildiv, symbol
from hotfuse.ir.types import BOOL, DTYPES, F32, F64, I32, I64, DType

DTYPE_NAMES = ("f32", "f32", "f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")
EXACT_OPS = tuple(
    name for name, op in SCALAR_OPS.items() if op.ulp == 0 and name not in ("div", "sqrt", "shl", "shr", "fma")
)  # halves would be rounded twice by fma; a quotient makes numbers that are not whole
ROWS, COLS = (1, 1, 2, 3, 4, 8), (1, 3, 4, 8, 16, 17, 32)
M, N = symbol("m"), symbol("n")

Value = tuple[str, DType, Block]


@dataclass
class _Draft:
    """State: what is written so far. `values` are the blocks in reach."""

    rng: np.random.Generator
    block: Block
    buffers: list[Buffer] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def pick(self, options: list) -> object:  # type: ignore[type-arg]
        return options[int(self.rng.integers(len(options)))]

    def dtype(self) -> DType:
        return DTYPES[str(self.rng.choice(DTYPE_NAMES))]

    def input(self, dtype: DType, size: Dim) -> str:
        name = f"x{len(self.buffers)}"
        self.buffers.append(Buffer(name, dtype, size))
        return name

    def add(self, name: str, dtype: DType, shape: Block) -> Value:
        self.values.append((name, dtype, shape))
        return self.values[-1]

    # instructions

    def load(self, row: Dim, col: Dim) -> Instruction:
        """A block of an m x n matrix at (row, col): whole, one row, one column, one element, or from a transposed one."""
        rows, cols = self.block
        dtype, name = self.dtype(), self.fresh()
        fill = float(self.rng.integers(0, 2))
        kind = self.pick(["whole", "whole", "transposed", "row", "column", "one"])
        down, across = Bound(row, 1, 0, M), Bound(col, 0, 1, N)
        if kind == "whole":
            at = Access(self.input(dtype, M * N), row * N + col, N, 1, self.block, (down, across))
        elif kind == "transposed":
            at = Access(self.input(dtype, M * N), col * M + row, 1, M, self.block, (across, down))
        elif kind == "row":
            at = Access(self.input(dtype, N), col, 0, 1, (1, cols), (across,))
        elif kind == "column":
            at = Access(self.input(dtype, M), row, 1, 0, (rows, 1), (down,))
        else:
            at = Access(self.input(dtype, 3), 2, 0, 0, (1, 1))
        self.add(name, dtype, at.shape)
        return Load(name, at, fill)

    def map(self) -> Instruction | None:
        op = str(self.rng.choice(EXACT_OPS))
        arity = SCALAR_OPS[op].arity
        _, dtype, _ = self.pick(self.values)  # type: ignore[misc]
        same = [v for v in self.values if v[1] == dtype]
        chosen = [self.pick(same) for _ in range(arity)]
        if op == "where":
            flags = [v for v in self.values if v[1] == BOOL]
            if not flags:
                return None
            chosen[0] = self.pick(flags)
        if dtype.kind not in SCALAR_OPS[op].kinds:
            return None
        shape = _joined([v[2] for v in chosen])  # type: ignore[index]
        if shape is None:
            return None
        name = self.fresh()
        self.add(name, result_dtype(op, [v[1] for v in chosen]), shape)  # type: ignore[index]
        return Map(name, op, tuple(v[0] for v in chosen))  # type: ignore[index]

    def cast(self) -> Instruction | None:
        arg, source, shape = self.pick(self.values)  # type: ignore[misc]
        to, name = self.dtype(), self.fresh()
        if source.is_float and to.is_integer:  # NaN is no integer
            return None
        if source.bits > to.bits and to.is_float and source != F64:  # by way of float32 these are rounded twice
            return None
        self.add(name, to, shape)
        return Cast(name, to, arg)

    def reduce(self) -> Instruction | None:
        arg, dtype, shape = self.pick(self.values)  # type: ignore[misc]
        op = str(self.rng.choice(["any", "all"] if dtype == BOOL else ["sum", "max", "min"]))
        axis, name = int(self.rng.integers(2)), self.fresh()
        if op == "sum" and dtype.bits == 16 and dtype.is_float:
            return None
        self.add(name, dtype, (1, shape[1]) if axis == 0 else (shape[0], 1))
        return Reduce(name, op, axis, arg)

    def other(self, row: Dim, col: Dim) -> Instruction:
        name = self.fresh()
        if self.rng.random() < 0.5:
            dtype = self.dtype()
            self.add(name, dtype, (1, 1))
            return Fill(name, dtype, (1, 1), float(self.rng.integers(0, 2)))
        self.add(name, I32, self.block)
        return Iota(name, I32, self.block, row + 2 * col, 3, -1)

    def dot(self, row: Dim) -> tuple[Instruction, ...]:
        """A product over k columns in a loop: acc + a @ b."""
        rows, cols = self.block
        dtype = F32 if self.rng.random() < 0.7 else F64
        step = int(self.rng.choice([1, 2, 4]))
        a, b = self.input(dtype, M * N), self.input(dtype, N * cols)
        zero, left, right, acc, total = (self.fresh() for _ in range(5))
        var = f"k{zero}"
        k = symbol(var)
        body = (
            Prefetch(Access(b, (k + 8) * cols, cols, 1, (step, cols)), 1),
            Load(left, Access(a, row * N + k, N, 1, (rows, step), (Bound(row, 1, 0, M), Bound(k, 0, 1, N)))),
            Load(right, Access(b, k * cols, cols, 1, (step, cols), (Bound(k, 1, 0, N),))),
            Dot(total, left, right, acc),
        )
        self.add(acc, dtype, self.block)
        unroll = int(self.rng.choice([1, 1, 2, 4]))
        return Fill(zero, dtype, self.block, 1.0), For(var, 0, N, step, body, (Carry(acc, zero, total),), unroll)

    def scratch(self) -> tuple[Instruction, ...] | None:
        """A block stored to scratch and read back transposed."""
        arg, dtype, (rows, cols) = self.pick(self.values)  # type: ignore[misc]
        name, memory = self.fresh(), f"s{self.count}"
        self.buffers.append(Buffer(memory, dtype, rows * cols + 5, "scratch"))
        self.add(name, dtype, (cols, rows))
        stored = Store(Access(memory, 5, cols, 1, (rows, cols)), arg)
        return stored, Load(name, Access(memory, 5, 1, cols, (cols, rows)))

    def gather(self, col: Dim) -> tuple[Instruction, ...]:
        """A row of a matrix whose number is read from memory."""
        place, name = self.fresh(), self.fresh()
        rows, table = self.input(I64, 3), self.input(F32, 4 * N)
        at = Access(table, symbol(place) * N + col, 0, 1, (1, self.block[1]), (Bound(col, 0, 1, N),))
        self.add(name, F32, at.shape)
        return Index(place, Access(rows, 1, 0, 0, (1, 1)), 4), Load(name, at)


def _joined(shapes: list[Block]) -> Block | None:
    wide = [{s[axis] for s in shapes} - {1} for axis in (0, 1)]
    if any(len(w) > 1 for w in wide):
        return None
    return (max(wide[0], default=1), max(wide[1], default=1))


def random_program(seed: int) -> tuple[TileProgram, dict[str, int]]:
    """A program and sizes for it, small enough to interpret at once."""
    rng = np.random.default_rng(seed)
    draft = _Draft(rng, (int(rng.choice(ROWS)), int(rng.choice(COLS))))
    rows, cols = draft.block
    i, j = symbol("i"), symbol("j")
    grid = (Axis("i", ceildiv(M, rows)), Axis("j", ceildiv(N, cols)))
    body: list[Instruction] = [draft.load(i * rows, j * cols) for _ in range(int(rng.integers(1, 4)))]
    for _ in range(int(rng.integers(2, 14))):
        kind = rng.random()
        if kind < 0.55:
            made = draft.map()
        elif kind < 0.65:
            made = draft.cast()
        elif kind < 0.73:
            made = draft.reduce()
        elif kind < 0.8:
            made = draft.load(i * rows, j * cols)
        elif kind < 0.86:
            made = draft.other(i * rows, j * cols)
        elif kind < 0.91:
            body += draft.dot(i * rows)
            continue
        elif kind < 0.96:
            body += draft.scratch() or ()
            continue
        else:
            body += draft.gather(j * cols)
            continue
        body += [made] if made is not None else []
    for number, (name, dtype, shape) in enumerate(draft.values[-3:]):
        out = f"y{number}"
        task = i * grid[1].count + j
        if shape == draft.block and rng.random() < 0.6:
            at = Access(out, i * rows * N + j * cols, N, 1, shape, (Bound(i * rows, 1, 0, M), Bound(j * cols, 0, 1, N)))
            draft.buffers.append(Buffer(out, dtype, M * N, "output"))
        else:
            at = Access(out, task * (shape[0] * shape[1]), shape[1], 1, shape)
            draft.buffers.append(Buffer(out, dtype, grid[0].count * grid[1].count * (shape[0] * shape[1]), "output"))
        body.append(Store(at, name, bool(rng.random() < 0.2)))
    program = TileProgram(f"random{seed}", ("m", "n"), tuple(draft.buffers), grid, tuple(body))
    return program, {"m": int(rng.integers(1, 20)), "n": int(rng.integers(1, 40))}


def random_memory(program: TileProgram, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Memory for the arguments: whole numbers, in floats now and then NaN or an infinity; poisoned outputs."""
    rng = np.random.default_rng(seed)
    memory = {}
    for buffer in program.arguments:
        elements = evaluate(buffer.size, sizes)
        if buffer.kind == "output":
            memory[buffer.name] = poison(buffer.dtype, elements)
            continue
        numbers = rng.integers(-4 if buffer.dtype.kind != "uint" else 0, 4, elements)
        if buffer.dtype == BOOL:
            numbers = rng.random(elements) < 0.5
        found = numbers.astype(buffer.dtype.numpy)
        if buffer.dtype.is_float and rng.random() < 0.3:
            odd = rng.random(elements) < 0.05
            found[odd] = rng.choice([np.nan, np.inf, -np.inf], int(odd.sum())).astype(buffer.dtype.numpy)
        memory[buffer.name] = found
    return memory


def same(ours: np.ndarray, expected: np.ndarray) -> bool:
    """Equal but for the sign of zero and the kind of NaN, which `max` and `min` leave open."""
    return bool(np.all((ours == expected) | ((ours != ours) & (expected != expected))))
