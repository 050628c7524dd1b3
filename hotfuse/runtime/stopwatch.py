"""Stopwatch: a job run with times. Every thread reads the cycle counter around every step.

The code is the driver's with times (`driver_ir`), apart from the plain one's: calls that nobody times run what they always ran.

State: the code, one for each OpenMP library, made at the first use; the rate of the counter, measured once.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, NamedTuple

import numpy as np

from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.driver import Driver, Job
from hotfuse.runtime.driver_ir import timed_driver_ir
from hotfuse.runtime.memory import aligned_block
from hotfuse.runtime.threads import Gomp, find_gomp

CALIBRATION_S = 0.02  # the two clocks are read within 0.2 us of each other: an error of 1 in 100,000
_LINE = 64
_BEGUN, _LEFT, _WENT_ON, _TASKS = range(4)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Laps:
    """The times of a job's steps. `seconds` go from when all before a step was done to when the step was: they add up to the
    whole, though steps between two barriers run side by side. The others are sums over all threads that came by."""

    seconds: Array
    busy_s: Array  # taking tasks and running them
    waiting_s: Array  # at the barrier behind the step
    tasks: Array  # of each thread: threads x steps


class Reading(NamedTuple):
    """What one run left. `cells` has, for each thread and step, the cycles at which the thread began it, ran out of tasks and
    went on, and how many it did; all 0 where it did not come by. `cpu_s` is the CPU time of the caller's thread meanwhile."""

    cells: Array
    cpu_s: float


class Stopwatch:
    """Runs jobs as the driver does. Any number of threads may call `run`, each with a job of its own."""

    def __init__(self, gomp: Gomp | None) -> None:
        self._driver = Driver(gomp, timed_driver_ir())
        self._now = ctypes.CFUNCTYPE(ctypes.c_int64)(self._driver.address_of("now"))
        self._begin = self._read()
        self._rate: float | None = None
        self._lock = make_lock()

    def run(self, job: Job) -> Reading:
        """Run a job as the driver does, with times."""
        rows, size = job.threads * max(1, job.steps), _LINE * job.threads * max(1, job.steps)
        block = aligned_block(size, _LINE)
        block[:] = 0
        job.write_times_to(block.ctypes.data)
        begun = time.thread_time()
        self._driver.run(job)
        cpu_s = time.thread_time() - begun
        cells = block.view(np.int64).reshape(rows, _LINE // 8)[:, :4].reshape(job.threads, -1, 4)[:, : job.steps]
        return Reading(cells, cpu_s)

    def laps(self, cells: Array) -> Laps:
        """What the cells of a reading say, in seconds; or those of several readings, along a first axis."""
        rate, came = self.seconds_per_cycle, cells[..., _BEGUN] > 0
        busy = np.where(came, cells[..., _LEFT] - cells[..., _BEGUN], 0).sum(-2)
        waiting = np.where(came, cells[..., _WENT_ON] - cells[..., _LEFT], 0).sum(-2)
        # the caller's thread may have been without a core while another did all the work: who did the tasks says when
        begun = np.min(cells[..., _BEGUN], axis=(-2, -1), where=came, initial=np.iinfo(np.int64).max, keepdims=True)[..., 0]
        ended = np.max(cells[..., _LEFT], axis=-2, where=cells[..., _TASKS] > 0, initial=0)
        done = np.maximum.accumulate(np.maximum(ended, begun), axis=-1)
        return Laps(np.diff(done, prepend=begun) * rate, busy * rate, waiting * rate, cells[..., _TASKS])

    @property
    def seconds_per_cycle(self) -> float:
        """Of the counter, which ticks evenly whatever the cores do. Takes some milliseconds right after this was made."""
        with self._lock:
            if self._rate is None:
                time.sleep(max(0.0, self._begin[0] + CALIBRATION_S - time.perf_counter()))
                (begun_s, begun), (now_s, now) = self._begin, self._read()
                self._rate = (now_s - begun_s) / (now - begun) if now > begun else 0.0
            return self._rate

    def _read(self) -> tuple[float, int]:
        """Both clocks at one moment, as far as that is possible: the closest of some readings."""
        found = []
        for _ in range(5):
            before = time.perf_counter()
            cycles = self._now()
            after = time.perf_counter()
            found.append((after - before, before, cycles))
        took, before, cycles = min(found)
        return before + took / 2, cycles


_WATCHES: dict[Gomp | None, Stopwatch] = {}
_MAKING = make_lock()


def get_stopwatch() -> Stopwatch:
    """The stopwatch on the OpenMP library that is in the process now. The first one takes milliseconds to make."""
    gomp = find_gomp()
    with _MAKING:
        if gomp not in _WATCHES:
            _WATCHES[gomp] = Stopwatch(gomp)
        return _WATCHES[gomp]
