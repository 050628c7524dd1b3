"""A pile of programs that several workers make code of: whoever is free takes the next one.

    the worker that builds   Offer -> (nothing)    lays programs down, while it lowers others; helpers are asked for
                             Take  -> Taken        takes the next program, or waits for what others have; at the end it is
                                                   handed what they made
    one that helps           Take  -> Taken        brings code, takes the next program, and leaves when nothing more comes

The longest of what lies there is taken first: what is left at the end is short, and nobody waits long.
What a helper took and does not bring (it died, or there can be no code) goes back, for the one that builds: no job is lost with
a worker, and why there is no code is for that one to find. What a helper keeps for too long goes back, too. A helper that comes
too late starts no process.

State, under a lock: what lies there, what each helper has, and what they brought.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from hotfuse.errors import WorkerError
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.parcel import unwrap, wrap

LONG_S = 5.0  # that the one who builds waits for a helper, before it does the work itself
NEEDLESS = "needless"  # the cause of the error that a helper ends with which came too late


@dataclass(frozen=True, eq=False)
class Offer:
    """Programs, each as a parcel. Their places follow those of the offer before, if that said that `more` would come."""

    programs: tuple[bytes, ...]
    more: bool = False


@dataclass(frozen=True, eq=False)
class Take:
    """From a helper, with code of the program that it took before, if there was one and there can be: where it lay, whether the
    code is new, and what that took."""

    place: int | None = None
    code: bytes | None = None
    is_new: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Taken:
    """The place of a program, and itself if a helper asked; no place where nothing is left. Then the one that builds has what
    the others made."""

    place: int | None
    program: bytes = b""
    made: Mapping[int, Take] = field(default_factory=dict)


class Pile:
    """In the process that the workers work for. `ask_others` has up to so many of them help."""

    def __init__(self, ask_others: Callable[[Pile, int], None], long_s: float = LONG_S) -> None:
        self._ask_others, self._long_s = ask_others, long_s
        self._programs: list[bytes] = []
        self._free: list[tuple[int, int]] = []  # a heap: the longest first, and where it lies
        self._whole = True  # nothing more comes
        self._own: deque[int] = deque()  # that no helper may take
        self._out: dict[int, tuple[int, float]] = {}  # which helper has a program, and since when
        self._made: dict[int, Take] = {}
        self._changed = threading.Condition(make_lock())

    def serve(self, question: bytes) -> bytes:
        """What the worker that builds asks."""
        asked: Any = unwrap(question)
        if isinstance(asked, Offer):
            if self._lay(asked):
                self._ask_others(self, len(asked.programs) - (not asked.more))
            return b""
        return wrap(self._next())

    def helper(self, number: int) -> Callable[[bytes], bytes]:
        """What answers a helper's questions."""
        return lambda question: wrap(self._help(number, unwrap(question)))

    def close(self) -> None:
        """Nobody needs help any more."""
        with self._changed:
            self._free.clear()
            self._whole = True
            self._changed.notify_all()

    def check(self) -> None:
        """WorkerError where there is nothing to help with."""
        if self._whole and not self._free:
            raise WorkerError("there is nothing left to help with", NEEDLESS)

    def left(self, number: int) -> None:
        """A helper is gone: what it has not brought is done by the one that builds."""
        with self._changed:
            for place in [place for place, (who, _) in self._out.items() if who == number]:
                self._back(place)

    def _lay(self, offer: Offer) -> bool:
        """Whether these are the first of their kind."""
        with self._changed:
            first = self._whole
            if first:
                self._programs, self._free, self._out, self._made = [], [], {}, {}
            for program in offer.programs:
                heapq.heappush(self._free, (-len(program), len(self._programs)))
                self._programs.append(program)
            self._whole = not offer.more
            self._changed.notify_all()
            return first

    def _next(self) -> Taken:
        """For the worker that builds, which keeps what it made."""
        with self._changed:
            while True:
                if self._own:
                    return Taken(self._own.popleft())
                if self._free:
                    return Taken(heapq.heappop(self._free)[1])
                if not self._out:
                    return Taken(None, made=dict(self._made))
                place, (_, since_s) = min(self._out.items(), key=lambda item: item[1][1])
                left_s = since_s + self._long_s - time.monotonic()
                if left_s <= 0:
                    self._back(place)
                else:
                    self._changed.wait(left_s)

    def _help(self, number: int, asked: Take) -> Taken:
        with self._changed:
            if asked.place is not None and self._out.get(asked.place, (None,))[0] == number:
                if asked.code is None:
                    self._back(asked.place)
                else:
                    del self._out[asked.place]
                    self._made[asked.place] = asked
                    self._changed.notify_all()
            while not self._free and not self._whole:
                self._changed.wait()
            if not self._free:
                return Taken(None)
            _, place = heapq.heappop(self._free)
            self._out[place] = (number, time.monotonic())
            return Taken(place, self._programs[place])

    def _back(self, place: int) -> None:
        """Called under the lock."""
        del self._out[place]
        self._own.append(place)
        self._changed.notify_all()
