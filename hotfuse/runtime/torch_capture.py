"""Capture off the request path: the parent's side.

    submit(job) -> the capture thread makes the skeleton -> a warm child process traces it -> `job.finish(Trace | CaptureError)`

The child is a copy of this process, which has imported torch and the model's library already, where one may be made
(`child_start`), and else a fresh one. A child that hangs, dies or eats too much memory is killed and the next job gets another.
Where a copy hangs or dies, its job is tried in a fresh process and no copy is made any more; else no job is tried twice.

State: one worker per urgency (background captures run at a low priority, ones that a caller waits for do not) and kind of
child, started on first use, and whether a copy was lost. A child without work for `IDLE_S` is stopped. A forked copy of this
process forgets all of it. Every job is finished, once, whatever happens to it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config
from hotfuse.errors import CaptureError, WorkerError
from hotfuse.frontends.torch_request import SelfChange
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried, hurry
from hotfuse.records import dataclass
from hotfuse.runtime.capture_worker import answer, main
from hotfuse.runtime.child import DIED, HUNG, MEMORY, START, TIMEOUT, ChildProcess
from hotfuse.runtime.child import resident_bytes as resident_bytes
from hotfuse.runtime.child_start import forked, spawned, why_not_fork
from hotfuse.runtime.memory import give_back
from hotfuse.runtime.parcel import unwrap
from hotfuse.runtime.workers import IDLE_S, Job, Worker

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import Trace

HANG_S = 10.0  # in which a copy does nothing
FORK_S = 0.035  # for every GiB
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
    """`make` returns the request's bytes; `finish` takes the trace or the reason why there is none. A `copy` of this process
    may work on it; `lost` hears why one that did is no more."""

    make: Callable[[], bytes]
    finish: Callable[[Trace | CaptureError], None]
    timeout_s: float
    memory_bytes: int
    copy: bool
    lost: Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """Of a worker."""

    urgent: bool
    copy: bool


def submit(job: CaptureJob, urgent: bool) -> Worker:
    """Queue a job; it is worked on by another thread, in a child process: that of the worker."""
    kind = Kind(urgent, job.copy and not _why_not_copy())
    with _lock:
        worker = _workers.get(kind)
        if worker is None:
            name = "hotfuse-capture" + ("-urgent" if urgent else "")
            worker = _workers[kind] = Worker(name, lambda: CaptureProcess(kind), IDLE_S)
    worker.jobs.put(_asked(job, kind))
    return worker


def _why_not_copy() -> str:
    """Why no copy of this process is to work on a capture; "" if one may."""
    if _lost:
        return _lost[0]
    if torch.cuda.is_initialized():
        return "CUDA cannot be used in a copy of a process that uses it"
    return why_not_fork(resident_bytes(os.getpid()))


def _asked(job: CaptureJob, kind: Kind) -> Job:
    def finish(found: Any) -> None:
        if kind.copy and isinstance(found, WorkerError) and found.cause in (DIED, HUNG, START) and not _stopping:
            if found.cause != START:
                _lost.append(f"a copy was lost before: {found}")
                with contextlib.suppress(Exception):
                    job.lost(str(found))
            try:
                submit(replace(job, copy=False), kind.urgent)
                return
            except Exception as error:  # no more threads
                found = error
        job.finish(_as_capture_error(found) if isinstance(found, BaseException) else found)

    return Job(
        "capture",
        job.make,
        finish,
        job.timeout_s,
        job.memory_bytes,
        read=lambda body: _read(body, hurry if kind.urgent else Unhurried()),
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


def make_job(
    make: Callable[[], bytes],
    finish: Callable[[Trace | CaptureError], None],
    config: Config,
    lost: Callable[[str], None] = lambda why: None,
) -> CaptureJob:
    copy = config.capture != "spawn"
    return CaptureJob(make, finish, config.capture_timeout_s, config.max_capture_bytes, copy, lost)


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

    def __init__(self, kind: Kind) -> None:
        behind = not kind.urgent
        hello = json.dumps(_hello()).encode()
        if kind.copy:
            if behind:  # not amid a call, and without what calls have freed: see docs/decisions/0021
                Unhurried().rest()
                Unhurried().make_room(FORK_S * resident_bytes(os.getpid()) / (1 << 30))
                give_back()
            super().__init__(forked(main), "capture process", hello, behind, HANG_S)
        else:
            super().__init__(spawned("hotfuse.runtime.capture_worker"), "capture process", hello, behind)


def _hello() -> dict[str, Any]:
    """What a model's code may look at."""
    try:
        directory = os.getcwd()
    except OSError:
        directory = os.sep
    return {"directory": directory, "arguments": list(map(str, sys.argv)), "recursion": sys.getrecursionlimit()}


def stop_workers() -> None:
    """Kill the child processes; jobs still queued are never finished."""
    _stopping.append(True)
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
_workers: dict[Kind, Worker] = {}
_lost: list[str] = []  # why copies are not made any more
_stopping: list[bool] = []  # the process ends, and starts nothing
os.register_at_fork(after_in_child=_drop_after_fork)
atexit.register(stop_workers)
