"""A plan while it is edited: order, cycles, and what random edits of random graphs leave."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hotfuse.fusion.candidates import find, verdicts
from hotfuse.fusion.draft import WINDOW, Draft, Item
from hotfuse.fusion.edits import apply
from hotfuse.fusion.legality import Refusal
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.specimens import specimen
from tests.fusion.graphs import Case, case, rows, weight


def draft_of(found: Case) -> Draft:
    return Draft(found.graph, found.layouts, found.groups())


def item(draft: Draft, op: str) -> Item:
    return next(i for i in draft if i.group is not None and any(node.op == op for node in i.group.nodes))


def around_a_product(b: GraphBuilder) -> list[Value]:
    x = b.add("exp", rows(b, 8, 64))
    return [b.add("add", b.add("softmax", b.add("matmul", x, weight(b, 64, 64)), axis=-1), x)]


def test_what_needs_the_first_and_feeds_the_second_is_between() -> None:
    found = case(around_a_product)
    draft = draft_of(found)
    first, product, second = item(draft, "exp"), item(draft, "panel_matmul"), item(draft, "softmax")
    assert draft.between(first, second) == product.name
    ((strategy, verdict),) = verdicts(draft, found.legality, first, second)
    assert isinstance(verdict, Refusal)
    assert f"{product.name} needs the first and feeds the second" in verdict.reason
    assert strategy == "registers"


def test_what_is_far_apart_is_refused() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        first = b.add("exp", x)
        others = [b.add("softmax", x, axis=0) for _ in range(WINDOW + 1)]
        return [b.add("softmax", first, axis=-1), first, *others]

    found = case(make)
    draft = draft_of(found)
    first, *_, last = sorted((i for i in draft if i.group), key=lambda i: i.name == "softmax_128")
    assert first.name == "exp_0"
    found_last = next(i for i in draft if first.writes & i.reads)
    ((_, verdict),) = verdicts(draft, found.legality, first, found_last)
    assert isinstance(verdict, Refusal)
    assert "far apart" in verdict.reason
    assert last is not first


def test_what_has_no_native_code_is_refused() -> None:
    found = case(lambda b: b.add("lgamma", b.add("exp", rows(b, 8, 64))))
    draft = draft_of(found)
    first, second = draft
    ((_, verdict),) = verdicts(draft, found.legality, first, second)
    assert isinstance(verdict, Refusal)
    assert "no native code" in verdict.reason


def test_what_lies_between_moves_out_of_the_way() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        first = b.add("exp", x)
        needs = b.add("matmul", first, weight(b, 64, 64))
        free = b.add("matmul", x, weight(b, 64, 64))
        return [needs, free, b.add("softmax", first, axis=-1)]

    found = case(make)
    draft = draft_of(found)
    first, needs, free, last = (i for i in draft if i.group)
    made = found.legality.join(first.group, last.group)  # type: ignore[arg-type]
    assert not isinstance(made, Refusal)
    whole = draft.fuse(first, last, made)
    draft.close_gaps()
    assert [i for i in draft if i.group] == [free, whole, needs]
    assert draft.maker[next(iter(first.writes))] is whole


@pytest.mark.parametrize("seed", range(30))
def test_random_edits_leave_an_order_in_which_everything_can_run(seed: int) -> None:
    spec, rng = host_spec(), np.random.default_rng(seed)
    graph = hoist(native_form(skeleton(specimen(5000 + seed, blocks=12).graph), spec), ()).main
    found = Case(graph, layouts(graph, graph.values))
    draft = Draft(graph, found.layouts, found.groups())
    edits = 0
    for _ in range(6):
        candidates = list(find(draft, found.legality, list(draft)))
        rng.shuffle(candidates)  # type: ignore[arg-type]
        edits += sum(bool(apply(draft, candidate)) for candidate in candidates[:6])
        draft.close_gaps()
    assert edits
    done = {*graph.inputs, *graph.weights, *graph.constants}
    for each in draft:
        assert each.reads <= done, f"{each.name} reads {sorted(each.reads - done)} before it is there"
        done |= each.writes
    kept = {found.layouts[name].root if name in found.layouts else name for name in graph.outputs}
    assert kept <= done


@pytest.mark.parametrize("seed", range(8))
def test_between_is_what_needs_the_first_of_all_that_lies_between(seed: int) -> None:
    graph = hoist(native_form(skeleton(specimen(5200 + seed, blocks=12).graph), host_spec()), ()).main
    found = Case(graph, layouts(graph, graph.values))
    order = list(draft := Draft(graph, found.layouts, found.groups()))
    for first, second in itertools.combinations(order, 2):
        needs: set[Item] = set()
        for other in order[order.index(first) + 1 : order.index(second)]:
            if any(source is first or source in needs for source in draft.sources(other)):
                needs.add(other)
        through = [source.name for source in draft.sources(second) if source in needs]
        assert draft.between(first, second) == (through[0] if through else "")
