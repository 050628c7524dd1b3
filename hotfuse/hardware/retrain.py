"""Training again: samples become a forest, in a worker process, and it replaces the one before only if it is better.

Sources that are held out are so for good: no forest is trained of them, or the one in use would be judged by what it knows.

TrainRequest: samples, and the forest in use    ->  TrainReply: a forest, and how good both are on sources held out of training
"""

from __future__ import annotations

import math
import time

import numpy as np

from hotfuse.hardware.forest import Forest, read_forest, write_forest
from hotfuse.hardware.pairs import MOST, SAME
from hotfuse.hardware.samples import Samples
from hotfuse.hardware.training import Quality, quality, train
from hotfuse.records import dataclass

LEAST = 50  # samples to train of, and LEAST / 5 to hold against them


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """`names` are those of the samples' columns; of ratios it is judged how often choices are right."""

    samples: Samples
    names: tuple[str, ...]
    known: bytes = b""  # the forest in use, if there is one
    are_ratios: bool = False


@dataclass(frozen=True, eq=False)
class TrainReply:
    """`forest` is b"" where the one in use is better, or there was too little to train of. Quality is on what was held out."""

    forest: bytes
    before: Quality | None
    after: Quality | None
    spread: float  # of repeated measurements: no prediction can be nearer
    cpu_s: float


def train_here(asked: TrainRequest) -> TrainReply:
    """In the process that calls; it imports scikit-learn."""
    begun = time.process_time()
    samples = asked.samples
    held = samples.where(samples.is_held_out)
    rest = samples.where(~samples.is_held_out)
    spread = float(np.median(samples.spread)) if len(samples) else 0.0
    if len(rest) < LEAST or len(held) < LEAST // 5:
        return TrainReply(b"", None, None, spread, time.process_time() - begun)
    before = _judged(read_forest(asked.known), held, asked.are_ratios) if asked.known else None
    most = MOST if asked.are_ratios else math.inf
    forest = train(rest.rows, rest.prior_s, rest.seconds, rest.spread, asked.names, most=most)
    after = _judged(forest, held, asked.are_ratios)
    is_better = before is None or after.median_error < before.median_error
    return TrainReply(write_forest(forest) if is_better else b"", before, after, spread, time.process_time() - begun)


def _judged(forest: Forest, held: Samples, are_ratios: bool) -> Quality:
    logs, _ = forest.ask(held.rows)
    if not are_ratios:
        return quality(held.prior_s * np.exp(logs), held.seconds)
    alike = [forest.names.index(f"by {edit}") for edit in SAME]
    fuses = (held.rows[:, alike] == 0).all(1)  # others are no choice between one kernel and several
    return quality(held.prior_s * np.exp(logs), held.seconds, np.where(fuses, held.spread, np.inf))
