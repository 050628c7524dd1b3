"""`torch.compile(backend="hotfuse")` as it comes: the traced graph answers, and kernels do once they are proved."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hotfuse.entry_torch import dynamo_backend
from hotfuse.runtime import torch_backend
from hotfuse.runtime.torch_module import Controls

QUICK = {"cache": "off", "stress": "always-top"}  # nothing has to be hot


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    for controls in served():
        controls.close()


def served() -> list[Controls]:
    return [controls for serving in list(torch_backend.SERVED) for controls in serving.served]


class Block(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x)))).softmax(-1)


def adapted(model: Any, **kwargs: Any) -> Any:
    return torch.compile(model, backend=dynamo_backend, fullgraph=True, options=QUICK, **kwargs)


def until_native(fast: Any, *args: Any) -> None:
    """Call until kernels answer."""
    deadline = time.monotonic() + 60
    while not any(c.tier for controls in served() for c in controls.root.classes):
        assert time.monotonic() < deadline, [str(controls.report()) for controls in served()]
        fast(*args)
        for controls in served():
            controls.settle(1.0)


def test_a_traced_graph_comes_to_be_answered_by_kernels() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    with torch.no_grad():
        until_native(fast, x)
        torch.testing.assert_close(fast(x), model(x))
        (controls,) = served()
        before = controls.root.answered
        torch.testing.assert_close(fast(x), model(x))
    assert controls.root.answered == before + 1
    assert controls.report().subgraphs
    assert torch_backend.EVENTS.of("tier.publish")
    assert controls.root.classes[0].prepared  # parameters are weights, and not arguments


def test_weights_that_change_are_seen_at_once() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    with torch.no_grad():
        until_native(fast, x)
        model.up.weight.mul_(-2.0)
        torch.testing.assert_close(fast(x), model(x))
        model.down.weight.data = torch.randn(8, 32)
        torch.testing.assert_close(fast(x), model(x))
        model.up.weight = nn.Parameter(torch.randn(32, 8))
        torch.testing.assert_close(fast(x), model(x))


def test_one_graph_answers_for_several_models() -> None:
    one, other, x = Block(1).eval(), Block(2).eval(), torch.randn(4, 8)
    block = torch.compile(Block.forward, backend=dynamo_backend, fullgraph=True, options=QUICK)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(block(one, x), one(x))
            torch.testing.assert_close(block(other, x), other(x))
        until_native(lambda: (block(one, x), block(other, x)))
        torch.testing.assert_close(block(one, x), one(x))
        torch.testing.assert_close(block(other, x), other(x))
    assert len(served()) == 2


def test_sets_of_weights_are_bounded() -> None:
    block = torch.compile(Block.forward, backend=dynamo_backend, options={**QUICK, "max_captures": 2})
    models, x = [Block(seed).eval() for seed in range(4)], torch.randn(4, 8)
    with torch.no_grad():
        for model in models:
            torch.testing.assert_close(block(model, x), model(x))
    assert len(served()) == 2


def test_weights_that_move_with_every_call_are_left_to_the_graph() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    with torch.no_grad():
        for _ in range(12):
            model.up.weight.data = torch.randn(32, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert not served()


def test_a_model_that_nobody_holds_is_gone() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    with torch.no_grad():
        fast(x)
    assert len(served()) == 1
    weight, module = weakref.ref(model.up.weight), weakref.ref(served()[0].module)
    del model, fast
    gc.collect()
    assert weight() is None
    assert not served()
    deadline = time.monotonic() + 60
    while module() is not None and time.monotonic() < deadline:  # the capture of its first call ends
        time.sleep(0.1)
        gc.collect()
    assert module() is None


def test_sizes_among_the_arguments_follow_from_tensors() -> None:
    model = Block().eval()
    fast = adapted(model, dynamic=True)
    with torch.no_grad():
        until_native(fast, torch.randn(4, 8))
        for n in (3, 5, 9):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), model(x))
    (controls,) = served()
    assert len(controls.root.classes) == 1


def test_numbers_that_are_no_sizes_stay_arguments() -> None:
    fast = adapted(lambda x, n: x[:n].repeat(2, 1) * n, dynamic=True)
    x = torch.randn(12, 2)
    for n in (3, 5, 9):
        torch.testing.assert_close(fast(x, n), x[:n].repeat(2, 1) * n)


def test_training_is_the_graphs() -> None:
    mine, theirs, x = Block(), Block(), torch.randn(4, 8)
    fast = adapted(mine)
    for model, call in ((mine, fast), (theirs, theirs)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            optimizer.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        until_native(fast, x)
        torch.testing.assert_close(fast(x), theirs(x))
    fast(x).square().sum().backward()  # and again, with kernels there


def test_buffers_are_written_in_place() -> None:
    mine, theirs = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    fast = adapted(mine)
    with torch.no_grad():
        for seed in range(4):
            torch.manual_seed(seed)
            x = torch.randn(5, 3)
            torch.testing.assert_close(fast(x), theirs(x))
    torch.testing.assert_close(mine.running_mean, theirs.running_mean)
    assert mine.num_batches_tracked == theirs.num_batches_tracked
