"""Pace: background work in short pieces.

A thread that runs Python code keeps the interpreter for itself: each operator of a model that serves meanwhile waits for up to
five milliseconds to get it back. So work behind a serving model calls its `Pace` every few microseconds, and that rests now
and then. Where somebody waits for the work it is given `hurry`, which does not.

State: when the next rest is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WORK_S = 0.0005  # between rests: at most so long is a serving thread kept from the interpreter
REST_S = 0.004  # of each: work behind a model takes nine times as long, and a ninth of the interpreter's time

Pace = Callable[[], None]


def hurry() -> None:
    """The pace of work that somebody waits for."""


class Unhurried:
    """The pace of work that nobody waits for; for one thread."""

    def __init__(self) -> None:
        self._due = time.perf_counter() + WORK_S

    def __call__(self) -> None:
        if time.perf_counter() >= self._due:
            time.sleep(REST_S)
            self._due = time.perf_counter() + WORK_S
