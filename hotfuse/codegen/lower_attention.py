"""Attention, tile by tile: the scores of a few queries against a block of keys, never the whole score matrix.

    one task: a chunk of queries of one head
        for each block of keys:                       keys and values copied into scratch, once for the chunk
            for each tile of queries:                 transposed into scratch and scaled: a query is a lane from here on
                scores = k @ q^T, masked              in scratch that stays in the nearest cache; their maximum in registers
                most', total', out' from the scores: the online softmax
                    most' = max(most, scores)         weight = exp(scores - most')     decay = exp(most - most')
                    total' = total * decay + sum(weight)            out' = out * decay + weight^T @ v
                result = out / total                  after the last block

Because queries are lanes, softmax needs nothing across lanes, and the keys that there are need no masks: they are rows. Of
queries that a tile lacks the results are computed and not stored; of keys that a block lacks for a whole tile, the last one
takes the place, which changes no maximum. The first block finds nothing to decay and the last one leaves nothing behind; both
are loops of one turn or none, so that one program serves all lengths.

A key that may not be seen has a score of -inf. A query that sees none has a total of 0; its result is 0, or NaN where
softmax itself would give that (`unseen`). With a causal mask, keys that no query of a tile sees are not visited.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

from hotfuse.codegen.tile import Access, Axis, Block, Bound, Buffer, Instruction, TileProgram, sizes_of
from hotfuse.codegen.tile_writer import TileWriter
from hotfuse.errors import TileError
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, minimum, symbol
from hotfuse.ir.graph import Node
from hotfuse.ir.layout import Layout, broadcast_strides
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, DType
from hotfuse.records import dataclass

CHUNK = 128  # queries of a task: copying keys and values is then small beside using them
KEYS = 256  # of a block: scores of a tile and a panel of values share the nearest caches
NEGATIVE = float("-inf")


@dataclass(frozen=True)
class Operands:
    """Layouts of four axes: batch, heads, positions, size. `out` is where the result goes; `mask` is broadcast to scores."""

    q: Layout
    k: Layout
    v: Layout
    out: Layout
    dtype: DType
    mask: Layout | None = None
    mask_dtype: DType = BOOL


@dataclass(frozen=True)
class Tiling:
    """`lanes` queries are a vector, and two of them a tile. Scores are made of `keys` keys against a tile, results of `rows`
    queries against each of `panels`, so many columns of the values."""

    lanes: int
    keys: int
    rows: int
    panels: tuple[int, ...]

    @property
    def width(self) -> int:
        return 2 * self.lanes

    @property
    def reason(self) -> str:
        panels = "+".join(map(str, self.panels))
        tiles = f"scores {self.keys} x {self.width}, results {self.rows} x {panels}"
        return f"{CHUNK} queries a task, {KEYS} keys a block, {tiles}"


def tiling_for(spec: Spec, value_size: int, dtype: DType) -> Tiling:
    """Accumulators fill half of the registers and more; rows divide a vector of queries."""
    lanes = spec.vector_bytes // max(dtype.bytes, F32.bytes)
    keys, rows = (8, 8) if spec.vector_registers >= 32 else (6, 4)
    vectors = -(-value_size // lanes)
    panels = [3] * (vectors // 3) if vectors % 3 == 0 else [2] * (vectors // 2)
    if vectors == 5:  # one panel is one loop to compile
        panels, rows = [5], rows // 2
    elif sum(panels) < vectors:
        panels = [3, *panels[1:]] if panels else [1]
    return Tiling(lanes, keys, min(rows, lanes), tuple(lanes * n for n in panels))


def lower_attention(
    name: str, node: Node, given: Operands, info: Callable[[str], tuple[DType, Dim]], spec: Spec
) -> TileProgram:
    size, value_size = given.q.shape[3], given.v.shape[3]
    if given.dtype not in (F16, BF16, F32, F64) or not isinstance(size, int) or not isinstance(value_size, int):
        raise TileError("attention of this type, or of heads whose size is not known, is left to tier 0")
    writer = _Attention(node, given, size, value_size, tiling_for(spec, value_size, given.dtype))
    body = writer.task()
    batch, heads, queries, _ = given.q.shape
    grid = (Axis("o0", batch), Axis("o1", heads), Axis("i", ceildiv(queries, CHUNK), shared=True))
    roots = dict.fromkeys(x.root for x in (given.q, given.k, given.v, given.mask) if x is not None)
    scratch = (Buffer(n, writer.dtype, count, "scratch") for n, count in writer.scratch.items())
    buffers = (*(Buffer(r, *info(r)) for r in roots), Buffer(given.out.root, *info(given.out.root), "output"), *scratch)
    return TileProgram(name, sizes_of(buffers, grid, body), buffers, grid, tuple(body), (writer.tiling.reason,))


class _Attention(TileWriter):
    """Writes the instructions of a task. Loop variables: b the first key of a block, r the first query of a tile, p a key of
    the block by tiles and n by ones, d an element of a head, g a query of the tile, c a column of the values."""

    def __init__(self, node: Node, given: Operands, size: int, value_size: int, tiling: Tiling) -> None:
        super().__init__(F64 if given.dtype == F64 else F32)
        self.given, self.size, self.value_size, self.tiling = given, size, value_size, tiling
        # 2^x costs less than e^x, and the factor is part of the scale. A mask that is added would need it too, and the lowest
        # number, which many masks hold, must not become -inf.
        added = given.mask is not None and given.mask_dtype != BOOL
        self.exp, unit = ("exp", 1.0) if added else ("exp2", math.log2(math.e))
        scale = node.attrs.get("scale")
        self.softcap = float(node.attrs.get("softcap", 0.0) or 0.0)
        self.ceiling = self.softcap * unit
        self.scale = float(size**-0.5 if scale is None else scale) * (1.0 if self.softcap else unit)
        self.causal = bool(node.attrs.get("causal", False))
        self.zero_unseen = node.attrs.get("unseen", "zero") == "zero"
        self.queries, self.keys = given.q.shape[2], given.k.shape[2]
        self.behind: Dim = self.keys - self.queries if node.attrs.get("align", "start") == "end" else 0
        self.first: Dim = 0 if isinstance(self.queries, int) and self.queries <= CHUNK else symbol("i") * CHUNK
        self.last = minimum(self.queries, self.first + CHUNK)
        end = minimum(self.keys, self.last + self.behind) if self.causal else self.keys
        self.end = maximum(end, 1)  # of the keys that are visited; without any there still is a result
        self.single = isinstance(self.keys, int) and self.keys <= KEYS
        self.block: Dim = 0 if self.single else symbol("b")
        self.count = minimum(KEYS, self.keys - self.block)  # keys of the block
        self.values = sum(tiling.panels)
        rows = -(-KEYS // tiling.keys) * tiling.keys
        self.scratch = {
            "queries.scratch": size * tiling.width,
            "keys.scratch": size * rows,
            "values.scratch": self.values * KEYS,
            "scores.scratch": tiling.width * rows,
            "out.scratch": CHUNK * self.values,
            "most.scratch": CHUNK,
            "total.scratch": CHUNK,
            "decay.scratch": tiling.width,
            "inverse.scratch": tiling.width,
        }
        if self.single:
            for name in ("out.scratch", "most.scratch", "decay.scratch"):
                del self.scratch[name]

    def head(self, layout: Layout, shared: bool = False) -> Dim:
        """Where the task's batch and head begin in an operand; keys and values are shared by groups of heads."""
        h: Dim = symbol("o1")
        if shared and layout.shape[1] != self.given.q.shape[1]:
            h = floordiv(h, floordiv(self.given.q.shape[1], layout.shape[1]))
        return layout.offset + symbol("o0") * layout.strides[0] + h * layout.strides[1]

    def operand(self, at: Access, fill: float = 0.0) -> str:
        """A block of an operand, in the type of the arithmetic."""
        return self.cast(self.load(at, fill), self.given.dtype, self.dtype)

    def inside(self, width: int, start: Dim, rows: int, cols: int) -> tuple[Bound, ...]:
        """That queries exist, which only a narrow tile has to ask."""
        return () if width == self.tiling.width else (Bound(start, rows, cols, self.queries),)

    def later(self, first: str, make: Callable[[str], str]) -> str:
        """A block that is `first` in the first block of keys, and what `make` writes in those behind it."""
        return self.carry("u", 0, minimum(self.block, 1), 1, first, make)

    # the task

    def task(self) -> list[Instruction]:
        if self.single:
            self._block()
        else:
            self.loop("b", 0, self.end, KEYS, self._block)
        return self.body

    def _block(self) -> None:
        """A block of keys against the tiles of the chunk: whole ones, then narrow ones. Of a tile that lacks keys, the last
        key takes their places."""
        keys = ceildiv(self.count, self.tiling.keys) * self.tiling.keys
        self._copy(self.given.k, "keys.scratch", keys, self.size)
        self._copy(self.given.v, "values.scratch", self.count, self.values)
        width, lanes = self.tiling.width, self.tiling.lanes
        split = self.first + (self.last - self.first) // width * width
        self.loop("r", self.first, split, width, lambda: self._tile(width))
        self.loop("r", split, self.last, lanes, lambda: self._tile(lanes))

    def _copy(self, source: Layout, name: str, count: Dim, width: int) -> None:
        """Rows, to where they lie close, with zeros up to `width`; of positions that are neighbours in memory, squares."""
        n, lanes, size = symbol("n"), self.tiling.lanes, source.shape[3]
        down, across = source.strides[2:]

        def rows(height: int) -> None:
            key = n if height > 1 else minimum(n, self.count - 1)
            place = self.head(source, True) + (self.block + key) * down
            for c in range(0, width, lanes):
                shape = (height, min(lanes, width - c))
                bounds = () if width == size else (Bound(c, 0, 1, size),)
                block = self.operand(Access(source.root, place + c * across, down, across, shape, bounds))
                self.store(Access(name, n * width + c, width, 1, shape), block)

        split = self.count // lanes * lanes if down == 1 and across != 1 else 0
        self.loop("n", 0, split, lanes, lambda: rows(lanes))
        self.loop("n", split, count, 1, lambda: rows(1))

    # a tile of queries

    def _tile(self, width: int) -> None:
        seen = self.count
        if self.causal:
            seen = minimum(seen, symbol("r") + width + self.behind - self.block)
        self._turn(width)
        self._softmax(width, seen, self._scores(width, seen))
        column = 0
        for panel, group in itertools.groupby(self.tiling.panels):
            start, column = column, column + sum(group)
            self._weigh(width, seen, start, column, panel)

    def _turn(self, width: int) -> None:
        """The queries, transposed and scaled."""
        q, d, r, lanes = self.given.q, symbol("d"), symbol("r"), self.tiling.lanes

        def part(start: Dim, height: int) -> None:
            place = self.head(q) + r * q.strides[2] + start * q.strides[3]
            at = Access(q.root, place, q.strides[3], q.strides[2], (height, width), self.inside(width, r, 0, 1))
            scaled = self.map("mul", self.operand(at), self.number(self.scale))
            self.store(Access("queries.scratch", start * width, width, 1, (height, width)), scaled)

        whole = self.size // lanes * lanes
        self.loop("d", 0, whole, lanes, lambda: part(d, lanes))
        if whole < self.size:
            part(whole, self.size - whole)

    def _scores(self, width: int, seen: Dim) -> str:
        """The scores, into scratch; the result is the highest of each query."""
        p, d, height = symbol("p"), symbol("d"), self.tiling.keys

        def element(acc: str) -> str:
            key = self.load(Access("keys.scratch", p * self.size + d, self.size, 0, (height, 1)))
            return self.dot(key, self.load(_flat("queries.scratch", d * width, (1, width))), acc)

        def tile(hidden: bool, top: str) -> str:
            product = self.carry("d", 0, self.size, 1, self.number(0.0, (height, width)), element)
            scores = self._masked(product, width, hidden)
            self.store(Access("scores.scratch", p * width, width, 1, (height, width)), scores)
            # They are still in registers, and the compiler sees that.
            rows = [self.load(_flat("scores.scratch", (p + i) * width, (1, width))) for i in range(height)]
            while len(rows) > 1:
                pairs = [self.larger(a, b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
                rows = pairs + rows[len(rows) & ~1 :]
            return self.larger(rows[0], top)

        parts: list[tuple[Dim, Dim, bool]] = [(0, seen, self.causal)]
        if self.causal and self.given.mask is None:  # keys that every query of the tile sees, then those that some do not
            clear = maximum(symbol("r") + 1 + self.behind - self.block, 0) // height * height
            parts = [(0, minimum(self.count, clear), False), (clear, seen, True)]
        top = self.number(NEGATIVE, (1, width))
        for start, stop, hidden in parts:
            top = self.carry("p", start, stop, height, top, partial(tile, hidden))
        return top

    def _masked(self, score: str, width: int, hidden: bool) -> str:
        """Products as scores: capped, the mask applied, and -inf where a key is hidden."""
        r, key, height, mask = symbol("r"), self.block + symbol("p"), self.tiling.keys, self.given.mask
        if self.softcap:
            capped = self.map("tanh", self.map("div", score, self.number(self.softcap)))
            score = self.map("mul", capped, self.number(self.ceiling))
        if hidden:
            ahead = self.counted((height, width), key - r - self.behind, 1, -1)
            seen = self.map("le", ahead, self.counted((1, 1), 0, 0, 0))
            score = self.map("where", seen, score, self.number(NEGATIVE))
        if mask is None:
            return score
        strides = broadcast_strides(mask, (*self.given.q.shape[:3], self.keys))
        offset = mask.offset + symbol("o0") * strides[0] + symbol("o1") * strides[1] + r * strides[2] + key * strides[3]
        bounds: tuple[Bound, ...] = (Bound(key, 1, 0, self.keys),) if strides[3] != 0 else ()
        bounds += self.inside(width, r, 0, 1) if strides[2] != 0 else ()
        shape = (height if strides[3] != 0 else 1, width if strides[2] != 0 else 1)
        at = Access(mask.root, offset, strides[3], strides[2], shape, bounds)
        if self.given.mask_dtype == BOOL:
            return self.map("where", self.load(at), score, self.number(NEGATIVE))
        return self.map("add", score, self.operand(at, NEGATIVE))

    def _softmax(self, width: int, seen: Dim, top: str) -> None:
        """Scores become weights; most, total, decay and inverse of each query move on."""
        row, shape = symbol("r") - self.first, (1, width)
        most, total = _flat("most.scratch", row, shape), _flat("total.scratch", row, shape)
        after = self.later(top, lambda before: self.larger(before, self.load(most)))
        base = self.map("where", self.map("eq", after, self.number(NEGATIVE)), self.number(0.0), after)

        def weight(total: str) -> str:
            at = _flat("scores.scratch", symbol("n") * width, shape)
            made = self.map(self.exp, self.map("sub", self.load(at), base))
            self.store(at, made)
            return self.map("add", total, made)

        def grown(added: str) -> str:
            decay = self.map(self.exp, self.map("sub", self.load(most), base))
            self.store(_flat("decay.scratch", 0, shape), decay)
            return self.map("add", self.map("mul", self.load(total), decay), added)

        whole = self.later(self.carry("n", 0, seen, 1, self.number(0.0, shape), weight), grown)
        if not self.single:
            self.store(most, after)
        self.store(total, whole)
        self.store(_flat("inverse.scratch", 0, shape), self.map("reciprocal", whole))

    def _weigh(self, width: int, seen: Dim, start: int, end: int, panel: int) -> None:
        """out = out * decay + weights @ values for the columns from `start` to `end`, and the result."""
        c, g, height = symbol("c"), symbol("g"), self.tiling.rows
        row = symbol("r") - self.first + g
        held = Access("out.scratch", row * self.values + c, self.values, 1, (height, panel))

        def decayed(_: str) -> str:
            return self.map("mul", self.load(held), self.load(Access("decay.scratch", g, 1, 0, (height, 1))))

        def weighed(acc: str) -> str:
            weight = self.load(Access("scores.scratch", symbol("n") * width + g, 1, 0, (height, 1)))
            return self.dot(weight, self.load(_flat("values.scratch", symbol("n") * self.values + c, (1, panel))), acc)

        def rows() -> None:
            before = self.later(self.number(0.0, (height, panel)), decayed)
            acc = self.carry("n", 0, seen, 1, before, weighed)
            more = 0 if self.single else minimum(maximum(self.end - self.block - KEYS, 0), 1)
            self.loop("u", 0, more, 1, lambda: self.store(held, acc))
            self.loop("u", more, 1, 1, lambda: self._result(acc, width, panel))

        queries = width if width == self.tiling.width else minimum(width, self.last - symbol("r"))
        self.loop("c", start, end, panel, lambda: self.loop("g", 0, queries, height, rows))

    def _result(self, acc: str, width: int, panel: int) -> None:
        out, c, g, height = self.given.out, symbol("c"), symbol("g"), self.tiling.rows
        query = symbol("r") + g
        total = self.load(Access("total.scratch", query - self.first, 1, 0, (height, 1)))
        mean = self.map("mul", acc, self.load(Access("inverse.scratch", g, 1, 0, (height, 1))))
        unseen = self.number(0.0 if self.zero_unseen else float("nan"))
        result = self.map("where", self.map("eq", total, self.number(0.0)), unseen, mean)
        bounds = self.inside(width, query, 1, 0)
        bounds += (Bound(c, 0, 1, self.value_size),) if self.values != self.value_size else ()
        place = self.head(out) + query * out.strides[2] + c * out.strides[3]
        at = Access(out.root, place, out.strides[2], out.strides[3], (height, panel), bounds)
        self.store(at, self.cast(result, self.dtype, self.given.dtype))


def _flat(buffer: str, offset: Dim, shape: Block) -> Access:
    """Neighbouring elements."""
    return Access(buffer, offset, 0, 1 if shape[1] > 1 else 0, shape)
