"""Samples and training again: what is kept, what is refused, and that a forest gives way only to a better one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.errors import ParseError
from hotfuse.hardware import samples as module
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import read_forest
from hotfuse.hardware.pairs import PAIR_FEATURES, SAME
from hotfuse.hardware.retrain import LEAST, TrainRequest, train_here
from hotfuse.hardware.samples import HELD_OUT, Samples, make_samples, no_samples, read_samples, write_samples
from hotfuse.hardware.training import quality


def drawn(sources: Iterable[int], noise: float = 0.01) -> Samples:
    """Of a machine on which the first feature decides."""
    found = no_samples(FEATURES)
    for source in sources:
        rng = np.random.default_rng(abs(source))
        rows = rng.uniform(0, 3, (10, len(FEATURES)))
        seconds = np.exp(rows[:, 0] + noise * rng.standard_normal(10))
        found = found + make_samples(rows, np.ones(10), list(seconds), [0.01] * 10, source)
    return found


def test_models_and_traffic_are_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 25)
    monkeypatch.setattr(module, "OWN", 5)
    found = drawn(range(4)) + drawn([-3, -2])
    assert len(found) == 25
    assert list(found.source[found.source < 0]) == [-2] * 5
    assert (found.source >= 0).sum() == 20
    assert (drawn([-3, -2, -1]).source == -1).sum() == 5


def test_they_grow_and_lose_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 25)
    found = drawn(range(4))
    assert len(found) == 25
    assert set(found.source) == {1, 2, 3}


def test_what_the_clock_could_not_tell_is_left_out() -> None:
    assert len(make_samples(np.zeros((2, len(FEATURES))), [1.0, 1.0], [0.0, 1.0], [0.0, 0.0], 0)) == 1


def test_the_bytes_say_all() -> None:
    found = drawn(range(3))
    again = read_samples(write_samples(found), FEATURES)
    for name in ("rows", "prior_s", "seconds", "spread", "source"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": np.zeros((30, 3), np.float32)},
        {"rows": np.full((30, len(FEATURES)), np.nan, np.float32)},
        {"seconds": np.zeros(30)},
        {"prior_s": -np.ones(30)},
        {"source": np.zeros(30)},
        {"spread": np.zeros(29)},
    ],
)
def test_others_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParseError, match="no samples"):
        read_samples(write_samples(replace(drawn(range(3)), **changes)), FEATURES)


@pytest.mark.parametrize("data", [b"", b"\0" * 20, write_samples(no_samples(FEATURES))[:-1]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        read_samples(data, FEATURES)


def test_too_little_is_not_trained_of() -> None:
    reply = train_here(TrainRequest(drawn(range(4)), FEATURES))
    assert (reply.forest, reply.before, reply.after) == (b"", None, None)


def test_a_forest_gives_way_to_a_better_one_only() -> None:
    first = train_here(TrainRequest(drawn(range(20), noise=1.0), FEATURES))
    assert first.forest
    assert first.before is None
    better = train_here(TrainRequest(drawn(range(100)), FEATURES, first.forest))
    assert better.forest
    assert better.before is not None
    assert better.after is not None
    assert better.after.median_error < better.before.median_error
    worse = train_here(TrainRequest(drawn(range(20)), FEATURES, better.forest))
    assert not worse.forest


def test_a_forest_is_moved_from_another_machine_that_taught_more() -> None:
    """All take as much longer there as the roofline says: what was learned there holds here as well."""
    few, many = drawn(range(30)), drawn(range(100, 400))
    alone = train_here(TrainRequest(few, FEATURES))
    moved = train_here(TrainRequest(few, FEATURES, elsewhere=many))
    assert moved.is_moved
    assert not alone.is_moved
    assert moved.after is not None
    assert alone.after is not None
    assert moved.after.median_error < alone.after.median_error
    assert not train_here(TrainRequest(many, FEATURES, elsewhere=few)).is_moved  # it taught less


def test_what_does_not_hold_here_is_not_moved() -> None:
    strange = drawn(range(100, 400))
    strange = replace(strange, seconds=strange.prior_s * np.random.default_rng(0).uniform(1, 1e6, len(strange)))
    assert not train_here(TrainRequest(drawn(range(50)), FEATURES, elsewhere=strange)).is_moved


def test_too_few_to_train_of_are_enough_to_move_by() -> None:
    held = drawn(range(HELD_OUT - 1, 20 * HELD_OUT, HELD_OUT))
    few = drawn(range(10))
    few = few.where(~few.is_held_out)
    few = few.where(np.arange(len(few)) < LEAST // 5) + held
    assert not train_here(TrainRequest(few, FEATURES)).forest
    assert train_here(TrainRequest(few, FEATURES, elsewhere=drawn(range(100, 400)))).is_moved


def test_no_forest_is_trained_of_what_is_held_out() -> None:
    found = drawn(range(50))
    strange = replace(found, seconds=np.where(found.is_held_out, 1e6, found.seconds))
    for_all, without = (read_forest(train_here(TrainRequest(part, FEATURES)).forest) for part in (strange, found))
    np.testing.assert_array_equal(for_all.trees(found.rows), without.trees(found.rows))


def test_of_ratios_it_is_told_how_often_the_choice_is_right() -> None:
    """Ratios that follow from one column, but for edits that leave a kernel its nodes: nobody asks of them whether to fuse."""
    rng = np.random.default_rng(0)
    found = no_samples(PAIR_FEATURES)
    same = [PAIR_FEATURES.index(f"by {edit}") for edit in SAME]
    for source in range(60):
        rows = rng.uniform(0, 1, (10, len(PAIR_FEATURES)))
        alike = rng.random(10) < 0.3
        rows[:, same] = alike[:, None] * np.eye(len(same))[rng.integers(len(same), size=10)]
        ratios = np.where(alike, np.exp(rng.standard_normal(10)), np.exp(rows[:, 0] - 0.5))
        found = found + make_samples(rows, np.ones(10), list(ratios), [0.02] * 10, source)
    after = train_here(TrainRequest(found, PAIR_FEATURES, are_ratios=True)).after
    assert after is not None
    assert after.right is not None
    assert after.right > 0.85
    fuses = (found.rows[:, same] == 0).all(1) & found.is_held_out
    assert 0 < after.decided <= fuses.sum()


def test_where_all_were_in_doubt_nobody_was_right() -> None:
    ones = np.ones(5)
    assert quality(1.1 * ones, 1.05 * ones, 0.1 * ones).right is None
    assert quality(1.1 * ones, 1.05 * ones, 0.01 * ones).right == 1.0
