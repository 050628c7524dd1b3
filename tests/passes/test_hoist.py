"""Hoisting: the split computes what the whole did, and leaves alone what it must."""

from __future__ import annotations

import numpy as np

from hotfuse.config import Config
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import F32, tensor
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY


def run(graph: Graph, values: list[np.ndarray]) -> list[np.ndarray]:
    return Executor(trivial_plan(graph), NUMPY, Config()).run(values)


def scaled() -> Graph:
    """x @ (weight * scale), and scale + scale as a second output."""
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 2, 3))
    weight, scale = builder.weight("weight", tensor(F32, 3, 4)), builder.weight("scale", tensor(F32, 1, 4))
    product = builder.add("matmul", x, builder.add("mul", weight, scale))
    return builder.build([product, builder.add("add", scale, scale)])


def test_the_split_computes_what_the_whole_did() -> None:
    graph = scaled()
    split = hoist(graph)
    assert split.prepare is not None
    assert [n.op for n in split.main.nodes] == ["matmul"]
    assert sorted(split.sources) == ["scale", "weight"]
    assert split.main.weights == split.prepared
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal([int(d) for d in graph.type(n).shape], dtype=np.float32) for n in ("x", "weight", "scale")}
    want = run(graph, [given["x"], given["weight"], given["scale"]])
    prepared = run(split.prepare, [given[n] for n in split.sources])
    got = run(split.main, [given["x"], *prepared])
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_that_the_graph_writes_stay_live() -> None:
    split = hoist(scaled(), live={"scale"})
    assert split.prepare is None
    assert split.main.weights == ("weight", "scale")


def test_views_and_growing_values_stay() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 2, 3))
    weight, small = builder.weight("weight", tensor(F32, 4, 3)), builder.weight("small", tensor(F32, 1, 1))
    turned = builder.add("transpose", weight, perm=(1, 0))
    large = builder.add("add", small, builder.constant(np.zeros((2, 3), np.float32), "zeros"))
    graph = builder.build([builder.add("matmul", builder.add("add", x, large), turned)])
    assert hoist(graph).prepare is None
    assert hoist(graph).main is graph
