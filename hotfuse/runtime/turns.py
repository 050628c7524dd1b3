"""Turns: calls that are answered in a way of their own, because something is to be learned from them.

A shadow is one call that the original answers and a candidate, too. A duel is a few calls that two ways answer in turn, so that
both are timed on the same traffic. Callers take turns from any thread; nobody waits.

State: of a duel the times so far, and whose turn it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any

from hotfuse.errors import is_shortage
from hotfuse.records import dataclass

DUEL_CALLS = 16  # of each side; a difference of 3 % shows where calls vary by 10 %
LONG_ROW = 18  # of which half count: two rows are enough
SAMPLE_BYTES = 1 << 28  # of a call's values: what is larger is not copied, and nothing is proved on it

Report = Callable[["Judged"], None]
Timed = Callable[["Times"], None]


@dataclass(frozen=True, eq=False)
class Judged:
    """What came of a call that the original answered and another, too: in what they differ, "" if they agree or nobody can
    tell; where they do, the call's inputs by name, nobody's but ours, if these can be had; the seconds that all of it took; and
    why nobody can tell."""

    reason: str = ""
    inputs: Mapping[str, Any] | None = None
    cost_s: float = 0.0
    untold: str = ""


def judged_of(error: Exception) -> Judged:
    """Of a call that failed: where memory ran out, nothing speaks against who answered it."""
    text = f"{type(error).__name__}: {error}"
    return Judged(untold=text) if is_shortage(error) else Judged(text)


@dataclass(frozen=True)
class Shadow:
    """The next call, of one form if any is named, is answered by the candidate as well; `later`, where its caller need not wait
    for that."""

    candidate: Any
    form: Hashable | None
    report: Report
    later: Callable[[Callable[[], None]], None] | None = None
    _free: list[bool] = field(default_factory=lambda: [True])  # its pop is one step, whoever else calls

    def takes(self, form: Hashable) -> bool:
        return bool(self._free) and (self.form is None or self.form == form)

    def claim(self) -> bool:
        """Take a call for it, if no other was taken."""
        try:
            return self._free.pop()
        except IndexError:
            return False

    def release(self) -> None:
        """The call told nothing: the next may do."""
        self._free.append(True)


@dataclass(frozen=True)
class Times:
    """Medians of both sides' seconds, and what noise explains of their difference."""

    with_s: float
    without_s: float
    spread_s: float


class Duel:
    """Calls of one form, answered by two ways in turn. Against an `outsider`, whose threads are not ours, each side has many
    calls in a row and the first ones do not count: the other's threads are awake for a while and hold its own up."""

    def __init__(self, one: Any, other: Any, form: Hashable, report: Timed, outsider: bool = False) -> None:
        self.sides = (one, other)
        self.form = form
        self._report, self._row = report, LONG_ROW if outsider else 1
        self._next = itertools.count()
        self._latest: Any = None
        self._in_row = 0
        self._times: tuple[list[float], list[float]] = ([], [])
        self._over: list[bool] = [True]  # its pop is one step, whoever else calls

    def takes(self, form: Hashable) -> bool:
        return bool(self._over) and self.form == form

    def turn(self) -> Any:
        """Who answers now."""
        return self.sides[next(self._next) // self._row % 2]

    def note(self, side: Any, seconds: float) -> None:
        """A side answered. When both have answered often enough the duel is over."""
        self._in_row = self._in_row + 1 if side is self._latest else 1
        self._latest = side
        for mine, times in zip(self.sides, self._times, strict=True):
            if mine is side and self._in_row > self._row // 2:
                times.append(seconds)
        if min(map(len, self._times)) > DUEL_CALLS:
            try:
                self._over.pop()
            except IndexError:  # another thread was here first
                return
            from statistics import median

            with_s, without_s = (times[1:] for times in self._times)  # the first call of a side finds nothing in the caches
            self._report(Times(median(with_s), median(without_s), spread(with_s) + spread(without_s)))


def spread(times: Sequence[float]) -> float:
    """How far the median of so many times may lie from the true one."""
    from statistics import median  # brings decimals and fractions, which nobody needs who only serves

    middle = median(times)
    return float(1.5 * median(abs(t - middle) for t in times) / max(1, len(times) - 1) ** 0.5)
