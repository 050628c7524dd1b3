"""Drift: whether what serves still takes as long as the model says.

    every look: seconds of units, measured and predicted  ->  the middle of log(measured / predicted)  ->  Drift

The model errs about every kernel, so what counts is how far the middle of all of them moves from where it first settled. A
neighbour's moment is over soon: a shift counts once every look of two minutes saw it, on the same side, and is gone once every
look of two minutes saw less than half of it. Only a middle that is far off from the beginning is itself a shift: those are
another machine's predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from hotfuse.records import dataclass

ENTER, LEAVE = math.log(1.25), math.log(1.1)  # neighbours of shared machines shift looks by 10 % and less most of the time
FAR = math.log(2.0)  # of a middle that settled: a model of this machine errs by less than that
LASTS_S = 120.0
LOOKS = 5  # in that time, at least; and until the middle has settled
KEPT = 64


@dataclass(frozen=True)
class Look:
    at_s: float
    middle: float  # of log(measured / predicted)


@dataclass(frozen=True)
class Drift:
    """`base` is where the middle settled (None: not yet), `is_away` whether it lastingly is somewhere else."""

    looks: tuple[Look, ...] = ()
    base: float | None = None
    is_away: bool = False

    @property
    def shift(self) -> float:
        """How many times as long things take as they did when the middle settled: the middle of the last looks."""
        if self.base is None:
            return 1.0
        return math.exp(median(look.middle for look in self.looks[-LOOKS:]) - self.base)

    def seen(self, now_s: float, measured_s: Sequence[float], predicted_s: Sequence[float]) -> Drift:
        """After one more look. Units that the clock could not tell from nothing say nothing."""
        logs = [math.log(m / p) for m, p in zip(measured_s, predicted_s, strict=True) if m > 0 and p > 0]
        if not logs:
            return self
        looks = (*self.looks, Look(now_s, median(logs)))[-KEPT:]
        if self.base is None:
            if len(looks) < LOOKS:
                return replace(self, looks=looks)
            settled = median(look.middle for look in looks)
            return replace(self, looks=looks, base=settled if abs(settled) <= FAR else 0.0)
        return replace(self, looks=looks, is_away=_is_away(looks, self.base, self.is_away))

    def answered(self) -> Drift:
        """Predictions are others now: it settles anew."""
        return Drift()


def _is_away(looks: Sequence[Look], base: float, was: bool) -> bool:
    begun = looks[-1].at_s - LASTS_S
    recent = [look.middle - base for look in looks if look.at_s >= begun]
    if len(recent) < LOOKS or looks[0].at_s > begun:  # nobody looked for as long as that
        return was
    if was:
        return not all(abs(shift) < LEAVE for shift in recent)
    return all(shift > ENTER for shift in recent) or all(shift < -ENTER for shift in recent)
