"""Runs a suite in child processes, so that a test that crashes or hangs is one failed test and nothing more.

State: a queue of test names that threads, one for each child, take from; each hands its child one name and waits for the
outcome. A child that dies or runs past the limit is replaced when there is more to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from hotfuse.errors import HotfuseError

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


class Died(Exception):
    """The child is gone, or was made to go; the message says how."""


class Child:
    """One worker process and the pipe its answers come through."""

    def __init__(self, job: Job, home: str) -> None:
        receiving, sending = os.pipe()
        arguments = (job.suite, str(sending), "1" if job.without_reference else "0")
        self.process = subprocess.Popen(
            [*job.command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(sending,),
            env={**os.environ, "ONNX_HOME": home},
            text=True,
        )
        os.close(sending)
        self.answers: IO[bytes] = os.fdopen(receiving, "rb", buffering=0)
        self._unread = b""
        self._errors: list[str] = []
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    def _drain(self) -> None:
        """Keep the last lines of the standard error: what a dead child said."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors = [*self._errors[-4:], line.strip()]

    def ask(self, name: str, limit_s: float) -> Outcome:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Died(self._story()) from error
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> Outcome:
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise Died(f"took more than {limit_s:g} s and was stopped")
            data = self.answers.read(1 << 16)
            if not data:
                raise Died(self._story())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        found: Outcome = json.loads(line)
        return found

    def _story(self) -> str:
        code = self.process.wait()
        self._drainer.join(timeout=1.0)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"the process {how}: {' | '.join(self._errors)}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        for stream in (self.process.stdin, self.process.stderr):
            with contextlib.suppress(OSError):  # a line for the dead child may still be in the buffer
                if stream is not None:
                    stream.close()


def run_pool(job: Job, wanted: Callable[[str, bool], bool]) -> Iterator[Outcome]:
    """The outcome of every wanted test (judged by name and by whether it is core), as they come.

    The first item is {"tests": {name: core}} of those that will run.
    """
    with tempfile.TemporaryDirectory(prefix="hotfuse-suite-") as folder:
        homes = [os.path.join(folder, str(number)) for number in range(job.workers)]
        children = [Child(job, home) for home in homes]
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
                children[number] = Child(job, homes[number])
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
