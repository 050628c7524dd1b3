"""Elementwise groups that read what would be copied where it lies: which may, why others may not, and what they answer."""

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
from hotfuse.fusion.legality import MOST_NODES, Refusal
from hotfuse.fusion.rules import Fused, results_of
from hotfuse.hardware.pairs import LAYOUT
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from hotfuse.numerics import close_to_exact
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from tests.fusion.graphs import Case, case, rows

Make = Callable[[GraphBuilder], Value | list[Value]]
Array = np.ndarray[Any, Any]
ROWS, WIDTH = 37, 70


def turned(b: GraphBuilder, x: Value, rows: int = ROWS, width: int = WIDTH) -> Value:
    return b.add("reshape", b.add("transpose", x, perm=(1, 0)), b.dims((rows, width)))


def alone(b: GraphBuilder) -> Value:
    return b.add("tanh", b.add("neg", turned(b, rows(b, ROWS, WIDTH))))


def beside(b: GraphBuilder) -> list[Value]:
    """With others that lie in order, a number, and a copy that somebody wants as it is."""
    x = rows(b, ROWS, WIDTH)
    copy = turned(b, x)
    return [b.add("mul", b.add("add", copy, x), b.constant(np.float32(3.0), "three")), copy]


def groups_of(make: Make) -> tuple[Case, Fused, Fused]:
    """The copy, and what reads it."""
    found = case(make)
    groups = found.groups()
    copy = next(group for group in groups if group.kind == "copy")
    return found, copy, groups[groups.index(copy) + 1]


@pytest.mark.parametrize(("make", "results"), [(alone, 1), (beside, 2)])
def test_elementwise_groups_read_what_is_copied(make: Make, results: int) -> None:
    found, copy, reader = groups_of(make)
    made = found.legality.through(copy, reader)
    assert isinstance(made, Fused), made
    assert (made.kind, made.parts) == ("copy", (copy, reader))
    assert len(results_of(made, found.graph, found.layouts)) == results


def shifted(b: GraphBuilder) -> Value:
    return b.add("add", turned(b, rows(b, ROWS, WIDTH)), rows(b, WIDTH, name="y"))


def crossed(b: GraphBuilder) -> Value:
    other = b.add("transpose", rows(b, WIDTH, ROWS, name="y"), perm=(1, 0))
    return b.add("add", turned(b, rows(b, ROWS, WIDTH)), other)


def many(b: GraphBuilder) -> Value:
    y = turned(b, rows(b, ROWS, WIDTH))
    for _ in range(MOST_NODES):
        y = b.add("neg", y)
    return y


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda b: b.add("softmax", turned(b, rows(b, ROWS, WIDTH)), axis=-1), "only elementwise"),
        (shifted, "add reads y in another order"),
        (crossed, "in another order"),
        (many, f"more than {MOST_NODES} operators"),
    ],
)
def test_every_reason_why_not(make: Make, words: str) -> None:
    found, copy, reader = groups_of(make)
    verdict = found.legality.through(copy, reader)
    assert isinstance(verdict, Refusal)
    assert words in verdict.reason


def test_what_goes_over_other_points_reads_the_copy() -> None:
    found, copy, reader = groups_of(alone)
    wide = found.legality.through(replace(copy, domain=(2 * ROWS, WIDTH)), reader)
    assert isinstance(wide, Refusal)
    assert "one by one" in wide.reason
    assert isinstance(found.legality.through(reader, copy), Refusal)
    for change in ({"placed": 1}, {"again": ("y",)}):
        assert isinstance(found.legality.through(copy, replace(reader, **change)), Refusal)  # type: ignore[arg-type]


def test_a_number_of_many_axes_is_not_read_over_few() -> None:
    def make(b: GraphBuilder) -> Value:
        x = b.add("reshape", b.add("transpose", rows(b, ROWS, WIDTH), perm=(1, 0)), b.dims((ROWS, WIDTH, 1)))
        return b.add("add", x, b.constant(np.ones((1, 1, 1), np.float32), "one"))

    found, copy, reader = groups_of(make)
    verdict = found.legality.through(copy, reader)
    assert isinstance(verdict, Refusal)
    assert "in another order" in verdict.reason


def test_a_copy_that_computes_something_is_not_written_at_once() -> None:
    found = case(lambda b: b.add("neg", turned(b, b.add("exp", rows(b, ROWS, WIDTH)))))
    exp, copy, neg = found.groups()
    made = found.legality.through(copy, neg)
    assert isinstance(made, Fused)
    assert isinstance(found.legality.place(exp, copy), Fused)
    assert isinstance(found.legality.place(exp, made), Refusal)


def test_it_is_an_edit_of_layout() -> None:
    found, *_ = groups_of(alone)
    draft = Draft(found.graph, found.layouts, found.groups())
    (candidate,) = [c for c in find(draft, found.legality, list(draft)) if c.strategy == LAYOUT]
    (item,) = apply(draft, candidate)
    assert [*draft] == [item]


@pytest.mark.parametrize("isa", ["native", "avx2"])
@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (alone, lambda x: [np.tanh(-x.T.reshape(ROWS, WIDTH))]),
        (beside, lambda x: [(x.T.reshape(ROWS, WIDTH) + x) * 3, x.T.reshape(ROWS, WIDTH)]),
    ],
)
def test_what_reads_through_a_copy_answers_as_the_operators_do(
    make: Make, exact: Callable[[Array], list[Array]], isa: str
) -> None:
    found, copy, reader = groups_of(make)
    made = found.legality.through(copy, reader)
    assert isinstance(made, Fused)
    config = Config(cache="off", strict=True, isa=isa)
    shop = Workshop(config)
    build = build_groups(Hoisted(found.graph), found.graph, [made], shop.spec, config, shop)
    assert not build.reasons
    assert len(build.units) == 1
    x = np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(np.float32)
    results = build_executor(found.graph, build, shop.kernels, NUMPY, config).run([x])
    for got, want, truth in zip(results, exact(x), exact(x.astype(np.float64)), strict=True):
        verdict = close_to_exact(got, want, truth)
        assert verdict, verdict.reason
