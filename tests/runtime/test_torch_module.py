"""The wrapper that people cannot tell from their module, and its serving policy."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.errors import CaptureError, ConfigError
from hotfuse.runtime.torch_eager.table import EAGER
from hotfuse.runtime.torch_module import controls


@dataclass
class Answer:
    first: torch.Tensor
    rest: tuple[Any, ...]


class Net(torch.nn.Module):
    """A module with everything that a wrapper might lose."""

    kind = "net"

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())
        self.register_buffer("offset", torch.ones(width))
        self.config = {"width": width}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.offset

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))

    @property
    def width(self) -> int:
        return int(self.config["width"])


X = torch.randn(3, 4)


def compiled(model: Any = None, **options: Any) -> Any:
    return hotfuse.compile(Net().eval() if model is None else model, wait=True, capture="blocking", **options)


def test_the_wrapper_looks_like_the_module() -> None:
    model = Net().eval()
    fast = compiled(model)
    assert isinstance(fast, Net)
    assert repr(fast) == repr(model)
    assert type(fast).__name__ == "Net"
    assert type(fast).__module__ == Net.__module__
    assert list(fast.state_dict()) == list(model.state_dict())
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
    assert fast.inner is model.inner
    assert fast.config is model.config
    assert (fast.width, fast.kind) == (4, "net")
    ours = {"settle", "report", "explain", "story", "refresh", "close", "_hotfuse", "__slots__", "__copy__", "__deepcopy__"}
    assert set(dir(fast)) - set(dir(model)) == ours


def test_state_is_shared_both_ways() -> None:
    model = Net().eval()
    fast = compiled(model)
    fast.note = "hello"
    fast.extra = torch.nn.Linear(2, 2)
    assert model.note == "hello"
    assert "extra.weight" in model.state_dict()
    del model.extra
    assert not hasattr(fast, "extra")
    assert fast.train() is fast
    assert model.training
    assert fast.double() is fast
    assert model.offset.dtype is torch.float64
    fast.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
    assert float(model.offset.sum()) == 0.0
    with torch.no_grad():
        torch.testing.assert_close(fast(X.double()), model(X.double()))


def test_methods_of_the_module_call_the_wrapper() -> None:
    model = Net().eval()
    fast = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast.twice(X), model.twice(X))
    assert fast.report().calls == 2
    assert fast.report().answered == 2


def test_copies_and_pickles() -> None:
    model = Net().eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(X)
        other = copy.deepcopy(fast)
        assert type(other) is type(fast)
        other.offset.zero_()
        assert float(model.offset.sum()) == 4.0
        torch.testing.assert_close(other(X), model(X) - 1)
        assert other.report().calls == 1
        shallow = copy.copy(fast)
        assert shallow.offset is model.offset
    plain = pickle.loads(pickle.dumps(fast))
    assert type(plain) is Net
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert type(loaded) is Net
    torch.testing.assert_close(loaded(X), model(X))


def test_hooks_run() -> None:
    fast = compiled()
    with torch.no_grad():
        fast(X)
        seen: list[Any] = []
        handle = fast.register_forward_hook(lambda module, args, out: seen.append(out))
        fast(X)
        assert len(seen) == 1
        handle.remove()
        fast(X)
    assert len(seen) == 1
    assert fast.report().answered == 2


def test_names_of_the_module_win_over_ours() -> None:
    class Busy(Net):
        def report(self) -> str:
            return "mine"

        def close(self) -> str:
            return "mine too"

    fast = compiled(Busy().eval())
    assert (fast.report(), fast.close()) == ("mine", "mine too")
    with torch.no_grad():
        fast(X)
    assert controls(fast).report().answered == 1
    assert fast.settle(1.0)


def test_classes_that_announce_subclasses_hear_nothing() -> None:
    announced: list[type] = []

    class Loud(Net):
        def __init_subclass__(cls, *, required: int, **kwargs: Any) -> None:
            announced.append(cls)

    with torch.no_grad():
        compiled(Loud().eval())(X)
    assert announced == []


class Structured(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, pair: Any = None, **more: Any) -> Any:
        a, b = pair
        return {"sum": x + a["left"], "nested": [b * 2, (None, x)], "more": more["scale"] * x, "word": "ok"}


def test_nested_structures_keywords_and_none() -> None:
    model = Structured().eval()
    fast = compiled(model)
    call = {"pair": ({"left": torch.ones(4)}, torch.zeros(2)), "scale": 3}
    want, got = model(X, **call), fast(X, **call)
    assert got.keys() == want.keys()
    torch.testing.assert_close(got["sum"], want["sum"])
    torch.testing.assert_close(got["nested"][0], want["nested"][0])
    assert got["nested"][1][0] is None
    assert got["nested"][1][1] is X
    assert got["word"] == "ok"
    assert fast.report().answered == 1


def test_functions_and_methods() -> None:
    def area(a: torch.Tensor, b: torch.Tensor, *, k: float = 1.0) -> torch.Tensor:
        """The area."""
        return a * b * k

    fast = hotfuse.compile(area, wait=True, capture="blocking")
    assert fast.__name__ == "area"
    assert fast.__doc__ == "The area."
    torch.testing.assert_close(fast(X, X, k=2.0), area(X, X, k=2.0))
    assert fast.report().answered == 1
    model = Net().eval()
    method = hotfuse.compile(model.twice, wait=True, capture="blocking")
    with torch.no_grad():
        torch.testing.assert_close(method(X), model.twice(X))
        model.offset.add_(1)
        torch.testing.assert_close(method(X), model.twice(X))
    assert method.report().answered == 2


def test_a_function_may_read_a_small_tensor_of_its_closure() -> None:
    table, factor = torch.ones(4), 1

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x * factor + table

    fast = hotfuse.compile(shifted, wait=True, capture="blocking")
    torch.testing.assert_close(fast(X), X + 1)
    table.add_(1)
    torch.testing.assert_close(fast(X), X + 2)
    factor = 3
    torch.testing.assert_close(fast(X), X * 3 + 2)
    table = torch.zeros(4)
    torch.testing.assert_close(fast(X), X * 3)
    assert fast.report().answered == 4


def test_a_function_that_reads_a_large_tensor_of_its_closure_stays_eager() -> None:
    table = torch.ones(20_000)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + table[:4]

    fast = hotfuse.compile(shifted, wait=True, capture="blocking")
    torch.testing.assert_close(fast(X), X + 1)
    assert "make it a buffer" in fast.report().why


def test_graph_modules() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval())
    fast = compiled(graph)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), graph(X))
    assert fast.report().answered == 1


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(ConfigError, match="not int"):
        hotfuse.compile(3)


class DataDependent(torch.nn.Module):
    """It cannot be traced as a whole; its two parts can."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        if float(x.sum().item()) > 0:
            x = -x
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_largest_submodules_serve_where_the_whole_cannot() -> None:
    model = DataDependent().eval()
    before = dict(model.__dict__)
    fast = compiled(model)
    with torch.no_grad():
        for batch in (3, 5):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(fast(x), model(x))
    report = fast.report()
    assert {c.module for c in report.classes} == {"DataDependent.before", "DataDependent.layers.0", "DataDependent.layers.1"}
    assert report.answered == 6
    assert list(report.failed) == ["DataDependent"]
    assert type(model.before) is torch.nn.Sequential
    assert dict(model.__dict__).keys() == before.keys()


def test_strict_raises_what_would_stay_eager() -> None:
    fast = compiled(DataDependent().eval(), strict=True)
    with torch.no_grad(), pytest.raises(CaptureError, match="DataDependent"):
        fast(X)


def test_changes_of_the_module_itself_are_never_captured() -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    model = Counting().eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(X)
        fast(X)
    assert model.calls == 2
    assert "forward changes the module itself" in fast.report().failed["Counting"]


def test_in_place_changes_of_buffers_and_arguments_happen() -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor, store: torch.Tensor) -> torch.Tensor:
            self.seen += x.sum(0)
            store[0] = x[0]
            return x * 2

    model, twin = Cache(), Cache()
    fast = compiled(model)
    stores = torch.zeros(2, 4), torch.zeros(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(X, stores[0]), twin(X, stores[1]))
    torch.testing.assert_close(stores[0], stores[1])
    torch.testing.assert_close(model.seen, twin.seen)


def test_tier_0_and_close_leave_everything_to_the_module() -> None:
    fast = compiled(tier=0)
    with torch.no_grad():
        fast(X)
    assert fast.report().answered == 0
    assert "tier=0" in fast.report().why
    fast = compiled()
    with torch.no_grad():
        fast(X)
        fast.close()
        fast(X)
    assert fast.report().calls == 2
    assert fast.report().answered == 1
    assert "closed" in fast.report().why


def test_disabled_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_DISABLE", "1")
    fast = compiled()
    with torch.no_grad():
        fast(X)
    assert fast.report().answered == 0


def test_by_default_the_module_answers_and_the_capture_happens_behind_it() -> None:
    model = Net().eval()
    fast = hotfuse.compile(model)
    started = time.perf_counter()
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))
        assert time.perf_counter() - started < 1.0
        assert fast.settle(120)
        torch.testing.assert_close(fast(X), model(X))
    report = fast.report()
    assert len(report.classes) == 1, report
    assert report.answered == 0
    assert "no fused kernel" in report.why
    assert "matmul" in fast.explain()


def test_the_report_says_why_nothing_was_captured() -> None:
    fast = compiled()
    fast(X)
    assert "gradients are enabled" in fast.report().why
    assert fast.report().json()["calls"] == 1
    assert "why it is not faster yet" in str(fast.report())


def test_many_threads_may_call_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = Net().eval()
    fast = compiled(model)

    def call(batch: int) -> None:
        x = torch.randn(batch, 4)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))

    call(1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, [1, 2, 3, 5] * 20))
    assert fast.report().answered == 81


def test_an_unguarded_script_with_classes_of_its_own() -> None:
    script = """
        import torch, hotfuse
        print("started")
        class Local(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.act = lambda x: x.relu() + OFFSET
                self.linear = torch.nn.Linear(4, 4)
            def forward(self, x):
                return self.act(self.linear(x))
        OFFSET = 2
        model = Local().eval()
        fast = hotfuse.compile(model, wait=True)
        with torch.no_grad():
            x = torch.randn(1, 4)
            assert torch.allclose(fast(x), model(x))
            OFFSET = 3
            assert torch.allclose(fast(x), model(x))
        print("answered", fast.report().answered, fast.report().failed)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=True
    )
    assert result.stdout.count("started") == 1
    assert "answered" in result.stdout
    assert "answered 0" not in result.stdout, result.stdout


class Slices(torch.nn.Module):
    """Makes a new container of some of its layers in every call, and cannot be captured as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: int(x.sum().item() > -1e9) + 1]:
            x = layer(x)
        return x


def test_containers_made_anew_in_a_call() -> None:
    module = Slices().eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = module(x)
        fast = hotfuse.compile(module, wait=True)
        for _ in range(2):
            torch.testing.assert_close(fast(x), expected)
    fast.close()


def test_calling_the_wrappers_class_makes_a_plain_module() -> None:
    fast = hotfuse.compile(torch.nn.Linear(4, 4))
    other = type(fast)(2, 3)
    assert type(other) is torch.nn.Linear
    assert other.weight.shape == (3, 2)


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + torch.rand(4))


def test_a_plan_that_fails_leaves_the_random_numbers_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("planted")

    model, x = Noisy().eval(), torch.zeros(4)
    fast = compiled(model)
    with monkeypatch.context() as patch:
        patch.setitem(EAGER, "tanh", lambda node, values: broken)
        torch.manual_seed(7)
        ours = fast(x), torch.rand(1)
    torch.manual_seed(7)
    theirs = model(x), torch.rand(1)
    assert fast.report().answered == 0
    assert controls(fast).events.of("serve.failed")
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


class Picky(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "only positive numbers")
        return x * 2


def test_assertions_raise_eagers_error_and_cost_the_capture_nothing() -> None:
    fast = compiled(Picky().eval())
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="only positive numbers"):
        fast(-torch.ones(3))
    fast(torch.ones(3))
    assert fast.report().answered == 2
    assert not controls(fast).root.failed
