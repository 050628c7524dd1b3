"""In what an answer differs from tier 0's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.numerics import alike


def difference(names: Sequence[str], given: Sequence[Any], own: Sequence[Any]) -> str:
    """In what answers differ from tier 0's own; "" if they do not."""
    return next(filter(None, map(_difference, names, given, own)), "")


def _difference(name: str, ours: Any, theirs: Any) -> str:
    if isinstance(ours, np.ndarray | np.generic) and isinstance(theirs, np.ndarray | np.generic):
        verdict = alike(np.asarray(ours), np.asarray(theirs))
        return "" if verdict else f"{name}: {verdict.reason}"
    if type(ours) is not type(theirs):
        return f"{name}: a {type(ours).__name__}, tier 0's is a {type(theirs).__name__}"
    if not isinstance(ours, list):
        return ""
    if len(ours) != len(theirs):
        return f"{name}: a list of {len(ours)}, tier 0's has {len(theirs)}"
    return difference([f"{name}[{place}]" for place in range(len(ours))], ours, theirs)
