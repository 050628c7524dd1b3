"""Runs the steps of a bound plan in one native call: in one parallel region, without Python in between.

What the native side does is in `driver_ir`. Medians with 2 threads that are awake: 1.7 to 3 us for a call of one step, 8 to
11 us for one of 64 with barriers (33 us with libgomp's, 20 us with a spinning one where threads meet); 0.5 us on one thread.

State: a `Job` is memory that one call uses at a time. A `Driver` is code, one for each OpenMP library, made at the first use.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np

from hotfuse.codegen.link import Code
from hotfuse.config import Config
from hotfuse.errors import VerifyError
from hotfuse.hardware.spec import host_spec
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.driver_ir import driver_ir
from hotfuse.runtime.leader import this_leader
from hotfuse.runtime.memory import aligned_block
from hotfuse.runtime.objects import object_of_ir
from hotfuse.runtime.threads import ALONE, TEAM, Gomp, find_gomp, use

PAGE = 4096
_LINE = 64
_WORD = 8
_STEPS = 3 * _LINE  # where a job's steps begin, after its own words
_STEP_WORDS = 13


@dataclass(frozen=True, slots=True)
class Step:
    """`function` and `table` are addresses that the caller keeps valid. `barrier`: later steps read what this one wrote.
    Each thread has a share of every `every` tasks (0: of all of them), cut at multiples of `unit`, for its own. Steps that
    follow each other without a barrier and have the same `row`, not 0, run side by side: each thread begins with another
    `member`. A step that is woven with the `other` one, with no barrier between both, runs that one's tasks too: behind each
    task of its own as many as that is of all."""

    function: int
    table: int
    tasks: int
    chunk: int = 1
    barrier: bool = True
    every: int = 0
    unit: int = 1
    row: int = 0
    member: int = 0  # steps of one unit have the same
    other: int = -1  # the place of a step, or none


def rows_of(steps: Sequence[Step]) -> list[tuple[int, int, int]]:
    """For each step the first one of its row, how many there are, and how many places further on the next thread begins."""
    found: list[tuple[int, int, int]] = []
    start = 0
    while start < len(steps):
        end = start + 1
        while end < len(steps) and steps[start].row and steps[end].row == steps[start].row and not steps[end - 1].barrier:
            end += 1
        members = [step.member for step in steps[start:end]]
        ahead = next((place for place, member in enumerate(members) if member != members[0]), 0)
        found += [(start, end - start, ahead) if ahead else (at, 1, 0) for at in range(start, end)]
        start = end
    return found


def woven_of(steps: Sequence[Step]) -> dict[int, int]:
    """The places of steps that are woven with another one, and of those. A step without tasks runs no others either."""
    found: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step.other < 0 or not step.tasks:
            continue
        first, last = sorted((number, step.other))
        is_there = last < len(steps) and number != step.other and steps[step.other].other < 0
        if not is_there or step.other in found.values() or any(each.barrier for each in steps[first:last]):
            raise VerifyError(f"step {number} cannot be woven with step {step.other}: {step}")
        found[number] = step.other
    return found


class Job:
    """Steps as the driver reads them, with counters, and scratch for each of `threads` threads. Used by one call at a time."""

    __slots__ = ("_memory", "_scratch", "address", "scratch_stride", "steps", "threads", "woven")

    def __init__(self, steps: Sequence[Step], threads: int, scratch_bytes: int = 0) -> None:
        if threads < 1 or scratch_bytes < 0:
            raise VerifyError(f"a job for {threads} threads with {scratch_bytes} bytes of scratch cannot run")
        for number, step in enumerate(steps):
            whole = step.every == 0 or (step.every > 0 and step.tasks % step.every == 0)
            if not step.function or step.tasks < 0 or step.chunk < 1 or not whole or not _divides(step):
                raise VerifyError(f"step {number} cannot run: {step}")
        woven = woven_of(steps)
        counters = _rounded(_STEPS + _STEP_WORDS * _WORD * len(steps), _LINE)
        scratch = _rounded(counters + _LINE * (1 + threads) * len(steps), PAGE)
        self.threads = threads
        self.steps = len(steps)
        self.woven = len(woven)
        self.scratch_stride = _rounded(scratch_bytes, PAGE)
        self._memory = aligned_block(scratch + threads * self.scratch_stride, PAGE)
        self._memory[:scratch] = 0
        self._scratch = scratch
        self.address: int = self._memory.ctypes.data
        words = self._memory[:counters].view(np.int64)
        words[:5] = (
            self.address + _STEPS,
            len(steps),
            self.address + scratch,
            self.scratch_stride,
            self.address + counters,
        )
        words[6] = threads
        for number, (step, row) in enumerate(zip(steps, rows_of(steps), strict=True)):
            start = _STEPS // _WORD + _STEP_WORDS * number
            tasks = 0 if number in woven.values() else step.tasks  # others run them
            chunk = min(step.chunk, max(step.tasks, 1))  # so that no counter can overflow
            own = step.function, step.table, tasks, chunk, step.barrier, step.every or max(step.tasks, 1), step.unit
            other = steps[woven[number]] if number in woven else None
            theirs = (0, 0, 0) if other is None else (other.function, other.table, other.tasks)
            words[start : start + _STEP_WORDS] = (*own, *row, *theirs)

    def soil(self, byte: int) -> None:
        """Write into all scratch: what a kernel reads there before it wrote it shows."""
        self._memory[self._scratch :] = byte

    def write_times_to(self, address: int) -> None:
        """Where a driver that takes times leaves them; see `driver_ir`. Others never look."""
        self._memory[:_LINE].view(np.int64)[7] = address


def _divides(step: Step) -> bool:
    return step.unit > 0 and (step.every or step.tasks) % step.unit == 0


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Driver:
    """Runs jobs on one OpenMP library (None: on the caller's thread alone). Any number of threads may call `run`."""

    __slots__ = ("_code", "_run", "gomp")

    def __init__(self, gomp: Gomp | None, ir: str = "") -> None:
        """`ir` has a `run` and an `outside` as the plain driver's has."""
        self.gomp = gomp
        self._code = Code(object_of_ir(ir or driver_ir(), host_spec(), open_cache(Config())))
        if gomp:
            words = (ctypes.c_uint64 * 4).from_address(self._code.address("outside"))
            words[:] = [gomp.parallel, gomp.thread_number, gomp.team_size, gomp.sched_yield]
            use(gomp)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._code.address("run"))

    @property
    def address(self) -> int:
        """Of the native `run(job, threads)`."""
        return self.address_of("run")

    def address_of(self, name: str) -> int:
        return self._code.address(name)

    def run(self, job: Job) -> int:
        """Run all steps and return how many threads were asked to. Holds no lock of Python's meanwhile."""
        if job.threads == 1 or ALONE.active:
            self._run(job.address, 1)
            return 1
        if self.gomp and TEAM.acquire(False):
            try:
                leader = this_leader()
                if leader is not None:
                    leader.lead(self.gomp, job.threads, lambda: self._run(job.address, job.threads))
                    return job.threads
            finally:
                TEAM.release()
        self._run(job.address, 1)
        return 1


_DRIVERS: dict[Gomp | None, Driver] = {}
_FOUND: dict[bool, Driver] = {}  # without torch and with it: it brings a library of its own
_MAKING = make_lock()


def get_driver() -> Driver:
    """The driver on the OpenMP library that is in the process now. Looking for that takes as long as binding a small model."""
    has_torch = "torch" in sys.modules
    found = _FOUND.get(has_torch)
    if found is not None:
        return found
    gomp = find_gomp()
    with _MAKING:
        if gomp not in _DRIVERS:
            _DRIVERS[gomp] = Driver(gomp)
        is_there = not has_torch or hasattr(sys.modules.get("torch"), "get_num_threads")  # not amid its import
        if gomp is not None and is_there:
            _FOUND[has_torch] = _DRIVERS[gomp]
        return _DRIVERS[gomp]
