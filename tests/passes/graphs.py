"""Small graphs written as functions of a `Spell`, and how they are run and judged.

    spell(lambda s, x: s.mul(x, s(0.5)), (2, 3))        one input of shape (2, 3)

`s.op(...)` adds a node, `s(number)` a constant of the graph's float type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hotfuse.ir.ops  # noqa: F401  (fills OPS)
from hotfuse.config import Config
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.graph import Graph, Origin, Value
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import DTYPES, TensorType
from hotfuse.ir.verify import verify
from hotfuse.numerics import close_to_exact, same_bits
from hotfuse.passes import optimize
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY

Array = np.ndarray[Any, Any]
Shape = Sequence[int | str]
N: Dim = symbol("n")


class Spell:
    """A graph builder that reads like numpy."""

    def __init__(self, dtype: str = "f32") -> None:
        self.builder = GraphBuilder()
        self.builder.origin = Origin("layer")
        self.dtype = DTYPES[dtype]

    def __call__(self, number: Any, dtype: str | None = None) -> Value:
        kind = self.dtype if dtype is None else DTYPES[dtype]
        return self.builder.constant(np.array(number).astype(kind.numpy))

    def ints(self, *numbers: int) -> Value:
        return self.builder.constant(np.array(numbers, dtype=np.int64))

    def input(self, name: str, shape: Shape, dtype: str | None = None) -> Value:
        dims = tuple(symbol(d) if isinstance(d, str) else d for d in shape)
        return self.builder.input(name, TensorType(self.dtype if dtype is None else DTYPES[dtype], dims))

    def weight(self, name: str, shape: Shape) -> Value:
        return self.builder.weight(name, TensorType(self.dtype, tuple(int(d) for d in shape)))

    def __getattr__(self, op: str) -> Callable[..., Value]:
        return lambda *inputs, **attrs: self.builder.add(op.rstrip("_"), *inputs, **attrs)


Body = Callable[..., Value | Sequence[Value]]


def spell(body: Body, *shapes: Shape, dtype: str = "f32") -> Graph:
    """The graph of a body over inputs of these shapes."""
    s = Spell(dtype)
    found = body(s, *(s.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    return verify(s.builder.build([found] if isinstance(found, Value) else found))


def run(graph: Graph, *inputs: Array) -> list[Array]:
    return Executor(trivial_plan(graph), NUMPY, Config()).run(inputs)


def ops(graph: Graph) -> Counter[str]:
    """How often each operator occurs, nested graphs included."""
    return Counter(node.op for g in graph.walk() for node in g.nodes)


def randoms(*shapes: Sequence[int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def keeps_bits(graph: Graph, *inputs: Array, **options: Any) -> Graph:
    """The optimized graph, once it verifies and gives the same bits."""
    after = verify(optimize(graph, **options))
    for ours, original in zip(run(after, *inputs), run(graph, *inputs), strict=True):
        verdict = same_bits(ours, original)
        assert verdict or ours.tobytes() == original.tobytes(), verdict.reason
    return after


def keeps_values(body: Body, *inputs: Array, **options: Any) -> Graph:
    """The optimized graph of a body, once it verifies and is as close to the body in float64 as the body itself."""
    shapes = [x.shape for x in inputs]
    graph, exact = spell(body, *shapes), spell(body, *shapes, dtype="f64")
    after = verify(optimize(graph, **options))
    exacts = run(exact, *(x.astype(np.float64) for x in inputs))
    for ours, original, best in zip(run(after, *inputs), run(graph, *inputs), exacts, strict=True):
        verdict = close_to_exact(ours, original, best)
        assert verdict, verdict.reason
    return after
