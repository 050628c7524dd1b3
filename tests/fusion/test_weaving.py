"""What is woven, what is not and why, and that nothing is where nobody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hotfuse.fusion.draft import Item
from hotfuse.fusion.engine import BESIDE, WOVEN, Engine, Planner
from hotfuse.fusion.grouping import Grouping, make_plan, name_of
from hotfuse.fusion.legality import Refusal
from hotfuse.fusion.rules import Fetch, Fused
from hotfuse.fusion.weaving import MOST_GRAIN, MOST_LINES, Weave, streams_of, unwoven
from hotfuse.fusion.why import why
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import STRIPS
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import Case, case, rows, weight
from tests.fusion.test_engine import MODEL, SPEC, planned
from tests.hardware.test_model import RATES

Make = Callable[[GraphBuilder, Value], Value]
PLACE = replace(SPEC, l2_bytes=1 << 20, vector_bytes=64, vector_registers=32)


def folded(b: GraphBuilder, x: Value, axis: int = 1) -> Value:
    return b.add("reduce_sum", b.add("neg", x), axes=(axis,), keepdims=False)


def beside(make: Make, shape: tuple[int, int] = (6144, 1024), product: tuple[int, int, int] = (384, 768, 768)) -> Case:
    """A product, and something that is made of a long input."""
    m, k, n = product

    def both(b: GraphBuilder) -> list[Value]:
        return [b.add("matmul", rows(b, m, k), weight(b, k, n)), make(b, rows(b, *shape, name="long"))]

    return case(both)


def engine(found: Case, model: Model = MODEL, **changes: Any) -> Engine:
    return Engine(found.graph, found.graph.values, found.layouts, Planner(model, PLACE, {}, **changes))


def items(made: Engine) -> tuple[Item, Item]:
    """The product, and the last item that is none."""
    found = [item for item in made.draft if item.group is not None and item.group.kind != "pack"]
    return next(i for i in found if i.group and i.group.kind == "product"), found[-1]


def verdict(found: Case) -> Weave | Refusal:
    made = engine(found)
    return made.weave(*items(made))


def reason(found: Case) -> str:
    refusal = verdict(found)
    assert isinstance(refusal, Refusal)
    return refusal.reason


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_and_a_long_fold_are_woven(threads: int) -> None:
    made = engine(beside(folded), Model(RATES, threads))
    found = made.run()
    (step,) = [step for step in found.steps if step.strategy in (BESIDE, WOVEN)]
    product, long = (group for group in found.groups if group.kind != "pack")
    assert (step.strategy, step.groups) == (WOVEN, (name_of(product), name_of(long)))
    assert step.gain_s > 0
    assert product.fetches == (Fetch("long", 1),)
    assert product.row == long.row != 0
    assert not long.fetches
    assert step.scores[0].name == "complementarity"
    assert WOVEN in why(made, found, product.nodes[0].id, long.nodes[-1].id).lines[-1]
    assert unwoven(product) in engine(beside(folded)).draft.groups
    assert unwoven(long) == replace(long, row=0)


def test_where_it_is_switched_off_the_plan_is_as_it_was() -> None:
    made = engine(beside(folded), complements=False)
    before = made.draft.groups
    found = made.run()
    assert list(found.groups) == before
    assert not found.steps


def test_the_shares_of_a_long_input_stay_in_the_cache() -> None:
    less, more = verdict(beside(folded, (1536, 1024))), verdict(beside(folded, (12288, 1024)))
    assert isinstance(less, Weave)
    assert isinstance(more, Weave)
    assert less.product.grain < more.product.grain
    assert [less.product.fetches[0].lines, more.product.fetches[0].lines] == [1, 2]


def test_several_inputs_are_fetched() -> None:
    def make(b: GraphBuilder, x: Value) -> Value:
        return folded(b, b.add("mul", x, rows(b, 4096, 1024, name="other")))

    found = verdict(beside(make, (4096, 1024)))
    assert isinstance(found, Weave)
    assert {fetch.value for fetch in found.product.fetches} == {"long", "other"}


def test_what_is_near_is_not_fetched() -> None:
    assert reason(beside(folded, (64, 256), (16, 64, 64))) == "what it reads is near"


def test_of_rows_too_long_for_a_product_a_part_is_fetched() -> None:
    long, longer = (engine(beside(folded, (rows, 1024))) for rows in (40960, 81920))
    first, second = long.weave(*items(long)), longer.weave(*items(longer))
    assert isinstance(first, Weave)
    assert isinstance(second, Weave)
    assert first.product == second.product
    assert first.product.fetches == (Fetch("long", MOST_LINES),)
    product, _ = items(longer)
    assert 0 < second.before_s - second.after_s <= longer.seconds(product)  # no more is hidden than there is to hide behind


def test_of_many_inputs_the_longest_are_fetched() -> None:
    def make(b: GraphBuilder, x: Value) -> Value:
        for number in range(4):
            x = b.add("mul", x, rows(b, 6144, 1024, name=f"other{number}"))
        return folded(b, x)

    found = verdict(beside(make))
    assert isinstance(found, Weave)
    assert [fetch.lines for fetch in found.product.fetches] == [1] * MOST_LINES


def test_a_product_of_few_tasks() -> None:
    assert "tasks for 2 threads" in reason(beside(folded, (112, 1024), (8, 16384, 336)))


def test_of_shares_that_no_cache_holds_a_part_is_fetched() -> None:
    found = beside(folded)
    small = replace(PLACE, l2_bytes=1 << 16)
    made = Engine(found.graph, found.graph.values, found.layouts, Planner(MODEL, small, {}))
    whole, part = verdict(found), made.weave(*items(made))
    assert isinstance(whole, Weave)
    assert isinstance(part, Weave)
    assert whole.product.grain < part.product.grain == MOST_GRAIN
    assert whole.after_s < part.after_s < part.before_s


def test_two_products_are_not_woven() -> None:
    assert "one of both has to be a product" in reason(beside(lambda b, x: b.add("matmul", x, weight(b, 1024, 64))))


def test_what_tier_0_runs_is_not_woven() -> None:
    made = engine(beside(lambda b, x: b.add("lgamma", x)))
    product, _ = items(made)
    other = next(item for item in made.draft if item.group is None)
    refusal = made.weave(product, other)
    assert isinstance(refusal, Refusal)
    assert "tier 0" in refusal.reason


def turned(b: GraphBuilder, x: Value) -> Value:
    return b.add("add", x, b.add("transpose", rows(b, 1024, 6144, name="other"), perm=(1, 0)))


def chosen(b: GraphBuilder, x: Value) -> Value:
    return b.add("gather", x, b.add("argmax", x, axis=0, keepdims=False), axis=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: folded(b, x, 0), "folds down columns"),
        (turned, "neighbours along another axis"),
        (chosen, "reads nothing from front to back"),
        (lambda b, x: b.add("concat", x, x, axis=0), "kind concat"),
    ],
    ids=["columns", "turned", "gathered", "concat"],
)
def test_what_is_not_read_from_front_to_back(make: Make, message: str) -> None:
    assert message in reason(beside(make))


def test_strips_and_results_in_another_order() -> None:
    found = beside(folded)
    group = next(group for group in found.groups() if group.kind == "rows")

    def said(group: Fused) -> str:
        refusal = streams_of(group, found.graph.values, found.layouts)
        assert isinstance(refusal, Refusal)
        return refusal.reason

    assert "columns" in said(replace(group, variant=STRIPS))
    assert "another order" in said(replace(group, placed=1))
    assert streams_of(group, found.graph.values, found.layouts) == ("long",)


def test_why_says_what_keeps_two_from_being_woven() -> None:
    made = engine(beside(lambda b, x: folded(b, x, 0)), Model(RATES, 1))  # with two threads they run side by side
    found = made.run()
    product, other = items(made)
    assert any("folds down columns" in line for line in why(made, found, product.name, other.name).lines)


def test_what_needs_the_product_is_not_woven_with_it() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        y = b.add("matmul", rows(b, 384, 768), weight(b, 768, 768))
        spread = b.add("add", rows(b, 16, 384, 768, name="long"), y)
        return [y, b.add("reduce_sum", spread, axes=(2,), keepdims=False)]

    found = planned(case(make).graph)
    assert not any(step.strategy in (BESIDE, WOVEN) for step in found.steps)


def test_what_was_woven_with_a_group_that_is_taken_apart_is_so_no_more() -> None:
    found = beside(folded)
    planner = Planner(MODEL, PLACE, {})
    whole = make_plan(found.graph, found.graph.values, found.layouts, 0, planner=planner).groups
    (long,) = (name_of(group) for group in whole if group.kind == "rows")
    assert any(group.fetches for group in whole)
    apart = make_plan(found.graph, found.graph.values, found.layouts, 0, Grouping(apart=(long,)), planner).groups
    assert not any(group.fetches or group.row for group in apart)
