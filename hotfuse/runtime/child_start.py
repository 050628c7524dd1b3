"""Two ways to start a child process.

    spawned   a program from nothing: it imports what it needs, and knows nothing of this process
    forked    a copy of this process: all that is imported here is there at once, which saves seconds of a core

In a copy there is one thread. Whatever lock another thread of ours held at that moment stays locked there: ours are free
(`locks`), those of Python, of malloc and of the loader, too, and a library's may not be. So a copy may hang, and who starts one
needs another way then. What others are importing is waited for; what they begin meanwhile a copy imports anew. It gives up
what is not its own: descriptors, handlers of signals, a place in the parent's group, and garbage, which the parent still has to
see to.

State: none.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from hotfuse.locks import copying, half_imported, make_lock

LOOK_S = 0.002  # between looks whether a copy has ended, or an import
IMPORTS_S = 1.0  # that are waited for
_DISTURBED = ("grpc",)  # libraries that do not take a fork well
_CAN_FORK = sys.platform == "linux"
LARGEST_BYTES = 2 << 30  # of physical memory: it takes 35 ms for each GiB, in which no call goes on


class Process(Protocol):
    """What `subprocess.Popen` and `Forked` have in common."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[[int], Process]  # takes the descriptor that becomes the child's standard input


def spawned(module: str, arguments: Sequence[str] = ()) -> Start:
    """A fresh interpreter that runs a module."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)

    def start(descriptor: int) -> Process:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=descriptor,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is the parent's. No session: autogroups give each an equal share, however nice
        )

    return start


def forked(main: Callable[[], NoReturn]) -> Start:
    """A copy of this process that runs `main` and nothing else."""

    def start(descriptor: int) -> Process:
        _await_imports()
        with copying():
            pid = os.fork()
            if pid == 0:
                try:
                    _leave_the_parent(descriptor)
                    main()
                finally:  # whatever happened: nobody else's code goes on in a copy
                    os._exit(1)
        with contextlib.suppress(OSError):  # here as well: it may never come to that, and is killed by its group
            os.setpgid(pid, pid)
        return Forked(pid)

    return start


def _await_imports() -> None:
    """Wait for what other threads import; OSError where that takes too long. What they begin now is imported anew in a copy."""
    deadline = time.monotonic() + IMPORTS_S
    while names := half_imported():
        if time.monotonic() > deadline:
            raise OSError(f"another thread imports {names[0]}")
        time.sleep(LOOK_S)


def why_not_fork(used_bytes: int) -> str:
    """Why a copy of this process, which uses so much memory, is not to be made; "" if it may."""
    if not _CAN_FORK:
        return f"a process with threads is not copied on {sys.platform}"
    disturbed = next((name for name in _DISTURBED if name in sys.modules), None)
    if disturbed is not None:
        return f"{disturbed} is loaded, which is not to be copied"
    if used_bytes > LARGEST_BYTES:
        return f"it uses {used_bytes:,} bytes, and copying more than {LARGEST_BYTES:,} takes too long"
    return ""


class Forked:
    """A copy of this process. State: how it ended; any thread may ask."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = make_lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else has waited for it
                    self.returncode = 1
                else:
                    self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a copy of this process", timeout)
            time.sleep(LOOK_S)
        return status


def _leave_the_parent(descriptor: int) -> None:
    """Keep nothing of the parent's that it or others would notice."""
    gc.freeze()
    sys.settrace(None)
    sys.setprofile(None)
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(descriptor, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # not closed: an object of the parent's may still close its number
        if int(name) not in (0, null):
            with contextlib.suppress(OSError):
                os.dup2(null, int(name), inheritable=False)
