"""Right of way: while a model answers, what works behind it stands still.

A core that a call needs is not shared, not even with a nice process: a team of threads waits for its slowest. So processes
that work behind models are stopped for as long as calls are under way, and threads that do are told (`busy`). Callers stop
processes, and another thread, the usher, has them go on. Where there is hardly a moment without a call, that would starve them:
they then run beside the calls, as nice as they are, one at a time and in turns, until there are moments again. (Calls lose what
one of them takes; two together take twice as much.) Where calls lose more than their `Share`, some turns are their own. Who
works on what is in no hurry at all, like an audit, has one turn in four. Whom the system prefers to them says their `rank`.

A thread that works behind calls cannot be stopped amid a piece of its work. What is long it begins where there is room for it:
early in a pause, as long as pauses were of late (`await_room`).

State: the calls under way since somebody began to work behind them, the processes that do, the one whose turn it is first,
those that are in no hurry, which of them were stopped, how busy the last moments were, how many turns there were, when the last
call ended, how long the last pauses and the last call were, and the usher.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator

from hotfuse.locks import make_lock
from hotfuse.rank import Ranks
from hotfuse.share import Share

WINDOW_S = 0.5  # that is looked back upon
STALE_S = 2.0  # without anybody at work: what was crowded may not be any more
CROWDED = 0.8  # of it with a call under way: no room is left between calls
RARE = 4  # turns, of which those have one that are in no hurry
PAUSES = 8  # that are remembered
BEGINNING = 0.8  # of a usual pause is still to come
OVERDUE = 2.0  # times the longest of them: until then a call may begin at any moment
SLIGHT = 0.1  # of a call's length: what is shorter slows it little, wherever it begins
RETURN_S = 0.0002  # from the end of a call to its caller's next step
IDLE_S = 30.0  # without a call behind which somebody works: the usher ends
LINGER_S = 0.5  # after a process's work, for which calls still say so: it may be asked again
LOOK_S = 0.001  # between looks for room
LONGEST_S = 0.25  # that anybody waits for it, where calls are short; two calls' time where they are long


class RightOfWay:
    """`active` while something works behind the models, and a little longer: only then do calls say when they begin and end,
    and what begins amid one that did not say so runs beside it."""

    def __init__(self) -> None:
        self.active = False
        self.crowded = False
        self._lock = make_lock()
        self._calls = 0
        self._processes: list[int] = []
        self._stopped: set[int] = set()
        self._rare: set[int] = set()
        self._turn = 0
        self._worker_in_turn: int | None = None
        self._threads = 0
        self._ranks, self._share = Ranks(), Share()
        self._window_s = self._began_s = self._busy_s = self._reviewed_s = 0.0
        self._ended_s = self._call_s = 0.0
        self._idle_s = -math.inf
        self._pauses: deque[float] = deque(maxlen=PAUSES)
        self._usher: threading.Thread | None = None
        self._paused = threading.Event()

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
                if self._ended_s:
                    self._pauses.append(self._began_s - self._ended_s)
                if not (self._processes or self._threads) and self._began_s - self._idle_s > LINGER_S:
                    self.active = False
                if not self.crowded:
                    self._direct()

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                self._ended_s = time.monotonic()
                self._call_s = self._ended_s - self._began_s
                self._busy_s += self._call_s
                if self.crowded:
                    self._share.ended(self._ended_s)
                if not self.crowded and self._stopped:
                    self._let_go_on()

    @contextlib.contextmanager
    def behind(self, process: int | None = None, rare: bool = False) -> Iterator[None]:
        """A process works on something behind the models, in no hurry if it is `rare`; None: a thread of this one, which looks
        whether they are `busy`."""
        with self._lock:
            if not self.active:
                now_s = time.monotonic()
                self.crowded = self.crowded and now_s - self._reviewed_s < STALE_S
                self._window_s, self._began_s, self._busy_s = now_s, now_s, 0.0
                self._ended_s = 0.0  # calls did not say when they began or ended
                self._pauses.clear()
            self._join(process, rare)
        try:
            yield
        finally:
            with self._lock:
                self._part(process)

    @property
    def call_s(self) -> float:
        """The last call's length."""
        return self._call_s

    def room_s(self) -> float:
        """How long no call is to be expected, where this pause is as the last ones were in the median. None where a call is
        due; endless where nobody seems to call any more, or nothing is known of pauses."""
        with self._lock:
            if self._calls:
                return 0.0
            passed_s = time.monotonic() - self._ended_s
            if passed_s > OVERDUE * max(self._pauses, default=0.0):
                return math.inf
            return max(0.0, self._usual_s() - passed_s)

    def _usual_s(self) -> float:
        """The last pauses' median."""
        return sorted(self._pauses)[len(self._pauses) // 2] if self._pauses else 0.0

    def await_room(self, seconds: float) -> None:
        """Wait for room for a piece of work that takes so long, or for the beginning of a pause where most are shorter; not if
        calls follow each other at once, or would hardly notice."""
        until_s = time.monotonic() + max(LONGEST_S, 2 * self._call_s)
        while self.active and not self.crowded and seconds > SLIGHT * self._call_s and time.monotonic() < until_s:
            if self.room_s() >= min(seconds, BEGINNING * self._usual_s()):
                return
            time.sleep(LOOK_S)

    def hurry(self, process: int) -> None:
        """Somebody waits for what a process does."""
        with self._lock:
            self._rare.discard(process)
            self._direct()

    def _join(self, process: int | None, rare: bool) -> None:
        if process is None:
            self._threads += 1
        else:
            self._processes.append(process)
            self._ranks.join(process, self.crowded)
            if rare:
                self._rare.add(process)
            self._direct()
        self.active = True

    def _part(self, process: int | None) -> None:
        if process is None:
            self._threads -= 1
        else:
            self._processes.remove(process)
            self._rare.discard(process)
            self._ranks.part(process)
            self._stop(process, False)
            self._direct()
            self._idle_s = time.monotonic()
        self.active = bool(self._processes or self._threads) or time.monotonic() - self._idle_s < LINGER_S

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
            self.crowded, self._reviewed_s = self._busy_s > CROWDED * passed_s, now_s
            self._ranks.review(self.crowded, passed_s - self._busy_s, self._busy_s)
            self._window_s, self._busy_s = now_s, 0.0
            if self.crowded:
                self._share.turn(passed_s, self._worker_in_turn is not None)
            else:
                self._share.restart()
            if self._share.granted:
                self._turn += 1
                ran = self._worker_in_turn or next(iter(self._processes), None)
                self._processes = [*(p for p in self._processes if p != ran), *(p for p in self._processes if p == ran)]
            self._direct()

    def _let_go_on(self) -> None:
        """Have processes go on when the caller has returned: whoever wakes one may have to leave it its core at once, for as
        long as a tick. So another thread does it. Holds the lock."""
        if self._usher is None or not self._usher.is_alive():
            usher = threading.Thread(target=self._usher_on, name="hotfuse-usher", daemon=True)
            try:
                usher.start()
            except RuntimeError:  # no more threads
                self._direct()
                return
            self._usher = usher
        self._paused.set()

    def _usher_on(self) -> None:
        while self._paused.wait(IDLE_S) or self._processes:
            if self._paused.is_set():
                self._paused.clear()
                time.sleep(RETURN_S)
                with self._lock:
                    if self._calls == 0 and not self.crowded:
                        self._direct()

    def _direct(self) -> None:
        """Stop those processes that are to stand still now, and have the others go on."""
        self._worker_in_turn = self._first_in_turn() if self.crowded and self._share.granted else None
        for process in self._processes:
            self._stop(process, process != self._worker_in_turn if self.crowded else self._calls > 0)

    def _first_in_turn(self) -> int | None:
        """Who works beside the calls now: who waits longest of those in no hurry in their turns, of the others otherwise."""
        theirs = self._turn % RARE == 0
        ready = [process for process in self._processes if (process in self._rare) == theirs]
        return next(iter(ready or (self._processes if theirs else [])), None)

    def _stop(self, process: int, stands: bool) -> None:
        """Where something changes: others may stop it, too."""
        if stands == (process in self._stopped):
            return
        self._stopped.add(process)  # before it is, and until it goes on: whatever comes in between, nobody forgets it
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGSTOP if stands else signal.SIGCONT)
        if not stands:
            self._stopped.discard(process)

    def _after_fork(self) -> None:
        """In a forked child: the processes are the parent's."""
        self.__init__()  # type: ignore[misc]


RIGHT_OF_WAY = RightOfWay()
os.register_at_fork(after_in_child=RIGHT_OF_WAY._after_fork)
