"""Exported graphs that need not be taken apart are not; all others are, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.frontends import torch_export
from hotfuse.frontends.torch_decompositions import is_whole

X = torch.randn(3, 4)


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.relu(self.layer(x)), training=False).reshape(-1, 2)


class InPlace(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).add_(1.0)


class Random(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(x), training=True)


class Unknown(Plain):
    """Of an operator that the IR knows by its parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.diff(super().forward(x))


def exported(module: type[Plain]) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    model = module().eval()
    with torch.no_grad():
        return torch.export.export(model, (X,)), model


@pytest.mark.parametrize(
    ("module", "apart", "whole"), [(Plain, 0, True), (InPlace, 1, False), (Random, 1, False), (Unknown, 1, True)]
)
def test_only_what_needs_it_is_taken_apart(module: Any, apart: int, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program, model = exported(module)
    assert is_whole(program.graph) == whole
    taken: list[Any] = []
    original = torch_export.decompose
    monkeypatch.setattr(torch_export, "decompose", lambda p: taken.append(p) or original(p))
    fast = hotfuse.compile(program, strict=True, tier="auto")
    assert len(taken) == apart
    with torch.no_grad():
        torch.manual_seed(1)
        expected = model(X)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(X), expected)
