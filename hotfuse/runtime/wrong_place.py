"""Where a result is wrong: the first element that is, the row it is in, and how large the largest error is against float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotfuse.numerics import spacing
from hotfuse.records import dataclass
from hotfuse.runtime.exact import exact_values, is_float
from hotfuse.runtime.unit_proof import Subject, Values

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WrongPlace:
    """In the value `name`, `wrong` of `elements` are off by more than their rule allows, the first at `first`: there `ours` is
    given, by tier 0 `original`, by float64 `exact`. The largest error is at `worst`."""

    name: str
    wrong: int
    elements: int
    first: tuple[int, ...]
    ours: float
    original: float
    exact: float
    worst: tuple[int, ...]
    largest_error: float
    row: int  # of the first wrong element, counted over all axes but the last


def find_wrong(subject: Subject, results: Values, values: Values) -> WrongPlace | None:
    """The place in the first result that is wrong; None where none of them is off by itself: a mean may be, or two runs."""
    exact = exact_values(subject.nodes, {name: values[name] for name in subject.given}, values)
    for name in subject.writes:
        ours, original = results[name], np.asarray(values[name])
        found = _compare(name, ours, original, exact[name])
        if found is not None:
            return found
    return None


def _compare(name: str, ours: Array, original: Array, exact: Array) -> WrongPlace | None:
    wide, tier_0, truth = (np.asarray(x).astype(np.float64) for x in (ours, original, exact))
    with np.errstate(all="ignore"):
        error, own = np.abs(wide - truth), np.abs(tier_0 - truth)
        if is_float(original):
            usual = float(np.max(own, initial=0.0, where=np.isfinite(own)))
            wrong = error > 8 * usual + 4 * spacing(truth, original.dtype.name)
            special = ~np.isfinite(tier_0)
            wrong = np.where(special, ~_same(wide, tier_0), wrong | ~np.isfinite(wide))
        else:
            wrong = np.asarray(ours != original)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    size = np.where(wrong, np.where(np.isfinite(error), error, np.inf), -1.0)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), size.shape))
    row = int(np.ravel_multi_index(first[:-1], wrong.shape[:-1])) if len(first) > 1 else 0
    at = (float(wide[first]), float(tier_0[first]), float(truth[first]))
    return WrongPlace(name, int(wrong.sum()), wrong.size, first, *at, worst, float(size[worst]), row)


def _same(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
