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
    edits, looks = list(edits), Looks(rates, threads)
    return looks.rows(edits), looks.ratios(edits)


_Look = tuple[list[float], tuple[float, ...]]  # a work's features, its amounts


class Looks:
    """What a machine of these rates makes of works. State: of works that go in some edit what was found, for others are about
    the same; of those that come nothing, as each comes in one edit."""

    def __init__(self, rates: Rates, threads: int) -> None:
        self._rates, self._threads = rates, threads
        self._machine: list[float] = []
        self._bounds: dict[int, tuple[Work, Bound]] = {}  # by the work's id, which is its own as long as it is kept here
        self._looks: dict[int, tuple[Work, _Look]] = {}

    def ratios(self, edits: Iterable[Edit]) -> Array:
        """Of times, after over before, by the roofline."""
        ratios = []
        for edit in edits:
            before_s = sum(self._known_bound(work).seconds for work in edit.before)
            ratios.append(sum(self._bound(work).seconds for work in edit.after) / max(before_s, 1e-12))
        return np.array(ratios, np.float64)

    def rows(self, edits: Iterable[Edit]) -> Array:
        """The features of each edit."""
        rows = []
        for edit in edits:
            gone = [self._known_look(work) for work in edit.before]
            bounds = [self._bound(work) for work in edit.after]
            made = list(map(self._look, edit.after, bounds))
            before, after = _side(gone), _side(made)
            largest = max(range(len(made)), key=lambda place: bounds[place].seconds)
            rows.append(
                [
                    *(float(edit.strategy == name) for name in EDITS),
                    *before,
                    *after,
                    *(second - first for first, second in zip(before, after, strict=True)),
                    *made[largest][0],
                    *gone[0][0],
                    *gone[-1][0],
                ]
            )
        return np.array(rows, np.float32).reshape(-1, len(PAIR_FEATURES))

    def _known_bound(self, work: Work) -> Bound:
        found = self._bounds.get(id(work))
        if found is None:
            found = self._bounds[id(work)] = work, self._bound(work)
        return found[1]

    def _known_look(self, work: Work) -> _Look:
        found = self._looks.get(id(work))
        if found is None:
            found = self._looks[id(work)] = work, self._look(work, self._known_bound(work))
        return found[1]

    def _bound(self, work: Work) -> Bound:
        return roofline(work, self._rates, self._threads)

    def _look(self, work: Work, bound: Bound) -> _Look:
        self._machine = self._machine or features_of(self._rates, self._threads)
        return features(work, bound, self._rates, self._threads, self._machine), _amounts(work, bound)


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
    columns = zip(*(amounts for _, amounts in looks), strict=True)
    found = [join(column) for join, column in zip(_AMOUNTS.values(), columns, strict=True)]
    return [
        amount if place in _PLAIN else _seconds(amount) if place in _TIMES else _log(amount)
        for place, amount in enumerate(found)
    ]


def _log(amount: float) -> float:
    return math.log2(1 + amount)


def _seconds(seconds: float) -> float:
    return math.log2(max(seconds, 1e-9))
