"""Groups that come apart: where, every reason why one does not, and that what they answer stays right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.fusion.candidates import find
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Planner, plan
from hotfuse.fusion.legality import Refusal
from hotfuse.fusion.rules import Fused, results_of
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import SPLIT
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from hotfuse.numerics import close_to_exact
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from tests.fusion.graphs import case, rows, weight
from tests.hardware.test_model import RATES

Make = Callable[[GraphBuilder], Value | list[Value]]
Array = np.ndarray[Any, Any]
MANY = 1 << 30  # bytes of a cache, for chains


def down(b: GraphBuilder) -> Value:
    """A tail behind a fold down the columns, and a value of its rows in between."""
    x = rows(b, 300, 11)
    top = b.add("tanh", b.add("reduce_max", x, axes=(0,), keepdims=True))
    return b.add("tanh", b.add("add", x, top))


def headed(b: GraphBuilder) -> Value:
    """What is folded is needed behind the fold as well."""
    x = b.add("exp", rows(b, 300, 11))
    return b.add("sub", x, b.add("reduce_mean", x, axes=(0,), keepdims=True))


def chained(b: GraphBuilder) -> Value:
    y = b.add("softmax", b.add("matmul", rows(b, 40, 24), weight(b, 24, 32)), axis=-1)
    return b.add("relu", b.add("matmul", y, weight(b, 32, 16)))


def groups_of(make: Make, cache_bytes: int = 0) -> tuple[Any, list[Fused]]:
    found = case(make)
    return found, found.groups(cache_bytes)


def halves(make: Make, cache_bytes: int = 0) -> list[tuple[list[str], list[str]]]:
    found, groups = groups_of(make, cache_bytes)
    pairs = found.legality.split(replace(groups[-1], parts=()))
    assert not isinstance(pairs, Refusal), pairs
    return [([n.op for n in a.nodes], [n.op for n in b.nodes]) for a, b in pairs]


def joined(make: Make) -> tuple[Any, Fused]:
    """All groups of a graph as one, as if the rules had made it."""
    found, (whole, *rest) = groups_of(make)
    for group in rest:
        both = found.legality.join(whole, group)
        assert isinstance(both, Fused), both
        whole = both
    return found, replace(whole, parts=())


def test_a_tail_comes_off_behind_a_fold_and_values_of_rows_stay() -> None:
    found, whole = joined(down)
    ((first, second),) = found.legality.split(whole)
    assert [n.op for n in first.nodes] == ["reduce_max", "tanh"]
    assert [n.op for n in second.nodes] == ["add", "tanh"]
    assert (first.folded, second.folded, second.domain) == ((0,), (), (300, 11))
    assert results_of(first, found.graph, found.layouts) == [first.nodes[-1].id]


def test_what_both_halves_need_is_written_by_the_first() -> None:
    found, whole = joined(headed)
    ((first, second),) = found.legality.split(whole)
    assert [n.op for n in first.nodes] == ["exp", "reduce_mean"]
    assert results_of(first, found.graph, found.layouts) == [n.id for n in first.nodes]
    assert [n.op for n in second.nodes] == ["sub"]


def test_a_chain_comes_apart_between_any_two_links() -> None:
    softmax, last = ["panel_matmul", "softmax"], ["panel_matmul", "relu"]
    assert halves(chained, MANY) == [(softmax[:1], [*softmax[1:], *last]), (softmax, last)]


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (down, {"variant": "strips"}, "what an edit made"),
        (down, {"parts": (Fused("rows", ()),)}, "what an edit made"),
        (down, {"placed": 1}, "in place of others"),
        (down, {"again": ("x",)}, "in place of others"),
        (lambda b: b.add("exp", b.add("neg", rows(b, 8, 64))), {}, "folds no rows"),
        (lambda b: b.add("exp", b.add("softmax", rows(b, 8, 64), axis=-1)), {}, "tasks of rows for all"),
        (lambda b: b.add("matmul", rows(b, 8, 64), weight(b, 64, 64)), {}, "kind product"),
        (lambda b: b.add("softmax", b.add("exp", rows(b, 8, 64)), axis=0), {}, "nothing but values of its rows"),
        (lambda b: b.add("tanh", b.add("reduce_max", rows(b, 8, 64), axes=(0,), keepdims=True)), {}, "nothing but"),
    ],
)
def test_every_reason_why_not(make: Make, change: dict[str, Any], words: str) -> None:
    found, whole = joined(make)
    verdict = found.legality.split(replace(whole, **change))
    assert isinstance(verdict, Refusal)
    assert words in verdict.reason


def test_halves_take_the_place_of_a_group_and_are_not_split_again_once_joined() -> None:
    found, whole = joined(down)
    draft = Draft(found.graph, found.layouts, [whole])
    (candidate,) = [c for c in find(draft, found.legality, list(draft)) if c.strategy == SPLIT]
    first, second = apply(draft, candidate)
    assert [*draft] == [first, second]
    assert draft.maker[next(iter(second.reads & first.writes))] is first
    assert not apply(draft, candidate)
    both = found.legality.join(first.group, second.group)
    assert isinstance(both, Fused)
    assert found.legality.split(both) == Refusal("it is what an edit made")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (down, lambda x: np.tanh(x + np.tanh(x.max(0, keepdims=True)))),
        (headed, lambda x: np.exp(x) - np.exp(x).mean(0, keepdims=True)),
    ],
)
def test_halves_answer_as_the_whole(make: Make, exact: Callable[[Array], Array], threads: int) -> None:
    found, whole = joined(make)
    x = np.random.default_rng(2).standard_normal((300, 11)).astype(np.float32)
    for groups in ((whole,), *found.legality.split(whole)):
        config = Config(cache="off", strict=True, threads=threads)
        shop = Workshop(config)
        build = build_groups(Hoisted(found.graph), found.graph, list(groups), shop.spec, config, shop)
        assert not build.reasons
        assert len(build.units) == len(groups)
        (got,) = build_executor(found.graph, build, shop.kernels, NUMPY, config).run([x])
        verdict = close_to_exact(got, exact(x), exact(x.astype(np.float64)))
        assert verdict, verdict.reason


def test_a_tail_that_one_thread_would_do_is_predicted_to_come_off() -> None:
    def make(b: GraphBuilder) -> Value:
        x = rows(b, 4096, 24)
        y = b.add("add", x, b.add("reduce_max", x, axes=(0,), keepdims=True))
        for op in ("tanh", "exp", "sigmoid"):
            y = b.add(op, y)
        return y

    def steps(threads: int) -> list[str]:
        graph = (found := case(make)).graph
        planned = plan(graph, graph.values, found.layouts, Planner(Model(RATES, threads), host_spec(), {}))
        return [step.strategy for step in planned.steps]

    assert SPLIT in steps(2)
    assert SPLIT not in steps(1)
