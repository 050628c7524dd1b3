"""Right of way: while a model answers, what works behind it stands still.

A core that a call needs is not shared, not even with a nice process: a team of threads waits for its slowest. So processes
that work behind models are stopped for as long as calls are under way, and threads that do are told (`busy`). Callers stop
processes, and another thread, the usher, has them go on. Where there is hardly a moment without a call, that would starve them:
then a call begins with a pause now and then, as their `Share` has it, and who comes meanwhile waits with it. Who works on what
is in no hurry at all, like an audit, has one of four such pauses. Where there are none either, as in a call without an end,
they run beside it. Whom the system prefers to them says their `rank`.

A thread that works behind calls cannot be stopped amid a piece of its work. What is long it begins where there is room for it:
early in a pause, as long as pauses were of late (`await_room`).

State: the calls under way since somebody began to work behind them, the processes that do, those that are in no hurry, which of
them were stopped, how busy the last moments were, when the last call ended, how long the last pauses and the last call were,
until when callers make a pause, how many they made, and the usher.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from hotfuse.locks import make_lock
from hotfuse.rank import Ranks, may_return
from hotfuse.share import ALLOWED, PAUSE, Share

WINDOW_S = 0.5  # that is looked back upon
STALE_S = 2.0  # without anybody at work: what was crowded may not be any more
CROWDED = 0.85  # of it with a call under way, or a caller who makes a pause: no room is left between calls
RARE = 4  # pauses that callers make, of which those have one that are in no hurry
FOLLOWS = 0.2  # of a call's length after it, the next one has begun where they follow each other
ENDLESS_S = 2.0  # without a pause, where calls are short: there may be none
PATIENCE = 2.0  # calls' time: for what comes with the next call
MOST_S = 1.0  # that a caller waits for others' calls
PAUSES = 8  # that are remembered
BEGINNING = 0.8  # of a usual pause is still to come
OVERDUE = 2.0  # times the longest of them: until then a call may begin at any moment
SLIGHT = 0.1  # of a call's length: what is shorter slows it little, wherever it begins
RETURN_S = 0.0002  # from the end of a call to its caller's next step
IDLE_S = 30.0  # without a call behind which somebody works: the usher ends
LINGER_S = 0.5  # after a process's work, for which calls still say so: it may be asked again
LOOK_S = 0.02  # between looks, by those who wait, for what comes with time alone: nobody tells them
LONGEST_S = 0.25  # that anybody waits for it, where calls are short; as long as a pause is waited for where they are long


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
        self._threads = 0
        self._ranks, self._share = Ranks(), Share()
        self._made, self._until_s = 0, 0.0  # pauses that callers made, and the end of the last
        self._asked_s = math.inf  # since when somebody waits for one
        self._gone = threading.Condition(self._lock)  # no call is under way, or nobody works any more
        self._mine = threading.local()
        self._window_s = self._began_s = self._busy_s = self._made_s = self._reviewed_s = 0.0
        self._ended_s = self._call_s = 0.0
        self._idle_s = -math.inf
        self._pauses: deque[float] = deque(maxlen=PAUSES)
        self._usher: threading.Thread | None = None
        self._paused = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether what works behind models should wait."""
        if not self.crowded:
            return self._calls > 0
        now_s = time.monotonic()
        follows = now_s >= self._until_s and now_s - self._ended_s < FOLLOWS * self._call_s
        return (self._calls > 0 or follows) and not self.endless

    @property
    def endless(self) -> bool:
        """Whether a pause that callers were to make is long overdue."""
        return self.crowded and time.monotonic() - self._until_s > max(ENDLESS_S, 2 * self.patience_s)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call is under way."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        depth = getattr(self._mine, "depth", 0)
        made = self.crowded and not depth and self._make_pause()
        with self._lock:
            self._mine.depth = depth + 1
            self._calls += 1
            if self._calls == 1:
                self._began_s = time.monotonic()
                if self._ended_s and (made or not self.crowded):
                    self._pauses.append(self._began_s - self._ended_s)
                if not self._works() and self._began_s - self._idle_s > LINGER_S:
                    self.active = False
                self._direct()
            if not depth:
                self._mine.began_s = time.monotonic()

    def leave(self) -> None:
        if not getattr(self._mine, "depth", 0):  # a fork amid the call: here nobody entered
            return
        self._mine.depth -= 1
        with self._lock:
            self._calls -= 1
            now_s = time.monotonic()
            if not self._mine.depth:
                self._call_s = self._mine.call_s = now_s - self._mine.began_s
            if self._calls == 0:
                self._ended_s = now_s
                self._busy_s += now_s - self._began_s
                self._share.earn(now_s - self._began_s)
                if not self.crowded and self._stopped:
                    self._let_go_on()
                if not self.crowded or self._asked_s < math.inf:  # where the next call follows, nobody else may go on
                    self._gone.notify_all()

    def _make_pause(self) -> bool:
        """Wait before a call if it is time to, with others who come meanwhile, from when no call is under way any more."""
        with self._gone:
            now_s = time.monotonic()
            if now_s >= self._until_s:
                call_s = min(getattr(self._mine, "call_s", self._call_s), self._call_s)  # others' calls may be much longer
                if not self._works() or not self._share.pause_s(call_s):
                    return False
                self._asked_s = min(self._asked_s, now_s)
                self._gone.wait_for(lambda: not self._calls or not self._works(), min(PATIENCE * call_s, MOST_S))
                now_s, asked_s = time.monotonic(), self._asked_s
                if self._calls or not self._works():
                    self._share.spend(now_s - min(asked_s, now_s))
                    self._asked_s = math.inf
                    return False
                if now_s >= self._until_s:  # nobody else who waited was quicker
                    pause_s = self._share.pause_s(call_s)
                    self._made, self._until_s, self._asked_s = self._made + 1, now_s + pause_s, math.inf
                    self._share.spend(self._until_s - min(asked_s, now_s))
                    self._busy_s, self._made_s = self._busy_s + pause_s, self._made_s + pause_s
                    if self._stopped:
                        self._let_go_on()
                    self._gone.notify_all()
            self._gone.wait_for(lambda: not self._works(), self._until_s - now_s)
        return True

    def _works(self) -> bool:
        return bool(self._processes or self._threads)

    @contextlib.contextmanager
    def behind(self, process: int | None = None, rare: bool = False) -> Iterator[None]:
        """A process works on something behind the models, in no hurry if it is `rare`; None: a thread of this one, which looks
        whether they are `busy`."""
        if process is not None:
            may_return()  # which is tried once, and not while callers wait for the lock
        with self._lock:
            if not self.active:
                now_s = time.monotonic()
                self.crowded = self.crowded and now_s - self._reviewed_s < STALE_S
                self._window_s, self._began_s, self._busy_s, self._made_s = now_s, now_s, 0.0, 0.0
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

    @property
    def patience_s(self) -> float:
        """How long a pause is waited for, at most."""
        return PATIENCE * self._call_s * (1 + self.crowded * PAUSE / ALLOWED)

    def room_s(self) -> float:
        """How long no call is to be expected, where this pause is as the last ones were in the median. None where a call is
        due; endless where nobody seems to call any more, or nothing is known of pauses."""
        with self._lock:
            return self._room_s()

    def _room_s(self) -> float:
        if self.busy:
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
        calls would hardly notice."""

        def is_room() -> bool:
            slight = not self.active or seconds <= SLIGHT * self._call_s
            return slight or self._room_s() >= min(seconds, BEGINNING * self._usual_s())

        self._await(is_room, max(LONGEST_S, self.patience_s))

    def await_pause(self, longest_s: float) -> None:
        """Wait until what works behind models need not wait, or so long."""
        self._await(lambda: not self.busy, max(longest_s, self.patience_s))

    def await_answer(self, longest_s: float) -> None:
        """Wait until a call has ended, if one is under way, or so long."""
        ended_s = self._ended_s
        self._await(lambda: not self._calls or self._ended_s > ended_s, longest_s)

    def _await(self, ready: Callable[[], bool], longest_s: float) -> None:
        """Who ends a call, or makes a pause, tells: to look for it a thousand times in a second takes a twentieth of a core."""
        until_s = time.monotonic() + longest_s
        with self._gone:
            while not ready() and (left_s := until_s - time.monotonic()) > 0:
                self._gone.wait(min(left_s, LOOK_S))

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
            self._ranks.join(process)
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
        self._gone.notify_all()
        self.active = self._works() or time.monotonic() - self._idle_s < LINGER_S

    def review(self) -> None:
        """Look back, now and then: called by whoever works behind the models, or waits for a process that does."""
        with self._lock:
            now_s = time.monotonic()
            passed_s = now_s - self._window_s
            if passed_s < WINDOW_S:
                return
            if self._calls:
                self._busy_s += now_s - self._began_s
                self._share.earn(now_s - self._began_s)
                self._began_s = now_s
            crowded, self._reviewed_s = self._busy_s > CROWDED * passed_s, now_s
            self._until_s = self._until_s if self.crowded else now_s
            self.crowded = crowded
            busy_s = 0.0 if self.endless else self._busy_s - self._made_s
            self._ranks.review(passed_s - busy_s, busy_s)
            self._window_s, self._busy_s, self._made_s = now_s, 0.0, 0.0
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
                    self._direct()

    def _direct(self) -> None:
        """Stop those processes that are to stand still now, and have the others go on."""
        busy, others = self.busy, len(self._rare) < len(self._processes)
        waiting = self._rare if self.crowded and self._made % RARE and others and not self.endless else ()
        for process in self._processes:
            self._stop(process, busy or process in waiting)

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
