"""The policy: beliefs by hand, learning, regret, and what is refused of its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bandit import regrets
from hotfuse.errors import ParseError
from hotfuse.fusion.criteria import Score
from hotfuse.fusion.strategies import (
    CONTEXT,
    MOST_REWARD,
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
    assert spread.max() < 0.1
    assert policy.seen == 400


def test_regret_is_what_was_lost() -> None:
    told = contexts(3)
    rewards, taken = np.array([0.5, -0.25, 0.125]), np.array([True, True, False])
    assert new_policy().learned(told, rewards, taken).regret == pytest.approx(0.25 + 0.125)


def test_it_loses_less_than_who_never_learns() -> None:
    told = contexts(300)
    rewards = np.where(told[:, CONTEXT.index("tiles")] == 1, -0.3, predicted(told))
    curves = regrets(told, rewards, 3000)
    assert curves["bandit"][-1] < 0.3 * curves["always the model"][-1]
    assert curves["bandit"][-1] < 0.3 * curves["always the rules"][-1]
    assert (np.diff(curves["bandit"]) >= 0).all()


def test_the_bytes_say_all_and_others_are_refused() -> None:
    policy = new_policy().learned(contexts(9), np.full(9, 0.1))
    again = read_policy(write_policy(policy))
    np.testing.assert_array_equal(again.precision, policy.precision)
    assert (again.seen, again.regret) == (9, 0.0)
    broken = Policy(-policy.precision, policy.shift)
    for data in (b"", b"\0" * 40, write_policy(broken), write_policy(Policy(policy.precision[:2], policy.shift))):
        with pytest.raises(ParseError, match="no policy"):
            read_policy(data)
