"""Answers against tier 0's own: arrays by the rules, lists element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.runtime.difference import difference

ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("answer", [ONES, [ONES, 2 * ONES], [[ONES], []], [], None, np.float32(2), np.array(["a"])])
def test_what_is_the_same_does_not_differ(answer: Any) -> None:
    assert difference(["y"], [answer], [answer]) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (ONES, 2 * ONES, "y: "),
        (np.float32(1), np.float32(2), "y: "),
        ([ONES, ONES], [ONES, 2 * ONES], "y[1]: "),
        ([[ONES]], [[2 * ONES]], "y[0][0]: "),
        ([ONES], [ONES, ONES], "y: a list of 1, tier 0's has 2"),
        ([ONES], ONES, "y: a list, tier 0's is a ndarray"),
        (None, ONES, "y: a NoneType, tier 0's is a ndarray"),
    ],
)
def test_what_differs_is_told_with_its_place(ours: Any, theirs: Any, said: str) -> None:
    assert difference(["x", "y"], [ONES, ours], [ONES, theirs]).startswith(said)
