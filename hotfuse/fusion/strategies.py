"""Strategies: a policy that learns from traffic which edits pay, where the model of the machine errs. A contextual bandit.

    context   what speaks for an edit: its strategy, the model's prediction and doubt, the criteria's scores, how long it takes
    reward    the logarithm of before over after, as measured, and how far that may be off
    belief    reward = context . weights + the edit's own part + noise: weights normal with a wide prior around "as the model
              predicts", own parts normal around 0 (`OWN`)

What an edit does is much the same whenever it is made, and mostly its own: of what the model leaves open contexts explain
little, in whatever way they enter, and the edit's own past nearly all (docs/decisions/0029). So each is known by what it does
(`Step.digest`), and those that were measured are remembered. Of n measurements of one edit with variance v each,

    own part    s = OWN^2 / (OWN^2 + v/n) of what their mean differs from what the context says
    weights     see that mean once, with variance OWN^2 + v/n: measuring one edit again and again tells little of others

Machines change: what is known of an edit counts less with every reward that came since (`FADES`), so what did not pay gets
another chance some day.

An edit is worth trying while its mean and a deviation are above 0 (`hope`): what is not known gets its chance, and what is
known is not tried in vain. `regret` is what was lost to a policy that knows all rewards beforehand.

State: none. A `Policy` is arrays, which safetensors keep; `learned` returns another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from hotfuse.errors import ParseError
from hotfuse.fusion.criteria import Score
from hotfuse.fusion.engine import Step
from hotfuse.hardware.pairs import EDITS
from hotfuse.records import dataclass

NOISE = 0.06  # standard deviation of a reward that was measured twice: 0.063 for groups of small graphs, timed in turns
OWN = 0.15  # of what edits do beyond what contexts explain
WIDE = 0.3  # of the weights, before anything was seen
FADES = 0.9995  # of what is known of an edit, with every reward: half is left after 1,400
MOST_EDITS = 4096  # that are remembered: those seen last
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


def context_of(step: Step) -> Array:
    return context(step.strategy, step.before_s, step.gain_s, step.spread_s, step.scores)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one edit: the mean of its rewards and how precise it is, how many rewards of all had been seen by then,
    and with what weight the mean is part of what is believed of all edits."""

    mean: float
    precision: float
    seen: int
    weight: float


@dataclass(frozen=True, eq=False)
class Policy:
    """What is believed of the weights: their precision, and precision times mean; of edits, by digest, those seen last at the
    end; how many rewards were seen, what was lost."""

    precision: Array
    shift: Array
    edits: Mapping[str, Evidence] = field(default_factory=dict)
    seen: int = 0
    regret: float = 0.0

    @property
    def mean(self) -> Array:
        return np.asarray(np.linalg.solve(self.precision, self.shift))

    def ask(self, contexts: Array, edits: Sequence[str] = ()) -> tuple[Array, Array]:
        """The reward of each context, and its standard deviation. `edits` are the digests, where they are known."""
        spread = np.einsum("ij,ji->i", contexts, np.linalg.solve(self.precision, contexts.T))
        told, share, left = self._own(contexts, edits)
        means = (1 - share) * (contexts @ self.mean) + share * told
        return means, np.sqrt((1 - share) ** 2 * np.maximum(spread, 0.0) + left)

    def hope(self, contexts: Array, edits: Sequence[str] = ()) -> Array:
        mean, spread = self.ask(contexts, edits)
        return np.asarray(mean + spread)

    def _own(self, contexts: Array, edits: Sequence[str]) -> tuple[Array, Array, Array]:
        """Of each edit the mean of its rewards, how far that is believed, and the variance that is left of its own part."""
        found = [self.edits.get(edit) for edit in edits] if edits else [None] * len(contexts)
        told = np.array([0.0 if e is None else e.mean for e in found])
        precision = np.array([0.0 if e is None else self._faded(e) for e in found])
        share = OWN**2 * precision / (OWN**2 * precision + 1)
        return told, share, OWN**2 * (1 - share)

    def _faded(self, evidence: Evidence) -> float:
        return evidence.precision * FADES ** (self.seen - evidence.seen)

    def learned(
        self,
        contexts: Array,
        rewards: Array,
        taken: Array | None = None,
        edits: Sequence[str] = (),
        noises: Sequence[float] = (),
    ) -> Policy:
        """With rewards that were seen, each of them off by about its noise. `taken`: which edits were made before anyone knew;
        others lost what they would have gained, and those what they cost."""
        lost = 0.0
        if taken is not None:
            lost = float(np.where(taken, np.maximum(-rewards, 0), np.maximum(rewards, 0)).sum())
        policy = replace(self, regret=self.regret + lost)
        for place, (row, found) in enumerate(zip(contexts, rewards.tolist(), strict=True)):
            noise = max(NOISE, noises[place]) if noises else NOISE
            policy = policy._after(row, found, edits[place] if edits else "", noise)
        return policy

    def _after(self, row: Array, found: float, edit: str, noise: float) -> Policy:
        """With one more reward, of an edit that was seen before or not."""
        before = self.edits.get(edit)
        known = 0.0 if before is None else self._faded(before)
        precision = known + 1 / noise**2
        mean = (known * (before.mean if before else 0.0) + found / noise**2) / precision
        weight = 1 / (OWN**2 + 1 / precision)
        if before:  # what was added of it went by the context that it had then: taking it out by another leaves no belief
            weight = max(weight, before.weight)
        was, counted = (before.weight, before.weight * before.mean) if before else (0.0, 0.0)
        edits = {name: evidence for name, evidence in self.edits.items() if name != edit}
        if edit:
            edits[edit] = Evidence(mean, precision, self.seen + 1, weight)
            for oldest in list(edits)[:-MOST_EDITS]:
                del edits[oldest]
        return replace(
            self,
            precision=self.precision + (weight - was) * np.outer(row, row),
            shift=self.shift + (weight * mean - counted) * row,
            edits=edits,
            seen=self.seen + 1,
        )


def new_policy() -> Policy:
    """Nothing was seen: rewards are as the model predicts."""
    mean = np.array([1.0] * len(EDITS) + [0.0] * (len(CONTEXT) - len(EDITS)))
    precision = np.eye(len(CONTEXT)) / WIDE**2
    return Policy(precision, precision @ mean)


def write_policy(policy: Policy) -> bytes:
    """Digests are hexadecimal numbers of 64 bits."""
    known = list(policy.edits.values())
    arrays = {
        "precision": policy.precision,
        "shift": policy.shift,
        "seen": [policy.seen],
        "regret": [policy.regret],
        "edits": np.array([int(edit, 16) for edit in policy.edits], np.uint64),
        "evidence": np.array([[getattr(e, f.name) for f in fields(Evidence)] for e in known]).reshape(
            -1, len(fields(Evidence))
        ),
    }
    plain = {name: np.ascontiguousarray(a, np.uint64 if name == "edits" else np.float64) for name, a in arrays.items()}
    return bytes(safetensors.numpy.save(plain))


def read_policy(data: bytes) -> Policy:
    """Raises ParseError where the bytes are none of ours, or of other contexts."""
    try:
        found = safetensors.numpy.load(data)
        size, count = len(CONTEXT), len(found["edits"])
        wide = len(fields(Evidence))
        shapes = {"precision": (size, size), "shift": (size,), "seen": (1,), "regret": (1,), "edits": (count,)}
        shapes["evidence"] = count, wide
        if set(found) != set(shapes) or any(found[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("it has another form")
        numbers = [array for name, array in found.items() if name != "edits"]
        if not all(np.isfinite(array).all() for array in numbers) or np.linalg.eigvalsh(found["precision"]).min() <= 0:
            raise ValueError("nothing can be believed so")
        if found["edits"].dtype != np.uint64 or (found["evidence"][:, 1:] < 0).any():
            raise ValueError("nothing can be known so of an edit")
        edits = {
            f"{edit:016x}": Evidence(mean, precision, int(seen), weight)
            for edit, (mean, precision, seen, weight) in zip(found["edits"].tolist(), found["evidence"].tolist(), strict=True)
        }
        return Policy(found["precision"], found["shift"], edits, int(found["seen"][0]), float(found["regret"][0]))
    except (ValueError, TypeError, KeyError, safetensors.SafetensorError, np.linalg.LinAlgError) as error:
        raise ParseError(f"this is no policy: {error}") from None
