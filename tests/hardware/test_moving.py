"""Moving: a few samples of the new machine outweigh many of the old one where both speak of the same."""

from __future__ import annotations

import numpy as np

from hotfuse.hardware.moving import move
from hotfuse.hardware.samples import Samples, make_samples, no_samples
from hotfuse.hardware.training import quality

NAMES = ("work", "machine")


def machine(which: int, count: int, times: float, seed: int) -> Samples:
    work = np.random.default_rng(seed).uniform(0, 10, count)
    rows = np.column_stack([work, np.full(count, which)])
    prior = np.exp(work) * 1e-6
    seconds = prior * times * np.where(work > 5, 1.0, 2.0)
    return make_samples(rows, prior, list(seconds), [0.01] * count, which)


def error(old: Samples, new: Samples, held: Samples) -> float:
    logs, _ = move(old, new, NAMES).ask(held.rows)
    return quality(held.prior_s * np.exp(logs), held.seconds).median_error


def test_a_few_samples_of_the_new_machine_are_enough() -> None:
    old, few, held = machine(0, 1000, 1.0, 0), machine(1, 60, 3.0, 1), machine(1, 200, 3.0, 2)
    assert error(old, no_samples(NAMES), held) > 0.5
    assert error(old, few, held) < 0.1


def test_without_an_old_machine_it_is_the_new_ones_own() -> None:
    held = machine(1, 200, 3.0, 2)
    assert error(no_samples(NAMES), machine(1, 200, 3.0, 1), held) < 0.05
