"""Models that cannot be captured at once, or as a whole: what is tried again, what is given up, and what the report says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.runtime.torch_module import controls

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return hotfuse.compile(model, **{"wait": True, "capture": "blocking", **options})


# forward passes that change their module


class Settles(torch.nn.Module):
    """Finds out on its first call what it is then content with, and answers otherwise on that call."""

    def __init__(self) -> None:
        super().__init__()
        self.window: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.window is None
        self.window = 3
        return x + 100 if first else x * self.window


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Remembers(torch.nn.Module):
    """Keeps its last result, in a new tensor each time."""

    def __init__(self, last: Any) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return self.last + 1


class SettlesIfSizesAreNumbers(torch.nn.Module):
    """Keeps a size of its argument, which is a symbol while sizes may vary."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.width = min(x.shape[1], 3)
        return x * self.width


@pytest.mark.parametrize("options", [{}, {"capture": "background"}, {"wait": False}, {"wait": False, "capture": "background"}])
def test_a_module_that_settles_is_captured_once_it_has(options: dict[str, Any]) -> None:
    fast, twin = compiled(Settles(), **options), Settles()
    for _ in range(4):
        assert torch.equal(fast(X), twin(X))
        assert fast.settle(60)
    report = fast.report()
    assert len(report.classes) == 1, report
    assert report.failed == {}
    if options.get("wait", True):
        assert report.answered == 3
        assert report.events["capture.postponed"] == 1
    fast.close()


@pytest.mark.parametrize("wait", [True, False])
def test_a_module_that_changes_in_every_call_stays_eager(wait: bool) -> None:
    fast = compiled(Counts(), wait=wait)
    for number in range(1, 6):
        assert torch.equal(fast(X), X * number)
    report = fast.report()
    assert (report.answered, report.classes) == (0, ())
    assert "changes the module itself" in report.failed["Counts"]
    assert (report.events["capture.postponed"], report.events["capture.failed"]) == (1, 1)
    fast.refresh()
    assert torch.equal(fast(X), X * 6)
    assert fast.report().events["capture.postponed"] == 2


@pytest.mark.parametrize("last", [None, torch.zeros(2, 3)])
def test_a_module_that_keeps_new_tensors_stays_eager(last: Any) -> None:
    model = Remembers(last)
    fast = compiled(model)
    kept = []
    for number in range(4):
        fast(X * number)
        kept.append(model.last)
    assert [int(t[0, 0]) for t in kept] == [0, 2, 4, 6]
    assert controls(fast).root.answered == 0


def test_a_change_that_only_symbols_make_leaves_a_class_without_them() -> None:
    fast = compiled(SettlesIfSizesAreNumbers())
    for rows in (2, 2, 5):
        assert torch.equal(fast(torch.ones(rows, 3)), torch.full((rows, 3), 3.0))
    report = fast.report()
    assert report.answered == 3
    (captured,) = report.classes
    assert captured.shapes.startswith("[s")
    assert ", 3] where" in captured.shapes


class FailsHalfway(torch.nn.Module):
    """Changes itself, then does what cannot be traced while sizes may vary: the next attempt must not see the change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 2 if self.first else 3
        self.first = False
        if isinstance(x.shape[0], torch.SymInt):
            raise ValueError("sizes must be numbers")
        return x * factor


def test_attempts_do_not_see_what_failed_ones_left_behind() -> None:
    fast, twin = compiled(FailsHalfway()), FailsHalfway()
    for _ in range(3):
        assert torch.equal(fast(X), twin(X))
    assert fast.report().answered == 2


# parts


class Undecided(torch.nn.Module):
    """No whole of this class can be traced, its inner part can."""

    def __init__(self, place: int, eager: bool = True) -> None:
        super().__init__()
        self.place = place
        self.eager = eager
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.eager and x.sum().item() > 1e9:
            return x
        return self.inner(x) * 2


class Stack(torch.nn.Module):
    def __init__(self, *parts: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x if x.sum().item() < 1e9 else x * 0


def test_of_parts_that_are_alike_one_is_tried_in_vain() -> None:
    model = Stack(*(Undecided(i) for i in range(4)), Undecided(4, eager=False)).eval()
    fast = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(fast(X), model(X))
    report = fast.report()
    assert report.events["capture.failed"] == 2, report  # the whole, and the first part
    assert "as Stack.parts.0:" in report.failed["Stack.parts.3"]
    assert {c.module for c in report.classes} == {*(f"Stack.parts.{i}.inner" for i in range(4)), "Stack.parts.4"}
    fast.refresh()
    fast(X)
    assert fast.report().events["capture.failed"] == 4


def test_the_share_of_a_model_in_parts_is_counted() -> None:
    model = Stack(Undecided(0), Undecided(1, eager=False)).eval()
    fast = compiled(model)
    assert fast.report().captured_share == 0.0
    for _ in range(3):
        torch.testing.assert_close(fast(X), model(X))
    # Captured: a linear layer, a linear layer and a product. Not: sum, item and a product of the first part, sum and item.
    assert fast.report().captured_share == pytest.approx(3 / 8)
    fast.close()
    assert fast.report().captured_share == 0.0


def test_a_counted_call_meets_no_dispatch_mode_in_captured_parts() -> None:
    seen = []

    class Looks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_exporting():
                seen.append(torch._C._len_torch_dispatch_stack())
            return x + 1 if x.sum().item() < 1e9 else x

    model = Stack(Looks(), torch.nn.Linear(3, 3)).eval()
    fast = compiled(model)
    for _ in range(4):
        fast(X)
    assert seen[-2:] == [0, 0]  # counted is only the first call after something was captured
    assert fast.report().answered == 4
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_model_that_raises_while_it_is_counted_leaves_no_mode_behind() -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("mine")

    fast = compiled(Stack(torch.nn.Linear(3, 3), Raises()))
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            fast(X)
    assert torch._C._len_torch_dispatch_stack() == 0
