"""Attention, tile by tile: the scores of a few queries against a block of keys, never the whole score matrix.

    one task: a chunk of queries of one head
        for each block of keys:                     keys transposed and values copied into scratch, once for the chunk
            for each tile of queries:
                scores = scale * q @ k^T, masked    in scratch that stays in the nearest cache
                most', total', out' from the scores: the online softmax
                    most' = max(most, scores)       weight = exp(scores - most')     decay = exp(most - most')
                    total' = total * decay + sum(weight)          out' = out * decay + weight @ v
        result = out / total

A key that may not be seen has a score of -inf. A query that sees none has a total of 0; its result is 0, or NaN where
softmax itself would give that (`unseen`). With a causal mask, blocks that no query of a tile sees are not visited.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotfuse.codegen.tile import (
    Access,
    Axis,
    Block,
    Bound,
    Buffer,
    Carry,
    Dot,
    Fill,
    For,
    Instruction,
    Iota,
    Load,
    Map,
    Reduce,
    Store,
    TileProgram,
    sizes_of,
)
from hotfuse.errors import TileError
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, minimum, symbol
from hotfuse.ir.graph import Node
from hotfuse.ir.layout import Layout, broadcast_strides
from hotfuse.ir.types import BOOL, F32, F64, I64, DType

CHUNK = 128  # queries of a task: packing the keys is then small beside using them
KEYS = 256  # of a block: keys, values and scores of a tile share the second-level cache
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


def lower_attention(
    name: str, node: Node, given: Operands, info: Callable[[str], tuple[DType, Dim]], spec: Spec
) -> TileProgram:
    size, value_size = given.q.shape[3], given.v.shape[3]
    if given.dtype not in (F32, F64) or not isinstance(size, int) or not isinstance(value_size, int):
        raise TileError("attention of this type, or of heads whose size is not known, is left to tier 0")
    if any(x.strides[3] != 1 for x in (given.q, given.out)):
        raise TileError("the heads' elements are not neighbours in memory")
    writer = _Attention(node, given, size, value_size, spec.vector_bytes // given.dtype.bytes)
    body = writer.task()
    batch, heads, queries, _ = given.q.shape
    grid = (Axis("o0", batch), Axis("o1", heads), Axis("i", ceildiv(queries, CHUNK)))
    roots = dict.fromkeys(x.root for x in (given.q, given.k, given.v, given.mask) if x is not None)
    buffers = (*(Buffer(r, *info(r)) for r in roots), Buffer(given.out.root, *info(given.out.root), "output"), *writer.scratch)
    note = f"{CHUNK} queries a task, tiles of {writer.height}, {KEYS} keys a block"
    return TileProgram(name, sizes_of(buffers, grid, body), buffers, grid, tuple(body), (note,))


class _Attention:
    """Writes the instructions of a task. State: fresh names."""

    def __init__(self, node: Node, given: Operands, size: int, value_size: int, lanes: int) -> None:
        self.given, self.size, self.value_size = given, size, value_size
        self.dtype = given.dtype
        self.height, self.width = 8, 2 * lanes
        scale = node.attrs.get("scale")
        self.scale = float(size**-0.5 if scale is None else scale)
        self.softcap = float(node.attrs.get("softcap", 0.0) or 0.0)
        self.causal = bool(node.attrs.get("causal", False))
        self.zero_unseen = node.attrs.get("unseen", "zero") == "zero"
        self.queries, self.keys = given.q.shape[2], given.k.shape[2]
        self.behind: Dim = self.keys - self.queries if node.attrs.get("align", "start") == "end" else 0
        self.values = -(-value_size // self.width) * self.width
        blocks = {
            "keys": size * KEYS,
            "values": self.values * KEYS,
            "scores": self.height * KEYS,
            "out": CHUNK * self.values,
            "most": CHUNK,
            "total": CHUNK,
            "decay": self.height,
        }
        self.scratch = [Buffer(f"{n}.scratch", self.dtype, s, "scratch") for n, s in blocks.items()]
        self._numbers = itertools.count()

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"

    def number(self, value: float, shape: Block = (1, 1)) -> tuple[str, Instruction]:
        name = self.fresh()
        return name, Fill(name, self.dtype, shape, value)

    def mapped(self, op: str, *args: str) -> tuple[str, Instruction]:
        name = self.fresh()
        return name, Map(name, op, args)

    def loaded(self, at: Access, fill: float = 0.0) -> tuple[str, Instruction]:
        name = self.fresh()
        return name, Load(name, at, fill)

    def head(self, layout: Layout, shared: bool = False) -> Dim:
        """Where the task's batch and head begin in an operand; keys and values are shared by groups of heads."""
        h: Dim = symbol("o1")
        if shared and layout.shape[1] != self.given.q.shape[1]:
            h = floordiv(h, floordiv(self.given.q.shape[1], layout.shape[1]))
        return layout.offset + symbol("o0") * layout.strides[0] + h * layout.strides[1]

    def task(self) -> list[Instruction]:
        first = symbol("i") * CHUNK
        last = minimum(self.queries, first + CHUNK)
        end = minimum(self.keys, maximum(last + self.behind, 0)) if self.causal else self.keys
        return [
            *self._start(last - first),
            For("b", 0, end, KEYS, (*self._pack(), *self._tiles(first, last, self._block))),
            *self._tiles(first, last, lambda height: self._result(height, first)),
        ]

    def _tiles(self, first: Dim, last: Dim, make: Callable[[int], Sequence[Instruction]]) -> list[Instruction]:
        """Loops over the queries: whole tiles, then lower ones for what is left."""
        loops: list[Instruction] = []
        height, start = self.height, first
        while height:
            stop = start + (last - start) // height * height
            if stop != start:
                loops.append(For("r", start, stop, height, tuple(make(height))))
            start, height = stop, height // 2
        return loops

    def _start(self, rows: Dim) -> list[Instruction]:
        """Nothing seen so far: most = -inf, total = 0, out = 0."""
        width = self.width
        minus, fill_minus = self.number(NEGATIVE)
        zero, fill_zero = self.number(0.0)
        zeros, fill_zeros = self.number(0.0, (1, width))
        r, c = symbol("r"), symbol("c")
        clear = For("c", 0, self.values, width, (Store(_flat("out.scratch", r * self.values + c, (1, width)), zeros),))
        return [
            fill_minus,
            fill_zero,
            fill_zeros,
            For(
                "r",
                0,
                rows,
                1,
                (
                    Store(_flat("most.scratch", r, (1, 1)), minus),
                    Store(_flat("total.scratch", r, (1, 1)), zero),
                    clear,
                ),
            ),
        ]

    def _pack(self) -> list[Instruction]:
        """A block of keys, transposed panel by panel, and of values, row after row."""
        k, v, width = self.given.k, self.given.v, self.width
        b, p, d, c, n = (symbol(x) for x in "bpdcn")
        count = minimum(KEYS, self.keys - b)
        key, load_key = self.loaded(
            Access(k.root, self.head(k, True) + (b + p) * k.strides[2] + d * k.strides[3], 0, k.strides[2], (1, width), (
                Bound(b + p, 0, 1, self.keys),
            ))
        )  # fmt: skip
        keys = For("d", 0, self.size, 1, (load_key, Store(_flat("keys.scratch", p * self.size + d * width, (1, width)), key)))
        bounds = (Bound(c, 0, 1, self.value_size),) if self.values != self.value_size else ()
        place = self.head(v, True) + (b + n) * v.strides[2] + c * v.strides[3]
        value, load_value = self.loaded(Access(v.root, place, 0, v.strides[3], (1, width), bounds))
        values = For(
            "c", 0, self.values, width, (load_value, Store(_flat("values.scratch", n * self.values + c, (1, width)), value))
        )
        return [For("p", 0, count, width, (keys,)), For("n", 0, count, 1, (values,))]

    def _block(self, height: int) -> list[Instruction]:
        """One tile of queries against one block of keys."""
        b, r = symbol("b"), symbol("r")
        seen = minimum(KEYS, self.keys - b)
        if self.causal:
            seen = minimum(seen, maximum(r + height + self.behind - b, 0))
        return [*self._scores(height, seen), *self._softmax(height, seen), *self._weigh(height, seen)]

    def _scores(self, height: int, seen: Dim) -> list[Instruction]:
        q, width = self.given.q, self.width
        r, p, d = symbol("r"), symbol("p"), symbol("d")
        a, load_a = self.loaded(Access(q.root, self.head(q) + r * q.strides[2] + d, q.strides[2], 0, (height, 1)))
        k, load_k = self.loaded(_flat("keys.scratch", p * self.size + d * width, (1, width)))
        zero, fill_zero = self.number(0.0, (height, width))
        acc, total = self.fresh(), self.fresh()
        dots = For("d", 0, self.size, 1, (load_a, load_k, Dot(total, a, k, acc)), (Carry(acc, zero, total),))
        score, steps = self._masked(acc, height)
        at = Access("scores.scratch", p, KEYS, 1, (height, width))
        return [For("p", 0, seen, width, (fill_zero, dots, *steps, Store(at, score)))]

    def _masked(self, acc: str, height: int) -> tuple[str, list[Instruction]]:
        """Raw products as scores: scaled, capped, the mask applied, and -inf where there is no key or it is hidden."""
        b, r, p, width = symbol("b"), symbol("r"), symbol("p"), self.width
        steps: list[Instruction] = []

        def then(pair: tuple[str, Instruction]) -> str:
            steps.append(pair[1])
            return pair[0]

        score = then(self.mapped("mul", acc, then(self.number(self.scale))))
        if self.softcap:
            cap = then(self.number(self.softcap))
            score = then(self.mapped("mul", then(self.mapped("tanh", then(self.mapped("div", score, cap)))), cap))
        minus = then(self.number(NEGATIVE))
        key, limit = self.fresh(), self.fresh()
        steps += [Iota(key, I64, (1, width), b + p, 0, 1), Iota(limit, I64, (1, 1), self.keys, 0, 0)]
        inside = then(self.mapped("lt", key, limit))
        if self.causal:
            own = self.fresh()
            steps.append(Iota(own, I64, (height, 1), r + self.behind, 1, 0))
            inside = then(self.mapped("and", inside, then(self.mapped("le", key, own))))
        mask = self.given.mask
        if mask is not None:
            strides = broadcast_strides(mask, (*self.given.q.shape[:3], self.keys))
            offset = mask.offset + symbol("o0") * strides[0] + symbol("o1") * strides[1] + r * strides[2] + (b + p) * strides[3]
            shape = (height if strides[2] != 0 else 1, width if strides[3] != 0 else 1)
            bounds = (Bound(b + p, 0, 1, self.keys),) if strides[3] != 0 else ()
            loaded = then(self.loaded(Access(mask.root, offset, strides[2], strides[3], shape, bounds)))
            if self.given.mask_dtype == BOOL:
                inside = then(self.mapped("and", inside, loaded))
            else:
                score = then(self.mapped("add", score, loaded))
        return then(self.mapped("where", inside, score, minus)), steps

    def _softmax(self, height: int, seen: Dim) -> list[Instruction]:
        """Scores become weights, row by row; most, total and decay move on."""
        width, i = self.width, symbol("t")
        row = symbol("r") - symbol("i") * CHUNK + i
        c = symbol("c")
        at = _flat("scores.scratch", i * KEYS + c, (1, width))
        most, total = _flat("most.scratch", row, (1, 1)), _flat("total.scratch", row, (1, 1))
        steps: list[Instruction] = []

        def then(pair: tuple[str, Instruction], into: list[Instruction] | None = None) -> str:
            (steps if into is None else into).append(pair[1])
            return pair[0]

        start = then(self.number(NEGATIVE, (1, width)))
        top, inner = self.fresh(), list[Instruction]()
        higher = then(self.mapped("max", top, then(self.loaded(at), inner)), inner)
        steps.append(For("c", 0, seen, width, tuple(inner), (Carry(top, start, higher),)))
        highest = self.fresh()
        steps.append(Reduce(highest, "max", 1, top))
        before = then(self.loaded(most))
        after = then(self.mapped("max", before, highest))
        minus, zero = then(self.number(NEGATIVE)), then(self.number(0.0))
        base = then(self.mapped("where", then(self.mapped("eq", after, minus)), zero, after))
        decay = then(self.mapped("exp", then(self.mapped("sub", before, base))))
        zeros = then(self.number(0.0, (1, width)))
        total_name, inner = self.fresh(), list[Instruction]()
        weight = then(self.mapped("exp", then(self.mapped("sub", then(self.loaded(at), inner), base), inner)), inner)
        inner.append(Store(at, weight))
        grown = then(self.mapped("add", total_name, weight), inner)
        steps.append(For("c", 0, seen, width, tuple(inner), (Carry(total_name, zeros, grown),)))
        added = self.fresh()
        steps.append(Reduce(added, "sum", 1, total_name))
        kept = then(self.mapped("mul", then(self.loaded(total)), decay))
        steps += [
            Store(total, then(self.mapped("add", kept, added))),
            Store(most, after),
            Store(_flat("decay.scratch", i, (1, 1)), decay),
        ]
        return [For("t", 0, height, 1, tuple(steps))]

    def _weigh(self, height: int, seen: Dim) -> list[Instruction]:
        """out = out * decay + weights @ values."""
        width, c, n = self.width, symbol("c"), symbol("n")
        row = symbol("r") - symbol("i") * CHUNK
        out = Access("out.scratch", row * self.values + c, self.values, 1, (height, width))
        before, load_before = self.loaded(out)
        decay, load_decay = self.loaded(Access("decay.scratch", 0, 1, 0, (height, 1)))
        start, scaled = self.mapped("mul", before, decay)
        weight, load_weight = self.loaded(Access("scores.scratch", n, KEYS, 0, (height, 1)))
        value, load_value = self.loaded(_flat("values.scratch", n * self.values + c, (1, width)))
        acc, total = self.fresh(), self.fresh()
        dots = For("n", 0, seen, 1, (load_weight, load_value, Dot(total, weight, value, acc)), (Carry(acc, start, total),))
        return [For("c", 0, self.values, width, (load_before, load_decay, scaled, dots, Store(out, acc)))]

    def _result(self, height: int, first: Dim) -> list[Instruction]:
        out, width = self.given.out, self.width
        r, c = symbol("r"), symbol("c")
        value, load_value = self.loaded(Access("out.scratch", (r - first) * self.values + c, self.values, 1, (height, width)))
        total, load_total = self.loaded(Access("total.scratch", r - first, 1, 0, (height, 1)))
        zero, fill_zero = self.number(0.0)
        unseen, fill_unseen = self.number(0.0 if self.zero_unseen else float("nan"))
        empty, is_empty = self.mapped("eq", total, zero)
        mean, divided = self.mapped("div", value, total)
        result, chosen = self.mapped("where", empty, unseen, mean)
        bounds = (Bound(c, 0, 1, self.value_size),) if self.values != self.value_size else ()
        at = Access(out.root, self.head(out) + r * out.strides[2] + c, out.strides[2], 1, (height, width), bounds)
        inner = (load_value, load_total, fill_zero, fill_unseen, is_empty, divided, chosen, Store(at, result))
        return [For("c", 0, self.values, width, inner)]


def _flat(buffer: str, offset: Dim, shape: Block) -> Access:
    """Neighbouring elements."""
    return Access(buffer, offset, 0, 1 if shape[1] > 1 else 0, shape)
