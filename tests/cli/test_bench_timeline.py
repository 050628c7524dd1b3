"""`hotfuse bench --timeline`: the arithmetic, on series with known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotfuse.cli.bench.timeline import (
    Cpu,
    Mark,
    Run,
    after,
    background_cpu_s,
    before,
    children_work,
    lost,
    outliers,
    pooled,
    show_causes,
    spans,
    steady_state,
)
from tests.cli.timelines import published, series

# steady state


def test_a_step_is_reached_where_it_is() -> None:
    """100 calls of 40 ms from 1 s on: the step is at 5 s."""
    steady = steady_state(series((100, 0.04), (400, 0.02)))
    assert steady.median_s == pytest.approx(0.02)
    assert steady.reached_s == pytest.approx(5.0, abs=0.05)
    resting = steady_state(series((100, 0.04), (400, 0.02), rest_s=0.02))
    assert resting.reached_s == pytest.approx(7.0, abs=0.05)


def test_what_never_changes_is_steady_from_its_second_call_on() -> None:
    steady = steady_state(series((50, 0.02)))
    assert steady.reached_s == pytest.approx(1.0)
    assert (steady.mean_s, steady.p99_s) == (pytest.approx(0.02), pytest.approx(0.02))


def test_noise_within_five_percent_is_steady_and_more_is_not() -> None:
    assert steady_state(series((100, 0.0208), (100, 0.02))).reached_s == pytest.approx(1.0)
    slower = steady_state(series((100, 0.0212), (100, 0.02))).reached_s
    assert slower == pytest.approx(1 + 2.12, abs=0.1)
    faster = steady_state(series((100, 0.0188), (100, 0.02))).reached_s
    assert faster == pytest.approx(1 + 1.88, abs=0.1)


def test_a_single_slow_call_does_not_end_steady_state_but_many_do() -> None:
    assert steady_state(series((100, 0.02), (1, 0.3), (100, 0.02))).reached_s == pytest.approx(1.0)
    assert steady_state(series((100, 0.02), (30, 0.1), (400, 0.02))).reached_s == pytest.approx(6.0, abs=0.1)


def test_what_changes_in_the_last_fifth_never_was_steady() -> None:
    assert steady_state(series((100, 0.02), (10, 0.01))).reached_s is None
    assert steady_state(series((100, 0.02), (3, 0.01))).reached_s is None


def test_an_engine_that_adapts_is_not_steady_before_it_published() -> None:
    run = series((100, 0.02), adapts=True)
    assert steady_state(run).reached_s is None
    assert steady_state(replace(run, marks=published(1.5))).reached_s == pytest.approx(1.5)
    assert steady_state(replace(run, marks=published(2.9))).reached_s is None
    step = series((100, 0.04), (400, 0.02), adapts=True, marks=published(2.0))
    assert steady_state(step).reached_s == pytest.approx(5.0, abs=0.05)


def test_a_pace_is_met_before_it_is_kept() -> None:
    """A machine that is slower for a while, or faster, after what serves was done with itself."""
    drifting = steady_state(series((100, 0.04), (200, 0.02), (30, 0.03), (400, 0.02)))
    assert drifting.met_s == pytest.approx(5.0, abs=0.1)
    assert drifting.reached_s == pytest.approx(9.9, abs=0.3)
    assert steady_state(series((100, 0.04), (200, 0.017), (400, 0.02))).met_s == pytest.approx(5.0, abs=0.1)
    assert steady_state(series((100, 0.04), (200, 0.0212), (400, 0.02))).met_s == pytest.approx(9.24, abs=0.1)
    assert steady_state(series((100, 0.04), (45, 0.02))).met_s is None  # in the last fifth


def test_a_pace_from_before_anything_was_published_does_not_count() -> None:
    run = series((400, 0.02), adapts=True)
    assert steady_state(run).met_s is None
    assert steady_state(replace(run, marks=published(3.0))).met_s == pytest.approx(3.0, abs=0.05)


def test_calls_before_and_after() -> None:
    run = series((10, 0.1), (20, 0.05))
    assert list(before(run, 2.0 - 1e-9)) == pytest.approx([0.1] * 10)
    assert list(after(run, 2.0 - 1e-9)) == pytest.approx([0.05] * 20)
    assert len(before(run, None)) == 30
    assert len(after(run, None)) == 0


# outliers and their causes


def test_each_outlier_has_its_cause() -> None:
    """Calls of 0.1 s from 1 s on; every fifth takes 0.3 s."""
    run = series(*[(4, 0.1), (1, 0.3)] * 6)
    slow = [float(s) for s, took in zip(run.starts, run.seconds, strict=True) if took == 0.3]
    marks = (
        Mark(slow[0] + 0.1, "capture.done"),
        Mark(slow[1] - 1e-4 - 0.1, "tier.build", "a"),  # in the call before
        Mark(slow[3] - 1e-4, "tier.prove", "a"),  # in the call before, too
        Mark(slow[4] + 0.2, "tier.retire", "a"),
    )
    samples = ((0.0, 0.0), (slow[5] - 0.5, 0.0), (slow[5] + 0.1, 0.3), (slow[5] + 9, 0.3))
    causes = [one.cause for one in outliers(replace(run, marks=marks, samples=samples), 0.2)]
    assert causes == [
        "capture.done",
        "while building",
        "while building",
        "while proving",
        "tier.retire",
        "while child processes work",
    ]
    assert [one.cause for one in outliers(run, 0.2)] == ["none"] * 6
    assert show_causes(outliers(replace(run, marks=marks), 0.2)) == (
        "2 while building, 1 capture.done, 1 while proving, 1 tier.retire, 1 none"
    )


def test_an_event_between_two_calls_belongs_to_the_second() -> None:
    run = series((5, 0.1), (1, 0.3), (5, 0.1), rest_s=0.1)
    gap = float(run.starts[6]) - 0.05
    assert [one.cause for one in outliers(replace(run, marks=(Mark(gap, "tier.publish"),)), 0.2)] == ["tier.publish"]
    assert [one.cause for one in outliers(replace(run, marks=(Mark(gap - 0.1, "tier.publish"),)), 0.2)] == ["none"]


def test_the_first_call_is_no_outlier_and_the_limit_is_none() -> None:
    assert outliers(series((10, 0.1), first_s=9.0), 0.2) == []
    assert outliers(series((10, 0.2)), 0.2) == []


def test_work_goes_on_until_the_next_event_of_the_same_subject() -> None:
    steps = (Mark(2, "tier.build", "a"), Mark(3, "tier.build", "b"), Mark(4, "tier.prove", "a"), Mark(4.5, "guard.miss", "a"))
    steps += (Mark(5, "tier.shadow", "a"), Mark(6, "tier.publish", "a"), Mark(7, "capture.failed", "a"))
    found = spans(series((100, 0.1), marks=steps))
    assert [(span.name, span.begin_s, span.end_s) for span in found] == [
        ("building", 2, 4),
        ("building", 3, pytest.approx(11.0)),
        ("proving", 4, 5),
        ("shadowing", 5, 6),
        ("capturing", 1.0, 7),
    ]


def test_child_processes_work_where_their_cpu_time_grows() -> None:
    run = series((10, 0.1), samples=((0.0, 0.0), (1.0, 0.05), (2.0, 1.05), (2.0, 1.05), (3.0, 1.1)))
    assert [(span.begin_s, span.end_s) for span in children_work(run)] == [(1.0, 2.0)]


# time lost, CPU time


def test_time_lost_has_known_answers() -> None:
    assert lost(series((100, 0.1), (100, 0.05), marks=published(11.0)), 0.1) == pytest.approx(0.0, abs=0.01)
    # the same, but what is un-fused takes 80 ms when it is alone: a fifth is lost
    assert lost(series((100, 0.1), (100, 0.05), marks=published(11.0)), 0.08) == pytest.approx(0.2, abs=0.01)
    # published, but still 100 ms for as long again: half of that half is lost
    assert lost(series((200, 0.1), (400, 0.05), marks=published(11.0)), 0.1) == pytest.approx(1 / 3, abs=0.01)
    # never steady, never published: all calls against what is un-fused
    assert lost(series((100, 0.1), (10, 0.2)), 0.06) == pytest.approx(1 - 110 * 0.06 / 12, abs=0.01)
    assert lost(series((50, 0.1)), 0.1) == 0.0


def test_cpu_time_behind_is_what_serving_does_not_explain() -> None:
    usual = np.full(40, 0.2)
    cpu = Cpu(usual, usual / 2, opening_s=1.2, threads_s=0.3, children_s=2.0)
    assert background_cpu_s(cpu) == pytest.approx(1.0 + 0.3 + 2.0)
    compiled = (usual / 2).copy()
    compiled[20] = 1.1  # in the middle of a call
    assert background_cpu_s(replace(cpu, client=compiled)) == pytest.approx(3.3 + 1.0)
    compiled[0] = 7.0  # the first call is in `opening_s`
    assert background_cpu_s(replace(cpu, client=compiled)) == pytest.approx(3.3 + 1.0)
    assert background_cpu_s(Cpu(usual, usual / 2, opening_s=0.1)) == 0.0


def test_a_faster_implementation_makes_no_call_before_it_a_spike() -> None:
    client = np.concatenate([np.full(50, 0.3), np.full(50, 0.1)])
    assert background_cpu_s(Cpu(client, client)) == 0.0
    client[70] = 0.13  # a thread that spun for a while
    assert background_cpu_s(Cpu(client, client)) == 0.0


def test_the_series_in_pieces() -> None:
    run = series((10, 0.1), (1, 0.4), first_s=1.0)
    found = pooled(run, 12)
    assert sum(piece[3] for piece in found) == 12
    assert max(piece[2] for piece in found) == pytest.approx(0.5)  # the first call
    assert found[0][:2] == [pytest.approx(0.4), pytest.approx(0.5)]
    assert pooled(Run("a", "closed", 0), 10) == []
