"""Pools of child processes: every job ends once, a fault costs one job, and no storm of starts follows it."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.runtime import workers
from hotfuse.runtime.child import ChildProcess, resident_bytes
from hotfuse.runtime.workers import Job, Pool
from tests.runtime.test_child import TOY, gone
from tests.runtime.test_scheduler import idle_machine


@dataclass
class Outcomes:
    """What jobs ended with, by label, and a way to wait for them."""

    found: dict[str, list[Any]] = field(default_factory=dict)
    more: threading.Condition = field(default_factory=threading.Condition)

    def job(self, label: str, request: bytes | Callable[[], bytes], **options: Any) -> Job:
        def finish(result: Any) -> None:
            with self.more:
                self.found.setdefault(label, []).append(result)
                self.more.notify_all()

        make = request if callable(request) else lambda: request
        return Job(label, make, finish, **{"timeout_s": 100.0, "memory_bytes": 1 << 40, **options})

    def wait(self, count: int, timeout_s: float = 100.0) -> bool:
        with self.more:
            return self.more.wait_for(lambda: sum(map(len, self.found.values())) >= count, timeout_s)

    def cause(self, label: str) -> str:
        (result,) = self.found[label]
        assert isinstance(result, WorkerError), result
        return result.cause


@pytest.fixture(name="pool")
def _pool() -> Iterator[Pool]:
    made = Pool(TOY, 1, first_rest_s=0.01)
    yield made
    made.close()


@pytest.fixture(name="outcomes")
def _outcomes() -> Outcomes:
    return Outcomes()


FAULTS = {"crash": "died", "noise": "nonsense", "sleep": "timeout", "fail": "raised", "eat": "memory"}


def limits_of(deed: str, pid: int) -> dict[str, Any]:
    """What makes a deed end soon."""
    if deed == "sleep":
        return {"timeout_s": 0.3}
    return {"memory_bytes": resident_bytes(pid) + (100 << 20)} if deed == "eat" else {}


def test_a_fault_costs_one_job(pool: Pool, outcomes: Outcomes) -> None:
    pool.submit(outcomes.job("first", b"echo 1"))
    assert outcomes.wait(1)
    (pid,) = pool.pids
    for deed in FAULTS:
        pool.submit(outcomes.job(deed, deed.encode(), **limits_of(deed, pid)))
        pool.submit(outcomes.job(f"after {deed}", b"echo 2"))
    assert outcomes.wait(1 + 2 * len(FAULTS))
    assert {deed: outcomes.cause(deed) for deed in FAULTS} == FAULTS
    assert all(outcomes.found[f"after {deed}"] == [b"2"] for deed in FAULTS)
    assert pool.unfinished == ()


def test_a_request_that_cannot_be_made_is_the_jobs_error_as_it_is(pool: Pool, outcomes: Outcomes) -> None:
    def refuse() -> bytes:
        raise HotfuseError("mine")

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    pool.submit(outcomes.job("refused", refuse))
    pool.submit(outcomes.job("interrupted", interrupt))
    pool.submit(outcomes.job("next", b"echo 1"))
    assert outcomes.wait(3)
    assert str(outcomes.found["refused"][0]) == "mine"
    assert isinstance(outcomes.found["interrupted"][0], KeyboardInterrupt)
    assert outcomes.found["next"] == [b"1"]


def test_an_answer_that_cannot_be_read_costs_the_child(pool: Pool, outcomes: Outcomes) -> None:
    pool.submit(outcomes.job("number", b"echo 5", read=int))
    assert outcomes.wait(1)
    (before,) = pool.pids
    pool.submit(outcomes.job("word", b"echo five", read=int))
    pool.submit(outcomes.job("after", b"echo 6", read=int))
    assert outcomes.wait(3)
    assert (outcomes.found["number"], outcomes.found["after"]) == ([5], [6])
    assert outcomes.cause("word") == "nonsense"
    assert pool.pids != (before,)
    assert gone(before)


def test_a_finish_that_raises_harms_nobody(pool: Pool, outcomes: Outcomes) -> None:
    def raising(result: Any) -> None:
        raise RuntimeError("mine")

    pool.submit(Job("bad", lambda: b"echo 1", raising, 20.0, 1 << 40))
    pool.submit(outcomes.job("good", b"echo 2"))
    assert outcomes.wait(1)
    assert outcomes.found == {"good": [b"2"]}


def test_questions_are_served(pool: Pool, outcomes: Outcomes) -> None:
    pool.submit(outcomes.job("sum", b"ask a,b", serve=lambda name: name * 2))
    assert outcomes.wait(1)
    assert outcomes.found["sum"] == [b"aa+bb"]


def test_there_are_never_more_children_than_allowed(outcomes: Outcomes) -> None:
    pool = Pool(TOY, 2, sight=idle_machine())
    try:
        pool.submit(outcomes.job("alone", b"echo 1"))
        assert outcomes.wait(1)
        assert len(pool.pids) == 1
        for i in range(6):
            pool.submit(outcomes.job(str(i), b"sleep 0.2"))
        while not outcomes.wait(7, timeout_s=0.02):
            assert len(pool.pids) <= 2
        assert len(pool.pids) == 2
        assert pool.unfinished == ()
    finally:
        pool.close()


def test_jobs_that_wait_are_named(pool: Pool, outcomes: Outcomes) -> None:
    for label in ("a", "b", "c"):
        pool.submit(outcomes.job(label, b"sleep 0.2"))
    assert pool.unfinished == ("a", "b", "c")
    assert outcomes.wait(3)


def test_an_idle_child_is_stopped_and_another_started(outcomes: Outcomes) -> None:
    pool = Pool(TOY, 1, idle_s=0.2)
    try:
        for turn in (1, 2):
            pool.submit(outcomes.job(str(turn), b"facts pid"))
            assert outcomes.wait(turn)
            deadline = time.monotonic() + 100
            while pool.pids and time.monotonic() < deadline:
                time.sleep(0.02)
            assert pool.pids == ()
            assert gone(int(outcomes.found[str(turn)][0]))
        assert outcomes.found["1"] != outcomes.found["2"]
    finally:
        pool.close()


def test_where_no_process_can_be_started_each_job_is_told_at_once(
    pool: Pool, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        for i in range(20):
            pool.submit(outcomes.job(str(i), b"echo 1"))
        assert outcomes.wait(20)  # with rests in between it would take minutes
    assert {outcomes.cause(str(i)) for i in range(20)} == {"start"}
    assert "no worker process can be started" in str(outcomes.found["0"][0])
    pool.submit(outcomes.job("later", b"echo 1"))
    assert outcomes.wait(21)
    assert outcomes.found["later"] == [b"1"]


def test_where_no_thread_can_be_started_the_job_is_told(
    pool: Pool, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pool.submit(outcomes.job("early", b"echo 1"))
    assert outcomes.cause("early") == "start"
    pool.submit(outcomes.job("later", b"echo 1"))
    assert outcomes.wait(2)
    assert outcomes.found["later"] == [b"1"]


def test_a_pool_that_is_closed_ends_its_jobs_and_its_child(outcomes: Outcomes) -> None:
    pool = Pool(TOY, 1)
    pool.submit(outcomes.job("ready", b"facts pid"))
    assert outcomes.wait(1)
    threads = {t.name for t in threading.enumerate()}
    assert "hotfuse-worker-0" in threads
    for label in ("worked on", "waiting"):
        pool.submit(outcomes.job(label, b"sleep"))
    pool.close()
    pool.submit(outcomes.job("late", b"echo 1"))
    assert outcomes.wait(4)
    assert {outcomes.cause(label) for label in ("worked on", "waiting", "late")} == {"closed"}
    assert gone(int(outcomes.found["ready"][0]))
    pool.close()
    time.sleep(0.1)
    assert all(len(results) == 1 for results in outcomes.found.values())


def test_jobs_are_let_go(pool: Pool) -> None:
    class Asked:
        def __init__(self, request: bytes) -> None:
            self.request, self.done = request, threading.Event()

        def make(self) -> bytes:
            return self.request

        def finish(self, result: Any) -> None:
            self.done.set()

    for request in (b"echo 1", b"fail", b"crash"):
        asked = Asked(request)
        pool.submit(Job("asked", asked.make, asked.finish, 20.0, 1 << 40))
        assert asked.done.wait(100)
        reference = weakref.ref(asked)
        del asked
        deadline = time.monotonic() + 10
        while reference() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert reference() is None


# storms


class Counting:
    """Stands in for `ChildProcess`: notes when one was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_s: list[float] = []
        monkeypatch.setattr(workers, "ChildProcess", self)

    def __call__(self, *arguments: Any) -> ChildProcess:
        self.at_s.append(time.monotonic())
        return ChildProcess(*arguments)


def storm(starts_s: list[float], first_rest_s: float) -> str:
    """What is wrong with the starts of children that all died; empty if nothing is."""
    for place, (a, b) in enumerate(itertools.pairwise(starts_s)):
        least = min(first_rest_s * 2**place, workers.LONGEST_REST_S)
        if b - a < least:
            return f"start {place + 1} came {b - a:.3f} s after the one before it, {least:.3f} s is the least"
    return ""


@pytest.mark.parametrize(("rest_s", "is_storm"), [(0.05, False), (0.0, True)], ids=["rests", "planted storm"])
def test_children_that_die_one_after_the_other_are_started_ever_more_rarely(
    rest_s: float, is_storm: bool, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Counting(monkeypatch)
    pool = Pool(TOY, 1, first_rest_s=rest_s)
    try:
        for i in range(100):
            pool.submit(outcomes.job(str(i), b"crash"))
        outcomes.wait(8, timeout_s=60.0 if is_storm else 1.5)
    finally:
        pool.close()
    assert bool(storm(starts.at_s, 0.05)) == is_storm
    assert len(starts.at_s) > 2
    assert outcomes.wait(100)
    assert all(len(results) == 1 for results in outcomes.found.values())


def test_one_answer_ends_the_rests(pool: Pool, outcomes: Outcomes) -> None:
    for i in range(4):
        pool.submit(outcomes.job(f"crash {i}", b"crash"))
    pool.submit(outcomes.job("fine", b"echo 1"))
    assert outcomes.wait(5)
    assert pool._deaths == 0


def test_rests_are_bounded(pool: Pool, outcomes: Outcomes) -> None:
    for i in range(2000):
        pool._finish(outcomes.job(str(i), b""), WorkerError("planted", "died"))
    assert 0 < pool._rest_until_s - time.monotonic() <= workers.LONGEST_REST_S
    assert outcomes.found == {}


# a campaign of faults


def campaign(
    jobs: int, seed: int, monkeypatch: pytest.MonkeyPatch, pool: Pool | None = None, timeout_s: float = 0.0
) -> list[str]:
    """Compiles with faults among them, behind a thread that answers calls: what went wrong."""
    chance = random.Random(seed)
    deeds = [chance.choice(["echo", "echo", "echo", "echo", *(f for f in FAULTS if f != "noise")]) for _ in range(jobs)]
    outcomes, starts = Outcomes(), Counting(monkeypatch)
    pool = pool or Pool(TOY, 2, first_rest_s=0.01, sight=idle_machine())
    answered, problems, over = 0, [], threading.Event()

    def call() -> None:
        nonlocal answered
        while not over.wait(0.001):
            if sum(range(100)) != 4950:
                problems.append("a call failed")
            answered += 1

    user = threading.Thread(target=call)
    user.start()
    try:
        for place, deed in enumerate(deeds):
            limits = limits_of(deed, os.getpid())
            pool.submit(outcomes.job(str(place), f"{deed} {place}".encode() if deed == "echo" else deed.encode(), **limits))
        outcomes.wait(jobs, timeout_s or 60.0 + jobs)
        time.sleep(0.1)
    finally:
        over.set()
        user.join()
        pool.close()
    for place, deed in enumerate(deeds):
        results = outcomes.found.get(str(place), [])
        want = [str(place).encode()] if deed == "echo" else [FAULTS[deed]]
        got = [r.cause if isinstance(r, WorkerError) else r for r in results]
        if got != want:
            problems.append(f"job {place} ({deed}) ended with {got}, not with {want}")
    deaths = sum(1 for deed in deeds if deed not in ("echo", "fail"))
    if len(starts.at_s) > 2 + deaths:
        problems.append(f"{len(starts.at_s)} starts for {deaths} deaths")
    if not answered:
        problems.append("nobody called")
    return problems


@pytest.mark.parametrize("jobs", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_compile_faults_cost_nothing_but_their_jobs(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert campaign(jobs, jobs, monkeypatch) == []


def test_the_campaign_finds_planted_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Pool):
        def _finish(self, job: Job, result: Any) -> None:
            super()._finish(job, result)
            workers.finish(job, result)

    class Forgetful(Pool):
        def _finish(self, job: Job, result: Any) -> None:
            if not isinstance(result, WorkerError) or result.cause == "closed":
                super()._finish(job, result)

    class Restless(Pool):
        """Starts a child for every job."""

        def _finish(self, job: Job, result: Any) -> None:
            for worker in self._workers:
                worker._rest()
            super()._finish(job, result)

    for kind, sign, wait_s in ((Twice, "ended with", 30.0), (Forgetful, "ended with", 1.0), (Restless, "starts for", 30.0)):
        with monkeypatch.context() as patch:
            problems = campaign(8, 8, patch, kind(TOY, 1, first_rest_s=0.01), wait_s)
            assert any(sign in problem for problem in problems), kind


# the end of the parent

SERVING = f"""
    import os, signal, sys, threading, time
    from hotfuse.runtime.workers import Job, Pool
    ended, started = [], threading.Event()
    pool = Pool("{TOY}", 1)
    def told(result):
        print(int(result), flush=True)
        started.set()
    pool.submit(Job("pid", lambda: b"facts pid", told, 100.0, 1 << 40))
    assert started.wait(100)
    pool.submit(Job("hang", lambda: b"sleep", ended.append, 1000.0, 1 << 40))
    time.sleep(0.2)
"""


def start(extra: str) -> tuple[subprocess.Popen[str], int]:
    """A process with a pool, and its child, which hangs."""
    script = textwrap.dedent(SERVING) + textwrap.dedent(extra)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_child_outlives_a_parent_that_is_killed(end: signal.Signals) -> None:
    process, child = start("""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start behind them ignore it
        print("ready", flush=True)
        time.sleep(1000)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(end)
    process.wait(100)
    assert gone(child)


def test_no_child_outlives_a_parent_that_ends_and_its_jobs_are_told() -> None:
    process, child = start("""
        class Last(list):
            def append(self, result):
                print(result.cause, flush=True)
        pool.submit(Job("late", lambda: b"echo", Last().append, 20.0, 1 << 40))
    """)
    output, _ = process.communicate(timeout=100)  # the child would hang for 1000 s
    assert (output, process.returncode) == ("closed\n", 0)
    assert gone(child)


def test_a_forked_child_forgets_the_pool_and_its_jobs_end() -> None:
    process, child = start("""
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            (error,) = ended
            done = threading.Event()
            pool.submit(Job("mine", lambda: b"echo 1", lambda result: done.set(), 100.0, 1 << 40))
            ok = done.wait(60) and error.cause == "forked" and pool.unfinished == ()
            pool.close()
            os._exit(0 if ok else 1)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), ended, pool.unfinished, flush=True)
        os.kill(pool.pids[0], signal.SIGKILL)
        while not ended:
            time.sleep(0.01)
        print(ended[0].cause, flush=True)
    """)
    output, _ = process.communicate(timeout=200)
    assert output == "0 [] ('hang',)\ndied\n"
    assert gone(child)
