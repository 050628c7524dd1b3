"""In what an answer differs from tier 0's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.numerics import alike


def difference(names: Sequence[str], given: Sequence[Any], own: Sequence[Any]) -> str:
    """In what answers differ from tier 0's own; "" if they do not."""
    for name, ours, theirs in zip(names, given, own, strict=True):
        if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
            verdict = alike(ours, theirs)
            if not verdict:
                return f"{name}: {verdict.reason}"
        elif type(ours) is not type(theirs):
            return f"{name}: a {type(ours).__name__}, tier 0's is a {type(theirs).__name__}"
    return ""
