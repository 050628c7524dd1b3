"""What follows what, as calls come."""

from __future__ import annotations

import threading

from hotfuse.runtime import order
from hotfuse.runtime.order import Chain, Order, make_chains, runs


def test_plans_follow_each_other_as_calls_come_in_each_thread() -> None:
    found = Order(half_life_s=10.0)

    def call() -> None:
        for _ in range(50):
            for plan in ("embed", "layer", "head"):
                found.note(plan)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chains = tuple(make_chains("", found.collect(0.0)))
    assert {(c.first, c.second) for c in chains} == {("embed", "layer"), ("layer", "head"), ("head", "embed")}
    assert next(c.recent for c in chains if c.first == "embed") == 200
    assert runs(chains) == (("embed", "layer", "head"),)


def test_the_order_of_calls_fades_and_is_bounded() -> None:
    found = Order(half_life_s=10.0)
    for plan in ("a", "b"):
        found.note(plan)
    assert found.collect(0.0) == {("a", "b"): 1}
    assert found.collect(10.0) == {("a", "b"): 0.5}
    for _ in range(3):
        for number in range(order.PAIRS + 10):
            found.note(str(number))
    found.collect(10.0)
    assert len(found._pairs) == order.PAIRS
    for _ in range(2 * order.KEPT):
        found.note("a")
    assert sum(found.collect(10.0).values()) < 3 * order.PAIRS + order.KEPT + 1


def test_circles_of_plans_are_walked_once() -> None:
    chains = [Chain("", a, b, 10.0, 1.0, 1.0) for a, b in ("ab", "ba", "cd", "xx")]
    assert sorted(runs(chains)) == [("a", "b"), ("c", "d"), ("x",)]
