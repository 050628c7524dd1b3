"""Turns: calls that are answered in a way of their own, because something is to be learned from them.

A shadow is one call that the original answers and a candidate, too. A duel is a few calls that two ways answer in turn, so that
both are timed on the same traffic. Callers take turns from any thread; nobody waits.

State: of a duel the times so far, and whose turn it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

DUEL_CALLS = 16  # of each side; a difference of 3 % shows where calls vary by 10 %

Report = Callable[[bool, str], None]  # whether a shadowed call agreed, or why not
Timed = Callable[["Times"], None]


@dataclass(frozen=True)
class Shadow:
    """The next call, of one form if any is named, is answered by the candidate as well."""

    candidate: Any
    form: Hashable | None
    report: Report

    def takes(self, form: Hashable) -> bool:
        return self.form is None or self.form == form


@dataclass(frozen=True)
class Times:
    """Medians of both sides' seconds, and what noise explains of their difference."""

    with_s: float
    without_s: float
    spread_s: float


class Duel:
    """Calls of one form, answered by two ways in turn."""

    def __init__(self, one: Any, other: Any, form: Hashable, report: Timed, calls: int = DUEL_CALLS) -> None:
        self.sides = (one, other)
        self.form = form
        self._report, self._calls = report, calls
        self._next = itertools.count()
        self._times: tuple[list[float], list[float]] = ([], [])
        self._over: list[bool] = [True]  # its pop is one step, whoever else calls

    def takes(self, form: Hashable) -> bool:
        return bool(self._over) and self.form == form

    def turn(self) -> Any:
        """Who answers now."""
        return self.sides[next(self._next) % 2]

    def note(self, side: Any, seconds: float) -> None:
        """A side answered. When both have answered often enough the duel is over."""
        for mine, times in zip(self.sides, self._times, strict=True):
            if mine is side:
                times.append(seconds)
        if min(map(len, self._times)) > self._calls:
            try:
                self._over.pop()
            except IndexError:  # another thread was here first
                return
            with_s, without_s = (times[1:] for times in self._times)  # the first call of a side finds nothing in the caches
            self._report(Times(median(with_s), median(without_s), spread(with_s) + spread(without_s)))


def spread(times: Sequence[float]) -> float:
    """How far the median of so many times may lie from the true one."""
    middle = median(times)
    return float(1.5 * median(abs(t - middle) for t in times) / max(1, len(times) - 1) ** 0.5)
