"""Moving: what was learned on one machine is not all lost on another one.

Rates of a machine are among the features, and predictions are relative to the roofline of those rates: what a kernel is worth
moves with it. What does not, some samples of the new machine tell: they are trained with all of the old one's, and count more.

    samples of the old machine + a few of the new one  ->  forest for the new one
"""

from __future__ import annotations

import math

import numpy as np

from hotfuse.hardware.forest import Forest
from hotfuse.hardware.samples import Samples
from hotfuse.hardware.training import train

MOST = 3.0  # times that a sample of the new machine counts: with more, few of them are learned by heart (benchmarks.moved)


def move(old: Samples, new: Samples, names: tuple[str, ...], seed: int = 0, most: float = math.inf) -> Forest:
    """The forest of both. With no sample of the new machine it is the old one's, and with none of the old one the new one's.
    Logarithms beyond `most` are learned as that."""
    worth = min(MOST, max(1.0, len(old) / max(1, len(new))))
    rows, prior_s, seconds, spread = (
        np.concatenate([getattr(old, name), getattr(new, name)]) for name in ("rows", "prior_s", "seconds", "spread")
    )
    counts = np.repeat([1.0, worth], [len(old), len(new)])
    return train(rows, prior_s, seconds, spread, names, seed, counts, most)
