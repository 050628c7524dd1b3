"""Calls come first: what works behind them is stopped meanwhile, and is not starved."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotfuse import pace, right_of_way, share
from hotfuse.pace import Unhurried
from hotfuse.right_of_way import LOOK_S, RARE, RIGHT_OF_WAY, WINDOW_S, RightOfWay
from hotfuse.share import ALLOWED, PAUSE

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the state of a process is read from /proc")


@contextlib.contextmanager
def spinning() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def is_stopped(process: int) -> bool:
    """After a moment: a signal is taken with the next turn on a core, and others may have them all."""
    time.sleep(0.06)
    had_s, until_s = ran_s(process), time.monotonic() + 10
    while ran_s(process) - had_s < 0.002 and time.monotonic() < until_s:
        if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return True
        time.sleep(0.005)
    return False


def ran_s(process: int) -> float:
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def test_ranks_are_tried_out_for_processes_and_not_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []
    monkeypatch.setattr(right_of_way, "may_return", lambda: tried.append(True))
    right = RightOfWay()
    with right.behind():
        assert not tried
    with spinning() as process, right.behind(process):
        assert tried


def test_a_call_that_is_under_way_is_waited_for_until_its_answer() -> None:
    right, waited = RightOfWay(), threading.Event()

    def wait(longest_s: float) -> threading.Thread:
        waited.clear()
        thread = threading.Thread(target=lambda: (right.await_answer(longest_s), waited.set()))
        thread.start()
        return thread

    with right.behind():
        right.await_answer(10)  # there is none
        with right.call():
            thread = wait(10)
            assert not waited.wait(0.1)
        assert waited.wait(5)
        thread.join()
        with right.call():
            thread = wait(0.05)
            assert waited.wait(5)
        thread.join()


def test_a_process_stands_still_while_a_call_is_under_way() -> None:
    right = RightOfWay()
    with spinning() as process:
        with right.behind(process):
            assert right.active
            with right.call():
                assert right.busy
                assert is_stopped(process)
                with right.call():
                    pass
                assert is_stopped(process)  # the other call is still under way
            assert not right.busy
            assert not is_stopped(process)
            right.enter()
            assert is_stopped(process)
        assert not is_stopped(process)  # it is done: nobody would ever let it go on
        right.leave()


def test_calls_say_when_they_begin_for_a_little_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next piece of work may begin amid a call: one that did not say so would have it beside it to its end."""
    right = RightOfWay()
    with right.behind():
        pass
    assert not right.active  # a thread of this process looks for itself
    with spinning() as process, right.behind(process):
        pass
    with right.behind():
        pass
    with right.call():
        assert right.active
    monkeypatch.setattr("hotfuse.right_of_way.LINGER_S", 0.0)
    with right.call():
        assert not right.active


def test_the_caller_is_not_the_one_who_has_processes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wakes a process may have to leave it its core, at the end of a call."""
    sent: list[tuple[int, str]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((number, threading.current_thread().name)))
    right = RightOfWay()
    with right.behind(12345678):
        with right.call():
            pass
        time.sleep(0.1)
        assert sent == [(signal.SIGSTOP, threading.current_thread().name), (signal.SIGCONT, "hotfuse-usher")]


def test_without_another_thread_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    right = RightOfWay()
    with spinning() as process, right.behind(process):
        with right.call():
            assert is_stopped(process)
        assert not is_stopped(process)


CALL_S = 0.2


@contextlib.contextmanager
def calling(right: RightOfWay, times: int = 1) -> Iterator[list[float]]:
    """Threads that call and never rest, and how long their calls took, with what they waited before."""
    took: list[float] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            begun_s = time.monotonic()
            with right.call():
                time.sleep(CALL_S)
            took.append(time.monotonic() - begun_s)

    threads = [threading.Thread(target=call) for _ in range(times)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        over.set()
        for thread in threads:
            thread.join()


def watched(right: RightOfWay, processes: Sequence[int], seconds: float) -> list[tuple[bool, ...]]:
    """Which of the processes did not stand still, looked at now and then, once there was no room between calls."""
    until_s, found = time.monotonic() + 10 * WINDOW_S, []
    while not right.crowded and time.monotonic() < until_s:
        time.sleep(0.01)
        right.review()
    assert right.crowded
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        found.append(tuple(process not in right._stopped for process in processes))
        time.sleep(0.002)
        right.review()
    return found


@pytest.mark.parametrize("callers", [1, 3])
def test_calls_without_a_break_wait_now_and_then_and_for_no_more_than_a_share(callers: int) -> None:
    right = RightOfWay()
    with spinning() as process, right.behind(process), calling(right, callers) as took:
        goes_on = watched(right, [process], 20 * CALL_S)
        assert right.crowded
    part = sum(map(sum, goes_on)) / len(goes_on)
    assert ALLOWED / 3 < part < 1.5 * ALLOWED
    assert max(took) < (PAUSE + 3) * CALL_S  # where others are under way they are waited for


def test_behind_calls_without_a_break_who_is_in_no_hurry_has_one_pause_in_four() -> None:
    right = RightOfWay()
    with spinning() as rare, spinning() as urgent, contextlib.ExitStack() as stack:
        stack.enter_context(right.behind(rare, rare=True))
        stack.enter_context(right.behind(urgent))
        stack.enter_context(calling(right))
        goes_on = watched(right, [rare, urgent], 60 * CALL_S)
    assert (True, False) not in goes_on
    theirs, ours = goes_on.count((True, True)), goes_on.count((False, True))
    assert 0 < theirs < ours


def test_who_is_in_no_hurry_has_every_pause_where_nobody_else_works() -> None:
    right = RightOfWay()
    with spinning() as rare, right.behind(rare, rare=True), calling(right):
        goes_on = watched(right, [rare], 20 * CALL_S)
    assert sum(map(sum, goes_on)) / len(goes_on) > ALLOWED / 3


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RightOfWay, list[float]]]:
    """Behind calls of which each has earned a pause for who works; how long those were that it made."""
    right, pauses = RightOfWay(), []
    with right.behind():
        with right.call():
            time.sleep(0.02)
        right.crowded = True
        spend = right._share.spend
        monkeypatch.setattr(right._share, "spend", lambda seconds: pauses.append(seconds) or spend(seconds))  # type: ignore[func-returns-value]
        right._share.earn(100.0)
        yield right, pauses


def test_calls_of_a_call_do_not_wait(due: tuple[RightOfWay, list[float]]) -> None:
    right, pauses = due
    with right.call():
        right._share.earn(100.0)
        before = len(pauses)
        with right.call(), right.call():
            pass
        assert (before, len(pauses)) == (1, 1)
    with right.call():
        assert len(pauses) == 2


def test_nobody_waits_for_calls_where_nobody_works() -> None:
    right = RightOfWay()
    right.crowded = True
    right._share.earn(100.0)
    with right.call():
        assert right._made == 0


def test_a_pause_ends_with_the_work(due: tuple[RightOfWay, list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = due
    monkeypatch.setattr(share, "PAUSE", 1e9)
    monkeypatch.setattr(share, "MOST_S", 30.0)
    right._share.earn(1e9)
    work = contextlib.ExitStack()
    work.enter_context(right.behind())
    right._threads -= 1  # that of the fixture
    ended = threading.Timer(0.2, work.close)
    ended.start()
    begun_s = time.monotonic()
    with right.call():
        assert right._made == 1
    assert time.monotonic() - begun_s < 15
    ended.join()
    right._threads += 1


def test_an_interrupted_pause_leaves_nothing_behind(
    due: tuple[RightOfWay, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, pauses = due

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(right._gone, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), right.call():
            pass
    assert not right._calls
    with right.call():
        assert len(pauses) == 1


def test_work_goes_on_beside_a_call_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RightOfWay()
    monkeypatch.setattr(pace, "RIGHT_OF_WAY", right)
    with right.behind(), right.call():
        right.crowded = True
        right._until_s = time.monotonic()
        assert right.busy
        right._until_s -= 1000.0
        assert right.endless
        assert not right.busy
        begun_s = time.monotonic()
        Unhurried().rest()
        assert time.monotonic() - begun_s >= pace.ENDLESS_S


def test_who_waits_for_others_calls_in_vain_has_waited_enough() -> None:
    """One call is much longer than the others, which do not wait for it each time."""
    right = RightOfWay()
    over = threading.Event()

    def call_for_long() -> None:
        with right.call():
            over.wait()

    thread = threading.Thread(target=call_for_long)
    with right.behind():
        thread.start()
        waited = []
        try:
            for _ in range(50):
                right.crowded, right._until_s = True, time.monotonic() - 1e-9
                right._share.earn(0.02)
                begun_s = time.monotonic()
                with right.call():
                    waited.append(time.monotonic() - begun_s)
                    time.sleep(0.02)
        finally:
            over.set()
            thread.join()
    assert sum(wait > 0.02 for wait in waited) < 10


def test_between_calls_who_is_in_no_hurry_works_as_all_do() -> None:
    right = RightOfWay()
    with spinning() as process, right.behind(process, rare=True):
        for _ in range(RARE):
            time.sleep(WINDOW_S)
            right.review()
            assert not is_stopped(process)


def test_in_a_call_without_an_end_it_is_not_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "ENDLESS_S", 2 * WINDOW_S)
    right = RightOfWay()
    with spinning() as process, right.behind(process):
        with right.call():
            time.sleep(WINDOW_S)
            right.review()
            assert right.crowded
            assert is_stopped(process)
            for _ in range(3):
                time.sleep(WINDOW_S)
                right.review()
            assert not is_stopped(process)
        time.sleep(WINDOW_S)
        right.review()
        assert not right.crowded
        with right.call():
            assert is_stopped(process)


def test_a_process_that_begins_amid_a_call_stands_still_at_once() -> None:
    right = RightOfWay()
    with spinning() as process, right.behind(), right.call():
        with right.behind(process):
            assert is_stopped(process)
        assert not is_stopped(process)


def test_paced_work_alone_sees_that_there_are_moments_again(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RightOfWay()
    monkeypatch.setattr(pace, "RIGHT_OF_WAY", right)
    with right.behind():
        with right.call():
            time.sleep(WINDOW_S)
            Unhurried().rest()
            assert right.crowded
        time.sleep(WINDOW_S)
        Unhurried().rest()
        assert not right.crowded


def test_a_process_goes_on_when_its_turn_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RightOfWay()

    def interrupted(process: int, what: int) -> None:
        raise KeyboardInterrupt

    with spinning() as process:
        with right.behind(process):
            right.enter()
            assert is_stopped(process)
            with monkeypatch.context() as patch:
                patch.setattr(os, "kill", interrupted)
                patch.setattr(right, "_let_go_on", right._direct)  # as where no other thread can be started
                with pytest.raises(KeyboardInterrupt):
                    right.leave()
            assert is_stopped(process)
        assert not is_stopped(process)


def test_a_thread_of_this_process_is_told_and_never_signalled() -> None:
    right = RightOfWay()
    with right.behind(), right.call():
        assert right.busy  # and this process still runs


def test_paced_work_waits_for_the_end_of_a_call() -> None:
    done: list[float] = []

    def work() -> None:
        pace = Unhurried()
        time.sleep(0.001)
        pace()
        done.append(time.perf_counter())

    with RIGHT_OF_WAY.behind():
        with RIGHT_OF_WAY.call():
            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(0.03)
            ended = time.perf_counter()
        thread.join()
    assert done[0] >= ended


def test_work_rests_until_a_long_call_ends() -> None:
    done: list[float] = []

    def work() -> None:
        Unhurried().rest()
        done.append(time.perf_counter())

    with RIGHT_OF_WAY.behind():
        with RIGHT_OF_WAY.call():
            time.sleep(0.1)
        time.sleep(0.1)
        with RIGHT_OF_WAY.call():
            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(0.12)
            ended = time.perf_counter()
        thread.join()
    assert done[0] >= ended


@contextlib.contextmanager
def with_pauses(*seconds: float, call_s: float = 0.01) -> Iterator[RightOfWay]:
    """One behind which somebody works, after calls with such pauses between them."""
    right = RightOfWay()
    with right.behind():
        for pause in (*seconds, 0.0):
            with right.call():
                time.sleep(call_s)
            time.sleep(pause)
        yield right


def waited_s(right: RightOfWay, seconds: float) -> float:
    begun = time.monotonic()
    right.await_room(seconds)
    return time.monotonic() - begun


def test_a_long_piece_begins_early_in_a_pause() -> None:
    with with_pauses(0.1, 0.1) as right:
        assert 0.05 < right.room_s() <= 0.11
        assert waited_s(right, 0.04) < 0.02  # the pause began just now
        time.sleep(0.08)
        begun = threading.Event()

        def call() -> None:
            time.sleep(0.03)
            with right.call():
                begun.set()
                time.sleep(0.05)

        caller = threading.Thread(target=call)
        caller.start()
        assert right.room_s() < 0.04
        assert waited_s(right, 0.04) >= 0.07  # until the next call is over
        assert begun.is_set()
        assert not right.busy
        caller.join()


def test_pauses_may_differ() -> None:
    with with_pauses(0.002, 0.08, 0.05, 0.06) as right:
        assert waited_s(right, 0.03) < 0.02  # the beginning of a pause is one, though one of them was short


def test_where_no_pause_is_long_enough_the_beginning_of_one_must_do() -> None:
    with with_pauses(0.05, 0.05) as right:
        assert waited_s(right, 1.0) < 0.02


def test_nobody_waits_for_room_for_ever() -> None:
    with with_pauses(0.02) as right:
        right.enter()
        assert 0.2 < waited_s(right, 0.01) < 1.0


def test_behind_long_calls_room_is_waited_for_longer() -> None:
    with with_pauses(0.3, 0.3, call_s=0.3) as right:
        right.enter()
        assert 0.5 < waited_s(right, 0.1) < 1.5


def test_there_is_room_where_nobody_calls_any_more() -> None:
    with with_pauses(0.01, 0.01) as right:
        time.sleep(0.03)
        assert right.room_s() == math.inf
        assert RightOfWay().room_s() == math.inf


def test_what_a_call_would_hardly_notice_waits_for_nothing() -> None:
    with with_pauses(0.02, call_s=0.1) as right:
        right.enter()
        assert waited_s(right, 0.005) < 0.01


def test_only_who_is_in_no_hurry_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(RIGHT_OF_WAY, "await_room", asked.append)
    pace.make_room(pace.hurry, 1.0)
    pace.make_room(pace.Brisk(), 2.0)
    pace.make_room(Unhurried(), 3.0)
    with pace.going_at(Unhurried()):
        pace.breathe(4.0)
    assert asked == [3.0, 4.0]


def test_who_makes_short_calls_makes_short_pauses_beside_others() -> None:
    """Another thread's call was a hundred times as long."""
    right = RightOfWay()
    right.crowded, right._call_s, right._mine.call_s = True, 100 * CALL_S, 0.01
    right._share.earn(1000.0)
    with right.behind():
        right.crowded = True
        begun_s = time.monotonic()
        with right.call():
            took_s = time.monotonic() - begun_s
    assert 0.0 < took_s < 0.1


def test_a_caller_waits_for_others_no_longer_than_somebody_works() -> None:
    right, over = RightOfWay(), threading.Event()

    def long_call() -> None:
        with right.call():
            over.wait(10)

    other = threading.Thread(target=long_call)
    with right.behind():
        right.crowded = True
        other.start()
        while not right._calls:
            time.sleep(0.001)
        right._call_s = right._mine.call_s = 5.0
        right._share.earn(1000.0)
        waited: list[float] = []

        def call() -> None:
            right._mine.call_s = 5.0
            begun_s = time.monotonic()
            with right.call():
                waited.append(time.monotonic() - begun_s)

        caller = threading.Thread(target=call)
        caller.start()
        time.sleep(0.1)
        assert not waited
    caller.join()
    over.set()
    other.join()
    assert waited[0] < 0.5


def test_who_waits_for_a_pause_looks_seldom_and_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right, told_s = RightOfWay(), list[float]()
    looks: list[float] = []
    wait = right._gone.wait
    monkeypatch.setattr(right._gone, "wait", lambda seconds: looks.append(seconds) or wait(seconds))

    def await_pause() -> None:
        right.await_pause(10.0)
        told_s.append(time.monotonic())

    with right.behind():
        right.enter()
        waiting = threading.Thread(target=await_pause)
        waiting.start()
        time.sleep(0.3)
        assert not told_s
        ended_s = time.monotonic()
        right.leave()
        waiting.join()
    assert told_s[0] - ended_s < 0.015
    assert len(looks) <= 0.4 / LOOK_S
