"""Drift: what lasts is noticed and what passes is not, on either side, and once it is over that is noticed as well."""

from __future__ import annotations

import math

import pytest

from hotfuse.hardware.drift import ENTER, LASTS_S, LEAVE, LOOKS, Drift

EVERY_S = 20.0
UNITS = 9


def looked(drift: Drift, begin: int, count: int, times: float) -> Drift:
    """So many looks, at which things take so many times as long as predicted, some units more and some less."""
    predicted = [1e-5 * (unit + 1) for unit in range(UNITS)]
    for number in range(begin, begin + count):
        measured = [p * times * (1 + 0.05 * (unit - UNITS // 2)) for unit, p in enumerate(predicted)]
        drift = drift.seen(EVERY_S * number, measured, predicted)
    return drift


SETTLED = looked(Drift(), 0, 10, 1.15)


def test_a_model_that_errs_is_no_drift() -> None:
    assert SETTLED.base == pytest.approx(math.log(1.15))
    assert not SETTLED.is_away
    assert SETTLED.shift == pytest.approx(1.0)


@pytest.mark.parametrize("times", [1.6, 1 / 1.6])
def test_what_lasts_is_noticed(times: float) -> None:
    soon = looked(SETTLED, 10, 3, 1.15 * times)
    assert not soon.is_away
    late = looked(SETTLED, 10, 8, 1.15 * times)
    assert late.is_away
    assert late.shift == pytest.approx(times)


def test_a_moment_of_a_neighbour_is_not() -> None:
    drift = looked(looked(SETTLED, 10, 4, 3.0), 14, 1, 1.15)
    for round in range(5):  # it comes again and again, and goes again
        drift = looked(looked(drift, 15 + 5 * round, 4, 3.0), 19 + 5 * round, 1, 1.15)
        assert not drift.is_away


def test_a_shift_that_changes_sides_is_none() -> None:
    drift = SETTLED
    for number in range(10, 30):
        drift = looked(drift, number, 1, 1.15 * (2.0 if number % 2 else 0.5))
    assert not drift.is_away


def test_between_the_two_limits_nothing_changes() -> None:
    between = math.exp((ENTER + LEAVE) / 2)
    assert not looked(SETTLED, 10, 20, 1.15 * between).is_away
    away = looked(SETTLED, 10, 8, 1.15 * 1.6)
    assert looked(away, 18, 20, 1.15 * between).is_away
    assert not looked(away, 18, 8, 1.15).is_away


def test_a_model_of_another_machine_is_away_from_the_beginning() -> None:
    assert looked(Drift(), 0, 12, 3.0).is_away
    assert looked(Drift(), 0, 12, 3.0).shift == pytest.approx(3.0)


def test_few_looks_say_nothing_however_long_they_take() -> None:
    predicted = [1e-5] * UNITS
    drift = SETTLED
    for number in range(LOOKS - 1):
        drift = drift.seen(1000 + 2 * LASTS_S * number, [2e-5] * UNITS, predicted)
    assert not drift.is_away


def test_what_the_clock_cannot_tell_says_nothing() -> None:
    assert Drift().seen(0.0, [0.0, 0.0], [1e-6, 1e-6]) == Drift()


def test_once_it_is_answered_it_settles_anew() -> None:
    away = looked(SETTLED, 10, 8, 1.8)
    assert not looked(away.answered(), 18, 12, 1.8).is_away
