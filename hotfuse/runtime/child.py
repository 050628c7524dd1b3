"""A child process, seen from its parent: it is started, asked one request at a time, and killed when it misbehaves.

    ask(request) -> answer                       meanwhile the child may ask back, and `serve` answers

`runtime/child_main` is the other side and says what goes over the socket between them. A request that is not answered in time,
or whose child grows too large, dies or answers what is no frame, costs the child its life. What became of it is the `cause` of
the error:

    start     no process could be started
    timeout   it took too long (`child_time`)
    hung      it did nothing for too long
    memory    it grew too large
    died      it ended by itself: a crash, the kernel short of memory, or a program that cannot be imported
    nonsense  it sent what nobody can read
    raised    its program raised an error, and it lives on

The kernel kills a child with the thread that started it, so that thread has to outlive it.

State: the process, our end of the socket, and whether it was greeted. One thread asks; any thread may kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from hotfuse.errors import WorkerError
from hotfuse.file_map import FilePart
from hotfuse.rank import lower
from hotfuse.records import dataclass
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.child_main import (
    ANSWER,
    ELSEWHERE,
    FAILURE,
    GREETING,
    HEADER,
    NOTHING,
    QUESTION,
    QUESTION_OF_BYTES,
    REQUEST,
    SERVED,
)
from hotfuse.runtime.child_start import Forked, Start
from hotfuse.runtime.child_time import ChildTime

START, TIMEOUT, HUNG, MEMORY, DIED = "start", "timeout", "hung", "memory", "died"
NONSENSE, RAISED = "nonsense", "raised"
POLL_S = 0.2  # between looks at a child
PATIENCE = 10  # times as long as it may take, where it waits for a core
MAPPED_BYTES = 1 << 14  # that are worth mapping: to send a page costs less
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)

Serve = Callable[[bytes], bytes | memoryview]
Where = Callable[[bytes], FilePart | None]


@dataclass(frozen=True)
class _Limits:
    """Of one request, and the time that was had for it."""

    timeout_s: float
    deadline_s: float
    memory_bytes: int
    time: ChildTime


class ChildProcess:
    """A process that runs a program of `child_main.run`. Errors call it by `name`; the program takes `greeting` before it is
    asked anything. One that nobody waits for works `behind` the models of this process. One that does nothing for `idle_s`
    seconds in which it could hangs."""

    def __init__(
        self,
        start: Start,
        name: str = "worker process",
        greeting: bytes = b"",
        behind: bool = True,
        idle_s: float = math.inf,
    ) -> None:
        self._name, self._greeting, self._greeted, self._behind, self._idle_s = name, greeting, False, behind, idle_s
        try:
            # Not pipes: to write to one whose reader died is a signal, which ends programs that take it as they find it.
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = start(theirs.fileno())
        except (OSError, Warning) as error:  # Python warns of forks, and some take warnings for errors
            raise WorkerError(f"no {name} can be started: {error}", START) from error
        self.pid = self._process.pid
        if behind:
            lower(self.pid)
        self._inherited_bytes = own_bytes(self.pid) if isinstance(self._process, Forked) else 0
        self._socket.setblocking(False)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def at_work(self, rare: bool = False) -> contextlib.AbstractContextManager[None]:
        """While it is asked something, in no hurry if that is `rare`, and a moment longer: it puts its tools away after its
        answer."""
        return RIGHT_OF_WAY.behind(self.pid, rare) if self._behind else contextlib.nullcontext()

    def ask(
        self,
        request: bytes,
        timeout_s: float,
        memory_bytes: int,
        serve: Serve | None = None,
        where: Where | None = None,
    ) -> bytes:
        """The answer to one request. A process that does not give one within the limits is killed. What it asks meanwhile
        `serve` answers; where `where` knows of a file that the answer lies in, it is told that, and maps it."""
        limits = _Limits(timeout_s, time.monotonic() + PATIENCE * timeout_s, memory_bytes, ChildTime(self.pid))
        try:
            if not self._greeted:
                self._greet(limits)
            self._send(REQUEST, request, limits)
            kind, body = self._receive(limits)
            while kind in (QUESTION, QUESTION_OF_BYTES):
                self._check(limits, asks=True)
                answer = _served(serve, where if kind == QUESTION else None, body)
                limits.time.resume()
                self._send(*answer, limits)
                kind, body = self._receive(limits)
        except BaseException:
            self.kill()
            self.forget()
            raise
        if kind == FAILURE:
            raise WorkerError(body.decode(errors="replace"), RAISED)
        return body

    def kill(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self.alive:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except ProcessLookupError:  # it has no group yet
                    os.kill(self.pid, signal.SIGKILL)
            self._process.wait(timeout=10)

    def forget(self) -> None:
        """Close our end of the socket: for the thread that asks, and for a forked process, whose child it is not."""
        self._socket.close()

    def _greet(self, limits: _Limits) -> None:
        self._send(GREETING, _hello(), limits)
        self._send(GREETING, self._greeting, limits)
        kind, body = self._receive(limits)
        if kind != ANSWER:
            raise WorkerError(f"the {self._name} cannot begin: {body.decode(errors='replace')}", DIED)
        self._greeted = True

    def _send(self, kind: bytes, body: bytes | memoryview, limits: _Limits) -> None:
        for part in (HEADER.pack(kind, len(body)), body):
            view = memoryview(part)
            while view:
                self._wait_for(select.POLLOUT, limits)
                try:
                    view = view[self._socket.send(view, _NO_SIGNAL) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    raise self._died() from None

    def _receive(self, limits: _Limits) -> tuple[bytes, bytes]:
        kind, size = HEADER.unpack(self._read(HEADER.size, limits))
        if kind not in (ANSWER, FAILURE, QUESTION, QUESTION_OF_BYTES) or size > limits.memory_bytes:
            raise WorkerError(f"the {self._name} answered what is no answer, and was stopped", NONSENSE)
        return kind, self._read(size, limits)

    def _read(self, size: int, limits: _Limits) -> bytes:
        parts: list[bytes] = []
        while size:
            self._wait_for(select.POLLIN, limits)
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except BlockingIOError:
                continue
            except ConnectionError:
                part = b""
            if not part:
                raise self._died()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait_for(self, event: int, limits: _Limits) -> None:
        """Until the socket can be read or written, or was closed."""
        poll = select.poll()  # `select` knows no descriptors past 1023
        poll.register(self._socket, event)
        while True:
            if time.monotonic() - limits.time.seen_s >= POLL_S:
                self._check(limits)
            if poll.poll(min(max(limits.timeout_s - limits.time.had_s, 0.0), POLL_S) * 1000):
                return
            self._check(limits)

    def _check(self, limits: _Limits, asks: bool = False) -> None:
        self._check_memory(limits)
        limits.time.look(asks)  # before it goes on, if it is to: it did not have the time in which it stood
        RIGHT_OF_WAY.review()
        if limits.time.had_s >= limits.timeout_s:
            raise WorkerError(f"the {self._name} took longer than {limits.timeout_s:g} s and was stopped", TIMEOUT)
        if time.monotonic() >= limits.deadline_s:
            why = f"came to no end in {PATIENCE * limits.timeout_s:g} s, with too little time on a core"
            raise WorkerError(f"the {self._name} {why}, and was stopped", TIMEOUT)
        if limits.time.idle_s > self._idle_s:
            raise WorkerError(f"the {self._name} did nothing for {self._idle_s:g} s and was stopped", HUNG)

    def _check_memory(self, limits: _Limits) -> None:
        used = own_bytes(self.pid) - self._inherited_bytes
        if used > limits.memory_bytes:
            raise WorkerError(
                f"the {self._name} used {used:,} bytes, the limit is {limits.memory_bytes:,}, and was stopped", MEMORY
            )

    def _died(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        status = self._process.returncode
        how = signal.strsignal(-status) if status is not None and status < 0 else f"exit status {status}"
        return WorkerError(f"the {self._name} died ({how})", DIED)


def _served(serve: Serve | None, where: Where | None, question: bytes) -> tuple[bytes, bytes | memoryview]:
    if serve is None:
        return NOTHING, b"nobody serves questions about this request"
    try:
        part = None if where is None else where(question)
        worth_it = part is not None and part.size >= MAPPED_BYTES
        return (ELSEWHERE, part.text()) if part is not None and worth_it else (SERVED, serve(question))
    except Exception as error:  # the child hears of it, and says what it could not do without
        return NOTHING, f"{type(error).__name__}: {error}".encode(errors="replace")


def _hello() -> bytes:
    return json.dumps({"parent": os.getpid(), "path": [p for p in sys.path if isinstance(p, str)]}).encode()


def resident_bytes(pid: int) -> int:
    """Physical memory of a process, in bytes; 0 where nobody can tell."""
    return _memory_pages(pid)[0] * os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int:
    """The same without what it maps of files, which others may need as well, and which the system can drop."""
    resident, shared = _memory_pages(pid)
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _memory_pages(pid: int) -> tuple[int, int]:
    """All that are there, and those of files."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
            return int(fields[1]), int(fields[2])
    except (OSError, ValueError, IndexError):
        return 0, 0
