"""A child process that is asked one line at a time and answers each with a line of JSON, through a pipe of its own.

Whatever the child prints elsewhere cannot be taken for an answer, and however it ends, the parent hears how.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from hotfuse.cli.process_tree import signal_tree


class Died(Exception):
    """The child is gone, or was made to go; the message says how."""


class Child:
    """One process and the pipe its answers come through. `command` makes its command line from the descriptor to answer on."""

    def __init__(self, command: Callable[[int], Sequence[str]], environment: Mapping[str, str], apart: bool = False) -> None:
        """`apart` keeps the signals of the terminal from the child: the parent alone decides when it ends."""
        receiving, sending = os.pipe()
        self.process = subprocess.Popen(
            list(command(sending)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(sending,),
            env={**os.environ, **environment},
            start_new_session=apart,
            text=True,
            errors="replace",
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
        with contextlib.suppress(ValueError):  # closed while we read
            for line in self.process.stderr:
                self._errors = [*self._errors[-4:], line.strip()]

    def ask(self, line: str, limit_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Died(self._story()) from error
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> dict[str, Any]:
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
        found: dict[str, Any] = json.loads(line)
        return found

    def _story(self) -> str:
        code = self.process.wait()
        self._drainer.join(timeout=1.0)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"the process {how}: {' | '.join(self._errors)}"

    def close(self) -> None:
        """End the child and all that it started: a grandchild would keep its pipes open."""
        if self.process.poll() is None:
            signal_tree(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.answers.close()
        for stream in (self.process.stdin, self.process.stderr):
            with contextlib.suppress(OSError):  # a line for the dead child may still be in the buffer
                if stream is not None:
                    stream.close()
