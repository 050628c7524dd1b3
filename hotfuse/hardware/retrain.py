"""Training again: samples become a forest, in a worker process, and it replaces the one before only if it is better.

Sources that are held out are so for good: no forest is trained of them, or the one in use would be judged by what it knows.
Where another machine taught more than this one so far, a forest that is moved from there competes as well (`moving`).

TrainRequest: samples, and the forest in use    ->  TrainReply: a forest, and how good both are on sources held out of training
"""

from __future__ import annotations

import math
import time

import numpy as np

from hotfuse.hardware.forest import Forest, read_forest, write_forest
from hotfuse.hardware.moving import move
from hotfuse.hardware.pairs import MOST, SAME
from hotfuse.hardware.samples import Samples, no_samples
from hotfuse.hardware.training import Quality, quality
from hotfuse.records import dataclass

LEAST = 50  # samples to train of, and LEAST / 5 to hold against them; of those to move by, LEAST / 5 will do


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """`names` are those of the samples' columns; of ratios it is judged how often choices are right. `elsewhere` are those of
    another machine."""

    samples: Samples
    names: tuple[str, ...]
    known: bytes = b""  # the forest in use, if there is one
    are_ratios: bool = False
    elsewhere: Samples | None = None


@dataclass(frozen=True, eq=False)
class TrainReply:
    """`forest` is b"" where the one in use is better, or there was too little to train of. Quality is on what was held out.
    `is_moved`: another machine's samples are in it."""

    forest: bytes
    before: Quality | None
    after: Quality | None
    spread: float  # of repeated measurements: no prediction can be nearer
    cpu_s: float
    is_moved: bool = False


def train_here(asked: TrainRequest) -> TrainReply:
    """In the process that calls; it imports scikit-learn."""
    begun = time.process_time()
    samples = asked.samples
    held = samples.where(samples.is_held_out)
    rest = samples.where(~samples.is_held_out)
    spread = float(np.median(samples.spread)) if len(samples) else 0.0
    other = no_samples(asked.names) if asked.elsewhere is None else asked.elsewhere.where(~asked.elsewhere.is_held_out)
    moves = len(other) > len(rest) >= LEAST // 5
    if len(held) < LEAST // 5 or (len(rest) < LEAST and not moves):
        return TrainReply(b"", None, None, spread, time.process_time() - begun)
    before = _judged(read_forest(asked.known), held, asked.are_ratios) if asked.known else None
    most = MOST if asked.are_ratios else math.inf
    sources = [(False, no_samples(asked.names))] * (len(rest) >= LEAST) + [(True, other)] * moves
    forests = [(is_moved, move(source, rest, asked.names, most=most)) for is_moved, source in sources]
    judged = [(_judged(forest, held, asked.are_ratios), is_moved, forest) for is_moved, forest in forests]
    after, is_moved, forest = min(judged, key=lambda found: found[0].median_error)
    is_better = before is None or after.median_error < before.median_error
    data = write_forest(forest) if is_better else b""
    return TrainReply(data, before, after, spread, time.process_time() - begun, is_moved and is_better)


def _judged(forest: Forest, held: Samples, are_ratios: bool) -> Quality:
    logs, _ = forest.ask(held.rows)
    if not are_ratios:
        return quality(held.prior_s * np.exp(logs), held.seconds)
    alike = [forest.names.index(f"by {edit}") for edit in SAME]
    fuses = (held.rows[:, alike] == 0).all(1)  # others are no choice between one kernel and several
    return quality(held.prior_s * np.exp(logs), held.seconds, np.where(fuses, held.spread, np.inf))
