"""The short way of captured calls: nothing but kernels, with every guard of the long way, and with eager's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hotfuse
from hotfuse.runtime import torch_runner
from hotfuse.runtime.torch_module import controls

AUDIT_EVERY = 4


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Layers(torch.nn.Module):
    """One result, two of them, one laid out otherwise, or with an argument among them."""

    def __init__(self, returns: str = "one") -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 16), torch.nn.Linear(16, 6)
        self.returns = returns

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.up(x))
        z = self.down(y)
        return {"one": z, "two": (z, y), "turned": z.t(), "argument": {"z": z, "x": x, "n": 3}}[self.returns]


class Ordered(torch.nn.Module):
    """Sorts what depends on a buffer and a size alone. (Kernels sort nothing.)"""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.sort(self.table[: x.shape[1]]).values
        return torch.relu(x * order) + 1.0


class Waves(torch.nn.Module):
    """Sorts what depends on a size alone, after a kernel and before one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.sort(torch.sin(torch.arange(x.shape[1]).float())).values
        return torch.relu(x * order) + 1.0


def compiled(model: torch.nn.Module, *examples: torch.Tensor, **options: Any) -> Any:
    """The model, with calls like the examples on their short way."""
    fast = hotfuse.compile(model, **{"tier": 1, "wait": True, "capture": "blocking", "strict": True, **options})
    for x in examples:
        fast(x)
        fast(x)
    return fast


def shorts(fast: Any) -> dict[Any, Any]:
    (served,) = controls(fast).root.classes
    return {form: way for form, (_, way) in served.runner._short._table.items()}


@pytest.fixture(name="short_only")
def _short_only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to make the long way fail."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the long way was taken")

    return lambda: monkeypatch.setattr(torch_runner, "run_program", refuse)


@pytest.mark.parametrize("returns", ["one", "two", "argument"])
def test_the_second_call_of_a_shape_goes_the_short_way(returns: str, short_only: Any) -> None:
    model, x = Layers(returns).eval(), torch.randn(4, 6)
    fast = compiled(model, x)
    short_only()
    found = fast(x)
    torch.testing.assert_close(found, model(x))
    if returns == "argument":
        assert found["x"] is x


def test_a_result_of_another_layout_keeps_it() -> None:
    model, x = Layers("turned").eval(), torch.randn(4, 6)
    found, expected = compiled(model, x)(x), model(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def test_weights_are_watched_on_the_short_way(short_only: Any) -> None:
    model, x = Layers().eval(), torch.randn(4, 6)
    fast = compiled(model, x)
    short_only()
    for change in (
        lambda: model.up.weight.mul_(-2.0),  # packed
        lambda: model.up.bias.add_(1.0),  # read as it is
        lambda: setattr(model.down, "weight", torch.nn.Parameter(torch.randn(6, 16))),
        lambda: model.load_state_dict(Layers().state_dict()),
    ):
        change()
        torch.testing.assert_close(fast(x), model(x))
    assert fast.report().answered == 6


def test_results_are_the_callers_own() -> None:
    model, x = Layers().eval(), torch.randn(4, 6)
    fast = compiled(model, x)
    first = fast(x)
    kept = first.clone()
    fast(x * 2).zero_()
    assert torch.equal(first, kept)


def test_an_argument_of_another_layout_or_shape_is_another_call() -> None:
    model = Layers().eval()
    fast = compiled(model, torch.randn(4, 6))
    for x in (torch.randn(6, 4).t(), torch.randn(9, 6), torch.randn(4, 12)[:, ::2], torch.randn(4, 6)):
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))


def test_ways_go_with_their_plans_and_those_called_all_the_time_stay(short_only: Any) -> None:
    model, x = Layers().eval(), torch.randn(4, 6)
    fast = compiled(model, x, max_bound_shapes=4)
    (way,) = shorts(fast).values()
    for rows in range(5, 20):
        fast(torch.randn(rows, 6))
        fast(x)
    assert len(shorts(fast)) == 4
    assert way in shorts(fast).values()
    plans = controls(fast).root.classes[0].runner.executor._bound.values()
    held = [bound for bound, _ in controls(fast).root.classes[0].runner._short._table.values()]
    assert all(any(bound is plan for plan in plans) for bound in held)
    short_only()
    torch.testing.assert_close(fast(x), model(x))


def test_what_weights_and_sizes_settle_is_computed_once_and_watched(short_only: Any) -> None:
    model, x = Ordered().eval(), torch.randn(3, 8)
    fast = compiled(model, x, torch.randn(3, 5), audit_every=AUDIT_EVERY)
    assert [short._settled is not None for short in shorts(fast).values()] == [True, True]
    short_only()
    torch.testing.assert_close(fast(x), model(x))
    model.table.neg_()
    torch.testing.assert_close(fast(x), model(x))
    model.table.numpy()[0] += 5.0  # leaves no trace
    for _ in range(AUDIT_EVERY - 1):
        fast(x)
    torch.testing.assert_close(fast(x), model(x))
    y = x[:, :5].contiguous()
    torch.testing.assert_close(fast(y), model(y))


def test_what_follows_from_sizes_alone_is_no_step_of_a_call() -> None:
    model = Waves().eval()
    fast = compiled(model, torch.randn(3, 8), torch.randn(2, 5))
    (served,) = controls(fast).root.classes
    assert [len(bound.steps) for bound in served.runner.executor._bound.values()] == [1, 1]
    assert "one by one" not in served.runner.executor.native
    for n in (8, 5):
        x = torch.randn(3, n)
        torch.testing.assert_close(fast(x), model(x))


def test_a_bad_index_is_eagers_error_on_the_short_way_too() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 3)).eval()
    fast = compiled(model, torch.tensor([[0, 4]]))
    with pytest.raises(IndexError):
        fast(torch.tensor([[0, 5]]))
    good = torch.tensor([[1, 2]])
    torch.testing.assert_close(fast(good), model(good))


def test_short_ways_are_bounded_and_forgotten_by_refresh() -> None:
    fast = compiled(Layers().eval(), *(torch.randn(n, 6) for n in range(2, 8)), max_bound_shapes=3)
    assert 1 <= len(shorts(fast)) <= 3
    fast.refresh()
    assert not shorts(fast)


class Counting(torch.nn.Module):
    """Changes a buffer in every call: results that must be written back take the long way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1.0)
        return F.relu(x) + self.calls


def test_what_changes_its_buffers_takes_the_long_way() -> None:
    model, mine = Counting().eval(), Counting().eval()
    x = torch.randn(2, 3)
    fast = compiled(mine)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    assert list(shorts(fast).values()) == [None]
    assert torch.equal(mine.calls, model.calls)
