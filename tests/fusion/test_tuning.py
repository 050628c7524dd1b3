"""Tuning, with a clock that a test sets: what is faster stays, what is not goes, and time is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotfuse.fusion.engine import Planner
from hotfuse.fusion.rules import Fused
from hotfuse.fusion.tuning import Lap, Race, tune
from hotfuse.hardware.model import Model
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import case, rows
from tests.hardware.test_model import RATES


def two_readers(b: GraphBuilder) -> list[Value]:
    y = b.add("neg", rows(b, 4096, 256))
    return [b.add("reduce_max", y, axes=(1,), keepdims=False), b.add("reduce_sum", y, axes=(1,), keepdims=True)]


class Clock:
    """Times groups by a rule, and counts how often it is asked."""

    def __init__(self, seconds: Callable[[Fused], float]) -> None:
        self.seconds, self.races = seconds, 0

    def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
        self.races += 1
        laps = [[Lap(frozenset(n.id for n in g.nodes), self.seconds(g), 1e-9) for g in groups] for groups in (first, second)]
        return Race((laps[0], laps[1]), (sum(x.seconds for x in laps[0]), sum(x.seconds for x in laps[1])))


def tuned(clock: Clock, seconds: float = 10.0) -> tuple[list[int], int]:
    found = case(two_readers)
    planner = Planner(Model(RATES, 2), host_spec(), {})
    planned, policy = tune(found.graph, found.graph.values, found.layouts, planner, clock.race, seconds)
    assert all(step.is_measured or step.gain_s > 0 for step in planned.steps)
    return sorted(len(group.nodes) for group in planned.groups), policy.seen


def test_what_is_measured_to_be_faster_stays() -> None:
    assert tuned(Clock(lambda group: 1e-5))[0] == [3]


def test_what_is_measured_to_be_slower_goes_whatever_was_predicted() -> None:
    assert tuned(Clock(lambda group: 1e-5 * 10 ** len(group.nodes)))[0] == [1, 1, 1]


def test_the_policy_sees_what_was_tried() -> None:
    assert tuned(Clock(lambda group: 1e-5 * 10 ** len(group.nodes)))[1] > 0


def test_without_time_only_whole_plans_are_compared() -> None:
    clock = Clock(lambda group: 1e-5)
    assert tuned(clock, seconds=-1.0) == ([3], 0)
    assert clock.races <= 4
