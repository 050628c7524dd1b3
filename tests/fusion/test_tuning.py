"""Tuning, with a clock that a test sets: what is faster stays, what is not goes, and time is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hotfuse.errors import NoIdleCores
from hotfuse.fusion.engine import Planned, Planner
from hotfuse.fusion.rules import ALL, Fused
from hotfuse.fusion.strategies import Policy
from hotfuse.fusion.tuning import LEAST_TEAM_S, TEAM, Lap, Race, tune
from hotfuse.hardware.model import Model
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import case, rows, weight
from tests.hardware.test_model import RATES


def two_readers(b: GraphBuilder) -> list[Value]:
    y = b.add("neg", rows(b, 4096, 256))
    return [b.add("reduce_max", y, axes=(1,), keepdims=False), b.add("reduce_sum", y, axes=(1,), keepdims=True)]


class Clock:
    """Times groups by a rule, and whole calls by their sum or by another rule; counts how often it is asked."""

    def __init__(self, seconds: Callable[[Fused], float], call: Callable[[Sequence[Fused]], float] | None = None) -> None:
        self.seconds, self.races = seconds, 0
        self.call = call or (lambda groups: sum(map(seconds, groups)))

    def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
        self.races += 1
        laps = [[Lap(frozenset(n.id for n in g.nodes), self.seconds(g), 1e-9) for g in groups] for groups in (first, second)]
        return Race((laps[0], laps[1]), (self.call(first), self.call(second)))


def two_apart(b: GraphBuilder) -> list[Value]:
    x, y = rows(b, 4096, 256), rows(b, 2048, 300, name="y")
    return [b.add("reduce_max", x, axes=(1,), keepdims=False), b.add("reduce_sum", y, axes=(1,), keepdims=True)]


def plan_of(
    clock: Clock, seconds: float = 10.0, threads: int = 2, make: Callable[[GraphBuilder], list[Value]] = two_readers
) -> tuple[Planned, Policy]:
    found = case(make)
    planner = Planner(Model(RATES, threads), host_spec(), {})
    return tune(found.graph, found.graph.values, found.layouts, planner, clock.race, seconds)


def tuned(clock: Clock, seconds: float = 10.0) -> tuple[list[int], int]:
    planned, policy = plan_of(clock, seconds)
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


def test_what_is_faster_by_itself_goes_where_whole_calls_are_slower() -> None:
    """As where an edit spoils the caches of what comes next."""

    def call(groups: Sequence[Fused]) -> float:
        return 1e-4 * (1 + max(len(group.nodes) for group in groups))

    planned, _ = plan_of(Clock(lambda group: 1e-5, call))
    assert [len(group.nodes) for group in planned.groups] == [1, 1, 1]
    assert not planned.steps  # nothing is told of what did not come to be


def test_an_edit_that_only_whole_calls_show_to_pay_is_found() -> None:
    """As where it is the groups around that gain."""
    clock = Clock(lambda group: 1e-5 * 10 ** len(group.nodes), lambda groups: 1e-4 * len(groups))
    planned, _ = plan_of(clock)
    assert [len(group.nodes) for group in planned.groups] == [3]
    assert planned.steps


def test_of_edits_that_are_slower_together_those_stay_that_hold() -> None:
    """Finer tasks of one group pay, and those of another do not."""

    def call(groups: Sequence[Fused]) -> float:
        one = any(group.grain and group.nodes[-1].op == "reduce_sum" for group in groups)
        other = any(group.grain and group.nodes[-1].op != "reduce_sum" for group in groups)
        return 1e-4 * (1 - 0.1 * one + 0.5 * other)

    planned, _ = plan_of(Clock(lambda group: 1e-5 / (1 + group.grain), call), make=two_apart)
    assert {group.nodes[-1].op for group in planned.groups if group.grain} == {"reduce_sum"}


def test_the_threads_of_a_plan_are_measured_both_ways() -> None:
    def seconds(team: int, best: int) -> float:
        return 1e-4 if team == best else 2e-4

    def teams(threads: int, best: int) -> set[int]:
        planned, _ = plan_of(Clock(lambda group: seconds(group.team, best)), threads=threads)
        assert (TEAM in [step.strategy for step in planned.steps]) == (best != 0)
        return {group.team for group in planned.groups}

    assert teams(2, 1) == {1}
    assert teams(2, 0) == {0}
    assert teams(1, ALL) == {ALL}
    assert teams(1, 0) == {0}


def test_threads_are_not_woken_for_little() -> None:
    def teams(seconds: float) -> set[int]:
        clock = Clock(lambda group: seconds, lambda groups: seconds * (1 if groups[0].team else 2))
        return {group.team for group in plan_of(clock, threads=1)[0].groups}

    assert teams(LEAST_TEAM_S / 3) == {0}
    assert teams(LEAST_TEAM_S) == {ALL}


def test_the_rules_plan_stays_where_a_second_look_shows_no_gain() -> None:
    class Wavering(Clock):
        """Says of every plan that it is faster, until it is held against the first one again."""

        def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
            found = super().race(first, second)
            is_ruled = [len(group.nodes) for group in first] == [1, 1, 1] and not any(group.grain for group in first)
            self.seen = getattr(self, "seen", 0) + is_ruled
            return Race(found.laps, (1.0, 0.5 if self.seen < 2 else 1.0))

    planned, _ = plan_of(Wavering(lambda group: 1e-5))
    assert [len(group.nodes) for group in planned.groups] == [1, 1, 1]


def branches(b: GraphBuilder) -> list[Value]:
    y = b.add("matmul", rows(b, 384, 768), weight(b, 768, 768))
    return [y, b.add("reduce_sum", rows(b, 6144, 1024, name="long"), axes=(1,), keepdims=False)]


@pytest.mark.parametrize("is_faster", [True, False])
def test_whole_calls_decide_what_is_woven(is_faster: bool) -> None:
    """Edits are tried on groups that are not woven, for the time of a pair is told as that of one of both."""
    seen: list[bool] = []

    def call(groups: Sequence[Fused]) -> float:
        seen.append(any(group.fetches for group in groups))
        return 1e-3 * (0.8 if seen[-1] == is_faster else 1.0)

    planned, _ = plan_of(Clock(lambda group: 1e-4, call), make=branches)
    assert {True, False} == set(seen)
    assert any(group.fetches for group in planned.groups) == is_faster


def test_one_disturbed_race_at_the_end_decides_nothing() -> None:
    class Disturbed(Clock):
        """The last look at the rules' plan comes when somebody else has its core, or ours."""

        def __init__(self, lie: float, truth: float) -> None:
            super().__init__(lambda group: 1e-5)
            self.lie, self.truth, self.looks = lie, truth, 0

        def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
            found = super().race(first, second)
            is_ruled = [len(group.nodes) for group in first] == [1, 1, 1] and not any(group.grain for group in first)
            self.looks += is_ruled
            if not is_ruled or self.looks == 1:
                return Race(found.laps, (1.0, 0.5))
            return Race(found.laps, (1.0, self.lie if self.looks == 2 else self.truth))

    def nodes(lie: float, truth: float) -> list[int]:
        return [len(group.nodes) for group in plan_of(Disturbed(lie, truth))[0].groups]

    assert nodes(lie=2.0, truth=0.5) == [3]
    assert nodes(lie=0.5, truth=2.0) == [1, 1, 1]


class Interrupted(Clock):
    """A clock that others take away after some races."""

    left = 0

    def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
        self.left -= 1
        if self.left < 0:
            raise NoIdleCores("others use the cores")
        return super().race(first, second)


def test_what_was_confirmed_stays_where_others_take_the_cores() -> None:
    """Finer tasks pay, wherever they are made; the model does not know it, so only what is measured has them."""

    def call(groups: Sequence[Fused]) -> float:
        return 1e-3 * 0.8 ** sum(group.grain for group in groups)

    def interrupted(left: int) -> tuple[int, bool, int, int]:
        clock = Interrupted(lambda group: 1e-4 * 0.8**group.grain, call)
        clock.left = left
        planned, policy = plan_of(clock, make=two_apart)
        measured = any(step.is_measured for step in planned.steps)
        return sum(group.grain for group in planned.groups), measured, policy.seen, clock.races

    whole, _, _, races = interrupted(1 << 30)
    grains, measured, seen, _ = zip(*(interrupted(left) for left in range(races)), strict=True)
    assert grains[0] == seen[0] == 0  # nothing was measured: what is predicted is believed
    assert not measured[0]
    assert list(seen) == sorted(seen)  # what the policy learned is never lost
    assert seen[-1] > 0
    confirmed = measured.index(True)
    assert confirmed < 6  # the threads, a trial of edits, and the calls that confirm it
    assert all(measured[confirmed:])
    assert grains[confirmed] > 0
    assert list(grains) == sorted(grains)
    assert grains[-1] == whole
