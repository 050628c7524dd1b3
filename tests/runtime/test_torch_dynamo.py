"""`torch.compile(backend="hotfuse")` as it comes: the traced graph answers, and kernels do once they are proved."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hotfuse
from hotfuse.entry_torch import dynamo_backend
from hotfuse.runtime import torch_backend, torch_dynamo
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
    assert controls.events.of("tier.publish")
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


def test_sets_of_weights_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dynamo, "SETS", 2)
    block = torch.compile(Block.forward, backend=dynamo_backend, options=QUICK)
    models, x = [Block(seed).eval() for seed in range(4)], torch.randn(4, 8)
    with torch.no_grad():
        for model in models:
            torch.testing.assert_close(block(model, x), model(x))
    assert len(served()) == 2
    assert "2 sets of weights already" in torch_backend.EVENTS.of("backend.eager")[-1].reason


def test_weights_that_move_with_every_call_are_left_to_the_graph() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    with torch.no_grad():
        for _ in range(200):
            model.up.weight.data = torch.randn(32, 8)
            torch.testing.assert_close(fast(x), model(x))
    (serving,) = torch_backend.SERVED
    assert serving._made < 12


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


class Rolling(nn.Module):
    """Has another buffer after every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("kept", torch.arange(64.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.roll(self.kept, 1)
        return self.linear(x) + self.kept[:8]


def test_buffers_replaced_in_every_call_get_fewer_and_fewer_modules() -> None:
    mine, theirs, x = Rolling().eval(), Rolling().eval(), torch.randn(4, 8)
    theirs.load_state_dict(mine.state_dict())
    fast = torch.compile(mine, backend=dynamo_backend, options={"cache": "off"})
    calls = 600
    with torch.no_grad():
        for _ in range(calls):
            torch.testing.assert_close(fast(x), theirs(x))
    (serving,) = torch_backend.SERVED
    assert serving._made < 16
    assert "in call after call" in torch_backend.EVENTS.of("backend.eager")[-1].reason


def test_gradients_that_a_graph_itself_enables_are_not_lost() -> None:
    class Enabling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return self.linear(x)

    model = Enabling()
    with torch.no_grad():
        found = adapted(model)(torch.randn(4, 8))
    assert found.requires_grad
    found.sum().backward()
    assert model.linear.weight.grad is not None


def test_graphs_that_turn_gradients_off_are_adapted() -> None:
    class Disabling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                angles = x * 2
            return self.linear(angles.cos())

    model, x = Disabling(), torch.randn(4, 8)
    with torch.no_grad():
        fast = adapted(model)
        until_native(fast, x)
        torch.testing.assert_close(fast(x), model(x))


def test_a_call_that_wants_gradients_says_why_it_stays_as_it_is() -> None:
    model = Block()
    adapted(model)(torch.randn(4, 8))
    assert "torch.no_grad()" in torch_backend.EVENTS.of("backend.eager")[-1].reason


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_hooks_of_all_modules_see_none_of_ours() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    fast = adapted(model)
    seen: list[str] = []
    with torch.no_grad():
        fast(x)
        hook = nn.modules.module.register_module_forward_hook(lambda module, given, found: seen.append(type(module).__name__))
        try:
            fast(x)
        finally:
            hook.remove()
    assert not {"TracedGraph", "GraphModule", "GraphModuleImpl"} & set(seen)


def test_each_graph_has_a_story_of_its_own() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    class Other(One):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sigmoid().softmax(-1)

    x = torch.randn(4, 8)
    one, other = adapted(One().eval()), adapted(Other().eval())
    with torch.no_grad():
        until_native(lambda: (one(x), other(x)))
        while not all(c.tier for controls in served() for c in controls.root.classes):
            one(x), other(x)
            for controls in served():
                controls.settle(1.0)
    reports = [controls.report() for controls in served()]
    assert {report.model for report in reports} == {controls.root.name for controls in served()}
    assert len({report.model for report in reports}) == 2
    for report in reports:
        fused = [s for s in report.subgraphs if s.subgraph.kind == "fused"]
        assert fused
        assert all(s.state == "serves" for s in fused)
    operators = [{op for s in report.subgraphs for op in s.subgraph.operators} for report in reports]
    assert sum("relu" in found for found in operators) == sum("sigmoid" in found for found in operators) == 1


def test_what_dynamo_traced_is_among_the_models(tmp_path: Path) -> None:
    path = tmp_path / "log"
    model, x = Block().eval(), torch.randn(4, 8)
    fast = torch.compile(model, backend=dynamo_backend, options={**QUICK, "event_log": str(path)})
    with torch.no_grad():
        until_native(fast, x)
        fast(x)
    (controls,) = served()
    assert controls in hotfuse.models()
    assert f'hotfuse_models{{model="{controls.root.name}"}} 1' in hotfuse.metrics()
    assert controls.events.of("tier.publish")[0].calls > 0
    controls.events._file[0].flush()  # type: ignore[index]
    assert '"tier.publish"' in path.read_text()


def test_layers_that_share_a_graph_are_all_adapted() -> None:
    layers, x = [Block(seed).eval() for seed in range(12)], torch.randn(4, 8)
    block = torch.compile(Block.forward, backend=dynamo_backend, options={"cache": "off"})
    with torch.no_grad():
        for layer in layers:
            torch.testing.assert_close(block(layer, x), layer(x))
    assert len(served()) == len(layers)


def test_models_may_come_and_go_while_others_look() -> None:
    block = torch.compile(Block.forward, backend=dynamo_backend, options={"cache": "off", "tier": 1})
    x, failures, until = torch.randn(4, 8), [], time.monotonic() + 3

    def work() -> None:
        try:
            with torch.no_grad():
                while time.monotonic() < until:
                    model = Block().eval()
                    torch.testing.assert_close(block(model, x), model(x))
        except Exception as error:
            failures.append(error)

    def look() -> None:
        try:
            while time.monotonic() < until:
                served()
        except Exception as error:
            failures.append(error)

    with torch.no_grad():
        block(Block().eval(), x)  # compiled once, by one thread
    threads = [threading.Thread(target=each) for each in (work, work, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("kind", ["traced", "exported"])
def test_what_was_captured_is_found_again(kind: str, tmp_path: Path) -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    options = {"cache": str(tmp_path), "stress": "always-top"}

    def events_of(run: int) -> list[str]:
        torch._dynamo.reset()
        with torch.no_grad():
            if kind == "exported":
                fast = hotfuse.compile(torch.export.export(model, (x,)), **options)
                events, settle = fast.events, fast.settle
            else:
                fast = torch.compile(model, backend=dynamo_backend, options=options)
                fast(x)
                (controls,) = served()
                events, settle = controls.events, controls.settle
            deadline = time.monotonic() + 60
            while not events.of("tier.publish") and time.monotonic() < deadline:
                torch.testing.assert_close(fast(x), model(x))
                settle(1.0)
            end = time.monotonic() + 10
            while not events.of("capture.kept") and not events.of("capture.cached") and time.monotonic() < end:
                time.sleep(0.05)
            return [e.kind for e in events]

    assert "capture.kept" in events_of(0)
    assert "capture.cached" in events_of(1)
