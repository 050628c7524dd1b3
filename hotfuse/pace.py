"""Pace: background work in short pieces.

A thread that runs Python code keeps the interpreter for itself: each operator of a model that serves meanwhile waits for up to
five milliseconds to get it back. So work behind a serving model calls its `Pace` every few microseconds, and that rests now
and then, for as long as a call is under way where that is known (`right_of_way`). Where somebody waits for the work it is given
`hurry`, which does not.

State: when the next rest is due; of each thread, the pace that it goes at.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hotfuse.locks import IMPORTS
from hotfuse.right_of_way import RIGHT_OF_WAY

WORK_S = 0.0005  # between rests: at most so long is a serving thread kept from the interpreter
REST_S = 0.004  # of each, where nobody knows of calls: work takes nine times as long, and a ninth of the interpreter's time
ENDLESS_S = 0.008  # where calls make no pauses: they lose what it takes, and what a process behind them takes, too
PAUSE_S = 0.0002  # where calls say when they begin, and none has
LONGEST_S = 0.05  # of such a rest, where calls are short; as long as a pause is waited for where they are long
IMPORT_S = 0.004  # that a module may take by itself
FIRST_RUN = 1.0  # of the original's time, that kernels may take which find nothing in the caches and no memory of their own

Pace = Callable[[], None]


def hurry() -> None:
    """The pace of work that somebody waits for."""


class Unhurried:
    """The pace of work that nobody waits for; for one thread."""

    work_s = WORK_S

    def __init__(self) -> None:
        self._due = time.perf_counter() + self.work_s

    def __call__(self) -> None:
        if time.perf_counter() >= self._due:
            self.rest()
            self._due = time.perf_counter() + self.work_s

    def rest(self) -> None:
        """Let calls that are under way end."""
        if not RIGHT_OF_WAY.active:
            time.sleep(REST_S)
            return
        time.sleep(ENDLESS_S if RIGHT_OF_WAY.endless else PAUSE_S)
        RIGHT_OF_WAY.await_pause(LONGEST_S)
        RIGHT_OF_WAY.review()

    def make_room(self, seconds: float) -> None:
        """What comes next takes so long, and cannot rest: begin it where it meets no call."""
        RIGHT_OF_WAY.await_room(seconds)


class Brisk(Unhurried):
    """The pace of work that is short and makes calls much faster: those that come meanwhile have less of the interpreter."""

    work_s = 0.002

    def rest(self) -> None:
        time.sleep(WORK_S)

    def make_room(self, seconds: float) -> None:
        """It begins at once."""


@contextlib.contextmanager
def going_at(pace: Pace) -> Iterator[None]:
    """What this thread computes meanwhile in pieces goes at this pace: large pieces `breathe` between their parts."""
    before = getattr(_THREAD, "pace", hurry)
    _THREAD.pace = pace
    try:
        yield
    finally:
        _THREAD.pace = before


def breathe(next_s: float = 0.0) -> None:
    """Rest, if this thread goes at a pace and a rest is due. What comes next takes `next_s`, if it cannot rest for long."""
    pace = getattr(_THREAD, "pace", hurry)
    pace()
    make_room(pace, next_s)


def make_room(pace: Pace, seconds: float) -> None:
    """Before a piece of work that takes so long and cannot rest: wait until no call would meet it, at a pace that does so."""
    if isinstance(pace, Unhurried):
        pace.make_room(seconds)


def make_room_for_run(pace: Pace) -> None:
    """Before a candidate's first run of all its kernels."""
    make_room(pace, FIRST_RUN * RIGHT_OF_WAY.call_s)


_THREAD = threading.local()


class _Rests:
    """A finder of modules that finds none: before each one, the thread that imports may rest."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._thread = pace, threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if threading.get_ident() == self._thread:
            self._pace()
            make_room(self._pace, IMPORT_S)


@contextlib.contextmanager
def imports(pace: Pace) -> Iterator[None]:
    """Import something at this pace, and while no fork happens (`locks`)."""
    with IMPORTS:
        if pace is hurry:
            yield
            return
        rests: Any = _Rests(pace)
        sys.meta_path.insert(0, rests)
        try:
            yield
        finally:
            sys.meta_path.remove(rests)
