"""Leaders: who follows them, and where followers run while they wake."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hotfuse.runtime import leader as leaders
from hotfuse.runtime.driver import Driver, Job
from hotfuse.runtime.leader import ASLEEP_S, Leader
from hotfuse.runtime.threads import Gomp, find_gomp
from tests.runtime.kernels import Marks

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="there is no other core to wake on"
)


def gomp() -> Gomp:
    found = find_gomp()
    assert found is not None
    return found


def led(threads: int = 3) -> Leader:
    leader = Leader()
    leader.lead(gomp(), threads, lambda: None)
    return leader


def test_followers_are_threads_of_this_process() -> None:
    followers = led()._followers
    assert len(set(followers)) == 2
    assert threading.get_native_id() not in followers
    assert all(Path(f"/proc/self/task/{thread}").exists() for thread in followers)


def test_followers_that_sleep_wake_on_other_cores_than_their_leaders() -> None:
    leader = led()
    every = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def work() -> None:
        seen.extend(os.sched_getaffinity(thread) for thread in leader._followers)

    leader.lead(gomp(), 3, work)
    assert seen == [every, every]  # they are awake
    time.sleep(2 * ASLEEP_S)
    seen.clear()
    leader.lead(gomp(), 3, work)
    assert all(len(every - cores) == 1 for cores in seen)
    assert [os.sched_getaffinity(thread) for thread in leader._followers] == [every, every]


def test_followers_have_their_cores_back_whatever_happens() -> None:
    leader = led()
    time.sleep(2 * ASLEEP_S)

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        leader.lead(gomp(), 3, fail)
    assert all(os.sched_getaffinity(thread) == os.sched_getaffinity(0) for thread in leader._followers)


def test_followers_that_somebody_bound_to_a_core_stay_there() -> None:
    leader = led()
    every = os.sched_getaffinity(0)
    here = {min(every)}
    for thread in leader._followers:
        os.sched_setaffinity(thread, here)
    time.sleep(2 * ASLEEP_S)
    seen: list[set[int]] = []
    try:
        leader.lead(gomp(), 3, lambda: seen.extend(map(os.sched_getaffinity, leader._followers)))
        assert seen == [here, here]
    finally:
        for thread in leader._followers:
            os.sched_setaffinity(thread, every)


def test_followers_that_are_gone_are_met_anew() -> None:
    leader = led()
    stranger = threading.Thread(target=lambda: None)
    stranger.start()
    stranger.join()
    known = leader._followers
    leader._followers = (known[0], stranger.native_id or 0)
    time.sleep(2 * ASLEEP_S)
    leader.lead(gomp(), 3, lambda: None)
    assert sorted(leader._followers) == sorted(known)


def test_a_team_of_another_size_is_met_too() -> None:
    leader = led()
    leader.lead(gomp(), 2, lambda: None)
    assert len(leader._followers) == 1


def test_large_teams_are_left_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "MOST_FOLLOWERS", 1)
    assert led()._followers == ()


def test_a_driver_that_nobody_called_for_long_runs_every_task() -> None:
    driver, marks = Driver(gomp()), Marks(1000, 1)
    job = Job([marks.step], 3)
    for turn in range(1, 4):
        time.sleep(0.02)
        assert driver.run(job) == 3
        assert set(marks.marks) == {turn}
