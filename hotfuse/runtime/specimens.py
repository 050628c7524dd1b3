"""Specimens: small random models, whose kernels are timed to learn what kernels take on a machine.

A specimen is some blocks in a row over rows of numbers, as models are: products with weights, norms, elementwise chains,
reductions, heads put side by side, attention, lookups. Blocks read what any block before them made, so that there are residual
connections, branches and diamonds. Sizes are drawn so that each order of magnitude is met as often as the next. Kernels that
follow each other find each other's results in the caches, as they do in a model; alone they would not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.types import F32, I64, TensorType
from hotfuse.records import dataclass

UNARY = ("relu", "gelu", "tanh", "sigmoid", "exp", "sqrt", "abs", "silu", "erf", "neg")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
NORMS = ("layer_norm", "rms_norm", "softmax")
MOST_BYTES = 1 << 26  # of one value
MOST_PRODUCTS = 1 << 28  # multiply-adds of one product
BLOCKS = 8
WITHOUT_PRODUCTS = 0.4  # of all specimens

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Specimen:
    graph: Graph
    inputs: Mapping[str, Array]


class _Draft:
    """State: the graph so far, and the value that the next block reads."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.builder = rng, GraphBuilder("specimen")
        self.inputs: dict[str, Array] = {}
        self.rows, self.width = self.size(1, 4096), self.size(8, 4096)
        while self.rows * self.width * 4 > MOST_BYTES:
            self.rows = max(1, self.rows // 2)
        self.value = self.given((self.rows, self.width))
        self.made: list[Value] = [self.value]  # results of blocks

    def size(self, least: int, most: int) -> int:
        """Drawn so that each order of magnitude comes as often; half of them are whole vectors."""
        found = int(np.exp(self.rng.uniform(np.log(least), np.log(most + 1))))
        return max(least, found - found % 16) if self.rng.random() < 0.5 and found >= 16 else max(least, found)

    def pick(self, names: tuple[str, ...]) -> str:
        return names[self.rng.integers(len(names))]

    def given(self, shape: tuple[int, ...]) -> Value:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.numbers(shape)
        return self.builder.input(name, TensorType(F32, shape))

    def numbers(self, shape: tuple[int, ...]) -> Array:
        return (np.abs(self.rng.standard_normal(shape, np.float32)) + 0.1) / 2

    def weight(self, *shape: int) -> Value:
        return self.builder.constant(self.numbers(shape) / np.float32(max(1, shape[0])), self.builder.unique("w"))

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return self.builder.add(op, *inputs, **attrs)

    def earlier(self) -> Value:
        """A value like the one that the next block reads: what a block before made, or that one itself."""
        alike = [value for value in self.made if value.type == self.value.type] or [self.value]
        return alike[self.rng.integers(len(alike))]

    def keep(self) -> None:
        """The next block may read what this one made, or something made before it."""
        self.made.append(self.value)
        if self.rng.random() < 0.3:
            self.value = self.earlier()

    def results(self) -> list[Value]:
        """What nobody reads, but for the inputs."""
        read = {name for node in self.builder.nodes for name in node.uses}
        left = [v for v in self.made[1:] if v.name not in read]
        return list({value.name: value for value in (*left, self.value)}.values())


def _product(draft: _Draft) -> None:
    columns = draft.size(8, 4096)
    while draft.rows * draft.width * columns > MOST_PRODUCTS or draft.rows * columns * 4 > MOST_BYTES:
        columns = max(8, columns // 2)
        if columns == 8:
            break
    y = draft.add("matmul", draft.value, draft.weight(draft.width, columns))
    y = draft.add("add", y, draft.weight(columns))
    if draft.rng.random() < 0.6:
        y = draft.add(draft.pick(UNARY), y)
    draft.value, draft.width = y, columns


def _norm(draft: _Draft) -> None:
    op = draft.pick(NORMS)
    if op == "softmax":
        draft.value = draft.add(op, draft.value, axis=-1)
        return
    scale = [draft.weight(draft.width) for _ in range(2 if op == "layer_norm" else 1)]
    draft.value = draft.add(op, draft.value, *scale, axis=-1, epsilon=1e-5)


def _elementwise(draft: _Draft) -> None:
    seen = [draft.value]
    y = draft.value
    for _ in range(draft.rng.integers(1, 6)):
        if draft.rng.random() < 0.5:
            y = draft.add(draft.pick(UNARY), draft.add("abs", y))
        else:
            which = draft.rng.integers(4)
            if which == 0:
                other = seen[draft.rng.integers(len(seen))]
            elif which == 1:
                other = draft.weight(draft.width)
            else:
                other = draft.earlier() if which == 2 else draft.given((draft.rows, draft.width))
            y = draft.add(draft.pick(BINARY), y, other)
        seen.append(y)
    draft.value = y


def _residual(draft: _Draft) -> None:
    draft.value = draft.add(draft.pick(("add", "mul")), draft.value, draft.earlier())


def _gated(draft: _Draft) -> None:
    """A diamond: x * sigmoid(x), and the like."""
    branches = [draft.add(draft.pick(UNARY), draft.value) if draft.rng.random() < 0.7 else draft.value for _ in range(2)]
    draft.value = draft.add(draft.pick(BINARY[:3]), *branches)


def _reduction(draft: _Draft) -> None:
    axis = int(draft.rng.integers(2))
    folded = draft.add(draft.pick(("reduce_sum", "reduce_mean", "reduce_max")), draft.value, axes=(axis,), keepdims=True)
    if draft.rng.random() < 0.5:
        folded = draft.add(draft.pick(UNARY), folded)
    draft.value = draft.add(draft.pick(BINARY[:3]), draft.value, folded)


def _turned(draft: _Draft) -> None:
    y = draft.add("transpose", draft.value, perm=(1, 0))
    y = draft.add("reshape", y, draft.builder.dims((draft.rows, draft.width)))
    draft.value = draft.add(draft.pick(UNARY), y) if draft.rng.random() < 0.5 else y


def _attention(draft: _Draft) -> None:
    heads, depth = draft.size(1, 12), (16, 32, 64)[draft.rng.integers(3)]
    if draft.rows < 2 or draft.rows > 1024:
        return
    wide = [draft.add("matmul", draft.value, draft.weight(draft.width, heads * depth)) for _ in range(3)]
    shape = draft.builder.dims((1, draft.rows, heads, depth))
    q, k, v = (draft.add("transpose", draft.add("reshape", y, shape), perm=(0, 2, 1, 3)) for y in wide)
    y = draft.add("transpose", draft.add("attention", q, k, v, scale=depth**-0.5), perm=(0, 2, 1, 3))
    draft.value = draft.add("reshape", y, draft.builder.dims((draft.rows, heads * depth)))
    draft.width = heads * depth


def _lookup(draft: _Draft) -> None:
    entries = draft.size(16, 30000)
    while entries * draft.width * 4 > MOST_BYTES:
        entries = max(16, entries // 2)
    name = f"x{len(draft.inputs)}"
    draft.inputs[name] = draft.rng.integers(0, entries, draft.rows)
    places = draft.builder.input(name, TensorType(I64, (draft.rows,)))
    found = draft.add("gather", draft.weight(entries, draft.width), places, axis=0)
    draft.value = draft.add("add", draft.value, found)


_BLOCKS: tuple[tuple[Callable[[_Draft], None], float], ...] = (
    (_product, 0.26), (_norm, 0.14), (_elementwise, 0.16), (_residual, 0.1), (_gated, 0.08), (_reduction, 0.08),
    (_turned, 0.06), (_attention, 0.06), (_lookup, 0.06),
)  # fmt: skip


def specimen(seed: int, blocks: int = BLOCKS) -> Specimen:
    """The specimen of a seed: always the same. Of some no block multiplies matrices, which would take most of the time."""
    draft = _Draft(np.random.default_rng(seed))
    left_out = (_product, _attention) if draft.rng.random() < WITHOUT_PRODUCTS else ()
    found = np.array([0.0 if block in left_out else share for block, share in _BLOCKS])
    shares = found / found.sum()
    for _ in range(blocks):
        place = draft.rng.choice(len(_BLOCKS), p=shares)
        _BLOCKS[place][0](draft)
        draft.keep()
    return Specimen(draft.builder.build(draft.results()), draft.inputs)
