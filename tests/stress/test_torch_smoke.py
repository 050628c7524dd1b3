"""A tiny PyTorch module for a few calls under every mode: each answer is as close to the exact one as eager's.

What is long of it, until kernels serve behind calls, is in `test_smoke.py`."""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch

import hotfuse
from hotfuse.numerics import close_to_exact
from hotfuse.runtime.torch_module import controls
from hotfuse.stress import parse
from tests.stress.test_smoke import EVIDENCE

ROWS = (5, 1, 8)
BEHIND_S = 0.4  # of calls that nothing waits for
CALLS = 18


def tiny(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 7), torch.nn.Softmax(-1)).eval()


def wrong(fast: Any, model: torch.nn.Module, number: int) -> str:
    """What is wrong with the answer to one call; "" if nothing is."""
    x = torch.randn(ROWS[number % len(ROWS)], 24, generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        return close_to_exact(np.asarray(fast(x)), np.asarray(model(x)), np.asarray(exact)).reason


@pytest.mark.parametrize("stress", EVIDENCE)
def test_kernels_that_are_there_from_the_first_call(stress: str) -> None:
    model, mode = tiny(), parse(stress)
    fast = hotfuse.compile(model, wait=True, tier=1, capture="blocking", stress=stress)
    assert [wrong(fast, model, number) for number in range(1, CALLS + 1)] == [""] * CALLS
    by_us = 0 if mode.tier0_only else sum(not mode.original_answers(number) for number in range(1, CALLS + 1))
    assert controls(fast).root.answered == by_us
    assert any(served.runner.executor.kernels for served in controls(fast).root.classes) == (by_us > 0)
    fast.close()


@pytest.mark.parametrize("stress", EVIDENCE)
def test_what_comes_behind_calls(stress: str) -> None:
    model = tiny()
    fast = hotfuse.compile(model, trial=True, capture="blocking", stress=stress)
    end_s = time.monotonic() + BEHIND_S
    for number in itertools.count(1):
        assert wrong(fast, model, number) == ""
        if time.monotonic() > end_s:
            break
    assert controls(fast).root.calls == number
    fast.close()


def test_a_wrong_answer_is_found() -> None:
    model, other = tiny(), tiny()
    with torch.no_grad():
        other[2].bias[3] += 1e-4  # type: ignore[index, operator, union-attr]
    assert "row" in wrong(other, model, 1) or "error" in wrong(other, model, 1)
