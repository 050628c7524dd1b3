"""Forests: what scikit-learn trained is what the arrays say, the bytes say all of it, and others are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from hotfuse.errors import ParseError
from hotfuse.hardware import training
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import BLOCK, Forest, read_forest, write_forest
from hotfuse.hardware.training import quality, train

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((300, len(FEATURES))).astype(np.float32)
PRIOR = np.exp(RNG.standard_normal(300))
SECONDS = PRIOR * np.exp(ROWS[:, 0] + (ROWS[:, 1] > 0))
SPREAD = np.abs(RNG.standard_normal(300)) / 10


@pytest.fixture(scope="module")
def forest() -> Forest:
    return train(ROWS, PRIOR, SECONDS, SPREAD)


def test_the_arrays_say_what_scikit_learn_says(forest: Forest) -> None:
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(training.TREES, min_samples_leaf=training.LEAF, random_state=0)
    model.fit(ROWS, np.log(SECONDS / PRIOR), sample_weight=1 / (training.SURE + SPREAD))
    others = np.concatenate([ROWS, RNG.standard_normal((500, len(FEATURES))).astype(np.float32)])
    mean, spread = forest.ask(others)
    np.testing.assert_allclose(mean, model.predict(others), atol=1e-5)
    each = np.stack([tree.predict(others) for tree in model.estimators_], 1)
    np.testing.assert_allclose(forest.trees(others), each, atol=1e-5)
    np.testing.assert_allclose(spread, each.std(1), atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, BLOCK, 2 * BLOCK + 3])
def test_each_sample_goes_its_own_way_whoever_goes_beside_it(forest: Forest, count: int) -> None:
    samples = RNG.standard_normal((count, len(FEATURES))).astype(np.float32)
    found = forest.trees(samples)
    assert found.shape == (count, len(forest.roots))
    for place in range(0, count, 97):
        np.testing.assert_array_equal(forest.trees(samples[place : place + 1])[0], found[place])


def test_it_learns_and_doubts_where_it_saw_nothing(forest: Forest) -> None:
    mean, _ = forest.ask(ROWS)
    found = quality(PRIOR * np.exp(mean), SECONDS)
    assert found.median_error < 0.15
    assert found.rank_correlation > 0.95
    assert found.samples == 300
    assert quality(PRIOR, SECONDS).median_error > 0.4


def test_the_bytes_say_all(forest: Forest) -> None:
    again = read_forest(write_forest(forest))
    assert again.names == forest.names
    assert again.depth == forest.depth
    np.testing.assert_array_equal(again.trees(ROWS), forest.trees(ROWS))


@pytest.mark.parametrize(
    "changes",
    [
        {"left": lambda a: np.zeros_like(a)},  # round and round
        {"right": lambda a: a + len(a)},
        {"left": lambda a: a - 1},
        {"roots": lambda a: a[:0]},
        {"roots": lambda a: a + 10**6},
        {"feature": lambda a: a + 1000},
        {"feature": lambda a: a - 1000},
        {"value": lambda a: a * np.float32(np.nan)},
        {"threshold": lambda a: a[:-1]},
        {"threshold": lambda a: a * np.float32(np.inf)},
    ],
)
def test_trees_that_one_could_get_lost_in_are_refused(forest: Forest, changes: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        spoiled = {name: change(getattr(forest, name)) for name, change in changes.items()}
    with pytest.raises(ParseError, match="no forest"):
        read_forest(write_forest(replace(forest, **spoiled)))


def test_a_depth_that_is_none_is_refused(forest: Forest) -> None:
    for depth in (-1, 10**9):
        with pytest.raises(ParseError):
            read_forest(write_forest(replace(forest, depth=depth)))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 64, safetensors.numpy.save({"x": np.zeros(3)})])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        read_forest(data)


def test_every_byte_that_is_cut_off_is_missed(forest: Forest) -> None:
    data = write_forest(forest)
    for length in (10, len(data) // 2, len(data) - 1):
        with pytest.raises(ParseError):
            read_forest(data[:length])
