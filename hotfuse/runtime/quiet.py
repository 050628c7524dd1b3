"""Quiet: what measures waits until others leave the cores to it, and takes a back seat while it works.

Whoever else uses this machine comes first, a model that serves in another process above all: a team of threads waits for its
slowest, so a core that is shared for some milliseconds slows the whole call, however nice the other is. And what is measured
beside others is not worth much. So measuring begins where others had next to nothing of the cores for a moment, looks again
between its pieces, and waits, but no longer in all than its patience lasts: on a machine that is never idle it ends with what
it has.

State: a `Quiet` has its last look, whether that was quiet, and how long it has waited. One thread uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hotfuse.hardware.load import Look, cores_of_others, look, usable_cores
from hotfuse.runtime.build_pool import worker_pids

WINDOW_S = 0.5  # that is looked back upon: Linux counts in hundredths
QUIET = 0.1  # of the cores: what others may have. Daemons have less, a client at a tenth of its load has as much

Result = TypeVar("Result")
Told = Callable[[float], None]  # how many cores others have, again and again while there is a wait


def untold(cores: float) -> None:
    """The pause that nobody looks at."""


def look_here() -> Look:
    """What workers have is this process's own."""
    return look(worker_pids())


class Quiet:
    """For one piece of work, which begins now."""

    def __init__(
        self,
        patience_s: float = math.inf,
        look: Callable[[], Look] = look_here,
        sleep: Callable[[float], None] = time.sleep,
        cores: int | None = None,
    ) -> None:
        self._look, self._sleep = look, sleep
        self._limit = QUIET * (usable_cores() if cores is None else cores)
        self._last, self._was_quiet = look(), False
        self.patience_s, self.waited_s = patience_s, 0.0

    def wait(self, told: Told = untold) -> bool:
        """Return once others leave the cores; False where that takes too long, from then on at once."""
        now = self._look()
        if now.at_s - self._last.at_s < WINDOW_S:
            if self._was_quiet:
                return True
            now = self._pause(WINDOW_S - (now.at_s - self._last.at_s))
        while (others := self._others(now)) > self._limit:
            if self.waited_s >= self.patience_s:
                return False
            told(others)
            now = self._pause(WINDOW_S)
        return True

    def _others(self, now: Look) -> float:
        """What others had since the last look; nothing where nobody can tell."""
        others = cores_of_others(self._last, now) or 0.0
        self._last, self._was_quiet = now, others <= self._limit
        return others

    def _pause(self, seconds: float) -> Look:
        self._sleep(seconds)
        now = self._look()
        self.waited_s += seconds
        return now


def in_back_seat(work: Callable[[], Result]) -> Result:
    """Do something on a thread of its own, and of the team that it leads, which have nothing of a core that others want.
    Threads take a seat for good, so this one does not.

    A thread that has nothing of a core keeps what it holds, the interpreter above all: this is for processes that serve
    nobody. An interrupt of this thread is one of that work."""
    ended: list[tuple[bool, Result | BaseException]] = []

    def run() -> None:
        _take_seat()
        try:
            ended.append((True, work()))
        except BaseException as error:
            ended.append((False, error))

    thread = threading.Thread(target=run, name="hotfuse-measuring", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
        thread.join()
        raise
    ((is_well, result),) = ended
    if is_well:
        return result  # type: ignore[return-value]
    raise result  # type: ignore[misc]


def _take_seat() -> None:
    """Of this thread alone, as Linux has it."""
    with contextlib.suppress(OSError, AttributeError):  # there is none: it sits where all do
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
