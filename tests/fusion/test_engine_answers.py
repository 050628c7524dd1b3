"""Graphs that plans of the engine once answered wrongly, raced on, or could not be planned for, and proofs of its units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.fusion.legality import Refusal
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_cache import cached_build, keep_build
from hotfuse.runtime.build_request import BuildRequest
from hotfuse.runtime.build_work import build_here
from hotfuse.runtime.building import make_build
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, native_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.proof import prove
from tests.fusion.graphs import case, rows

CONFIG = Config(cache="off", tier=1, wait=True, strict=True)
Make = Callable[[GraphBuilder], list[Value]]


def graph_of(make: Make) -> Graph:
    builder = GraphBuilder()
    return builder.build(make(builder))


def inputs_of(graph: Graph, **sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {name: [d if isinstance(d, int) else sizes[str(d)] for d in graph.type(name).shape] for name in graph.inputs}  # type: ignore[union-attr]
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def check(graph: Graph, inputs: Mapping[str, Any], config: Config = CONFIG) -> None:
    given = [inputs[name] for name in graph.inputs]
    wanted = Executor(trivial_plan(graph), NUMPY, config).run(given)
    made = native_executor(graph, NUMPY, config)
    for _ in range(5):
        for got, want in zip(made.run(given), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def accident(b: GraphBuilder) -> list[Value]:
    """Fewer points in the shape that a row's value would have."""
    x, y = rows(b, 2, 2, 4096), rows(b, 2, 4096, name="y")
    return [b.add("neg", y), b.add("reduce_sum", b.add("add", x, y), axes=(1,), keepdims=False)]


def in_parts(b: GraphBuilder) -> list[Value]:
    """A concat whose part reads some of what the group would make."""
    x, y = b.add("exp", rows(b, 1024, 256, name="z")), rows(b, 512, 256, name="y")
    part = b.add("slice", x, b.dims((0,)), b.dims((512,)), axes=(0,), steps=(1,))
    return [b.add("add", b.add("concat", y, b.add("neg", part), axis=0), x), x]


def turned_twice(b: GraphBuilder) -> list[Value]:
    """A view that a copy is made of and that somebody else reads."""
    turned = b.add("transpose", b.add("exp", rows(b, 64, 96)), perm=(1, 0))
    return [b.add("reshape", turned, b.dims((64, 96))), b.add("neg", turned)]


def centered(b: GraphBuilder) -> list[Value]:
    """A view between two nodes of one kernel."""
    x = rows(b, 64, 96)
    mean = b.add("unsqueeze", b.add("reduce_mean", x, axes=(1,), keepdims=False), axes=(1,))
    return [b.add("sub", x, mean)]


@pytest.mark.parametrize("make", [accident, in_parts, turned_twice, centered])
@pytest.mark.parametrize("threads", [1, 2])
def test_answers(make: Make, threads: int) -> None:
    graph = graph_of(make)
    check(graph, inputs_of(graph), replace(CONFIG, threads=threads))


def test_what_has_a_rows_shape_by_accident_is_refused() -> None:
    found = case(accident)
    first, second = found.groups()
    for pair in ((first, second), (second, first)):
        assert isinstance(found.legality.join(*pair), Refusal)


@pytest.mark.parametrize("make", [centered, turned_twice, accident])
def test_units_of_the_engine_are_proved(make: Make) -> None:
    """On other inputs, too, which views inside of a unit have to follow."""
    graph, shop = graph_of(make), Workshop(CONFIG)
    build = make_build(skeleton(graph), shop.spec, CONFIG, shop)
    verdicts = prove(build, shop.kernels, inputs_of(graph), lambda name: graph.constants[name].numpy(), CONFIG)
    assert [verdict.reason for verdict in verdicts if not verdict.ok] == []


def test_sizes_that_are_too_small_where_nobody_tells_are_planned_for() -> None:
    n = symbol("n", 1)

    def make(b: GraphBuilder) -> list[Value]:
        x = b.input("x", tensor(F32, 4, n))
        part = b.add("slice", x, b.dims((399,)), b.dims((1 << 40,)), axes=(1,), steps=(1,))
        return [b.add("exp", part)]

    graph = graph_of(make)
    check(graph, inputs_of(graph, n=500), replace(CONFIG, strict=False))


def test_builds_of_rules_and_of_the_engine_are_two_in_the_cache(tmp_path: Any) -> None:
    config = Config(cache=str(tmp_path / "cache"), tier=1, wait=True)
    asked = BuildRequest(skeleton(graph_of(centered)), config)
    reply = build_here(asked)
    keep_build(asked, reply)
    assert cached_build(replace(asked, config=replace(config, fusion="rules"))) is None
