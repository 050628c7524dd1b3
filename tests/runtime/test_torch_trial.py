"""Calls that a plan answers after their callers have gone on: what those do then changes nothing, what weights do is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.runtime import torch_trial
from hotfuse.runtime.torch_guard import read_call
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.torch_trial import can_wait, keep_leaves, witness
from hotfuse.runtime.turns import Shadow


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def captured(model: torch.nn.Module, x: torch.Tensor) -> Any:
    fast = hotfuse.compile(model.eval(), wait=True, capture="blocking", cache="off")
    with torch.no_grad():
        fast(x)
    (served,) = controls(fast).root.classes
    return fast, served


def test_a_call_is_judged_as_it_was() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
    _fast, served = captured(model, x)
    with torch.no_grad():
        own = model(x)
        seen = witness(served, read_call((x,), {}), own)
        x.add_(1)  # what callers do with their tensors
        own.mul_(3)
        assert seen.judge(served) == ""
        assert "output 0" in (replace(seen, leaves=[seen.leaves[0] + 1]).judge(served) or "")
        model.weight.mul_(2)
        assert seen.judge(served) is None, "it was another model's answer"


def test_in_place_and_random_calls_are_judged_at_once() -> None:
    x = torch.randn(3, 4)
    assert can_wait(captured(torch.nn.Linear(4, 4), x)[1])
    assert not can_wait(captured(Counting(), x)[1])
    assert not can_wait(captured(Noisy(), x)[1])


def test_one_call_is_taken_for_a_shadow() -> None:
    shadow = Shadow(None, None, lambda judged: None)
    assert shadow.takes("any")
    assert [shadow.claim(), shadow.claim()] == [True, False]
    assert not shadow.takes("any")
    shadow.release()
    assert shadow.takes("any")


def test_a_call_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leaves and those of the answer count."""
    model, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
    _fast, served = captured(model, x)
    call = read_call((x,), {})
    with torch.no_grad():
        own = model(x)
        for most, is_kept in ((96, True), (95, False)):
            monkeypatch.setattr(torch_trial, "SAMPLE_BYTES", most)
            seen = witness(served, call, own)
            assert seen.is_kept == is_kept
            assert (seen.call.leaves[0] is x) == (seen.leaves[0] is own) == (not is_kept)
            assert seen.judge(served) == ""
    for most, is_kept in ((48, True), (47, False)):
        monkeypatch.setattr(torch_trial, "SAMPLE_BYTES", most)
        assert (keep_leaves(call) is not None) == is_kept
