"""What a run achieved and what bound it, by hand."""

from __future__ import annotations

import pytest

from hotfuse.hardware.achieved import EXPLAINED, judge_run
from tests.hardware.test_model import RATES

FLOPS = RATES.fma.one * 1e9  # a second
BYTES = RATES.read.one[-1] * 1e9  # a second, of much


def test_rates_are_of_the_time_that_was_measured() -> None:
    found = judge_run(0.5, 4e9, 0.0, 1e9, RATES, 1)
    assert (found.gflops_per_s, found.gbytes_per_s) == (8.0, 2.0)


def test_what_explains_most_of_the_time_binds() -> None:
    computing = judge_run(1.0, 0.8 * FLOPS, 0.0, 1e3, RATES, 1)
    assert (computing.by, computing.share) == ("arithmetic", pytest.approx(0.8))
    moving = judge_run(1.0, 1e3, 0.0, 0.6 * BYTES, RATES, 1)
    assert (moving.by, moving.share) == ("memory", pytest.approx(0.6))


def test_functions_are_worth_many_operations() -> None:
    assert judge_run(1.0, 0.05 * FLOPS, 0.0, 1e3, RATES, 1).by == "overhead"
    assert judge_run(1.0, 0.05 * FLOPS, 0.3 * FLOPS, 1e3, RATES, 1).by == "arithmetic"


def test_where_neither_explains_the_time_it_is_overhead() -> None:
    found = judge_run(1.0, 0.9 * EXPLAINED * FLOPS, 0.0, 0.9 * EXPLAINED * BYTES, RATES, 1)
    assert found.by == "overhead"
    assert found.share == pytest.approx(1 - 0.9 * EXPLAINED)
    assert judge_run(1.0, 1.1 * EXPLAINED * FLOPS, 0.0, 0.0, RATES, 1).by == "arithmetic"


def test_a_team_computes_more() -> None:
    flops = 1.1 * EXPLAINED * FLOPS
    assert judge_run(1.0, flops, 0.0, 0.0, RATES, 1).by == "arithmetic"
    assert judge_run(1.0, flops, 0.0, 0.0, RATES, 2).by == "overhead"  # twice as fast a machine: less of the time is explained


def test_no_time_is_no_division_by_it() -> None:
    assert judge_run(0.0, 1e3, 0.0, 1e3, RATES, 1).share == 1.0
