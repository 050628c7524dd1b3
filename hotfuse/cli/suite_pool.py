"""Runs a suite in child processes, so that a test that crashes or hangs is one failed test and nothing more.

State: a queue of test names that threads, one for each child, take from; each hands its child one name and waits for the
outcome. A child that dies or runs past the limit is replaced when there is more to run.
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from hotfuse.cli.child import Child, Died
from hotfuse.errors import HotfuseError
from hotfuse.records import dataclass

START_LIMIT_S = 300.0  # building a suite's cases takes seconds; minutes mean that something hangs
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Which suite to run, and how. `limit_s` is the most that one test may take."""

    suite: str
    without_reference: bool = False
    workers: int = 1
    limit_s: float = 300.0
    command: tuple[str, ...] = field(default=(sys.executable, "-m", "hotfuse.cli.suite_worker"))


def _child(job: Job, home: str) -> Child:
    without = "1" if job.without_reference else "0"
    return Child(lambda descriptor: [*job.command, job.suite, str(descriptor), without], {"ONNX_HOME": home})


def run_pool(job: Job, wanted: Callable[[str, bool], bool]) -> Iterator[Outcome]:
    """The outcome of every wanted test (judged by name and by whether it is core), as they come.

    The first item is {"tests": {name: core}} of those that will run.
    """
    with tempfile.TemporaryDirectory(prefix="hotfuse-suite-") as folder:
        homes = [os.path.join(folder, str(number)) for number in range(job.workers)]
        children = [_child(job, home) for home in homes]
        try:
            names = {name: core for name, core in _start(children[0]).items() if wanted(name, core)}
            yield {"tests": names}
            pending: queue.SimpleQueue[str] = queue.SimpleQueue()
            for name in names:
                pending.put(name)
            done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
            for number in range(job.workers):
                arguments = (job, children, homes, number, names, pending, done)
                threading.Thread(target=_work, args=arguments, daemon=True).start()
            for _ in names:
                outcome = done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            for child in children:
                child.close()


def _start(child: Child) -> Mapping[str, bool]:
    try:
        found: Mapping[str, bool] = child.answer(START_LIMIT_S)["tests"]
    except Died as died:
        raise HotfuseError(f"the suite could not be started: {died}; `hotfuse doctor` shows what is missing") from died
    return found


def _work(
    job: Job,
    children: list[Child],
    homes: list[str],
    number: int,
    names: Mapping[str, bool],
    pending: queue.SimpleQueue[str],
    done: queue.SimpleQueue[Outcome | BaseException],
) -> None:
    alive = True
    ready = number == 0  # the first child has listed its tests already
    while True:
        try:
            name = pending.get_nowait()
        except queue.Empty:
            return
        begun = time.perf_counter()
        try:
            if not alive:
                children[number] = _child(job, homes[number])
            if not ready:
                _start(children[number])
            alive = ready = True
            done.put(children[number].ask(name, job.limit_s))
        except Died as died:
            children[number].close()
            alive = ready = False
            seconds = time.perf_counter() - begun
            lost = {
                "name": name,
                "passed": False,
                "reason": str(died),
                "seconds": seconds,
                "core": names[name],
                "crashed": True,
            }
            done.put(lost)
        except BaseException as error:
            done.put(error)
            return
