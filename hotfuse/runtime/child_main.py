"""A child process: what every program that works for another process has in common.

It reads frames (a letter, 8 bytes of length, then the body) from the socket that is its standard input, and answers there:

    parent  G  greeting: JSON with the parent's process id and import path
            G  what this program in particular needs to know         ->  A once it is ready, or F
            R  request                                               ->  A answer, or F text: why there is none
            R  nothing: is it there?                                 ->  A nothing
    child   Q  a question while it works on a request                ->  S what the parent serves, or N text: why nothing,
                                                                         or E where those bytes lie in a file (`file_map`)
            B  the same question: the bytes themselves               ->  S or N

It dies with its parent: the kernel kills it (PR_SET_PDEATHSIG), and a thread that reads leaves when the socket closes. Nothing
that it prints can be taken for a frame. This module imports no numpy, so that a program may set its threads before.
State: none between requests but what a program keeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from hotfuse.errors import WorkerError
from hotfuse.file_map import FileId, FilePart

HEADER = struct.Struct("<cQ")
GREETING, REQUEST, SERVED, NOTHING, ELSEWHERE = b"G", b"R", b"S", b"N", b"E"  # from the parent
ANSWER, FAILURE, QUESTION, QUESTION_OF_BYTES = b"A", b"F", b"Q", b"B"  # from the child
REFUSED = "refused"  # the cause of a WorkerError in the child: the parent does not answer its question
PR_SET_PDEATHSIG = 1

AskBack = Callable[[bytes], bytes | memoryview]
Answer = Callable[[bytes, AskBack], bytes]


def run(answer: Answer, prepare: Callable[[bytes], None]) -> NoReturn:
    """Answer requests for as long as the parent lives. `prepare` takes the greeting and imports what every answer needs."""
    _die_with_parent()
    _die_first()
    _leave_no_core()
    parent = _Parent(socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _greet(parent.receive()[1])
    try:
        prepare(parent.receive()[1])
    except Exception as error:
        parent.send(FAILURE, _text(error))
        raise
    parent.send(ANSWER, b"")
    while True:
        _, request = parent.receive()
        try:
            kind, body = ANSWER, answer(request, parent.ask_back) if request else b""
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit of a model, too
            kind, body = FAILURE, _text(error)
        parent.send(kind, body)
        parent.forget_files()
        del request, body  # not kept until the next one comes


class _Parent:
    """The other end of the socket. State: frames that came and that nobody has taken yet; files that were mapped for this
    request, each once: a mapping keeps a descriptor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._files: dict[FileId, memoryview] = {}
        self._frames: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read_frames, daemon=True).start()

    def _read_frames(self) -> None:
        with self._connection.makefile("rb") as stream:
            while header := stream.read(HEADER.size):
                kind, size = HEADER.unpack(header)
                self._frames.put((kind, stream.read(size)))
        os._exit(0)

    def receive(self) -> tuple[bytes, bytes]:
        return self._frames.get()

    def forget_files(self) -> None:
        """Nothing is asked any more."""
        self._files.clear()

    def send(self, kind: bytes, body: bytes) -> None:
        self._connection.sendall(HEADER.pack(kind, len(body)))
        self._connection.sendall(body)

    def ask_back(self, question: bytes) -> bytes | memoryview:
        """What the parent serves; `WorkerError` with its words where it does not."""
        self.send(QUESTION, question)
        kind, body = self.receive()
        if kind == ELSEWHERE:
            part = FilePart.read(body)
            file = self._files.get(part.file) or part.file.open()
            if file is not None:
                self._files[part.file] = file
                return part.within(file)
            self.send(QUESTION_OF_BYTES, question)
            kind, body = self.receive()
        if kind != SERVED:
            raise WorkerError(body.decode(errors="replace"), REFUSED)
        return body


def _greet(body: bytes) -> None:
    hello: dict[str, Any] = json.loads(body)
    if os.getppid() != hello["parent"]:  # it was gone before the kernel knew that we care
        os._exit(0)
    sys.path[:] = hello["path"]


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _die_first() -> None:
    """Where the machine is out of memory the kernel takes this process, not the one that serves."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _leave_no_core() -> None:
    """A crash is reported, not kept: nobody wants a copy of this memory in the folder that a server was started in."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _text(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {error}".encode(errors="replace")
