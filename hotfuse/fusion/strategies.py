"""Strategies: a policy that learns from traffic which edits pay, where the model of the machine errs. A contextual bandit.

    context   what speaks for an edit: its strategy, the model's prediction and doubt, the criteria's scores, how long it takes
    reward    the logarithm of before over after, as measured
    belief    Bayesian linear regression: reward = context . weights + noise, weights normal with a wide prior around "as the
              model predicts"

An edit is worth trying while its mean and a deviation are above 0 (`hope`); who decides without trying draws the weights from
what is believed of them (`draw`: Thompson sampling), so that what is not known gets its chance and what is known is not tried
in vain. `regret` is what was lost to a policy that knows all rewards beforehand.

State: none. A `Policy` is arrays, which safetensors keep; `learned` returns another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from hotfuse.errors import ParseError
from hotfuse.fusion.criteria import Score
from hotfuse.hardware.pairs import EDITS

NOISE = 0.15  # standard deviation of rewards around what contexts explain
WIDE = 0.5  # of the weights, before anything was seen
MOST_REWARD = 1.0
CRITERIA = ("complementarity", "locality", "constraints", "parallelism")
CONTEXT = (*(f"predicted of {edit}" for edit in EDITS), "doubt", "long", *CRITERIA, *EDITS)

Array = np.ndarray[Any, Any]


def context(strategy: str, before_s: float, gain_s: float, spread_s: float, scores: Sequence[Score]) -> Array:
    """An edit as a row of `CONTEXT`."""
    part = min(max(gain_s / max(before_s, 1e-12), -1.0), 0.9)
    values = {score.name: score.value for score in scores}
    return np.array(
        [
            *(-math.log(1 - part) if strategy == name else 0.0 for name in EDITS),
            min(spread_s / max(before_s, 1e-12), 1.0),
            math.log10(max(before_s, 1e-8)) / 8 + 1,
            *(values.get(name, 0.0) for name in CRITERIA),
            *(float(strategy == name) for name in EDITS),
        ]
    )


def predicted(contexts: Array) -> Array:
    """The rewards that the model predicts."""
    return np.asarray(contexts[:, : len(EDITS)].sum(1))


def reward(before_s: float, after_s: float) -> float:
    if before_s <= 0 or after_s <= 0:
        return 0.0
    return min(max(math.log(before_s / after_s), -MOST_REWARD), MOST_REWARD)


@dataclass(frozen=True, eq=False)
class Policy:
    """What is believed of the weights: their precision, and precision times mean; how many rewards were seen, what was lost."""

    precision: Array
    shift: Array
    seen: int = 0
    regret: float = 0.0

    @property
    def mean(self) -> Array:
        return np.asarray(np.linalg.solve(self.precision, self.shift))

    def ask(self, contexts: Array) -> tuple[Array, Array]:
        """The reward of each context, and its standard deviation."""
        spread = np.einsum("ij,ji->i", contexts, np.linalg.solve(self.precision, contexts.T))
        return contexts @ self.mean, np.sqrt(np.maximum(spread, 0.0))

    def hope(self, contexts: Array) -> Array:
        mean, spread = self.ask(contexts)
        return np.asarray(mean + spread)

    def draw(self, contexts: Array, rng: np.random.Generator) -> Array:
        """Rewards by weights drawn from what is believed of them."""
        factor = np.linalg.cholesky(self.precision)
        drawn = self.mean + np.linalg.solve(factor.T, rng.standard_normal(len(self.shift)))
        return np.asarray(contexts @ drawn)

    def learned(self, contexts: Array, rewards: Array, taken: Array | None = None) -> Policy:
        """With rewards that were seen. `taken`: which edits were made before anyone knew; others lost what they would have
        gained, and those what they cost."""
        lost = 0.0
        if taken is not None:
            lost = float(np.where(taken, np.maximum(-rewards, 0), np.maximum(rewards, 0)).sum())
        return replace(
            self,
            precision=self.precision + contexts.T @ contexts / NOISE**2,
            shift=self.shift + contexts.T @ rewards / NOISE**2,
            seen=self.seen + len(rewards),
            regret=self.regret + lost,
        )


def new_policy() -> Policy:
    """Nothing was seen: rewards are as the model predicts."""
    mean = np.array([1.0] * len(EDITS) + [0.0] * (len(CONTEXT) - len(EDITS)))
    precision = np.eye(len(CONTEXT)) / WIDE**2
    return Policy(precision, precision @ mean)


def write_policy(policy: Policy) -> bytes:
    arrays = {
        field.name: np.atleast_1d(np.ascontiguousarray(getattr(policy, field.name), np.float64)) for field in fields(policy)
    }
    return bytes(safetensors.numpy.save(arrays))


def read_policy(data: bytes) -> Policy:
    """Raises ParseError where the bytes are none of ours, or of other contexts."""
    try:
        found = safetensors.numpy.load(data)
        size = len(CONTEXT)
        shapes = {"precision": (size, size), "shift": (size,), "seen": (1,), "regret": (1,)}
        if set(found) != set(shapes) or any(found[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("it has another form")
        if not all(np.isfinite(array).all() for array in found.values()) or np.linalg.eigvalsh(found["precision"]).min() <= 0:
            raise ValueError("nothing can be believed so")
        return Policy(found["precision"], found["shift"], int(found["seen"][0]), float(found["regret"][0]))
    except (ValueError, TypeError, KeyError, safetensors.SafetensorError, np.linalg.LinAlgError) as error:
        raise ParseError(f"this is no policy: {error}") from None
