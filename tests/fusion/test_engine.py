"""The engine: what it edits, what it leaves alone, what it is not sure of; and that its plans give the same answers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.fusion.candidates import STRATEGIES
from hotfuse.fusion.engine import BESIDE, Planned, Planner, plan
from hotfuse.fusion.rules import results_of
from hotfuse.hardware.model import Model, Predicted
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.work import Work
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.plan import trivial_plan
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import native_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.specimens import specimen
from tests.fusion.graphs import case, rows, weight
from tests.hardware.test_model import RATES

SPEC = host_spec()
MODEL = Model(RATES, 2)


class Biased(Model):
    """A model whose trees say what a test wants of groups of several nodes."""

    def predict(self, works: Any) -> Predicted:
        found = super().predict(works)
        by_tree = np.array([self.said(work, seconds) for work, seconds in zip(works, found.seconds, strict=True)])
        return replace(found, by_tree=by_tree.reshape(len(works), -1))

    def said(self, work: Work, seconds: float) -> list[float]:
        raise NotImplementedError


def planned(graph: Graph, model: Model = MODEL, **changes: Any) -> Planned:
    return plan(graph, graph.values, layouts(graph, graph.values), Planner(model, SPEC, {}, **changes))


def two_readers(b: GraphBuilder) -> list[Value]:
    y = b.add("neg", rows(b, 65536, 256))
    return [b.add("reduce_max", y, axes=(1,), keepdims=False), b.add("reduce_sum", y, axes=(1,), keepdims=True)]


def is_joined(work: Work) -> bool:
    """Of the nodes of `two_readers`, more than one."""
    return work.steps > 2.5 * work.points


def test_a_diamond_becomes_one_kernel() -> None:
    found = planned(case(two_readers).graph)
    (group,) = found.groups
    assert len(group.nodes) == 3
    assert {step.strategy for step in found.steps} <= set(STRATEGIES)
    for step in found.steps:
        assert step.gain_s > 0
        assert [score.name for score in step.scores] == ["complementarity", "locality", "constraints", "parallelism"]
        assert all(0 <= score.value <= 1 and score.reason for score in step.scores)


def test_what_is_predicted_to_be_slower_is_not_done() -> None:
    class Slow(Biased):
        def said(self, work: Work, seconds: float) -> list[float]:
            return [seconds * 10] if is_joined(work) else [seconds]

    assert [len(group.nodes) for group in planned(case(two_readers).graph, Slow(MODEL.rates, 2)).groups] == [1, 1, 1]


def test_what_trees_disagree_on_is_told_and_not_done() -> None:
    class Torn(Biased):
        def said(self, work: Work, seconds: float) -> list[float]:
            return [0.1 * seconds, 2.0 * seconds] if is_joined(work) else [seconds, seconds]

    found = planned(case(two_readers).graph, Torn(MODEL.rates, 2))
    assert found.unsure
    assert all(step.made == () and step.gain_s > 0 for step in found.unsure)
    assert all(step.strategy not in ("registers", "siblings") for step in found.steps)


def test_few_tasks_are_made_finer() -> None:
    found = planned(case(lambda b: b.add("matmul", rows(b, 64, 256), weight(b, 256, 48))).graph)
    assert "grain" in [step.strategy for step in found.steps]
    assert found.groups[-1].grain


def branches(b: GraphBuilder) -> list[Value]:
    y = b.add("matmul", rows(b, 384, 768), weight(b, 768, 768))
    long = b.add("reduce_sum", rows(b, 40960, 1024, name="long"), axes=(1,), keepdims=False)
    return [y, long]


def test_what_complements_each_other_runs_side_by_side() -> None:
    graph = case(branches).graph
    found = planned(graph)
    assert [step.strategy for step in found.steps][-1:] == [BESIDE]
    rows_ = [group.row for group in found.groups if group.kind != "pack"]
    assert len(set(rows_)) == 1
    assert rows_[0]
    assert not any(group.row for group in planned(graph, complements=False).groups)
    assert not any(group.row for group in planned(graph, Model(RATES, 1)).groups)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("threads", [1, 2])
def test_plans_of_the_engine_answer_as_the_operators_do(seed: int, threads: int) -> None:
    found = specimen(7000 + seed, blocks=10)
    given = [found.inputs[name] for name in found.graph.inputs]
    config = Config(cache="off", tier=1, wait=True, threads=threads, strict=True)
    wanted = Executor(trivial_plan(found.graph), NUMPY, config).run(given)
    made = native_executor(found.graph, NUMPY, config)
    for _ in range(3):
        for got, want in zip(made.run(given), wanted, strict=True):
            scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-3))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * scale)


def many(count: int) -> Graph:
    """A long model without two equal layers."""
    builder, rng = GraphBuilder("long"), np.random.default_rng(0)
    x = y = rows(builder, 64, 64)
    for number in range(count):
        if number % 8 == 7:
            y = builder.add("softmax" if number % 16 == 7 else "layer_norm", y, axis=-1)
        elif number % 3 == 0:
            y = builder.add("add", y, x)
        else:
            y = builder.add(("exp", "tanh", "relu", "sigmoid")[rng.integers(4)], y)
        if number % 5 == 4:
            x = y
    return builder.build([y])


def test_planning_takes_a_time_in_proportion_to_the_nodes() -> None:
    seconds = {}
    for count in (1000, 4000):
        graph = many(count)
        places = layouts(graph, graph.values)
        begun = time.process_time()
        found = plan(graph, graph.values, places, Planner(MODEL, SPEC, {}))
        seconds[count] = time.process_time() - begun
        assert sum(bool(results_of(group, graph, places)) for group in found.groups) == len(found.groups)
    assert seconds[4000] < 12 * seconds[1000]
