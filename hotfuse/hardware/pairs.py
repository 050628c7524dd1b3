"""Pairs: what some pieces of work take, and what others take that do the same: whether an edit of a plan pays.

The ratio of two times is known better than either: what a machine is slow at just then, and what the model does not see of a
graph, is in both. So a forest of its own learns ratios, from pairs that were timed in turns, as the other learns times.

    works that go, works that come, the edit  ->  PAIR_FEATURES  ->  logarithm of the ratio

What the roofline says of the ratio is among the features, and not what the forest learns the rest of: where it errs, it does
so by more than most ratios differ from one. Ratios beyond `MOST` are learned as that: what decides are those around one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from hotfuse.hardware.features import FEATURES, features
from hotfuse.hardware.forest import Array
from hotfuse.hardware.prior import Bound, roofline
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.work import STRIDED, Work
from hotfuse.records import dataclass

REGISTERS, SIBLINGS, TILES, LAYOUT, RECOMPUTE, GRAIN = "registers", "siblings", "tiles", "layout", "recompute", "grain"
SPLIT = "split"
ACROSS, ABREAST, STRIPS, HEIGHTS, SWEEP = "across", "abreast", "strips", "heights", "sweep"
VARIANTS = (ACROSS, ABREAST, STRIPS, HEIGHTS, SWEEP)  # the same nodes in other loops
SAME = (GRAIN, *VARIANTS)  # edits that leave a kernel its nodes
EDITS = (REGISTERS, SIBLINGS, TILES, LAYOUT, RECOMPUTE, SPLIT, *SAME)
MOST = 0.5  # logarithm of a ratio that is learned
_SIDE = (
    "groups", "points", "inner", "steps", "row steps", "products", "read", "written", "turned", "streams", "tasks", "walks",
    "handed", "read again", "seconds",
    "arithmetic", "memory", "sum",
)  # fmt: skip
PAIR_FEATURES = (
    *(f"by {edit}" for edit in EDITS),
    *(f"{name} before" for name in _SIDE),
    *(f"{name} after" for name in _SIDE),
    *(f"{name} after / before" for name in _SIDE),
    *FEATURES,
    *(f"{name} of the first" for name in FEATURES),
    *(f"{name} of the last" for name in FEATURES),
)


@dataclass(frozen=True)
class Edit:
    """By its strategy: the works that go, and those that come."""

    strategy: str
    before: tuple[Work, ...]
    after: tuple[Work, ...]


def pair_rows(edits: Iterable[Edit], rates: Rates, threads: int) -> tuple[Array, Array]:
    """The features of each edit, and the ratio of times, after over before, that the roofline gives it."""
    edits = list(edits)
    rows, ratios = [], []
    known: dict[int, tuple[Bound, list[float]]] = {}  # by the work's id: many edits are about the same

    def look(work: Work) -> tuple[Bound, list[float]]:
        if id(work) not in known:
            bound = roofline(work, rates, threads)
            known[id(work)] = bound, features(work, bound, rates, threads)
        return known[id(work)]

    for edit in edits:
        looks = [[look(work) for work in works] for works in (edit.before, edit.after)]
        bounds = [[bound for bound, _ in side] for side in looks]
        before, after = (_side(*pair) for pair in zip((edit.before, edit.after), bounds, strict=True))
        largest = max(range(len(edit.after)), key=lambda place: bounds[1][place].seconds)
        rows.append(
            [
                *(float(edit.strategy == name) for name in EDITS),
                *before,
                *after,
                *(second - first for first, second in zip(before, after, strict=True)),
                *looks[1][largest][1],
                *looks[0][0][1],
                *looks[0][-1][1],
            ]
        )
        seconds = [sum(bound.seconds for bound in side) for side in bounds]
        ratios.append(seconds[1] / max(seconds[0], 1e-12))
    return np.array(rows, np.float32).reshape(-1, len(PAIR_FEATURES)), np.array(ratios, np.float64)


def _side(works: Sequence[Work], bounds: Sequence[Bound]) -> list[float]:
    turned = sum(touch.bytes for work in works for touch in work.writes if touch.access == STRIDED)
    return [
        float(len(works)),
        _log(max(work.points for work in works)),
        _log(min(work.inner for work in works)),
        _log(sum(work.steps for work in works)),
        _log(sum(work.row_steps for work in works)),
        _log(sum(work.products for work in works)),
        _log(sum(work.read for work in works)),
        _log(sum(work.written for work in works)),
        _log(turned),
        float(max(len(work.reads) + len(work.writes) for work in works)),
        _log(min(work.tasks for work in works)),
        float(sum(work.walks for work in works)),
        _log(sum(work.handed for work in works)),
        _log(sum(work.read_again for work in works)),
        _seconds(sum(bound.seconds for bound in bounds)),
        _seconds(sum(bound.arithmetic_s for bound in bounds)),
        _seconds(sum(bound.memory_s for bound in bounds)),
        _seconds(sum(bound.arithmetic_s + bound.memory_s for bound in bounds)),
    ]


def _log(amount: float) -> float:
    return math.log2(1 + amount)


def _seconds(seconds: float) -> float:
    return math.log2(max(seconds, 1e-9))
