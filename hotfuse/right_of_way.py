"""Right of way: while a model answers, what works behind it stands still.

A core that a call needs is not shared, not even with a nice process: a team of threads waits for its slowest. So processes
that work behind models are stopped for as long as calls are under way, and threads that do are told (`busy`). Where there is
hardly a moment without a call, that would starve them: they then run beside the calls, as nice as they are, until there are
moments again.

State: the calls under way since somebody began to work behind them, the processes that do, and how busy the last moments were.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from hotfuse.locks import make_lock

WINDOW_S = 0.5  # that is looked back upon
STALE_S = 2.0  # without anybody at work: what was crowded may not be any more
CROWDED = 0.8  # of it with a call under way: no room is left between calls


class RightOfWay:
    """`active` while something works behind the models: only then do calls say when they begin and end."""

    def __init__(self) -> None:
        self.active = False
        self.crowded = False
        self._lock = make_lock()
        self._calls = 0
        self._behind: list[int | None] = []
        self._window_s = self._began_s = self._busy_s = self._reviewed_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether what works behind models should wait."""
        return self._calls > 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call is under way."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._began_s = time.monotonic()
                if not self.crowded:
                    self._signal(signal.SIGSTOP)

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                self._busy_s += time.monotonic() - self._began_s
                if not self.crowded:
                    self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def behind(self, process: int | None = None) -> Iterator[None]:
        """A process works on something behind the models; None: a thread of this one, which looks whether they are `busy`."""
        with self._lock:
            if not self._behind:
                now_s = time.monotonic()
                self.crowded = self.crowded and now_s - self._reviewed_s < STALE_S
                self._window_s, self._began_s, self._busy_s = now_s, now_s, 0.0
            self._behind.append(process)
            self.active = True
        try:
            yield
        finally:
            with self._lock:
                self._behind.remove(process)
                self.active = bool(self._behind)
                if process is not None:
                    _send(process, signal.SIGCONT)

    def review(self) -> None:
        """Look back, now and then: called by whoever works behind the models, or waits for a process that does."""
        with self._lock:
            now_s = time.monotonic()
            passed_s = now_s - self._window_s
            if passed_s < WINDOW_S:
                return
            if self._calls:
                self._busy_s += now_s - self._began_s
                self._began_s = now_s
            crowded = self._busy_s > CROWDED * passed_s
            if crowded != self.crowded and self._calls:
                self._signal(signal.SIGCONT if crowded else signal.SIGSTOP)
            self.crowded, self._reviewed_s, self._window_s, self._busy_s = crowded, now_s, now_s, 0.0

    def _signal(self, what: signal.Signals) -> None:
        for process in self._behind:
            if process is not None:
                _send(process, what)

    def _after_fork(self) -> None:
        """In a forked child: the processes are the parent's."""
        self.__init__()  # type: ignore[misc]


def _send(process: int, what: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, what)


RIGHT_OF_WAY = RightOfWay()
os.register_at_fork(after_in_child=RIGHT_OF_WAY._after_fork)
