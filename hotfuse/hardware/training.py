"""Training a forest: what kernels took becomes trees that say how far the roofline is off. Uses scikit-learn: in workers only.

The forest learns the logarithm of measured over predicted time, so that errors count alike for small kernels and large ones.
Extra trees, whose thresholds are drawn at random, did better than a plain random forest: sizes that calibration never saw lie
between those that it did.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import Array, Forest
from hotfuse.records import dataclass

TREES = 64
LEAST_SPREAD = 0.02  # of a ratio: less is no difference
LEAF = 2  # samples of a leaf, at least
SURE = 0.03  # how far repeated measurements lie apart where nothing disturbs them: those that lie further count less


@dataclass(frozen=True)
class Quality:
    """How well predictions agree with what was measured: the median of relative errors, the correlation of ranks, and, of
    ratios, how often it was right whether there is a gain, where there is one or the other beyond doubt."""

    median_error: float
    rank_correlation: float
    samples: int
    right: float | None = None  # nobody can say where all were in doubt
    decided: int = 0  # samples for which there was no doubt


def train(
    rows: Array,
    prior_s: Array,
    seconds: Array,
    spread: Array,
    names: tuple[str, ...] = FEATURES,
    seed: int = 0,
    counts: Array | float = 1.0,
    most: float = math.inf,
) -> Forest:
    """The forest of samples: features, what the roofline says, what was measured, and how far repeated measurements lay apart;
    each counts as often as `counts` say. Logarithms beyond `most` are learned as that."""
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, random_state=seed)
    logs = np.clip(np.log(seconds / prior_s), -most, most)
    model.fit(rows.astype(np.float32), logs, sample_weight=counts / (SURE + spread))
    return _as_arrays([estimator.tree_ for estimator in model.estimators_], names)


def _as_arrays(trees: list[Any], names: tuple[str, ...]) -> Forest:
    roots = np.cumsum([0, *(tree.node_count for tree in trees[:-1])])
    parts: dict[str, list[Array]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    for root, tree in zip(roots, trees, strict=True):
        places = np.arange(tree.node_count)
        leaf = tree.children_left < 0
        parts["feature"].append(np.where(leaf, 0, tree.feature))
        parts["threshold"].append(np.where(leaf, 0.0, tree.threshold))
        parts["left"].append(root + np.where(leaf, places, tree.children_left))
        parts["right"].append(root + np.where(leaf, places, tree.children_right))
        parts["value"].append(tree.value[:, 0, 0])
    joined = {name: np.concatenate(found) for name, found in parts.items()}
    return Forest(
        names,
        roots.astype(np.int32),
        joined["feature"].astype(np.int32),
        _rounded_down(joined["threshold"]),
        joined["left"].astype(np.int32),
        joined["right"].astype(np.int32),
        joined["value"].astype(np.float32),
        max(tree.max_depth for tree in trees),
    )


def _rounded_down(thresholds: Array) -> Array:
    """In the features' own precision, with which they are compared: the largest number that is not above."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


def quality(predicted_s: Array, seconds: Array, spread: Array | None = None) -> Quality:
    errors = np.abs(predicted_s / seconds - 1)
    ranks = np.array([np.argsort(np.argsort(values)) for values in (predicted_s, seconds)], np.float64)
    correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(seconds) > 1 else 1.0
    if spread is None:
        return Quality(float(np.median(errors)), correlation, len(seconds))
    decided = np.abs(seconds - 1) > np.maximum(spread, LEAST_SPREAD)
    right = float(((predicted_s < 1) == (seconds < 1))[decided].mean()) if decided.any() else None
    return Quality(float(np.median(errors)), correlation, len(seconds), right, int(decided.sum()))
