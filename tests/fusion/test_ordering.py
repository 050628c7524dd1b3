"""What runs side by side: the estimate by hand, and an order that keeps what needs each other."""

from __future__ import annotations

import pytest

from hotfuse.fusion.draft import Draft
from hotfuse.fusion.ordering import LOOK, Pace, Pair, arrange, beside_s
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import case, rows, weight

COMPUTES, WAITS = Pace(1.0, 2.0, 0.0), Pace(1.5, 2.0, 0.75)


def test_one_computes_while_the_other_waits() -> None:
    assert beside_s(COMPUTES, WAITS) == pytest.approx(2.0)  # and not 2.5
    assert beside_s(WAITS, COMPUTES) == pytest.approx(2.0)


def test_two_that_compute_gain_nothing_and_two_that_wait_lose_nothing_but_time() -> None:
    assert beside_s(COMPUTES, COMPUTES) == pytest.approx(2.0)
    assert beside_s(WAITS, WAITS) == pytest.approx(1.5 * 2.0)


def test_single_tasks_share_the_threads() -> None:
    assert beside_s(Pace(3.0, 3.0, 0.0), Pace(2.0, 2.0, 0.0)) == pytest.approx(2.0 + 3.0 / 3)


def test_the_rest_of_the_longer_one_is_done_by_all() -> None:
    assert beside_s(Pace(4.0, 8.0, 0.0), WAITS) == pytest.approx(2.0 + 0.75 * 4.0)


def chains(b: GraphBuilder) -> list[Value]:
    x, y = rows(b, 64, 64), rows(b, 64, 64, name="y")
    for _ in range(3):
        x = b.add("matmul", x, weight(b, 64, 64))
    for _ in range(3):
        y = b.add("softmax", b.add("softmax", y, axis=0), axis=1)
    return [x, y]


def test_items_that_need_each_other_keep_their_order() -> None:
    found = case(chains)
    draft = Draft(found.graph, found.layouts, found.groups())
    paces = {i: COMPUTES if i.group and i.group.kind == "product" else WAITS for i in draft if i.group}
    pairs: list[Pair] = []
    order = arrange(draft, paces, pairs.append)
    assert len(pairs) == 3
    assert sorted(map(id, order)) == sorted(map(id, draft))
    place = {item: at for at, item in enumerate(order)}
    for item in order:
        assert all(place[source] < place[item] for source in draft.sources(item))
    for pair in pairs:
        assert place[pair.items[1]] == place[pair.items[0]] + 1
        assert pair.after_s < pair.before_s


def test_nobody_looks_far() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        x, y = rows(b, 64, 64), rows(b, 64, 64, name="y")
        first = x
        for _ in range(LOOK + 4):
            x = b.add("matmul", x, weight(b, 64, 64))
        return [x, b.add("softmax", y, axis=0), first]

    found = case(make)
    draft = Draft(found.graph, found.layouts, found.groups())
    items = [i for i in draft if i.group]
    pairs: list[Pair] = []
    arrange(draft, {items[0]: COMPUTES, items[-1]: WAITS}, pairs.append)
    assert not pairs
