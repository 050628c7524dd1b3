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
        return torch.diff(super().forward(x), n=2)


def exported(module: type[Plain]) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    model = module().eval()
    with torch.no_grad():
        return torch.export.export(model, (X,)), model


W = torch.randn(6, 4, 3)
COMPOSITE: dict[str, tuple[Any, ...]] = {
    "to another type": (lambda x: (x.to(torch.float64), (x > 0).to(torch.int32), x.to("cpu"), x.type_as(x > 0)), X),
    "to the type of": (lambda x, y: x.to(y), X, torch.ones(2, dtype=torch.int64)),
    "other names": (lambda x, y: (torch.multiply(x, y), torch.divide(x, y), torch.subtract(x, y)), X, X + 3),
    "bits": (lambda x, y: (x & y, x | y, x ^ y, x & 3, (x > 1) & (y > 1)), torch.arange(12), torch.arange(12) % 5),
    "least and greatest": (lambda x, y: (torch.min(x, y), torch.max(x, y)), X, X.flip(0)),
    "shapes of others": (lambda x, y: (x.reshape_as(y), x.view_as(y), y[:, :1].expand_as(y)), X, torch.ones(2, 6)),
    "repeated": (lambda x: (x.repeat_interleave(3, dim=0), x.repeat_interleave(2, -1), x[0].repeat_interleave(2)), X),
    "differences": (lambda x: (torch.diff(x), torch.diff(x, dim=0), torch.diff(x > 0)), X),
    "differences from": (lambda x, y: torch.diff(x, dim=0, prepend=y, append=y), X, torch.ones(2, 4)),
    "constant border": (lambda x: (torch.nn.functional.pad(x, (1, 2, 3, 0)), torch.nn.functional.pad(x, (0, 1), value=2.0)), X),
    "convolutions": (
        lambda x: (torch.conv1d(x, W, padding=1), torch.conv1d(x, W[:, :2], stride=2, groups=2, dilation=2)),
        torch.randn(2, 4, 9),
    ),
    "transposed": (lambda x: torch.conv_transpose1d(x, W, stride=2, output_padding=1), torch.randn(2, 6, 9)),
    "detached": (lambda x: (x * 2).detach_(), X),
}  # fmt: skip
APART: dict[str, tuple[Any, ...]] = {  # what an importer declines is taken apart as before
    "differences of differences": (lambda x: torch.diff(x, n=2), X),
    "no batch": (lambda x: torch.conv1d(x, W), torch.randn(4, 9)),
    "mirrored border": (lambda x: torch.nn.functional.pad(x, (1, 2), mode="reflect"), X),
    "all repeated": (lambda x: x.repeat_interleave(2), X),
}


class Function(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*COMPOSITE, *APART])
def test_what_torch_makes_of_others(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function, *inputs = {**COMPOSITE, **APART}[name]
    if dynamic and name == "mirrored border":
        pytest.skip("it relies on two bounds of one size at once")
    sizes = dict.fromkeys(range(inputs[0].ndim), torch.export.Dim.AUTO) if dynamic else {}
    shapes = [tuple(sizes if len(x.shape) == inputs[0].ndim else {} for x in inputs)]
    with torch.no_grad():
        program = torch.export.export(Function(function), tuple(inputs), dynamic_shapes=shapes if dynamic else None)
        taken: list[Any] = []
        original = torch_export.decompose
        monkeypatch.setattr(torch_export, "decompose", lambda p: taken.append(p) or original(p))
        fast = hotfuse.compile(program, strict=True, tier="auto")
        assert bool(taken) == (name in APART)
        torch.testing.assert_close(fast(*inputs), function(*inputs))
        if dynamic and name in COMPOSITE:
            longer = [torch.cat((x, x)) if x.ndim == inputs[0].ndim else x for x in inputs]
            torch.testing.assert_close(fast(*longer), function(*longer))
    assert not torch_export.import_exported(program).opaque


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
