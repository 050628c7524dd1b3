"""Engines that go wrong in every way that an engine can; the workers of `test_bench` import them by name."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from typing import Any

from hotfuse.cli.bench.engines import Missing, Opener, Runner, Settings
from hotfuse.cli.bench.subject import Subject


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
