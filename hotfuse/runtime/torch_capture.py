"""Capture off the request path: the parent's side.

    submit(job) -> the capture thread makes the skeleton -> a warm child process traces it -> `job.finish(Trace | CaptureError)`

State: one worker per urgency (background captures run at a low priority, ones that a caller waits for do not), started on first
use. A child that hangs, dies or eats too much memory is killed and the next job gets a fresh one; the job itself is never tried
again. A child without work for `IDLE_S` is stopped. A forked copy of this process forgets all of it. Every job is finished,
once, whatever happens to it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotfuse.config import Config
from hotfuse.errors import CaptureError, WorkerError
from hotfuse.frontends.torch_request import SelfChange
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried, hurry
from hotfuse.runtime.capture_worker import answer
from hotfuse.runtime.child import DIED, MEMORY, START, TIMEOUT, ChildProcess
from hotfuse.runtime.child import resident_bytes as resident_bytes
from hotfuse.runtime.parcel import unwrap
from hotfuse.runtime.workers import IDLE_S, Job, Worker

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import Trace

_ADVICE = {
    TIMEOUT: " (capture_timeout_s); the model stays eager",
    MEMORY: " (max_capture_bytes); the model stays eager",
    DIED: "; the model stays eager",
    START: "; use capture='blocking'",
}


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
            name = "hotfuse-capture" + ("-urgent" if urgent else "")
            worker = _workers[urgent] = Worker(name, lambda: CaptureProcess(urgent), IDLE_S)
    worker.jobs.put(_asked(job, urgent))


def _asked(job: CaptureJob, urgent: bool) -> Job:
    return Job(
        "capture",
        job.make,
        lambda found: job.finish(_as_capture_error(found) if isinstance(found, BaseException) else found),
        job.timeout_s,
        job.memory_bytes,
        read=lambda body: _read(body, hurry if urgent else Unhurried()),
    )


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
        with contextlib.suppress(Exception):
            job.finish(result)


def make_job(make: Callable[[], bytes], finish: Callable[[Trace | CaptureError], None], config: Config) -> CaptureJob:
    return CaptureJob(make, finish, config.capture_timeout_s, config.max_capture_bytes)


def _as_capture_error(error: BaseException) -> CaptureError:
    if isinstance(error, WorkerError):
        advised = CaptureError(f"{error}{_ADVICE.get(error.cause, '')}")
        advised.__cause__ = error
        return advised
    return error if isinstance(error, CaptureError) else CaptureError(f"{type(error).__name__}: {error}")


def _read(body: bytes, pace: Pace) -> Trace | CaptureError:
    """A reply that holds what this process cannot import is no fault of the child's, which goes on."""
    try:
        return _reply(body, pace)
    except Exception as error:
        return _as_capture_error(error)


def _reply(body: bytes, pace: Pace = hurry) -> Trace | CaptureError:
    kind, content = unwrap(body, pace)
    return content if kind == "done" else SelfChange(content) if kind == "changed" else CaptureError(*content)


class CaptureProcess(ChildProcess):
    """A child process that traces modules, one request at a time."""

    def __init__(self, urgent: bool) -> None:
        arguments = () if urgent else ("--behind",)
        hello = json.dumps(_hello()).encode()
        super().__init__("hotfuse.runtime.capture_worker", arguments, "capture process", hello, behind=not urgent)


def _hello() -> dict[str, Any]:
    """What a model's code may look at."""
    try:
        directory = os.getcwd()
    except OSError:
        directory = os.sep
    return {"directory": directory, "arguments": list(map(str, sys.argv)), "recursion": sys.getrecursionlimit()}


def stop_workers() -> None:
    """Kill the child processes; jobs still queued are never finished."""
    for worker in list(_workers.values()):
        process = worker.process
        if process is not None:
            process.kill()


def _drop_after_fork() -> None:
    """In a forked child: the processes belong to the parent, and their threads do not exist here."""
    for worker in _workers.values():
        if worker.process is not None:
            worker.process.forget()
    _workers.clear()


_lock = make_lock()
_here = make_lock()
_workers: dict[bool, Worker] = {}
os.register_at_fork(after_in_child=_drop_after_fork)
atexit.register(stop_workers)
