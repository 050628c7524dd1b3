"""Hotness: seconds that fade, in a table that stays small and still finds whatever is hot."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.adaptive.hotness import Heat
from hotfuse.adaptive.target import Baked
from hotfuse.errors import VerifyError

A, B, C = Baked("a"), Baked("b"), Baked("c")


def test_heat_halves_with_each_half_life() -> None:
    heat = Heat(10.0, 4).spend(A, 8.0, 100.0)
    assert [heat.of(A, 100.0 + t) for t in (0, 10, 20, 30)] == [8.0, 4.0, 2.0, 1.0]
    assert heat.total(110.0) == 4.0


def test_seconds_count_and_not_calls() -> None:
    heat = Heat(10.0, 4)
    for _ in range(1000):
        heat = heat.spend(A, 1e-6, 0.0)
    heat = heat.spend(B, 1.0, 0.0)
    assert heat.targets == (B, A)


def test_what_is_spent_later_counts_for_more() -> None:
    heat = Heat(10.0, 4).spend(A, 1.5, 0.0).spend(B, 1.0, 10.0)
    assert heat.targets == (B, A)
    assert heat.total(10.0) == 1.75


def test_what_is_unknown_is_cold() -> None:
    assert Heat(10.0, 4).of(A, 0.0) == 0.0
    assert Heat(10.0, 4).targets == ()


def test_a_newcomer_takes_the_place_of_the_coldest_and_its_heat() -> None:
    heat = Heat(10.0, 2).spend(A, 3.0, 0.0).spend(B, 1.0, 0.0).spend(C, 0.5, 0.0)
    assert heat.targets == (A, C)
    assert heat.of(C, 0.0) == 1.5
    assert heat.of(B, 0.0) == 0.0
    assert heat.total(0.0) == 4.5


def test_a_clock_that_is_set_back_leaves_heat_as_it_is() -> None:
    heat = Heat(10.0, 4).spend(A, 1.0, 100.0).spend(A, 1.0, 50.0)
    assert (heat.at_s, heat.of(A, 0.0), heat.of(A, 110.0)) == (100.0, 2.0, 1.0)


def test_idle_time_does_not_change_shares() -> None:
    heat = Heat(10.0, 4).spend(A, 3.0, 0.0).spend(B, 1.0, 0.0)
    assert heat.of(A, 500.0) / heat.total(500.0) == 0.75
    assert heat.of(A, 1e9) == 0.0  # and in the end nothing is left, without an error


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_time_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(VerifyError, match="finite and not negative"):
        Heat(10.0, 4).spend(A, seconds, 0.0)


calls = st.lists(st.tuples(st.integers(0, 19), st.floats(0, 10), st.floats(0, 5)), max_size=80)


@given(calls, st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_heat_is_never_understated_and_overstated_by_a_bounded_share(calls: list[tuple[int, float, float]], limit: int) -> None:
    heat, exact, now_s = Heat(10.0, limit), dict[Baked, float](), 0.0
    for name, seconds, wait_s in calls:
        now_s += wait_s
        exact = {target: spent * 0.5 ** (wait_s / 10.0) for target, spent in exact.items()}
        exact[Baked(str(name))] = exact.get(Baked(str(name)), 0.0) + seconds
        heat = heat.spend(Baked(str(name)), seconds, now_s)
    total, slack = sum(exact.values()), 1e-9
    assert len(heat.entries) <= limit
    assert heat.total(now_s) == pytest.approx(total, abs=slack)
    for target in heat.targets:
        assert exact[target] - slack <= heat.of(target, now_s) <= exact[target] + total / limit + slack
    assert {target for target, spent in exact.items() if spent > total / limit + slack} <= set(heat.targets)
