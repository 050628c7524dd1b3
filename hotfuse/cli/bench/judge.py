"""Is an answer right? By the rules of `hotfuse.numerics`: about as close to float64 as the original is, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.numerics import GOOD, Verdict, close_to_exact

Array = np.ndarray[Any, Any]


def judge(answer: Sequence[Array], original: Sequence[Array], exact: Sequence[Array]) -> Verdict:
    """Every output of an engine against the original's and the float64 run's: the same shape and type, and close."""
    if len(answer) != len(original):
        return Verdict(False, f"{len(answer)} outputs, the original has {len(original)}")
    for place, (ours, theirs, truth) in enumerate(zip(answer, original, exact, strict=True)):
        if ours.shape != theirs.shape:
            return Verdict(False, f"output {place}: shape {list(ours.shape)}, the original's is {list(theirs.shape)}")
        verdict = close_to_exact(_rows(ours), _rows(theirs), _rows(truth))
        if not verdict:
            return Verdict(False, f"output {place}: {verdict.reason}")
    return GOOD


def _rows(array: Array) -> Array:
    """Without trailing axes of length 1, once shapes are known to be equal: an element is not a row, and the rule for rows
    speaks of their mean error."""
    while array.ndim > 1 and array.shape[-1] == 1:
        array = array[..., 0]
    return array
