"""Capture off the request path: the parent's side.

    submit(job) -> the capture thread makes the skeleton -> a warm child process traces it -> `job.finish(Trace | CaptureError)`

State: one capture thread and one child process per urgency (background captures run at idle priority, ones that a caller waits
for do not), both started on first use. A child that hangs, dies or eats too much memory is killed and the next job gets a
fresh one; the job itself is never tried again. A child without work for `IDLE_S` is stopped. A forked copy of this process
forgets all of it. Every job is finished, once, whatever happens to it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotfuse.config import Config
from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_request import SelfChange
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried, hurry
from hotfuse.runtime.capture_worker import LENGTH, answer

if TYPE_CHECKING:
    from hotfuse.frontends.torch_trace import Trace

POLL_S = 0.2
IDLE_S = 120.0


class Postponed(CaptureError):
    """A capture that did not come about because of how things are now; the next call may ask again."""


@dataclass(frozen=True)
class CaptureJob:
    """`make` returns the request's bytes; `finish` takes the trace or the reason why there is none."""

    make: Callable[[], bytes]
    finish: Callable[[Trace | CaptureError], None]
    timeout_s: float
    memory_bytes: int


def submit(job: CaptureJob, urgent: bool) -> None:
    """Queue a job; it is worked on by another thread, in a child process."""
    with _lock:
        worker = _workers.get(urgent)
        if worker is None:
            worker = _workers[urgent] = _Worker(urgent)
    worker.jobs.put(job)


def capture_here(job: CaptureJob) -> None:
    """Work on a job in this process and thread (`capture="blocking"`), one at a time."""
    result: Trace | CaptureError = Postponed("the capture was interrupted")
    try:
        with _here, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export's are about itself
            result = _reply(answer(job.make()))
    except Exception as error:
        result = _as_capture_error(error)
    finally:
        _finish(job, result)


def make_job(make: Callable[[], bytes], finish: Callable[[Trace | CaptureError], None], config: Config) -> CaptureJob:
    return CaptureJob(make, finish, config.capture_timeout_s, config.max_capture_bytes)


class _Worker:
    """A thread with a queue of jobs and, once the first job came, a child process."""

    def __init__(self, urgent: bool) -> None:
        self.jobs: queue.SimpleQueue[CaptureJob] = queue.SimpleQueue()
        self.urgent = urgent
        self.process: CaptureProcess | None = None
        name = "hotfuse-capture" + ("-urgent" if urgent else "")
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._work_on(self._next())  # nothing is named here: between jobs a name would keep the last model alive

    def _next(self) -> CaptureJob:
        try:
            return self.jobs.get(timeout=IDLE_S)
        except queue.Empty:
            self._rest()
            return self.jobs.get()

    def _work_on(self, job: CaptureJob) -> None:
        try:
            request = job.make()
            if self.process is None or not self.process.alive:
                self.process = CaptureProcess(self.urgent)
            body = self.process.ask(request, job.timeout_s, job.memory_bytes)
            result = _reply(body, hurry if self.urgent else Unhurried())
        except BaseException as error:  # this thread serves every model of the process and must go on
            result = _as_capture_error(error)
        _finish(job, result)

    def _rest(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None


def _as_capture_error(error: BaseException) -> CaptureError:
    return error if isinstance(error, CaptureError) else CaptureError(f"{type(error).__name__}: {error}")


def _finish(job: CaptureJob, result: Trace | CaptureError) -> None:
    with contextlib.suppress(Exception):
        job.finish(result)


def _reply(body: bytes, pace: Pace = hurry) -> Trace | CaptureError:
    kind, content = pickle.load(_Paced(body, pace))  # from a child that this process started, over a pipe nobody else holds
    return content if kind == "done" else SelfChange(content) if kind == "changed" else CaptureError(*content)


class _Paced(io.BytesIO):
    """Bytes that are read at a pace; pickle reads 64 KiB at a time."""

    def __init__(self, body: bytes, pace: Pace) -> None:
        super().__init__(body)
        self._pace = pace

    def read(self, size: int | None = -1) -> bytes:
        self._pace()
        return super().read(size)


class CaptureProcess:
    """A child process that traces modules, one request at a time."""

    def __init__(self, urgent: bool) -> None:
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)
        command = [sys.executable, "-P", "-m", "hotfuse.runtime.capture_worker", *(() if urgent else ("--idle",))]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                process_group=0,  # Ctrl-C is the parent's. Not a session: autogroups give each an equal share, however nice
            )
        except OSError as error:
            raise CaptureError(f"no capture process can be started: {error}; use capture='blocking'") from error
        self.pid = self._process.pid
        self._greeted = False
        os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
        os.set_blocking(self._process.stdout.fileno(), False)  # type: ignore[union-attr]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, timeout_s: float, memory_bytes: int) -> bytes:
        """The answer to one request. A process that does not give one in time is killed."""
        deadline = time.monotonic() + timeout_s
        try:
            if not self._greeted:
                self._send(json.dumps(_hello()).encode(), deadline)
                self._receive(deadline, memory_bytes)
                self._greeted = True
            self._send(request, deadline)
            return self._receive(deadline, memory_bytes)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
            self._process.wait(timeout=10)
        self.forget()

    def forget(self) -> None:
        """Close our ends of the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _send(self, body: bytes, deadline: float) -> None:
        target = self._process.stdin.fileno()  # type: ignore[union-attr]
        view = memoryview(LENGTH.pack(len(body)) + body)
        while view:
            try:
                view = view[os.write(target, view) :] if _ready(target, select.POLLOUT, self._left(deadline)) else view
            except BrokenPipeError:
                raise self._died() from None

    def _receive(self, deadline: float, memory_bytes: int) -> bytes:
        header = self._read(LENGTH.size, deadline, memory_bytes)
        return self._read(LENGTH.unpack(header)[0], deadline, memory_bytes)

    def _read(self, size: int, deadline: float, memory_bytes: int) -> bytes:
        source = self._process.stdout.fileno()  # type: ignore[union-attr]
        parts: list[bytes] = []
        while size:
            if _ready(source, select.POLLIN, self._left(deadline)):
                part = os.read(source, min(size, 1 << 20))
                if not part:
                    raise self._died()
                parts.append(part)
                size -= len(part)
            elif (used := resident_bytes(self.pid)) > memory_bytes:
                raise CaptureError(
                    f"the capture process used {used:,} bytes, the limit is {memory_bytes:,} (max_capture_bytes)"
                )
        return b"".join(parts)

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise CaptureError("the capture took longer than capture_timeout_s; the model stays eager")
        return min(left, POLL_S)

    def _died(self) -> CaptureError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return CaptureError(f"the capture process died (exit status {self._process.returncode}); the model stays eager")


def _ready(descriptor: int, event: int, timeout_s: float) -> bool:
    """Whether a pipe can be read or written (or was closed) before the time is over."""
    poll = select.poll()  # `select` knows no descriptors past 1023
    poll.register(descriptor, event)
    return bool(poll.poll(timeout_s * 1000))


def resident_bytes(pid: int) -> int:
    """Physical memory of a process, in bytes; 0 where nobody can tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _hello() -> dict[str, Any]:
    try:
        directory = os.getcwd()
    except OSError:
        directory = os.sep
    return {
        "parent": os.getpid(),
        "path": [p for p in sys.path if isinstance(p, str)],
        "directory": directory,
        "arguments": list(map(str, sys.argv)),
        "recursion": sys.getrecursionlimit(),
    }


def stop_workers() -> None:
    """Kill the child processes; jobs still queued are never finished."""
    for worker in list(_workers.values()):
        if worker.process is not None:
            worker.process.kill()


def _drop_after_fork() -> None:
    """In a forked child: the processes belong to the parent, and their threads do not exist here."""
    for worker in _workers.values():
        if worker.process is not None:
            worker.process.forget()
    _workers.clear()


_lock = make_lock()
_here = make_lock()
_workers: dict[bool, _Worker] = {}
os.register_at_fork(after_in_child=_drop_after_fork)
atexit.register(stop_workers)
