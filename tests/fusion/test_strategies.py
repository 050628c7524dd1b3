"""The policy: beliefs by hand, learning, regret, and what is refused of its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.bandit import draw, regrets
from hotfuse.errors import ParseError
from hotfuse.fusion.criteria import Score
from hotfuse.fusion.strategies import (
    CONTEXT,
    MOST_EDITS,
    MOST_REWARD,
    NOISE,
    OWN,
    Evidence,
    Policy,
    context,
    new_policy,
    predicted,
    read_policy,
    reward,
    write_policy,
)

RNG = np.random.default_rng(0)


def contexts(count: int) -> np.ndarray:
    scores = [Score("locality", 0.5, ""), Score("parallelism", 1.0, "")]
    names = ("registers", "tiles")
    found = [context(names[i % 2], 1e-5, RNG.uniform(-5e-6, 5e-6), 1e-7, scores) for i in range(count)]
    return np.array(found)


def test_a_context_has_a_place_for_everything() -> None:
    found = dict(zip(CONTEXT, context("tiles", 1e-4, 5e-5, 1e-5, [Score("locality", 0.25, "")]), strict=True))
    assert found["predicted of tiles"] == pytest.approx(np.log(2))
    assert found["predicted of registers"] == 0
    assert found["doubt"] == pytest.approx(0.1)
    assert (found["locality"], found["tiles"], found["registers"]) == (0.25, 1.0, 0.0)


def test_rewards_are_bounded() -> None:
    assert reward(2.0, 1.0) == pytest.approx(np.log(2))
    assert reward(1.0, 2.0) == pytest.approx(-np.log(2))
    assert reward(1.0, 1e-9) == MOST_REWARD
    assert reward(0.0, 1.0) == 0.0


def test_before_anything_was_seen_the_model_is_believed_and_doubted() -> None:
    told = contexts(4)
    mean, spread = new_policy().ask(told)
    np.testing.assert_allclose(mean, predicted(told), atol=1e-9)
    assert (spread > 0.1).all()
    np.testing.assert_allclose(new_policy().hope(told), mean + spread)


def test_it_learns_that_a_strategy_never_pays() -> None:
    told = contexts(400)
    rewards = np.where(told[:, CONTEXT.index("tiles")] == 1, -0.3, predicted(told))
    policy = new_policy().learned(told, rewards)
    mean, spread = policy.ask(told)
    tiles = told[:, CONTEXT.index("tiles")] == 1
    assert (mean[tiles] < -0.1).mean() > 0.9
    np.testing.assert_allclose(spread, OWN, rtol=0.2)  # what is left is the own part of an edit that nobody saw
    assert policy.seen == 400


def test_regret_is_what_was_lost() -> None:
    told = contexts(3)
    rewards, taken = np.array([0.5, -0.25, 0.125]), np.array([True, True, False])
    assert new_policy().learned(told, rewards, taken).regret == pytest.approx(0.25 + 0.125)


def test_an_edit_that_was_measured_is_known_by_its_own_rewards() -> None:
    """What the contexts of others say does not count against it, and it tells others little."""
    told = contexts(40)
    same = np.repeat(told[:1], 40, 0)
    policy = new_policy().learned(same, np.full(40, 0.4), edits=["a" * 16] * 40)
    (mean,), (spread,) = policy.ask(told[:1], ["a" * 16])
    assert mean == pytest.approx(0.4, abs=0.01)
    assert spread < 0.02
    (other,), (doubt,) = policy.ask(told[:1], ["b" * 16])
    once = new_policy().learned(same[:1], np.array([0.4]), edits=["a" * 16])
    assert other == pytest.approx(once.ask(told[:1], ["b" * 16])[0][0], abs=0.02)  # forty of one are hardly more than one
    assert doubt > OWN


def test_the_weights_see_the_mean_of_an_edit_once() -> None:
    """Rewards one by one, or their mean with its own noise, which nothing came between: the same is believed."""
    row = contexts(1)
    one_by_one = new_policy().learned(np.repeat(row, 2, 0), np.array([0.1, 0.3]), edits=["c" * 16] * 2)
    precision = 2 / NOISE**2
    weight = 1 / (OWN**2 + 1 / precision)
    np.testing.assert_allclose(one_by_one.precision, new_policy().precision + weight * np.outer(row, row), rtol=1e-9)
    np.testing.assert_allclose(one_by_one.shift, new_policy().shift + weight * 0.2 * row[0], rtol=1e-9)


def test_rewards_that_are_less_sure_count_less() -> None:
    row = contexts(1)
    sure, unsure = (new_policy().learned(row, np.array([0.5]), edits=["d" * 16], noises=[n]) for n in (0.01, 0.5))
    known, doubtful = (abs(p.ask(row, ["d" * 16])[0][0] - 0.5) for p in (sure, unsure))
    assert known < 0.1 < doubtful
    np.testing.assert_array_equal(sure.shift, new_policy().learned(row, np.array([0.5]), noises=[NOISE]).shift)


def test_what_is_known_of_an_edit_fades() -> None:
    row = contexts(1)
    policy = new_policy().learned(row, np.array([-0.5]), edits=["e" * 16])
    (before,) = policy.ask(row, ["e" * 16])[1]
    others = contexts(3000)
    policy = policy.learned(others, predicted(others), edits=[f"{n:016x}" for n in range(3000)])
    (after,) = policy.ask(row, ["e" * 16])[1]
    assert after > 1.3 * before


def test_a_reward_in_another_context_leaves_a_belief() -> None:
    """What was added of an edit in one context is not taken out in another, however much of it has faded."""
    first, second = contexts(2)[:, None]
    policy = new_policy().learned(np.repeat(first, 20, 0), np.full(20, 0.3), edits=["f" * 16] * 20, noises=[0.01] * 20)
    others = contexts(3000)
    policy = policy.learned(others[:5], predicted(others[:5]), edits=[f"{n:016x}" for n in range(5)])
    policy = replace(policy, seen=policy.seen + 20_000)
    policy = policy.learned(10 * second, np.array([0.1]), edits=["f" * 16], noises=[2.0])
    assert np.linalg.eigvalsh(policy.precision).min() > 0


def test_a_machine_that_changes_is_followed() -> None:
    """What paid no longer does: it is noticed within a few rewards."""
    row = contexts(1)
    policy = new_policy().learned(np.repeat(row, 20, 0), np.full(20, 0.3), edits=["f" * 16] * 20)
    assert policy.ask(row, ["f" * 16])[0][0] > 0.25
    policy = policy.learned(np.repeat(row, 30, 0), np.full(30, -0.3), edits=["f" * 16] * 30)
    assert policy.ask(row, ["f" * 16])[0][0] < 0


def test_the_edits_seen_last_are_remembered() -> None:
    told = np.repeat(contexts(1), MOST_EDITS + 2, 0)
    names = [f"{n:016x}" for n in range(MOST_EDITS + 2)]
    policy = new_policy().learned(told[:3], np.zeros(3), edits=names[:3])
    policy = policy.learned(told[:1], np.zeros(1), edits=names[:1])
    assert list(policy.edits) == [names[1], names[2], names[0]]
    full = replace(policy, edits=dict.fromkeys(names, policy.edits[names[0]]))
    assert list(full.learned(told[:1], np.zeros(1), edits=["9" * 16]).edits) == [*names[3:], "9" * 16]


def test_edits_of_their_own_kind_cost_little_once_they_are_known() -> None:
    """Contexts say nothing here; each edit does what it does."""
    told = np.repeat(contexts(1), 100, 0)
    rewards = np.random.default_rng(1).choice([-0.3, 0.3], 100)
    blind, seeing = (regrets(told, rewards, 3000, edits=e)["bandit"] for e in ((), [f"{n:016x}" for n in range(100)]))
    assert seeing[-1] < 0.2 * blind[-1]
    assert seeing[-1] - seeing[2000] < 0.02 * (blind[-1] - blind[2000])


def test_curves_are_drawn(tmp_path: Path) -> None:
    draw({"a": np.arange(10.0), "b": np.arange(10.0) ** 2}, tmp_path / "curves.svg")
    (a, b) = (e for e in ElementTree.parse(tmp_path / "curves.svg").getroot() if e.tag.endswith("polyline"))
    heights = [[float(point.split(",")[1]) for point in e.attrib["points"].split()] for e in (a, b)]
    assert heights[1][0] > heights[1][-1]  # downwards
    assert heights[0][-1] > heights[1][-1]


def test_it_loses_less_than_who_never_learns() -> None:
    told = contexts(300)
    rewards = np.where(told[:, CONTEXT.index("tiles")] == 1, -0.3, predicted(told))
    curves = regrets(told, rewards, 3000)
    assert curves["bandit"][-1] < 0.3 * curves["always the model"][-1]
    assert curves["bandit"][-1] < 0.3 * curves["always the rules"][-1]
    assert (np.diff(curves["bandit"]) >= 0).all()


def test_the_bytes_say_all_and_others_are_refused() -> None:
    policy = new_policy().learned(contexts(9), np.full(9, 0.1), edits=[f"{n:016x}" for n in range(1 << 60, (1 << 60) + 9)])
    again = read_policy(write_policy(policy))
    np.testing.assert_array_equal(again.precision, policy.precision)
    assert (again.seen, again.regret) == (9, 0.0)
    assert again.edits == policy.edits
    assert len(again.edits) == 9
    broken = Policy(-policy.precision, policy.shift)
    doubtful = replace(policy, edits={"1" * 16: Evidence(0.1, -1.0, 1, 1.0)})
    others = map(write_policy, (broken, doubtful, Policy(policy.precision[:2], policy.shift)))
    for data in (b"", b"\0" * 40, *others):
        with pytest.raises(ParseError, match="no policy"):
            read_policy(data)
