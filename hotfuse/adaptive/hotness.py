"""Hotness: seconds spent on each of many things, halved again and again as time goes by.

    heat at t  =  sum over calls of seconds * 0.5 ** ((t - time of the call) / half-life)

Seconds, not calls: a thousand calls of a microsecond are worth less than one of a second. What was hot an hour ago is not.

The table is bounded. Where a newcomer finds it full, it takes the place of the coldest and that one's heat with it (the
space-saving rule of Metwally and others): heat is then never understated, and overstated by at most the total divided by
`limit`. What has a greater share than that is always in the table, however many others come by.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotfuse.adaptive.target import Target
from hotfuse.errors import VerifyError
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Entry:
    target: Target
    seconds: float


@dataclass(frozen=True)
class Heat:
    """`entries` and `seconds`, their total, are as of `at_s`; what asks for them says at what time."""

    half_life_s: float
    limit: int
    at_s: float = 0.0
    seconds: float = 0.0
    entries: tuple[Entry, ...] = ()

    def spend(self, target: Target, seconds: float, now_s: float) -> Heat:
        """The table after `seconds` more were spent on a target."""
        if not 0 <= seconds < math.inf:  # written so that NaN is refused
            raise VerifyError(f"{seconds} seconds spent on {target}: time is finite and not negative; correct who measured it")
        left = self._left(now_s)
        known = {entry.target: entry.seconds * left for entry in self.entries}
        if target not in known and len(known) >= self.limit:
            coldest = min(known, key=lambda other: known[other])
            known[target] = known.pop(coldest)
        known[target] = known.get(target, 0.0) + seconds
        entries = tuple(Entry(target, spent) for target, spent in known.items())
        return replace(self, at_s=max(now_s, self.at_s), seconds=self.seconds * left + seconds, entries=entries)

    def total(self, now_s: float) -> float:
        return self.seconds * self._left(now_s)

    def of(self, target: Target, now_s: float) -> float:
        return sum(entry.seconds for entry in self.entries if entry.target == target) * self._left(now_s)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The hottest first. Time does not change their order: all fade alike."""
        return tuple(entry.target for entry in sorted(self.entries, key=lambda entry: -entry.seconds))

    def _left(self, now_s: float) -> float:
        """What is left of one second; a clock that was set back leaves all of it."""
        return float(0.5 ** (max(0.0, now_s - self.at_s) / self.half_life_s))
