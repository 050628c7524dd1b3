"""The performance model: how long pieces of work take on this machine, and how sure that is.

Before anything was calibrated it is the roofline, which is right about what binds a kernel and optimistic about how long it
takes; a forest that was trained here knows how optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotfuse.hardware.features import FEATURES, rows_of
from hotfuse.hardware.forest import Array, Forest
from hotfuse.hardware.pairs import PAIR_FEATURES, Edit, Looks
from hotfuse.hardware.prior import roofline
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.work import Work
from hotfuse.records import dataclass

UNTRAINED = 0.7  # how far the roofline may be off, as a logarithm: twice as long as it says is nothing strange
OPTIMISM = 1.6  # what kernels take over what the roofline says, where nobody measured it


@dataclass(frozen=True, eq=False)
class Predicted:
    """Seconds of each piece of work, how far they may be off (standard deviations of their logarithms), and what each tree
    says: where two predictions share a tree's error, it cancels in their ratio."""

    seconds: Array
    spread: Array
    by_tree: Array  # [works, trees], in seconds


@dataclass(frozen=True, eq=False)
class Model:
    """`threads` are those of the team that kernels run with."""

    rates: Rates
    threads: int
    forest: Forest | None = None
    pairs: Forest | None = None

    def __post_init__(self) -> None:
        for name, columns in (("forest", FEATURES), ("pairs", PAIR_FEATURES)):
            found = getattr(self, name)
            if found is not None and found.names != columns:
                object.__setattr__(self, name, None)

    def ratios(self, edits: Sequence[Edit], looks: Looks | None = None) -> Array:
        """What edits make of the time of what they are about, after over before, by tree: [edits, trees]. `looks` are those of
        who asks again and again."""
        looks = looks or Looks(self.rates, self.threads)
        if self.pairs is None:
            return looks.ratios(edits)[:, None]
        return np.asarray(np.exp(self.pairs.trees(looks.rows(edits))))

    def predict(self, works: Sequence[Work]) -> Predicted:
        if self.forest is None:
            prior_s = np.array([roofline(work, self.rates, self.threads).seconds for work in works], np.float64)
            seconds = prior_s * OPTIMISM
            return Predicted(seconds, np.full(len(works), UNTRAINED), seconds[:, None])
        rows, prior_s = rows_of(works, self.rates, self.threads)
        logs = self.forest.trees(rows)
        by_tree = prior_s[:, None] * np.exp(logs)
        return Predicted(prior_s * np.exp(logs.mean(1)), logs.std(1), by_tree)
