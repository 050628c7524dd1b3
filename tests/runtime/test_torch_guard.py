"""Every guard, flipped after a capture, gives eager's answer."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.nn.utils import parametrize

import hotfuse
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.runtime.torch_class import ServedClass, serve
from hotfuse.runtime.torch_guard import axis_order, read_call
from tests.runtime import guard_settings

FLAG = 1
X = torch.randn(3, 4)


class Settings:
    """A global object, read through an attribute, a property and its class."""

    base = 1.0

    def __init__(self) -> None:
        self.scale = 1.0

    @property
    def total(self) -> float:
        return self.scale * self.base


class Slotted:
    __slots__ = ("lift",)

    def __init__(self) -> None:
        self.lift = 1.0


SETTINGS = Settings()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FLAG * SETTINGS.total


def with_default(x: torch.Tensor, factor: list[float] = [1.0], *, more: float = 0.0) -> torch.Tensor:  # noqa: B006
    return x * factor[0] + more


def make_closure() -> Callable[[torch.Tensor], torch.Tensor]:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + late if FLAG > 100 else x

    if FLAG > 100:
        late = 1.0  # never: an empty cell
    return add


EMPTY_CELL = make_closure()


class Part(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Weathercock(torch.nn.Module):
    """Its answer depends on everything that a guard must watch."""

    offset = 0.0
    shared = Settings

    def turn(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.offset

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.part = Part()
        self.gain = 2
        self.table = {"shift": 1.0, "deep": [0, 0]}
        self.config = SimpleNamespace(flip=False, nested=SimpleNamespace(power=1))
        self.mask = torch.ones(4)
        self.kept = [torch.tensor([1.0, 2.0, 3.0, 4.0])]
        self.array = numpy.array([1.0, 2.0])
        self.slotted = Slotted()
        self.queue = collections.deque([1.0])
        self.flag = True
        self.nothing = float("nan")
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x: torch.Tensor, other: Any = None, scale: Any = 1) -> Any:
        y = self.part(self.linear(x)) * self.gain + self.table["shift"] + sum(self.table["deep"])
        y = -y if self.config.flip else y
        y = y**self.config.nested.power * scale * self.mask + self.bias + self.kept[0]
        y = self.turn(y) * float(self.array[0]) + self.slotted.lift + self.queue[0] + self.shared.base
        y = EMPTY_CELL(with_default(y)) + (1 if self.flag is True else 2) + guard_settings.SCALE
        y = y.masked_fill(y > 1e9, self.nothing)
        y = y + 7 if torch.is_grad_enabled() else y
        y = y + 11 if torch.is_inference_mode_enabled() else y
        y = y + torch.ones(()).element_size()
        y = y + 13 if torch.are_deterministic_algorithms_enabled() else y
        y = y + other if isinstance(other, torch.Tensor) else y + 3 if other is not None else y
        return {"y": helper(y), "same": x}


@functools.cache
def capture() -> ServedClass:
    """One real capture; models of the same construction share its program."""
    fast = hotfuse.compile(Weathercock().eval(), wait=True)
    with torch.no_grad():
        fast(X)
    (served,) = fast._hotfuse.root.classes
    return served


@contextlib.contextmanager
def captured() -> Any:
    """A model and its compiled twin, captured for one class of calls and never again."""
    torch.manual_seed(0)
    model = Weathercock().eval()
    fast = hotfuse.compile(model, wait=True, capture="blocking", max_captures=1)
    first = capture()
    guard = replace(first.guard, watch=ModuleWatch(model))
    fast._hotfuse.root.table.all = (serve(model, guard, first.runner.captured, fast._hotfuse.config),)
    with torch.no_grad():
        check(model, fast, X)
    assert fast.report().answered == 1, fast.report()
    yield model, fast, X


def check(model: Any, fast: Any, *args: Any, **kwargs: Any) -> None:
    want, got = model(*args, **kwargs), fast(*args, **kwargs)
    torch.testing.assert_close(got["y"], want["y"])
    assert got["y"].requires_grad == want["y"].requires_grad
    assert got["same"] is args[0]


PATCHED: list[tuple[Any, str, Any]] = []


def patch(owner: Any, name: str, value: Any) -> None:
    PATCHED.append((owner, name, vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)))
    setattr(owner, name, value)


def equal_then_changed(model: Any) -> None:
    model.table = {"shift": 1.0, "deep": [0, 0]}
    model.table["deep"].append(5)


def flip_global(model: Any) -> None:
    global FLAG
    FLAG = 5


def replace_helper(model: Any) -> None:
    globals()["helper"] = lambda x: x * 9


FLIPS: dict[str, Callable[[Any], Any]] = {
    "training flag": lambda m: m.part.train(),
    "training of all": lambda m: m.train(),
    "number": lambda m: setattr(m, "gain", 3),
    "number's type": lambda m: setattr(m, "gain", 2.0),
    "dictionary": lambda m: m.table.update(shift=4.0),
    "nested list": lambda m: m.table["deep"].append(5),
    "configuration": lambda m: setattr(m.config, "flip", True),
    "nested configuration": lambda m: setattr(m.config.nested, "power", 2),
    "new attribute": lambda m: setattr(m, "forward", lambda x: {"y": x, "same": x}),
    "deleted attribute": lambda m: setattr(m, "config", SimpleNamespace(flip=True, nested=m.config.nested)),
    "submodule replaced": lambda m: setattr(m, "part", torch.nn.ReLU()),
    "submodule's class": lambda m: setattr(m.part, "__class__", torch.nn.Identity),
    "forward hook": lambda m: m.part.register_forward_hook(lambda module, args, out: out + 100),
    "forward pre-hook": lambda m: m.part.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "parametrization": lambda m: parametrize.register_parametrization(m.linear, "weight", torch.nn.Tanh()),
    "tensor attribute replaced": lambda m: setattr(m, "mask", torch.zeros(4)),
    "tensor attribute in place": lambda m: m.mask.fill_(3.0),
    "tensor in a list": lambda m: m.kept[0].mul_(2.0),
    "tensor in a list replaced": lambda m: m.kept.__setitem__(0, torch.ones(4)),
    "buffer": lambda m: m.bias.add_(1.0),
    "parameter replaced": lambda m: setattr(m.linear, "weight", torch.nn.Parameter(torch.ones(4, 4))),
    "parameter of another shape": lambda m: setattr(m.linear, "bias", None),
    "requires_grad": lambda m: m.requires_grad_(False),
    "class attribute": lambda m: patch(Weathercock, "offset", 3.0),
    "class attribute of its own": lambda m: patch(Part, "forward", lambda self, x: x * 3),
    "forward replaced": lambda m: patch(Weathercock, "forward", lambda self, x: {"y": x * 3, "same": x}),
    "method replaced": lambda m: patch(Weathercock, "turn", lambda self, y: y * 3),
    "attribute of a global object": lambda m: patch(SETTINGS, "scale", 3.0),
    "class of a global object": lambda m: patch(Settings, "base", 3.0),
    "property replaced": lambda m: patch(Settings, "total", property(lambda self: 5.0)),
    "class as an attribute": lambda m: patch(Weathercock, "shared", type("Other", (), {"base": 9.0})),
    "variable of a Python module": lambda m: patch(guard_settings, "SCALE", 3.0),
    "numpy array": lambda m: m.array.__setitem__(0, 3.0),
    "slot": lambda m: setattr(m.slotted, "lift", 3.0),
    "deque": lambda m: m.queue.__setitem__(0, 3.0),
    "True to 1": lambda m: setattr(m, "flag", 1),
    "not a number": lambda m: setattr(m, "nothing", 0.0),
    "default argument": lambda m: patch(with_default, "__defaults__", ([4.0],)),
    "keyword default": lambda m: patch(with_default, "__kwdefaults__", {"more": 2.0}),
    "equal list, then changed": equal_then_changed,
    "global number": flip_global,
    "global function": replace_helper,
}


LIVE = {"tensor attribute replaced", "tensor attribute in place", "buffer", "parameter replaced", "requires_grad"}  # read anew


@pytest.mark.parametrize("flip", list(FLIPS))
def test_flipping_the_module_gives_eagers_answer(flip: str) -> None:
    before = FLAG, helper
    try:
        with captured() as (model, fast, x), torch.no_grad():
            FLIPS[flip](model)
            check(model, fast, x)
            check(model, fast, x)
            assert flip in LIVE or fast._hotfuse.events.of("guard.miss")
    finally:
        globals()["FLAG"], globals()["helper"] = before
        while PATCHED:
            setattr(*PATCHED.pop())


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def global_hook() -> Any:
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out + 50 if isinstance(module, Part) else None
    )
    try:
        yield
    finally:
        handle.remove()


class DoublingFunctions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.nn.functional.linear else result


class DoublingDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.addmm.default else result


MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "function mode": DoublingFunctions,
    "dispatch mode": DoublingDispatch,
    "global hook": global_hook,
}


@pytest.mark.parametrize("mode", list(MODES))
def test_flipping_a_mode_gives_eagers_answer(mode: str) -> None:
    with captured() as (model, fast, x), torch.no_grad(), MODES[mode]():
        check(model, fast, x)
        check(model, fast, x)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "keyword": ((X,), {"scale": 2}),
    "keyword's type": ((X,), {"scale": True}),
    "float for int": ((X,), {"scale": 1.0}),
    "negative zero": ((X,), {"scale": -0.0}),
    "tensor for None": ((X, torch.ones(4)), {}),
    "string": ((X, "word"), {}),
    "object": ((X, object()), {}),
    "set": ((X, {1, 2}), {}),
    "structure": ((X, [1]), {}),
    "dtype": ((X.double().float().requires_grad_(False).half().float(),), {}),
    "batch of 1": ((X[:1],), {}),
    "empty": ((X[:0],), {}),
    "rank": ((X.reshape(1, 3, 4),), {}),
    "transposed": ((torch.randn(4, 3).t(),), {}),
    "gaps": ((torch.randn(3, 8)[:, ::2],), {}),
    "expanded": ((torch.randn(4).expand(3, 4),), {}),
    "aliased": ((X, X), {}),
    "overlapping": ((X, X[:1]), {}),
    "subclass": ((X.as_subclass(type("Odd", (torch.Tensor,), {})),), {}),
    "parameter": ((torch.nn.Parameter(X.clone(), requires_grad=False),), {}),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_other_arguments_give_eagers_answer(name: str) -> None:
    args, kwargs = CALLS[name]
    with captured() as (model, fast, _), torch.no_grad():
        check(model, fast, *args, **kwargs)
        check(model, fast, *args, **kwargs)


class Environment(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(os.environ.get("HOTFUSE_TEST_SCALE", "2"))


class Threads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.get_num_threads()


class Drawn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.random.random()


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * guard_settings.SCALE


@pytest.mark.parametrize(
    ("make", "why"), [(Environment, "os.environ"), (Threads, "get_num_threads"), (Drawn, "random.Random"), (Scaled, "SCALE")]
)
def test_what_cannot_be_watched_is_not_captured(make: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():  # a capture process that starts now would have the environment that is set next
        hotfuse.compile(torch.nn.Linear(X.shape[-1], 1), wait=True)(X)
    monkeypatch.setattr(guard_settings, "SCALE", 7.0)  # the capture process imports the file, where it is 1
    monkeypatch.setenv("HOTFUSE_TEST_SCALE", "5")
    fast = hotfuse.compile(make(), wait=True)
    fast(X)
    assert fast.report().answered == 0
    assert why in str(fast._hotfuse.root.failed)


def test_a_changed_module_is_captured_again() -> None:
    model = Weathercock().eval()
    fast = hotfuse.compile(model, wait=True, capture="blocking")
    with torch.no_grad():
        for change in (lambda: None, lambda: model.part.train(), lambda: model.kept[0].mul_(2), lambda: model.part.eval()):
            change()
            check(model, fast, X)
    assert fast.report().answered == 4
    assert len(fast.report().classes) == 4


def test_gradients_flow_through_the_module_itself() -> None:
    with captured() as (model, fast, x):
        got = torch.autograd.grad(fast(x)["y"].sum(), list(model.linear.parameters()))
        want = torch.autograd.grad(model(x)["y"].sum(), list(model.linear.parameters()))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
        leaf = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(fast(leaf)["y"].sum(), [leaf])
        assert gradient.shape == x.shape
        assert "gradients" in fast.report().why or fast.report().answered == 1


def test_vmap_jit_tracing_and_fx_see_the_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval().requires_grad_(False)
    fast = hotfuse.compile(model, wait=True, capture="blocking")
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), model(x))
    answered = fast.report().answered
    assert answered == 1
    torch.testing.assert_close(torch.vmap(fast)(x[None]), model(x)[None])
    torch.testing.assert_close(torch.jit.trace(fast, x, check_trace=False)(x), model(x))
    tangent = torch.func.jvp(lambda v: fast(v), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(lambda v: model(v), (x,), (torch.ones_like(x),))[1])
    assert fast.report().answered == answered
    torch.testing.assert_close(torch.compile(fast, backend="eager")(x), model(x))


def test_code_that_dynamo_gave_up_on_stays_eager() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval().requires_grad_(False)
    fast = hotfuse.compile(model, wait=True, capture="blocking")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        around = torch.compile(lambda v: fast(v) + 1, backend="eager", dynamic=False)
        for rows in (3, 4, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(around(x), model(x) + 1)
    assert fast.report().answered == 0
    fast(torch.randn(3, 4))
    assert fast.report().answered == 1


def test_a_guard_miss_names_its_reason() -> None:
    with captured() as (model, fast, x), torch.no_grad():
        model.part.train()
        fast(x)
        (event, *_) = fast._hotfuse.events.of("guard.miss")
        assert "training flag of part" in event.reason


def test_one_capture_serves_1_8_and_3() -> None:
    model = torch.nn.Linear(4, 2).eval()
    fast = hotfuse.compile(model, wait=True, capture="blocking")
    with torch.no_grad():
        for batch in (1, 8, 3, 1):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(fast(x), model(x))
    assert fast.report().answered == 4
    assert len(fast.report().classes) == 1


def test_the_number_of_captures_is_bounded() -> None:
    model = Weathercock().eval()
    fast = hotfuse.compile(model, wait=True, capture="blocking", max_captures=2)
    with torch.no_grad():
        for scale in range(5):
            check(model, fast, X, scale=scale)
    assert len(fast.report().classes) == 2
    assert fast.report().answered == 2


def test_keywords_count_by_name_not_by_order() -> None:
    a, b = torch.ones(2), torch.zeros(3)
    first, second = read_call((), {"a": a, "b": b}), read_call((), {"b": b, "a": a})
    assert (first.frame, first.shapes) == (second.frame, second.shapes)
    assert [t.shape for t in second.leaves] == [(2,), (3,)]


def test_axis_order() -> None:
    assert axis_order(torch.empty(2, 3, 4)) == (0, 1, 2)
    assert axis_order(torch.empty(2, 3, 4).permute(2, 0, 1)) == (1, 2, 0)
    assert axis_order(torch.empty(2, 8)[:, ::2]) is None
    assert axis_order(torch.empty(4).expand(2, 4)) is None
    assert axis_order(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)) == (0, 2, 3, 1)


def test_an_equal_value_hides_no_other_change() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Small())
    model[0].note = float("nan")
    watch = ModuleWatch(model)
    model[0].note = float("nan")  # another object that says of itself to differ
    assert watch.changed() == ""
    model[1].factor = 2.0
    assert "factor" in watch.changed()


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor
