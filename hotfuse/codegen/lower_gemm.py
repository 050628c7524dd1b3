"""Matrix products: panels of packed columns against tiles of rows, with the group's elementwise steps on the accumulators.

    for each panel of columns, for each chunk of rows (one task):
        for each tile of rows:                       rows x panel accumulators, in registers
            for k: accumulators += a[rows, k] * b[k, panel]
            epilogue on the accumulators, store

b is packed: panel by panel, and in a panel row after row, so that the inner loop reads it from front to back. The last panel is
as narrow as vectors allow. Long sums are made of parts, for their accuracy. While a panel is in use the next one is fetched
into the second-level cache, a piece at each step of k. Rows that do not fill a tile go through lower tiles, down to one row, so
that thin products have their own schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hotfuse.codegen.body import Body, Given, Number, Read, Write
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
    Instruction,
    Iota,
    Load,
    Map,
    Prefetch,
    Store,
    TileProgram,
    sizes_of,
)
from hotfuse.errors import TileError
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, ceildiv, maximum, minimum, symbol
from hotfuse.ir.layout import Layout, broadcast_strides, collapse
from hotfuse.ir.ops.panels import whole_panels
from hotfuse.ir.types import F32, F64, I64, DType, numel

BLOCK = 512  # steps of k in one chain of additions: the error of a sum grows with the length of its chains


@dataclass(frozen=True)
class Packing:
    """How the second operand is packed (`ir/ops/panels`): its layout, [batch..., elements of a matrix], and its sizes."""

    panels: Layout
    k: Dim
    n: Dim
    panel: int
    last: int

    @property
    def whole(self) -> Dim:
        """Panels of full width."""
        return whole_panels(self.n, self.panel, self.last)

    @property
    def count(self) -> Dim:
        return ceildiv(self.n, self.panel)


@dataclass(frozen=True)
class Tiling:
    """Rows of a tile, columns of a panel, tiles of a chunk: see `loop_order`."""

    rows: int
    panel: int
    tiles: int
    reason: str = ""


def tiling_for(spec: Spec, k: Dim, n: Dim, dtype: DType) -> Tiling:
    """Accumulators fill the registers but for a panel row and a broadcast."""
    lanes = spec.vector_bytes // dtype.bytes
    vectors = 3 if spec.vector_registers >= 32 else 2
    rows = (spec.vector_registers - vectors - 1) // vectors
    rows = min(rows, 8 if vectors == 3 else 6)
    if isinstance(n, int) and n < vectors * lanes:
        vectors = max(1, -(-n // lanes))
    return Tiling(rows, vectors * lanes, 8, f"{rows} x {vectors} accumulators of {spec.vector_registers} registers")


def lower_gemm(
    name: str,
    a: Layout,
    packing: Packing,
    dtype: DType,
    body: Body,
    info: Callable[[str], tuple[DType, Dim]],
    spec: Spec,
) -> TileProgram:
    """The program of a product and of a body over its result, whose one given block is the product."""
    if dtype not in (F32, F64):
        raise TileError(f"products of {dtype} are left to tier 0")
    if a.strides[-1] != 1 and packing.k != 1:
        raise TileError("the rows of the first operand are not contiguous")
    tiling = tiling_for(spec, packing.k, packing.n, dtype)
    return _Gemm(a, dtype, body, packing, tiling).program(name, info)


class _Gemm:
    """Writes the program. State: fresh names, and the accesses over joined axes."""

    def __init__(self, a: Layout, dtype: DType, body: Body, packing: Packing, tiling: Tiling) -> None:
        self.dtype, self.packing, self.tiling = dtype, packing, tiling
        self._numbers = itertools.count()
        domain = body.domain
        rank = len(domain)
        a_strides = (*broadcast_strides(Layout("", 0, a.shape[:-1], a.strides[:-1]), domain[:-1]), 0)
        batches = Layout("", 0, packing.panels.shape[:-1], packing.panels.strides[:-1])
        b_strides = (*broadcast_strides(batches, domain[:-2]), 0, 0)
        many: list[Sequence[Dim]] = [a_strides, b_strides]
        many += [x.strides for x in _reads(body)] + [x.strides for x in body.writes]
        runs = collapse(domain, many, [axis == rank - 1 for axis in range(rank)])
        if rank - 2 >= 0 and runs[-1] == [rank - 1] and len(runs) == 1:
            runs.insert(0, [])
        self.shape = tuple(numel(tuple(domain[x] for x in run)) for run in runs)

        def along(strides: Sequence[Dim]) -> tuple[Dim, ...]:
            return tuple(strides[run[-1]] if run else 0 for run in runs)

        self.a = Read("a", a.root, dtype, a.offset, along(a_strides))
        self.matrices = along(b_strides)
        self.steps = tuple(replace(s, strides=along(s.strides)) if isinstance(s, Read) else s for s in body.steps)
        self.writes = tuple(replace(w, strides=along(w.strides)) for w in body.writes)
        self.outer = [f"o{i}" for i in range(len(runs) - 2)]

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"

    def program(self, name: str, info: Callable[[str], tuple[DType, Dim]]) -> TileProgram:
        *outer, rows, _ = self.shape
        tiling, packing = self.tiling, self.packing
        chunk = tiling.rows * tiling.tiles
        first = symbol("i") * chunk
        last = minimum(rows, first + chunk)
        grid = (
            *(Axis(v, size) for v, size in zip(self.outer, outer, strict=True)),
            Axis("j", packing.count),
            Axis("i", ceildiv(rows, chunk)),
        )
        body: list[Instruction] = []
        if packing.whole != 0:
            j = symbol("j")
            end = j + 1 if packing.whole == packing.count else minimum(j + 1, packing.whole)
            body.append(For("p", j, end, 1, self._rows(first, last, rows, packing.panel)))
        if packing.last != packing.panel:
            j = symbol("j")
            body.append(For("p", maximum(j, packing.whole), j + 1, 1, self._rows(first, last, rows, packing.last)))
        written = dict.fromkeys(w.root for w in self.writes)
        read = dict.fromkeys([self.a.root, packing.panels.root, *(s.root for s in self.steps if isinstance(s, Read))])
        buffers = (
            *(Buffer(root, *info(root)) for root in read if root not in written),
            *(Buffer(root, *info(root), "output") for root in written),
        )
        return TileProgram(name, sizes_of(buffers, grid, body), buffers, grid, tuple(body), (tiling.reason,))

    def _rows(self, first: Dim, last: Dim, rows: Dim, width: int) -> tuple[Instruction, ...]:
        """The tiles of a chunk: whole ones, then lower and lower ones for the rows that are left."""
        loops: list[Instruction] = []
        start, height = first, self.tiling.rows
        while True:
            stop = start + (last - start) // height * height
            if stop != start and not (isinstance(rows, int) and rows < height):
                loops.append(For("r", start, stop, height, self._tile(height, width, first)))
            if height == 1 or stop == last or (isinstance(rows, int) and rows % height == 0):
                return tuple(loops)
            start, height = stop, (height + 1) // 2 if height != 3 else 1

    def _tile(self, height: int, width: int, first: Dim) -> tuple[Instruction, ...]:
        packing, r, k, p = self.packing, symbol("r"), symbol("k"), symbol("p")
        zero, acc, next_acc, a, b = (self.fresh() for _ in range(5))
        offset = self.a.offset
        panel = packing.panels.offset + p * (packing.k * packing.panel)
        for variable, stride, which in zip(self.outer, self.a.strides, self.matrices, strict=False):
            offset = offset + symbol(variable) * stride
            panel = panel + symbol(variable) * which
        step = self.a.strides[-2]
        turn: list[Instruction] = [
            Load(a, Access(self.a.root, offset + r * step + k, step, 0, (height, 1))),
            Load(b, Access(packing.panels.root, panel + k * width, 0, 1, (1, width))),
            Dot(next_acc, a, b, acc),
        ]
        if height == self.tiling.rows and width % self.tiling.tiles == 0:
            share = width // self.tiling.tiles  # of the next panel's rows, that this tile's steps fetch
            tile = (r - first) // height
            ahead = panel + packing.k * width + tile * (packing.k * share) + k * share
            turn.insert(0, Prefetch(Access(packing.panels.root, ahead, 0, 1, (1, 1)), 2))
        zeros = Fill(zero, self.dtype, (height, width), 0.0)
        if isinstance(packing.k, int) and packing.k <= BLOCK:
            return (
                zeros,
                For("k", 0, packing.k, 1, tuple(turn), (Carry(acc, zero, next_acc),)),
                *self._epilogue(acc, height, width),
            )
        whole, after = self.fresh(), self.fresh()
        start = symbol("kb")
        part = For("k", start, minimum(packing.k, start + BLOCK), 1, tuple(turn), (Carry(acc, zero, next_acc),))
        total = For("kb", 0, packing.k, BLOCK, (part, Map(after, "add", (whole, acc))), (Carry(whole, zero, after),))
        return zeros, total, *self._epilogue(whole, height, width)

    def _epilogue(self, acc: str, height: int, width: int) -> tuple[Instruction, ...]:
        packing, p = self.packing, symbol("p")
        full = packing.last != packing.panel if width == packing.panel else False  # the rest has a panel of its own
        fits = isinstance(packing.n, int) and (full or packing.n % packing.panel == width % packing.panel)
        bounds = () if fits else (Bound(p * packing.panel, 0, 1, packing.n),)
        written: list[Instruction] = []
        blocks: dict[str, str] = {}

        def at(x: Read | Write, offset: Dim) -> Access:
            for variable, stride in zip(self.outer, x.strides, strict=False):
                offset = offset + symbol(variable) * stride
            down, across = x.strides[-2], x.strides[-1]
            offset = offset + symbol("r") * down + p * packing.panel * across
            shape = (height if down != 0 else 1, width if across != 0 else 1)
            return Access(x.root, offset, down, across, shape, bounds if across != 0 else ())

        for step in self.steps:
            name = self.fresh()
            match step:
                case Given():
                    name = acc
                case Read():
                    if step.lookups:
                        raise TileError("a gather in the epilogue of a product is left to tier 0")
                    written.append(Load(name, at(step, step.offset)))
                case Number():
                    whole = self.fresh()
                    written += [Iota(whole, I64, (1, 1), step.value, 0, 0), Cast(name, step.dtype, whole)]
                case Fill():
                    written.append(replace(step, name=name))
                case Cast():
                    written.append(Cast(name, step.dtype, blocks[step.arg]))
                case Map():
                    written.append(Map(name, step.op, tuple(blocks[x] for x in step.args)))
                case _:
                    raise TileError("folds over a product's result are a kernel of their own")
            blocks[step.name] = name
        for write in self.writes:
            written.append(Store(at(write, write.offset), blocks[write.step]))
        return tuple(written)


def _reads(body: Body) -> list[Read]:
    return [s for s in body.steps if isinstance(s, Read)]
