"""Who works behind models comes last, and is not starved."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfuse import rank, right_of_way
from hotfuse.rank import STARVED, Ranks, lower, may_return
from hotfuse.right_of_way import WINDOW_S, RightOfWay

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has classes of threads")
returns = pytest.mark.skipif(not may_return(), reason="this user may not take a process back from the idle class")


@contextlib.contextmanager
def spinning() -> Iterator[int]:
    code = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\nspin()"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 10
        while len(os.listdir(f"/proc/{process.pid}/task")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        lower(process.pid)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def classes(process: int) -> set[int]:
    """Of all its threads."""
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{process}/task")}


@returns
def test_it_comes_last() -> None:
    ranks = Ranks()
    with spinning() as process:
        assert classes(process) == {os.SCHED_BATCH}
        assert os.getpriority(os.PRIO_PROCESS, process) == min(os.nice(0) + rank.NICE, 19)
        ranks.join(process)
        assert classes(process) == {os.SCHED_IDLE}


@returns
def test_who_waits_for_a_core_that_others_have_is_taken_beside_them() -> None:
    core = min(os.sched_getaffinity(0))
    ranks = Ranks()
    with spinning() as process, spinning() as other:
        for pid in (process, other):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})
        ranks.join(process)
        begun_s = time.monotonic()
        time.sleep(0.3)
        passed_s = time.monotonic() - begun_s
        ranks.review(pauses_s=2 * passed_s / STARVED, calls_s=passed_s)  # it may have stood still behind calls
        assert classes(process) == {os.SCHED_IDLE}
        until_s = time.monotonic() + 30  # how long it waited is only told when it has a core again
        while classes(process) == {os.SCHED_IDLE} and time.monotonic() < until_s:
            time.sleep(0.3)
            ranks.review(pauses_s=0.3, calls_s=0.0)
        assert classes(process) == {os.SCHED_BATCH}
        ranks.review(pauses_s=0.3, calls_s=0.0)
        assert classes(process) == {os.SCHED_BATCH}  # to its end
        ranks.part(process)
        ranks.join(process)
        assert classes(process) == {os.SCHED_IDLE}


def test_who_could_not_be_taken_back_is_never_put_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "may_return", lambda: False)
    ranks = Ranks()
    with spinning() as process:
        ranks.join(process)
        ranks.review(pauses_s=0.5, calls_s=0.0)
        assert classes(process) == {os.SCHED_BATCH}


def test_who_may_take_it_back_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, asked = os.sched_getscheduler(0), []
    monkeypatch.setattr(os, "sched_setscheduler", lambda who, chosen, param: asked.append(chosen))
    assert may_return.__wrapped__() is Path("/proc/self/schedstat").exists()
    assert asked == [os.SCHED_IDLE, os.SCHED_BATCH]

    def refuse(who: int, chosen: int, param: object) -> None:
        if chosen == os.SCHED_BATCH:
            raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setscheduler", refuse)
        assert not may_return.__wrapped__()
    monkeypatch.setattr(os.path, "exists", lambda path: False)  # then nobody would see that it starves
    assert not may_return.__wrapped__()
    assert os.sched_getscheduler(0) == mine


def test_a_process_that_is_gone_is_nobodys_concern() -> None:
    ranks = Ranks()
    with spinning() as process:
        pass
    ranks.join(process)
    ranks.review(pauses_s=0.5, calls_s=0.0)
    ranks.part(process)


@returns
def test_who_waits_in_a_call_without_an_end_is_taken_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "ENDLESS_S", 0.0)
    right = RightOfWay()
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(spinning())
        for _ in os.sched_getaffinity(0):  # two threads each
            stack.enter_context(spinning())
        stack.enter_context(right.behind(process))
        assert classes(process) == {os.SCHED_IDLE}
        with right.call():
            until_s = time.monotonic() + 60 * WINDOW_S
            while classes(process) == {os.SCHED_IDLE} and time.monotonic() < until_s:
                time.sleep(WINDOW_S)
                right.review()
        assert right.crowded
        assert classes(process) == {os.SCHED_BATCH}
