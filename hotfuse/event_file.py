"""A file of events, a line of JSON each, that any number of models, threads and processes append to.

    emit -> a bounded queue -> the file's thread: one write a line

Whoever emits waits for no disk. Lines that find the queue full, or that cannot be written, are dropped and counted, and the
file says so where it goes on. A file that would grow beyond its limit is renamed to `<path>.1`, in place of the one that was
there, and a new one is begun. Nobody but the owner may read it.

State: the queue, the thread while there is something to write, the open file, and counts. A forked child has an empty queue and
goes on with the file; what waited is the parent's to write.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from hotfuse.locks import make_lock

QUEUED = 10_000  # lines that wait
IDLE_S = 5.0  # without a line, until the thread ends
REST_S = 5.0  # after a failure, until the file is tried again
LIMIT_BYTES = 64 << 20
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Record = Callable[[], dict[str, Any]]


class EventFile:
    """`failure` says why lines were last dropped."""

    def __init__(self, path: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self.failure = ""
        self._refused = self._failed = 0  # lines: by whoever puts, by whoever writes
        self._told = 0  # of those dropped, in the file
        self._file = -1
        self._is_torn = False  # the last line is not whole
        self._rest_until_s = 0.0
        self._lock, self._writing = make_lock(), make_lock()
        self._begin()
        _FILES.add(self)

    def _begin(self) -> None:
        self._waiting: deque[tuple[Record, str]] = deque()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """How many lines were not written."""
        return self._refused + self._failed

    def put(self, record: Record, model: str) -> None:
        """Have what `record` returns written, by and by."""
        with self._lock:
            if len(self._waiting) >= QUEUED:
                self._refused, self.failure = self._refused + 1, "more happened than could be written"
                return
            self._waiting.append((record, model))
            if self._thread is None:
                self._start()
        self._woken.set()

    def _start(self) -> None:
        try:
            self._thread = threading.Thread(target=self._run, name="hotfuse-events", daemon=True)
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends: `flush` writes what waits
            self._thread = None

    def flush(self, timeout_s: float = 1.0) -> None:
        """Write what waits, here and now, unless the disk takes too long."""
        if self._writing.acquire(timeout=timeout_s):
            try:
                self._write_all()
            finally:
                self._writing.release()

    # the file's thread

    def _run(self) -> None:
        while True:
            is_idle = not self._woken.wait(IDLE_S)
            self._woken.clear()
            with self._writing:
                self._write_all()
            with self._lock:
                if is_idle and not self._waiting:
                    self._thread = None
                    return

    def _write_all(self) -> None:
        while self._waiting:
            record, model = self._waiting.popleft()
            try:
                line = _line(record(), model)
                if self.dropped > self._told:
                    self._append(_line(self._loss(), ""))
                self._append(line)
            except Exception as error:  # no event may end the thread that writes all of them
                self._fail(f"{type(error).__name__}: {error}")

    def _loss(self) -> dict[str, Any]:
        lost, self._told = self.dropped - self._told, self.dropped
        return {"time_s": time.time(), "kind": "log.dropped", "subject": self.path, "reason": self.failure, "count": lost}

    def _append(self, line: bytes) -> None:
        if time.monotonic() < self._rest_until_s:
            self._fail(self.failure)
            return
        try:
            whole = b"\n" + line if self._is_torn else line
            self._is_torn = os.write(self._opened(len(whole)), whole) < len(whole)
            if self._is_torn:
                raise OSError(errno.ENOSPC, "the disk took half a line")
        except OSError as error:
            self._close()
            self._rest_until_s = time.monotonic() + REST_S
            self._fail(f"{error.strerror}")

    def _fail(self, reason: str) -> None:
        self._failed, self.failure = self._failed + 1, reason

    def _opened(self, more: int) -> int:
        """The file to append to: the one that bears the name now, with room for so many bytes more."""
        if self._file >= 0 and not self._is_current():
            self._close()
        if self._file < 0:
            self._file = self._open()
        size = os.fstat(self._file).st_size
        if size and size + more > self.limit_bytes:
            self._rotate()
        return self._file

    def _open(self) -> int:
        file = os.open(self.path, _OPEN, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is no regular file")
        return file

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        """Begin a new file. Of several processes one renames, for the lock is on what is renamed; the others find that done."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another one is at it: a line too many does no harm
            return
        if self._is_current():
            os.rename(self.path, f"{self.path}.1")
        self._close()  # which unlocks
        self._file = self._open()

    def _close(self) -> None:
        file, self._file = self._file, -1  # first, so that a process forked amid this has no number of a closed file
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)

    def __del__(self) -> None:
        self._close()


def _line(record: dict[str, Any], model: str) -> bytes:
    whose = {"pid": os.getpid(), **({"model": model} if model else {})}
    return json.dumps({**record, **whose}, allow_nan=False).encode() + b"\n"


def open_event_file(path: str, limit_bytes: int = LIMIT_BYTES) -> EventFile:
    """The file of a path, one for all models of the process. Nothing is opened before there is a line to write."""
    full = os.path.abspath(path)
    with _LOCK:
        found = _BY_PATH.get(full)
        if found is None:
            found = _BY_PATH[full] = EventFile(full, limit_bytes)
        return found


def dropped_lines() -> int:
    """Of all files that are open."""
    return sum(file.dropped for file in tuple(_FILES))


def _flush_all() -> None:
    for file in tuple(_FILES):
        file.flush()


def _begin_all() -> None:
    for file in tuple(_FILES):
        file._begin()


_LOCK = make_lock()
_FILES: weakref.WeakSet[EventFile] = weakref.WeakSet()
_BY_PATH: weakref.WeakValueDictionary[str, EventFile] = weakref.WeakValueDictionary()
atexit.register(_flush_all)
os.register_at_fork(after_in_child=_begin_all)
