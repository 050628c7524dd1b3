"""Pairs: what some pieces of work take, and what others take that do the same: whether an edit of a plan pays.

The ratio of two times is known better than either: what a machine is slow at just then, and what the model does not see of a
graph, is in both. So a forest of its own learns ratios, from pairs that were timed in turns, as the other learns times.

    works that go, works that come, the edit  ->  PAIR_FEATURES  ->  logarithm of the ratio

What the roofline says of the ratio is among the features, and not what the forest learns the rest of: where it errs, it does
so by more than most ratios differ from one. Ratios beyond `MOST` are learned as that: what decides are those around one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hotfuse.hardware.features import FEATURES, features, features_of
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
_AMOUNTS: dict[str, Callable[[Iterable[float]], float]] = {  # of a side, and how those of its works make one
    "groups": sum, "points": max, "inner": min, "steps": sum, "row steps": sum, "products": sum, "read": sum, "written": sum,
    "turned": sum, "streams": max, "tasks": min, "walks": sum, "handed": sum, "read again": sum,
    "seconds": sum, "arithmetic": sum, "memory": sum, "sum": sum,
}  # fmt: skip
_SIDE = tuple(_AMOUNTS)
_PLAIN = [_SIDE.index(name) for name in ("groups", "streams", "walks")]  # others are logarithms
_TIMES = [_SIDE.index(name) for name in ("seconds", "arithmetic", "memory", "sum")]
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
    edits, machine = list(edits), features_of(rates, threads)
    rows, ratios = [], []
    known: dict[int, _Look] = {}  # by the work's id: many edits are about the same

    def look(work: Work) -> _Look:
        found = known.get(id(work))
        if found is None:
            bound = roofline(work, rates, threads)
            found = bound.seconds, features(work, bound, rates, threads, machine), _amounts(work, bound)
            known[id(work)] = found
        return found

    for edit in edits:
        gone, made = ([look(work) for work in works] for works in (edit.before, edit.after))
        before, after = _side(gone), _side(made)
        largest = max(made, key=lambda look: look[0])
        rows.append(
            [
                *(float(edit.strategy == name) for name in EDITS),
                *before,
                *after,
                *(second - first for first, second in zip(before, after, strict=True)),
                *largest[1],
                *gone[0][1],
                *gone[-1][1],
            ]
        )
        seconds = [sum(look[0] for look in side) for side in (gone, made)]
        ratios.append(seconds[1] / max(seconds[0], 1e-12))
    return np.array(rows, np.float32).reshape(-1, len(PAIR_FEATURES)), np.array(ratios, np.float64)


_Look = tuple[float, list[float], tuple[float, ...]]  # a work's seconds, its features, its amounts


def _amounts(work: Work, bound: Bound) -> tuple[float, ...]:
    return (
        1.0,
        work.points,
        work.inner,
        work.steps,
        work.row_steps,
        work.products,
        work.read,
        work.written,
        sum(touch.bytes for touch in work.writes if touch.access == STRIDED),
        float(len(work.reads) + len(work.writes)),
        work.tasks,
        float(work.walks),
        work.handed,
        work.read_again,
        bound.seconds,
        bound.arithmetic_s,
        bound.memory_s,
        bound.arithmetic_s + bound.memory_s,
    )


def _side(looks: Sequence[_Look]) -> list[float]:
    columns = zip(*(amounts for _, _, amounts in looks), strict=True)
    found = [join(column) for join, column in zip(_AMOUNTS.values(), columns, strict=True)]
    return [
        amount if place in _PLAIN else _seconds(amount) if place in _TIMES else _log(amount)
        for place, amount in enumerate(found)
    ]


def _log(amount: float) -> float:
    return math.log2(1 + amount)


def _seconds(seconds: float) -> float:
    return math.log2(max(seconds, 1e-9))
