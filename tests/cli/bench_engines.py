"""Engines that go wrong in every way that an engine can; the workers of `test_bench` import them by name."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from hotfuse.cli.bench.engines import Missing, Opener, Runner, Settings
from hotfuse.cli.bench.subject import Subject
from hotfuse.events import EventLog


def right(subject: Subject, settings: Settings) -> Opener:
    """The float64 answer, rounded: nothing is faster."""
    answer = [a.astype(b.dtype) for a, b in zip(subject.arrays("exact").values(), subject.arrays("original").values())]
    return lambda: Runner(lambda: answer, list, lambda: f"{settings.threads} threads")


def perturbed(subject: Subject, settings: Settings) -> Opener:
    """One element of one row a little off."""
    answer = [a.copy() for a in subject.arrays("original").values()]
    answer[0].reshape(-1)[-1] += 1e-3
    return lambda: Runner(lambda: answer, list)


def drifting(subject: Subject, settings: Settings) -> Opener:
    """Right at first; wrong after some calls."""
    answer, calls = [a.copy() for a in subject.arrays("original").values()], 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            answer[0] += 1e-2
        return answer

    return lambda: Runner(call, list)


def crashing(subject: Subject, settings: Settings) -> Opener:
    return lambda: Runner(lambda: os.kill(os.getpid(), signal.SIGSEGV), list)


def hanging(subject: Subject, settings: Settings) -> Opener:
    """From its second call on, in a child of its own that would outlive it."""
    answer, calls = list(subject.arrays("original").values()), 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
        return answer

    return lambda: Runner(call, list)


def raising(subject: Subject, settings: Settings) -> Opener:
    raise ValueError("no\nsuch   luck")


def starved(subject: Subject, settings: Settings) -> Opener:
    raise MemoryError


def not_installed(subject: Subject, settings: Settings) -> Opener:
    importlib.import_module("a_package_that_nobody_has")
    raise AssertionError


def unfit(subject: Subject, settings: Settings) -> Opener:
    raise Missing("made for other models")


def swapping(subject: Subject, settings: Settings) -> Opener:
    """4 ms a call, with work behind it in a thread and in a child; from 0.4 s on 1 ms, with an event for each step."""
    answer, log, begun = list(subject.arrays("original").values()), EventLog(), 0.0
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    steps = [(0.1, "tier.build"), (0.2, "tier.prove"), (0.3, "tier.shadow"), (0.4, "tier.publish")]

    def in_a_thread() -> None:
        while time.thread_time() < 0.1:
            pass
        time.sleep(1)

    def call() -> Any:
        nonlocal begun
        begun = begun or time.perf_counter()
        while steps and time.perf_counter() - begun > steps[0][0]:
            if len(steps) == 4:
                threading.Thread(target=in_a_thread, daemon=True).start()
            log.emit(steps.pop(0)[1], "generic kernels")
        time.sleep(4e-3 if steps else 1e-3)
        return answer

    def open_it() -> Runner:
        subprocess.run([sys.executable, "-c", burn], check=True)
        return Runner(call, list, events=log)

    return open_it


def lapsing(subject: Subject, settings: Settings) -> Opener:
    """Wrong in one call in the middle, with an event before it."""
    right_answer, log, calls = list(subject.arrays("original").values()), EventLog(), 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        time.sleep(2e-3)
        if calls != 9:
            return right_answer
        log.emit("tier.publish", "generic kernels")
        return [array + 1 for array in right_answer]

    return lambda: Runner(call, list, events=log)
