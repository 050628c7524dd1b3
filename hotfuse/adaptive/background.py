"""The background: one thread for all models of the process, which carries out what was decided.

Callers post work and go on. Work runs in the order it was posted, one piece at a time; what is long rests now and then
(`Pace`). Whoever is registered is asked every `TICK_S` seconds. The thread begins with the first work.

State: the thread, its queue, and weak references to whoever wants ticks. A forked child begins with none of it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hotfuse.locks import is_copy, make_lock
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.threads import dismiss_team

TICK_S = 0.25
AT_ONCE_S = 0.01  # after a model was loaded: its first call has begun, or is nobody's hurry
ANSWER_S = 2.0  # that it is waited for
REST_S = 30.0  # without work and without ticks: the thread ends

Work = Callable[[], None]


class Ticked(Protocol):
    def tick(self, now_s: float) -> None: ...
    def forked(self) -> None:
        """This is a forked child: what was posted before is the parent's."""


class Background:
    """Runs posted work. What it raises reaches no caller; the last of it is in `failures`."""

    def __init__(self, name: str = "hotfuse-adaptive") -> None:
        self._name = name
        self.failures: deque[str] = deque(maxlen=16)
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._ticked: weakref.WeakSet[Ticked] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._lock = make_lock()

    def post(self, work: Work) -> bool:
        """Whether it will be done: not where no thread can be started."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    self.failures.append(f"no thread can be started: {error}")
                    return False
                self._thread = thread
            self._work.put(work)
        return True

    def post_after_answer(self, work: Work) -> bool:
        """The same, when the call is answered that whoever loaded a model makes at once: it has the machine to itself."""
        behind = contextlib.ExitStack()
        behind.enter_context(RIGHT_OF_WAY.behind())  # now: the call may begin before the thread does

        def later() -> None:
            with behind:
                time.sleep(AT_ONCE_S)
                RIGHT_OF_WAY.await_answer(ANSWER_S)
                work()

        posted = self.post(later)
        if not posted:
            behind.close()
        return posted

    def register(self, ticked: Ticked) -> None:
        """Have something asked every TICK_S seconds, as long as somebody else holds it and the thread runs."""
        with self._lock:
            self._ticked.add(ticked)

    def forget(self, ticked: Ticked) -> None:
        with self._lock:
            self._ticked.discard(ticked)

    def _run(self) -> None:
        idle_since = next_tick = time.monotonic()
        while True:
            try:
                work = self._work.get(timeout=TICK_S)
            except queue.Empty:
                work = None
            now = time.monotonic()
            if work is not None:
                self._do(work)
                idle_since = time.monotonic()
            del work  # between pieces a name would keep the last model alive
            if now >= next_tick:
                idle_since = now if self._tick_all(now) else idle_since
                next_tick = time.monotonic() + TICK_S
            if now - idle_since > REST_S and self._may_end():
                return

    def _tick_all(self, now_s: float) -> int:
        """How many were asked. A function of its own, so that no name outlives it."""
        with self._lock:
            found = list(self._ticked)
        for ticked in found:
            self._do(functools.partial(ticked.tick, now_s))
        return len(found)

    def _may_end(self) -> bool:
        with self._lock:
            if self._work.empty() and not self._ticked:
                self._thread = None
                return True
            return False

    def _do(self, work: Work) -> None:
        try:
            with RIGHT_OF_WAY.behind():
                work()
        except BaseException as error:  # this thread serves every model of the process and must go on
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            dismiss_team()

    def _after_fork(self) -> None:
        """In a forked child: the thread does not exist, and its work was the parent's."""
        self._thread = None
        self._work = queue.SimpleQueue()
        if is_copy():
            self._ticked.clear()
        for ticked in list(self._ticked):
            ticked.forked()


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND._after_fork)
