"""Times of one engine over all rounds, and when the ratio of two engines may be claimed.

Rounds are interleaved, so round i of two engines saw the same weather. The ratio of medians gets a 95 % interval by the paired
bootstrap over rounds; where the interval holds 1, the run does not tell which engine is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hotfuse.records import dataclass

DRAWS = 2000
LEAST_ROUNDS = 5  # with fewer, even an interval that leaves 1 out is no claim


@dataclass(frozen=True)
class Timing:
    """Seconds. `median_s` is the median of the rounds' medians, `iqr_s` the range of the middle half of all calls."""

    median_s: float
    iqr_s: float
    p99_s: float
    min_s: float
    calls: int
    round_medians_s: tuple[float, ...]


def summarize(rounds: Sequence[Sequence[float]]) -> Timing:
    calls = np.concatenate([np.asarray(r) for r in rounds])
    medians = tuple(float(np.median(r)) for r in rounds)
    low, high, p99 = (float(x) for x in np.percentile(calls, (25, 75, 99)))
    return Timing(float(np.median(medians)), high - low, p99, float(calls.min()), len(calls), medians)


@dataclass(frozen=True)
class Ratio:
    """How many times slower `other` is than `ours`, with the 95 % interval and the rounds it rests on."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def is_claim(self) -> bool:
        return self.rounds >= LEAST_ROUNDS and not self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        return f"{'' if self.is_claim else '~'}{self.value:.2f}x"


def ratio_of(other: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio of the medians of paired rounds."""
    pairs = np.array([other, ours])
    places = np.random.default_rng(seed).integers(0, pairs.shape[1], (DRAWS, pairs.shape[1]))
    drawn = np.median(pairs[:, places], axis=2)
    low, high = (float(x) for x in np.percentile(drawn[0] / drawn[1], (2.5, 97.5)))
    medians = np.median(pairs, axis=1)
    return Ratio(float(medians[0] / medians[1]), low, high, pairs.shape[1])


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
