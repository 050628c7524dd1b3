"""The queue of a pool: jobs wait until the scheduler lets one of them begin.

A worker that is free asks for the next job, and has it once there is one that may begin. Who waits for cores or memory is
looked at again every `LOOK_S` seconds; why it waits is told once.

State, under a lock of its own: the jobs that wait, since when, and what was told of them; the jobs that run; how often jobs had
to wait, by cause.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hotfuse.locks import make_lock
from hotfuse.runtime.child import own_bytes
from hotfuse.runtime.scheduler import Demand, Sight, admit

if TYPE_CHECKING:
    from hotfuse.runtime.workers import Job

LOOK_S = 0.1


class JobQueue:
    """Of one pool of so many workers. `pids` tells the processes that they have."""

    def __init__(self, workers: int, sight: Sight, pids: Callable[[], tuple[int, ...]]) -> None:
        self._workers, self._sight, self._pids = workers, sight, pids
        self._waiting: dict[Job, float] = {}
        self._running: dict[Job, Demand] = {}
        self._told: set[Job] = set()
        self._ends = 0  # workers that are to end
        self._changed = threading.Condition(make_lock())
        self.held_back: Counter[str] = Counter()

    def put(self, job: Job | None) -> None:
        """Have a job wait for its turn; None ends a worker."""
        with self._changed:
            if job is None:
                self._ends += 1
            else:
                self._waiting[job] = time.monotonic()
            self._changed.notify_all()

    def get(self, timeout: float | None = None) -> Job | None:
        """The next job that may begin. `queue.Empty` where none came in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            pids = self._pids()  # before the lock: the pool has one, too, and puts jobs here under it
            with self._changed:
                if self._ends:
                    self._ends -= 1
                    return None
                job, held = self._next(pids)
                if job is None and held is None:
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        raise queue.Empty
                    self._changed.wait(LOOK_S if self._waiting else left)
            if job is not None:
                return job
            if held is not None:
                _tell(*held)

    def done(self, job: Job) -> None:
        """A job has ended, or nobody is to begin it any more."""
        with self._changed:
            self._waiting.pop(job, None)
            self._running.pop(job, None)
            self._told.discard(job)
            self._changed.notify_all()

    def _next(self, pids: tuple[int, ...]) -> tuple[Job | None, tuple[Job, str] | None]:
        """The job that begins now, or one that has to wait and was not told yet, with the reason. Holds the lock."""
        if not self._waiting:
            return None, None
        now_s, jobs = time.monotonic(), list(self._waiting)
        demands = [replace(_demand(job), waited_s=now_s - since_s) for job, since_s in self._waiting.items()]
        state = self._sight.state(self._workers, self._running.values(), sum(map(own_bytes, pids)), pids)
        first = admit(state, demands)[0]
        job = jobs[first.place]
        if first.begins:
            del self._waiting[job]
            self._running[job] = demands[first.place]
            return job, None
        if job in self._told:
            return None, None
        self._told.add(job)
        self.held_back[first.cause] += 1
        return None, (job, first.reason)


def _demand(job: Job) -> Demand:
    return Demand(job.kind, job.cores, job.memory_bytes)


def _tell(job: Job, reason: str) -> None:
    """What its owner raises then is the owner's own affair."""
    with contextlib.suppress(Exception):
        job.waits(reason)
