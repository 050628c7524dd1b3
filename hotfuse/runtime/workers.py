"""Workers: jobs that child processes do, behind a process that serves.

    submit(job) -> a worker's thread: job.make() -> its child process -> job.read(answer) -> job.finish(...)

Which job is next, and how many may run at once, is for the scheduler to say (`runtime/scheduler`, `runtime/job_queue`).
A job is finished once, whatever happens to it: with what `read` made of the answer, or with the error that kept it from one. A
child that crashes, hangs, grows too large or answers what cannot be read is killed and costs that job; nothing is tried again.
Where children die one after the other, the next one is started after a rest that doubles each time: no storm of starts.
A child without work for a while is stopped. None outlives this process, however that ends.

State: a `Worker` has one thread and, between its first job and its next rest, one child. A `Pool` has up to `size` workers, one
queue for all, the jobs that are not finished, and how many children died in a row. A forked copy of this process forgets all of
it; its copies of the jobs end with an error.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from hotfuse.errors import WorkerError
from hotfuse.locks import is_copy, make_lock
from hotfuse.records import dataclass
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime import faults
from hotfuse.runtime.child import DIED, HUNG, MEMORY, NONSENSE, RAISED, START, TIMEOUT, ChildProcess, Serve, Where, own_bytes
from hotfuse.runtime.child_start import spawned
from hotfuse.runtime.job_queue import JobQueue
from hotfuse.runtime.scheduler import PATIENT, Kind, Sight
from hotfuse.stress import CALM, Stress

FORKED, CLOSED = "forked", "closed"  # causes of errors beside those of `child`: nobody will work on the job
DEADLY = (DIED, HUNG, MEMORY, NONSENSE, TIMEOUT)  # causes that cost a child its life
IDLE_S = 120.0
FIRST_REST_S = 0.1  # a start alone takes longer
LONGEST_REST_S = 30.0


def _ignore(reason: str) -> None:
    """What is told to nobody."""


@dataclass(frozen=True, eq=False)
class Job:
    """`make` returns the request as bytes, `read` makes of the answer's what `finish` takes, `serve` answers what the child
    asks meanwhile, and `where` says in which file that is, if it is in one. All are called by a worker's thread; `finish` gets
    an error where there is no answer. `waits` is told why it is not begun, though there is a worker. Under `stress` a job may
    take longer, or fail on purpose."""

    label: str
    make: Callable[[], bytes]
    finish: Callable[[Any], None]
    timeout_s: float
    memory_bytes: int
    serve: Serve | None = None
    where: Where | None = None
    read: Callable[[bytes], Any] = bytes
    stress: Stress = CALM
    kind: Kind = "build"
    cores: int = 1
    waits: Callable[[str], None] = _ignore


class Jobs(Protocol):
    """A queue of jobs; None ends a worker."""

    def put(self, job: Job | None) -> None: ...
    def get(self, *, timeout: float | None = None) -> Job | None: ...


class Executor(Protocol):
    """Where jobs are done. A `Pool` has processes of this machine; others may have other machines: a request is bytes, and so
    is its answer, which `build_worker.answer` knows how to give. Every job that is submitted is finished once, whatever happens
    to who works on it."""

    size: int  # jobs that may be worked on at once

    def submit(self, job: Job) -> None: ...

    @property
    def unfinished(self) -> tuple[str, ...]: ...

    def close(self) -> None: ...


def is_death(result: Any) -> bool:
    """Whether what a job was given instead of an answer cost its process its life."""
    return isinstance(result, WorkerError) and result.cause in DEADLY


def finish(job: Job, result: Any) -> None:
    """Hand a job its end. What its owner raises then is the owner's own affair."""
    with contextlib.suppress(Exception):
        job.finish(result)


class Worker:
    """A thread that works on a queue of jobs, one at a time, in a child process that it starts when it needs one."""

    def __init__(
        self,
        name: str,
        start: Callable[[], ChildProcess],
        idle_s: float = IDLE_S,
        jobs: Jobs | None = None,
        done: Callable[[Job, Any], None] = finish,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.jobs: Jobs = queue.SimpleQueue() if jobs is None else jobs
        self._numbers = itertools.count(1) if numbers is None else numbers
        self.process: ChildProcess | None = None
        self._start, self._idle_s, self._done = start, idle_s, done
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while self._work_on(self._next()):  # nothing is named here: between jobs a name would keep the last model alive
            pass

    def _next(self) -> Job | None:
        try:
            return self.jobs.get(timeout=self._idle_s)
        except queue.Empty:
            self._rest()
            return self.jobs.get()

    def _work_on(self, job: Job | None) -> bool:
        if job is None:
            self._rest()
            return False
        try:
            with RIGHT_OF_WAY.behind():
                request = job.make()
                if self.process is None or not self.process.alive:
                    self._rest()
                    self.process = self._start()
                with self.process.at_work(job.kind in PATIENT):
                    result = self._read(job, self.process, self._ask(job, self.process, request))
        except BaseException as error:  # this thread serves every model of the process and must go on
            result = error.with_traceback(None)  # which would hold this frame, and the job
        self._done(job, result)
        return True

    def _ask(self, job: Job, process: ChildProcess, request: bytes) -> bytes:
        stress, limit_s, limit_bytes = job.stress, job.timeout_s, job.memory_bytes
        if stress.slow_compile:
            time.sleep(stress.slow_compile / 1000)
        fault = stress.fault(next(self._numbers)) if stress.fail_compile_every else ""
        if fault:
            request = faults.request_of(fault)
        if fault == "hang":
            limit_s = min(limit_s, faults.HANG_S)
        if fault == "memory":
            limit_bytes = min(limit_bytes, own_bytes(process.pid) + faults.ROOM_BYTES)
        return process.ask(request, limit_s, limit_bytes, job.serve, job.where)

    def _read(self, job: Job, process: ChildProcess, body: bytes) -> Any:
        try:
            return job.read(body)
        except Exception as error:
            process.kill()
            raise WorkerError(f"the answer cannot be read ({type(error).__name__}: {error})", NONSENSE) from None

    def _rest(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.forget()
            self.process = None


class Pool:
    """At most `size` child processes that run `module`, and the jobs that wait for them."""

    def __init__(
        self,
        module: str,
        size: int,
        arguments: Sequence[str] = (),
        name: str = "worker process",
        idle_s: float = IDLE_S,
        first_rest_s: float = FIRST_REST_S,
        sight: Sight | None = None,
    ) -> None:
        self.size = size
        self._sight = Sight() if sight is None else sight
        self._module, self._arguments, self._name = module, arguments, name
        self._idle_s, self._first_rest_s = idle_s, first_rest_s
        self._lock = make_lock()
        self._numbers = itertools.count(1)  # of jobs under stress; its next is one step
        self._begin()
        _POOLS.add(self)

    def _begin(self) -> None:
        self._jobs = JobQueue(self.size, self._sight, lambda: self.pids)
        self._workers: list[Worker] = []
        self._unfinished: dict[Job, None] = {}
        self._deaths = 0
        self._rest_until_s = 0.0
        self._closed = threading.Event()

    def submit(self, job: Job) -> None:
        """Queue a job. One that nobody will work on is finished with an error at once."""
        with self._lock:
            self._unfinished[job] = None
            why = self._make_room()
            if not why:
                self._jobs.put(job)
            ahead = [] if job.kind in PATIENT else [process for w in self._workers if (process := w.process) is not None]
        for process in ahead:  # of what it may wait for
            RIGHT_OF_WAY.hurry(process.pid)
        if why:
            self._finish(job, why)

    def _make_room(self) -> WorkerError | None:
        """Another worker, where there are fewer than jobs and than there may be; why there is nobody at all. Holds the lock."""
        if self._closed.is_set():
            return WorkerError("the workers were stopped", CLOSED)
        if len(self._workers) < min(self.size, len(self._unfinished)):
            try:
                name = f"hotfuse-worker-{len(self._workers)}"
                self._workers.append(Worker(name, self._start, self._idle_s, self._jobs, self._finish, self._numbers))
            except RuntimeError as error:  # no more threads
                return None if self._workers else WorkerError(f"no {self._name} can be started: {error}", START)
        return None

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The labels of all jobs that are queued or worked on, oldest first."""
        with self._lock:
            return tuple(job.label for job in self._unfinished)

    @property
    def held_back(self) -> Counter[str]:
        """How often a job had to wait though there was a worker, by cause."""
        return self._jobs.held_back

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the child processes there are."""
        with self._lock:
            return tuple(process.pid for worker in self._workers if (process := worker.process) is not None)

    def close(self) -> None:
        """Kill the child processes; jobs that are not finished end with an error."""
        with self._lock:
            self._closed.set()
            workers, self._workers = self._workers, []
            jobs = list(self._unfinished)
        for job in jobs:
            self._finish(job, WorkerError("the workers were stopped", CLOSED))
        for worker in workers:
            self._jobs.put(None)
            process = worker.process
            if process is not None:
                process.kill()

    def _start(self) -> ChildProcess:
        """A child, after the rest that is due. Called by a worker's thread."""
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0:
            self._closed.wait(rest_s)
        if self._closed.is_set():
            raise WorkerError("the workers were stopped", CLOSED)
        return ChildProcess(spawned(self._module, self._arguments), self._name)

    def _finish(self, job: Job, result: Any) -> None:
        """Finish a job, if nobody else has."""
        with self._lock:
            mine = job in self._unfinished
            self._unfinished.pop(job, None)
            cause = result.cause if isinstance(result, WorkerError) else ""
            if is_death(result):
                self._rest_until_s = time.monotonic() + min(self._first_rest_s * 2**self._deaths, LONGEST_REST_S)
                self._deaths = min(self._deaths + 1, 60)
            elif cause == RAISED or not isinstance(result, BaseException):  # a child lived to tell
                self._deaths = 0
        self._jobs.done(job)
        if mine:
            finish(job, result)

    def _forget(self) -> None:
        """In a forked child: the processes belong to the parent, and our threads do not exist here."""
        if self._closed.is_set():
            return
        workers, jobs = self._workers, list(self._unfinished)
        self._begin()
        for worker in workers:
            if worker.process is not None:
                worker.process.forget()
        for job in () if is_copy() else jobs:  # a copy has other things to do
            finish(job, WorkerError("the process was forked, and the workers are its parent's", FORKED))


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool._forget()


def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
