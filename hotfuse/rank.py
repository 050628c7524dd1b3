"""Rank: whom the system prefers to a process that works behind models.

From its birth it is nice: of a core that others want too it has a tenth. And it comes last: a call that begins has its core at
once, and keeps it. (Once displaced, a call comes to the core of its own team's thread, and these two share it for as long as
thirty milliseconds while the other core is idle: to look for one is too dear where both were busy of late.) Who comes last and
waits for a core for most of the pauses between calls is taken beside the others again: all cores are theirs, and it would never
come to an end.

Not everybody may take somebody back from the last rank. Who may not leaves it be.

State of `Ranks`: the processes, those that come last, those that waited too long, and how long each of their threads had waited
for a core at the last look.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading

NICE = 10  # a tenth of a core that others want
STARVED = 0.5  # of the pauses: who waits so long in them does not come last any more


def lower(pid: int) -> None:
    """At its birth: before it is up, a child takes as much of a core as calls do. In the batch class it displaces nobody when
    it goes on."""
    with contextlib.suppress(OSError):  # it is gone
        os.setpriority(os.PRIO_PROCESS, pid, min(os.nice(0) + NICE, 19))
    _put(pid, last=False)


def _put(pid: int, last: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):  # it is gone, or there are no such classes
        chosen = os.SCHED_IDLE if last else os.SCHED_BATCH
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread), chosen, os.sched_param(0))


@functools.cache
def may_return() -> bool:
    """Whether who is put last may be taken back by us, and we would see that it has to be: tried out by a thread that ends."""
    found: list[bool] = []

    def try_it() -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(os.nice(0) + NICE, 19))
            for chosen in (os.SCHED_IDLE, os.SCHED_BATCH):
                os.sched_setscheduler(0, chosen, os.sched_param(0))
            found.append(os.path.exists("/proc/self/schedstat"))

    with contextlib.suppress(RuntimeError):  # no more threads
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    return bool(found and found[0])


class Ranks:
    """Of the processes that work behind the models of this one. Not thread-safe."""

    def __init__(self) -> None:
        self._waited: dict[int, dict[str, float]] = {}
        self._last: set[int] = set()
        self._starved: set[int] = set()

    def join(self, pid: int) -> None:
        """It begins to work."""
        self._waited[pid] = _waits(pid)
        self._place(pid)

    def part(self, pid: int) -> None:
        self._waited.pop(pid, None)
        self._last.discard(pid)
        self._starved.discard(pid)

    def review(self, pauses_s: float, calls_s: float) -> None:
        """Look at each. So long were pauses and calls since the last time: who is to stand still while there are calls may
        seem to wait for a core then."""
        for pid, before in self._waited.items():
            now = self._waited[pid] = _waits(pid)
            longest_s = max((waited - before.get(thread, waited) for thread, waited in now.items()), default=0.0)
            if pid in self._last and longest_s - calls_s > STARVED * pauses_s:
                self._starved.add(pid)
            self._place(pid)

    def _place(self, pid: int) -> None:
        last = may_return() and pid not in self._starved
        if last != (pid in self._last):
            (self._last.add if last else self._last.discard)(pid)
            _put(pid, last)


def _waits(pid: int) -> dict[str, float]:
    """How long each thread of a process has waited for a core in its life."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[1]) / 1e9
    return found
