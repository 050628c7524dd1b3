"""Leaders: the threads that lead a team, and where their followers wake up.

libgomp keeps a pool for every thread that ever led a team, so no more than `MAX_LEADERS` living threads do. After a fork the
pool's threads are gone and the library would wait for them for ever: a forked child never leads.

Followers that have nothing to do fall asleep, after some milliseconds. Where cores share no cache, as those of many virtual
machines, Linux likes to wake them on the very core of whoever wakes them, and there they wait until their leader's time is up:
3 to 12 ms, beside a core that is idle. So a leader whose followers sleep keeps its own core free of them while it wakes them,
and gives them back the cores that they had as soon as the team's work is done.

State: a mark on each thread that leads, with its followers' numbers; whether this process is a forked child.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

from hotfuse.runtime.threads import Gomp

MAX_LEADERS = 8  # a server's pool of workers; each leader keeps threads - 1 idle ones
ASLEEP_S = 0.001  # after a team's work its threads may be asleep; libgomp's spin a little longer
MOST_FOLLOWERS = 15  # a larger machine has cores that share a cache, and too many of them to ask for each call

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, _REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


class Leader:
    """One thread that leads teams. Lives as long as that thread."""

    def __init__(self) -> None:
        self._team = 0  # the size of the team whose followers are known
        self._followers: tuple[int, ...] = ()
        self._worked_s = 0.0

    def lead(self, gomp: Gomp, threads: int, work: Callable[[], object]) -> None:
        """Do work that wakes a team of so many threads. The caller holds `TEAM`."""
        asleep = perf_counter() - self._worked_s > ASLEEP_S
        if asleep and self._followers:
            with self._off_this_core():
                work()
        else:
            work()
        if self._team != threads:
            self._meet(gomp, threads)
        self._worked_s = perf_counter()

    def _meet(self, gomp: Gomp, threads: int) -> None:
        """Learn who follows. They are awake now: they were at work just before."""
        self._team, self._followers = threads, ()
        if not hasattr(os, "sched_setaffinity") or threads - 1 > MOST_FOLLOWERS:
            return
        met: list[int] = []
        _PARALLEL(gomp.parallel)(_REGION(lambda _: met.append(threading.get_native_id())), None, threads, 0)
        self._followers = tuple(number for number in met if number != threading.get_native_id())

    @contextmanager
    def _off_this_core(self) -> Iterator[None]:
        had = [(thread, cores) for thread in self._followers if (cores := self._cores(thread)) is not None]
        here = _this_core()
        moved = [(thread, cores) for thread, cores in had if here in cores and len(cores) > 1]
        for thread, cores in moved:
            _allow(thread, cores - {here})
        try:
            yield
        finally:
            for thread, cores in moved:
                _allow(thread, cores)

    def _cores(self, thread: int) -> set[int] | None:
        """Those that a follower may run on; None if it is gone: another team was made meanwhile, which is yet to be met."""
        try:
            if Path(f"/proc/self/task/{thread}").exists():
                return os.sched_getaffinity(thread)
        except OSError:
            pass
        self._team = 0
        return None


def _allow(thread: int, cores: set[int]) -> None:
    with suppress(OSError):  # it is gone, or cores were taken from this process: it runs where it may
        os.sched_setaffinity(thread, cores)


def _find_this_core() -> Callable[[], int]:
    try:
        return ctypes.CDLL(None).sched_getcpu  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return lambda: -1


_this_core = _find_this_core()
_LOCAL = threading.local()
_LEADERS: weakref.WeakSet[Leader] = weakref.WeakSet()
_forked = False


def this_leader() -> Leader | None:
    """This thread as a leader; None if it may not lead. The caller holds `TEAM`."""
    if _forked:
        return None
    leader: Leader | None = getattr(_LOCAL, "leader", None)
    if leader is None and len(_LEADERS) < MAX_LEADERS:
        leader = _LOCAL.leader = Leader()
        _LEADERS.add(leader)
    return leader


def _remember_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_remember_fork)
