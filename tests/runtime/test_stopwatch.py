"""Jobs with times: the same work as without, every step's share of the whole, and a plain driver that knows nothing of it."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from hotfuse.runtime.driver import Job, Step, get_driver
from hotfuse.runtime.driver_ir import driver_ir, timed_driver_ir
from hotfuse.runtime.stopwatch import Array, Stopwatch, get_stopwatch
from tests.runtime.kernels import Chain, Marks


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("tasks", "chunk"), [(1, 1), (7, 3), (64, 1000), (1001, 16)])
def test_every_task_runs_once_and_is_counted(count: int, tasks: int, chunk: int) -> None:
    steps = [Marks(tasks, chunk), Marks(3 * tasks, chunk, barrier=False), Marks(tasks, 2 * chunk)]
    job = Job([s.step for s in steps], count, scratch_bytes=100)
    for turn in range(1, 10):
        cells = get_stopwatch().run(job).cells
        assert [set(step.marks) for step in steps] == [{turn}] * 3
        assert cells.shape == (count, 3, 4)
        assert cells[..., 3].sum(0).tolist() == [tasks, 3 * tasks, tasks]
        came = cells[cells[..., 0] > 0]
        assert (np.diff(came[:, :3]) >= 0).all()


def test_barriers_hold() -> None:
    chain = Chain(24, 12, 2)
    watched = get_stopwatch()

    class Watched:
        def run(self, job: Job) -> int:
            watched.run(job)
            return job.threads

    for _ in range(50):
        np.testing.assert_array_equal(chain.run(Watched()), chain.expected())  # type: ignore[arg-type]


def test_jobs_without_steps_or_tasks() -> None:
    none = Marks(1)
    empty = Step(none.step.function, none.step.table, 0)
    watch = get_stopwatch()
    for count in (1, 2):
        for steps in ([], [empty], [empty, none.step, empty]):
            laps = watch.laps(watch.run(Job(steps, count)).cells)
            assert len(laps.seconds) == len(steps)
            assert min(laps.seconds, default=0) >= 0
    assert list(none.marks) == [2]


@pytest.mark.parametrize("count", [1, 2])
def test_the_slow_step_is_found_and_steps_add_up_to_the_whole(count: int) -> None:
    steps = [Marks(8), Marks(8, turns=400_000), Marks(8)]
    job, watch = Job([s.step for s in steps], count, 64), get_stopwatch()
    shares = []
    for _ in range(20):
        begun = time.perf_counter()
        cells, cpu_s = watch.run(job)
        whole = time.perf_counter() - begun
        laps = watch.laps(cells)
        assert 0 < cpu_s <= 1.1 * whole
        assert laps.seconds.argmax() == laps.busy_s.argmax() == 1
        shares.append(laps.seconds.sum() / whole)
    assert max(shares) <= 1.001
    if count == 1:  # two threads may wait for each other's cores before and after, on a machine with other work
        assert max(shares) > 0.9


def test_who_waits_at_a_barrier_is_seen() -> None:
    """A step of one chunk is the first thread's; the other one waits for it, if it is there at all."""
    slow, after = Marks(4, 4, turns=400_000), Marks(8)
    job, watch = Job([slow.step, after.step], 2, 64), get_stopwatch()
    for _ in range(100):
        laps = watch.laps(watch.run(job).cells)
        if laps.waiting_s[0] > 0.5 * laps.seconds[0]:
            return
    pytest.fail("nobody ever waited")


def cells_of(*rows: list[list[int]]) -> Array:
    return np.array(rows, np.int64)


def laps_of(cells: Array) -> list[list[float]]:
    watch = get_stopwatch()
    found, rate = watch.laps(cells), watch.seconds_per_cycle
    return [(row / rate).round().tolist() for row in (found.seconds, found.busy_s, found.waiting_s)]


def test_a_thread_that_never_came_counts_for_nothing() -> None:
    cells = cells_of([[100, 150, 150, 4], [150, 180, 190, 2]], [[0, 0, 0, 0], [0, 0, 0, 0]])
    assert laps_of(cells) == [[50, 30], [50, 30], [0, 10]]


def test_a_step_is_done_when_those_are_who_did_it_whoever_passes_by_later() -> None:
    """The second thread did all; the first, the caller's, lost its core amid the first step and found nothing to do."""
    cells = cells_of([[100, 900, 900, 0], [900, 901, 902, 0]], [[110, 200, 200, 4], [200, 260, 260, 4]])
    assert laps_of(cells)[0] == [100, 60]


def test_steps_side_by_side_add_up_to_the_whole() -> None:
    """No barrier between them: the second step is done before the first, which another thread is still at."""
    cells = cells_of([[100, 400, 400, 1], [400, 401, 402, 0]], [[100, 101, 101, 0], [101, 300, 410, 5]])
    assert laps_of(cells)[0] == [300, 0]


def test_the_plain_driver_has_no_clock() -> None:
    """And but for the clock they are one text."""
    plain, timed = driver_ir(), timed_driver_ir()
    assert not re.search("times:|@now|@stamp|cyclecounter", plain)
    assert "times:" not in timed  # every place for a clock has one
    assert set(plain.splitlines()) <= set(timed.splitlines())
    step = Marks(8)
    job = Job([step.step], 1, 64)
    cells = get_stopwatch().run(job).cells
    get_driver().run(job)
    assert set(step.marks) == {2}
    assert (get_stopwatch().run(job).cells[..., 0] > cells[..., 0]).all()


def test_the_rate_is_measured_once() -> None:
    watch = Stopwatch(None)
    rate = watch.seconds_per_cycle
    assert 1e-11 < rate < 1e-6
    assert watch.seconds_per_cycle == rate
    assert abs(Stopwatch(None).seconds_per_cycle / rate - 1) < 1e-3
