"""Prepared weights that several plans need: there once, never stale, gone with the last plan."""

from __future__ import annotations

import gc
from typing import Any

import torch

import hotfuse
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime import shared_values
from hotfuse.runtime.shared_values import share, value_keys
from hotfuse.runtime.weight_stamps import Stamps

OPTIONS: dict[str, Any] = {"tier": 1, "wait": True, "capture": "blocking"}


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 200), torch.nn.Linear(200, 50)

    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        hidden = self.second(torch.relu(self.first(x)))
        return hidden * 2 if flag else hidden


def packed() -> dict[int, int]:
    """Addresses and sizes of shared values."""
    gc.collect()
    return {v.data_ptr(): v.numel() for v in shared_values._SHARED.values()}


def test_plans_of_one_module_share_what_they_pack() -> None:
    before = packed()
    model = Scaled().eval()
    fast = hotfuse.compile(model, **OPTIONS)
    x = torch.randn(5, 64)
    with torch.no_grad():
        for flag in (False, True):
            for _ in range(2):
                torch.testing.assert_close(fast(x, flag), model(x, flag), rtol=1e-4, atol=1e-4)
            made = {k: v for k, v in packed().items() if k not in before}
            assert len(made) == 2  # two matrices, however many plans
        model.first.weight.mul_(3)
        for flag in (False, True, False):
            torch.testing.assert_close(fast(x, flag), model(x, flag), rtol=1e-4, atol=1e-4)
        model.second.weight.copy_(torch.randn(50, 200))
        for flag in (False, True, False):
            torch.testing.assert_close(fast(x, flag), model(x, flag), rtol=1e-4, atol=1e-4)
    del fast, model
    assert not set(packed()) - set(before)


def graph_of(panel: int) -> Any:
    b = GraphBuilder()
    w = b.weight("w", tensor(F32, 4, 6))
    return b.build([b.add("pack", w, panel=panel, last=2)])


def test_keys_tell_values_apart() -> None:
    one, other = torch.ones(4, 6), torch.ones(4, 6)
    (key,), (again,) = (value_keys(graph_of(4), Stamps([one]).marks()) for _ in range(2))
    assert key == again
    assert key is not None
    assert value_keys(graph_of(4), Stamps([other]).marks()) != [key]  # equal contents in other memory: another weight
    assert value_keys(graph_of(2), Stamps([one]).marks()) != [key]
    one[0, 0] = 2
    assert value_keys(graph_of(4), Stamps([one]).marks()) != [key]


def test_what_is_there_is_taken_and_what_cannot_be_told_is_not() -> None:
    a, b, c = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    assert share([a], [b"key of a test"])[0] is a
    assert share([b], [b"key of a test"])[0] is a
    assert share([c], [None])[0] is c
