"""Criteria by hand: each from 0 to 1, larger where more speaks for an edit, with a reason that has the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotfuse.fusion.criteria import (
    STREAMS,
    TASKS,
    score,
    score_complementarity,
    score_constraints,
    score_locality,
    score_parallelism,
    show,
)
from hotfuse.fusion.engine import LEAST_GAIN, Weighed
from hotfuse.hardware.prior import Bound
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.work import Touch, Work

SPEC = replace(host_spec(), l2_bytes=1 << 20)


def work(read: float = 100.0, written: float = 50.0, **changes: Any) -> Work:
    reads, writes = (Touch("x", read, 1e9),), (Touch("y", written, 1e9),)
    return replace(Work("rows", 1e3, 1.0, 64.0, 0.0, 1e3, reads, writes, 8.0), **changes)


@pytest.mark.parametrize(
    ("bounds", "value"),
    [
        ([(1.0, 0.0), (0.0, 1.0)], 1.0),  # one only computes, one only waits
        ([(3.0, 1.0), (1.0, 3.0)], 0.5),
        ([(2.0, 1.0), (4.0, 2.0)], 0.0),  # alike, whatever their size
        ([(0.0, 0.0), (1.0, 0.0)], 1.0),
    ],
)
def test_complementarity_is_how_far_groups_differ_in_what_binds_them(bounds: list[tuple[float, float]], value: float) -> None:
    found = score_complementarity([Bound(arithmetic, memory, 0.0) for arithmetic, memory in bounds])
    assert found.value == pytest.approx(value)


def test_locality_is_the_part_of_bytes_that_moves_no_more() -> None:
    found = score_locality([work(100, 50), work(50, 50)], [work(100, 50)])
    assert found.value == pytest.approx(100 / 250)
    assert found.reason == "100 of 250 bytes move no more"
    assert score_locality([work(100, 50)], [work(100, 50)]).value == 0.0
    assert score_locality([work(100, 50)], [work(200, 50)]).value == 0.0  # more moves: that is not less than nothing


def test_constraints_are_streams_and_weights_that_should_stay_near() -> None:
    few = work()
    assert score_constraints([few], SPEC).value == 1.0
    many = work(reads=tuple(Touch(str(i), 1.0, 1e9) for i in range(2 * STREAMS - 1)))
    assert score_constraints([few, many], SPEC).value == pytest.approx(0.5)  # the worst of them
    weights = (Touch("w", float(4 << 20), 1e9, is_weight=True),)
    chain = work(kind="chain", reads=weights)
    assert score_constraints([chain], SPEC).value == pytest.approx(0.25)
    assert "4,194,304 bytes of weights stay near" in score_constraints([chain], SPEC).reason
    assert score_constraints([replace(chain, kind="rows")], SPEC).value == 1.0  # who goes through them once keeps none


def test_parallelism_is_tasks_for_every_thread() -> None:
    assert score_parallelism([work(tasks=TASKS * 4)], 4).value == 1.0
    assert score_parallelism([work(tasks=100.0), work(tasks=TASKS)], 4).value == pytest.approx(0.25)
    assert score_parallelism([work(tasks=1.0)], 1).value == 1.0


def test_all_are_scored_and_shown() -> None:
    before, after = [work(), work()], [work()]
    found = score(before, [Bound(1.0, 0.0, 0.0), Bound(0.0, 1.0, 0.0)], after, SPEC, 2)
    assert {s.name: s.value for s in found} == pytest.approx(
        {"complementarity": 1.0, "locality": 0.5, "constraints": 1.0, "parallelism": 1.0}
    )
    assert "locality 0.50 (150 of 300 bytes move no more)" in show(found)


@pytest.mark.parametrize(
    ("gain", "spread", "least", "pays", "may_pay", "is_sure"),
    [
        (0.021, 0.0, LEAST_GAIN, True, True, True),
        (0.019, 0.0, LEAST_GAIN, False, False, False),
        (0.021, 0.0, 0.05, False, False, False),  # where measurements differ by that much
        (0.04, 0.03, LEAST_GAIN, True, True, False),
        (0.01, 0.03, LEAST_GAIN, False, True, False),
        (0.06, 0.03, LEAST_GAIN, True, True, True),
    ],
)
def test_a_gain_must_be_larger_than_the_least_and_sure(
    gain: float, spread: float, least: float, pays: bool, may_pay: bool, is_sure: bool
) -> None:
    found = Weighed(None, (), 1e-3, gain * 1e-3, spread * 1e-3, least)  # type: ignore[arg-type]
    assert (found.pays, found.may_pay, found.is_sure) == (pays, may_pay, is_sure)
