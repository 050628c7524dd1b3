"""Captures that come from the disk: what makes a request the same, what makes it another, and what is believed of an entry."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import CaptureError, ExecutionError
from hotfuse.frontends.torch_program import Trace
from hotfuse.frontends.torch_request import TraceRequest
from hotfuse.frontends.torch_skeleton import make_skeleton
from hotfuse.runtime import torch_capture, torch_class
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.capture_cache import KIND, Recalled, make_entry, recall
from hotfuse.runtime.capture_worker import answer
from hotfuse.runtime.parcel import unwrap
from hotfuse.runtime.torch_guard import call_structure, describe_leaves
from hotfuse.runtime.torch_module import controls

CONSTANTS = """
import numpy, re, torch
from torch import relu as act

class Scale:
    def __init__(self, by): self.by = by
    def __call__(self, x): return x * self.by

TABLE = numpy.array([1.0, 2.0, 3.0, 4.0], numpy.float32)
FIRST, SECOND = Scale(2.0), Scale(3.0)
WORD = re.compile("re.u")
OFFSETS = torch.tensor([1.0, -1.0, 0.5, 0.0])
"""

MODEL = """
import os, torch
import toy_constants
from toy_constants import FIRST, SECOND, TABLE, WORD
from torch import tanh as last

GAIN = 1.5

def make(by):
    def shifted(x, more=1.0): return x + by + more
    return shifted

class Base(torch.nn.Module):
    rate = 0.25
    def mixed(self, x): return x * self.rate

class Kind(torch.nn.Tanh):
    pass

class Toy(Base):
    shift = make(0.5)
    shift = staticmethod(shift)

    def __init__(self, width=4):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, width), torch.nn.Linear(width, 4)
        self.third = torch.nn.Linear(4, 4, bias=False)
        self.fourth = torch.nn.Linear(4, 4, bias=False)
        self.kind = Kind()
        self.tags = {"b", "a", "c", "dd"}
        self.factor = 2.0
        self.register_buffer("bias", torch.arange(4.0))

    def forward(self, x, power=2):
        x = self.second(self.first(x)) * self.factor + self.bias
        x = FIRST(toy_constants.act(self.mixed(x))) - SECOND(self.kind(x)) * GAIN
        if WORD.match("relu") and "a" in self.tags:
            x = x + torch.from_numpy(TABLE.copy()) * float(TABLE[0])
        return self.fourth(self.third(last(Toy.shift(x)) ** power))
"""


@dataclass
class World:
    """A model's source on disk, imported, and a cache that holds its capture."""

    folder: Path
    cache: DiskCache
    entry: bytes = b""

    def write(self, model: str = MODEL, constants: str = CONSTANTS) -> Any:
        """The model's module, imported anew from these sources."""
        (self.folder / "toy_constants.py").write_text(constants)
        (self.folder / "toy_model.py").write_text(model)
        for name in ("toy_constants", "toy_model"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("toy_model")

    def model(self, **given: Any) -> Any:
        torch.manual_seed(0)
        return self.write().Toy(**given).eval()


def request_of(model: Any, *args: Any, **kwargs: Any) -> TraceRequest:
    leaves = describe_leaves([*args, *(kwargs[name] for name in sorted(kwargs))])
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    return TraceRequest(model, leaves, call_structure(args, kwargs), grad, dtype)


def ask(world: World, model: Any, *args: Any, **kwargs: Any) -> Recalled:
    args = args or (torch.zeros(3, 4),)
    request = request_of(model, *args, **kwargs)
    shapes = [tuple(leaf.shape) for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)]
    return recall(world.cache, make_skeleton(request)[0], model, shapes)


def capture(model: Any, *args: Any) -> Trace:
    kind, trace = unwrap(answer(make_skeleton(request_of(model, *args))[0]))
    assert kind == "done", trace
    assert isinstance(trace, Trace)
    return trace


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("models")
    cache = open_cache(Config(cache=str(tmp_path_factory.mktemp("cache") / "entries")))
    assert cache is not None
    sys.path.insert(0, str(folder))
    wrote, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # sources change faster than their times do
    try:
        world = World(folder, cache)
        model = world.model()
        found = ask(world, model)
        assert found.trace is None
        world.entry = make_entry(model, capture(model, torch.zeros(1, 4)))
        assert cache.put(KIND, found.place, world.entry)
        yield world
    finally:
        sys.dont_write_bytecode = wrote
        sys.path.remove(str(folder))
        for name in ("toy_constants", "toy_model"):
            sys.modules.pop(name, None)


# what makes a request the same


def test_the_same_model_with_other_weights_and_sizes_is_recalled(world: World) -> None:
    model = world.model()
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter))
    found = ask(world, model, torch.zeros(7, 4))
    assert found.trace is not None, found.reason
    assert found.trace.shapes.check([(1, 4)]) == "" != found.trace.shapes.check([(1, 5)])


def test_a_process_with_a_warm_cache_captures_nothing(world: World) -> None:
    """In another process, where sets have another order: no child is started, and answers are the model's own."""
    world.write()
    script = """
import torch, hotfuse, toy_model
from hotfuse.runtime import torch_capture
from hotfuse.runtime.torch_module import controls
torch.manual_seed(1)
model = toy_model.Toy().eval()
with torch.no_grad():
    fast = hotfuse.compile(model, wait=True, trial=False)
    for rows in (3, 1, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), model(x))
assert controls(fast).root.answered == 3
print(sorted(k for k in controls(fast).events.counted() if k.startswith("capture")), torch_capture._workers)
"""
    settings = {"HOTFUSE_CACHE": world.cache.folder.path, "PYTHONPATH": f"{world.folder}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['capture.cached', 'capture.done'] {}", done.stderr


# what makes it another


def _tie(model: Any) -> None:
    model.fourth.weight = model.third.weight


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


STATES: dict[str, Callable[[Any], Any]] = {
    "an attribute": _set("factor", 3.0),
    "its type": _set("factor", 2),
    "a new attribute": _set("extra", None),
    "the order of a set is nothing, its contents are": _set("tags", {"b", "c"}),
    "a buffer's value": lambda model: model.bias.add_(1),
    "a buffer's dtype": lambda model: model.bias.data.__class__ and _set("bias", model.bias.double())(model),
    "all dtypes": lambda model: model.double(),
    "a parameter that wants gradients": lambda model: model.third.weight.requires_grad_(False),
    "a tie": _tie,
    "strides": lambda model: _set("third", _transposed(model.third))(model),
    "the training flag": lambda model: model.train(),
    "that of a part": lambda model: model.kind.train(),
    "a part": _set("kind", torch.nn.Tanh()),
    "a global": lambda model: setattr(sys.modules["toy_model"], "GAIN", 2.5),
    "an imported array": lambda model: sys.modules["toy_model"].TABLE.__setitem__(0, 7),
    "an object's attribute": lambda model: setattr(sys.modules["toy_model"].FIRST, "by", 5.0),
    "a class's attribute": lambda model: setattr(sys.modules["toy_model"].Base, "rate", 0.5),
    "a default": lambda model: setattr(sys.modules["toy_model"].Toy.shift, "__defaults__", (2.0,)),
    "a closure": lambda model: setattr(sys.modules["toy_model"].Toy.shift.__closure__[0], "cell_contents", 2.0),
    "a method": lambda model: setattr(sys.modules["toy_model"].Base, "mixed", lambda self, x: x),
    "what a variable names": lambda model: setattr(sys.modules["toy_model"], "last", torch.sin),
}


def _transposed(linear: Any) -> Any:
    linear.weight = torch.nn.Parameter(linear.weight.t())
    return linear


@pytest.mark.parametrize("change", STATES)
def test_a_model_that_changed_is_another(world: World, change: str) -> None:
    model = world.model()
    assert ask(world, model).trace is not None
    STATES[change](model)
    assert ask(world, model).trace is None


SOURCES = {
    "a forward pass": ("* self.factor +", "* self.factor -", ""),
    "a default": ("power=2", "power=3", ""),
    "a constant of a function": ("self.mixed(x))) -", "self.mixed(x) * 2)) -", ""),
    "a class attribute": ("rate = 0.25", "rate = 0.5", ""),
    "what a class extends": ("Kind(torch.nn.Tanh)", "Kind(torch.nn.Sigmoid)", ""),
    "what a name is imported from": ("import tanh as last", "import sin as last", ""),
    "a global": ("GAIN = 1.5", "GAIN = 2.5", ""),
    "lines before it": ("\nGAIN", "\n\nGAIN", ""),
    "an imported array": ("[1.0, 2.0, 3.0", "[2.0, 2.0, 3.0", "constants"),
    "a function that a module imports": ("relu as act", "sigmoid as act", "constants"),
    "objects that swap their names": ("FIRST, SECOND =", "SECOND, FIRST =", "constants"),
    "a pattern": ("re.u", "no", "constants"),
}


@pytest.mark.parametrize("change", SOURCES)
def test_a_model_whose_source_changed_is_another(world: World, change: str) -> None:
    old, new, where = SOURCES[change]
    sources = {"model": MODEL, "constants": CONSTANTS}
    where = where or "model"
    assert sources[where].count(old) == 1
    model = world.write(**{**sources, where: sources[where].replace(old, new)}).Toy().eval()
    assert ask(world, model).trace is None


def test_a_model_of_another_folder_is_another(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal source elsewhere: the code that ran is known by its file."""
    world.write()
    monkeypatch.syspath_prepend(str(tmp_path))
    elsewhere = World(tmp_path, world.cache)
    assert ask(world, elsewhere.model()).trace is None


def test_a_call_of_another_kind_is_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    model = world.model()
    x = torch.zeros(3, 4)
    assert ask(world, model, x).trace is not None
    other = [
        ask(world, model, x=x),
        ask(world, model, x, 2),
        ask(world, model, x, power=3),
        ask(world, model, x.double()),
        ask(world, model, torch.zeros(2, 3, 4)),
        ask(world, model, torch.zeros(4, 3).t()),
        ask(world, model, torch.zeros(3, 8)[:, :4]),
        ask(world, model, torch.zeros(0, 4)),
        ask(world, model.third, x),
        ask(world, type(model)(width=5).eval(), x),
    ]
    with torch.enable_grad():
        other.append(ask(world, model, x))
    torch.set_default_dtype(torch.float64)
    other.append(ask(world, model, x))
    torch.set_default_dtype(torch.float32)
    assert [found.trace for found in other] == [None] * len(other)
    assert "size" in ask(world, model, torch.zeros(3, 5)).reason


@pytest.mark.parametrize("what", ["torch", "python", "setting", "package", "sources"])
def test_other_versions_ask_for_themselves(world: World, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = world.model()
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "2.14.0")
    elif what == "python":
        monkeypatch.setattr("platform.python_version", lambda: "3.11.99")
    elif what == "setting":
        monkeypatch.setenv("TORCH_SOMETHING", "1")
    elif what == "package":
        (tmp_path / "site-packages").mkdir()
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    else:
        monkeypatch.setattr("hotfuse.runtime.capture_cache._contents", lambda path: b"other")
    assert ask(world, model).trace is None
    monkeypatch.undo()
    assert ask(world, model).trace is not None


# what is believed


def test_damaged_entries_are_misses(world: World) -> None:
    """Entries that are whole as files, and nonsense: none is believed, and the place is free for another."""
    model = world.model()
    place = ask(world, model).place
    rng = random.Random(0)
    broken = [b"", b"x", world.entry[:-1], world.entry[:100], world.entry + b"x", b"\xff" * 200]
    for _ in range(30):
        at = rng.randrange(len(world.entry))
        broken.append(world.entry[:at] + bytes([world.entry[at] ^ (1 << rng.randrange(8))]) + world.entry[at + 1 :])
    try:
        for data in broken:
            world.cache.put(KIND, place, data)
            found = ask(world, model)
            assert (found.trace, found.place) == (None, place)
    finally:
        world.cache.put(KIND, place, world.entry)
    assert ask(world, model).trace is not None


def test_classes_of_other_shapes_lie_beside_each_other(world: World) -> None:
    model = world.model()
    found, other = ask(world, model), ask(world, model, torch.zeros(3, 5))
    assert found.trace is not None
    assert other.trace is None
    assert other.place != found.place
    with pytest.raises(CaptureError, match="no form on disk: because"):
        make_entry(model, replace(found.trace, form="because"))


def test_what_cannot_be_told_is_not_kept(world: World) -> None:
    model = world.model()
    found = ask(world, model).trace
    assert found is not None
    for name, value, why in (
        ("members", {object()}, "a set of objects"),
        ("large", [torch.zeros(1 << 18)], "lies outside of the modules"),
        ("deep", _nested(200), "hold each other"),
    ):
        setattr(model, name, value)
        with pytest.raises(CaptureError, match=why):
            make_entry(model, Trace(found.program, found.shapes, form=b"form"))
        delattr(model, name)


def _nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


# the whole way


def _wait_for(events: Any, *kinds: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = next((kind for kind in kinds if kind in events.counted()), None)
        if found is not None:
            return found
        time.sleep(0.005)
    raise AssertionError(f"none of {kinds} among {events.counted()}")


def compiled(model: Any, cache: Path, **options: Any) -> Any:
    return hotfuse.compile(model, wait=True, trial=False, capture="blocking", cache=str(cache), **options)


def test_captures_are_kept_recalled_and_disowned(world: World, tmp_path: Path) -> None:
    """One instance is captured, the next served from the cache; a program that was wrong is captured anew."""
    x = torch.randn(5, 4)
    for expected in ("capture.kept", "capture.cached", "capture.kept"):
        model = world.model()
        fast = compiled(model, tmp_path / "cache")
        torch.testing.assert_close(fast(x), model(x))
        assert _wait_for(controls(fast).events, "capture.kept", "capture.cached", "capture.unkept") == expected
        if expected == "capture.cached":
            controller = controls(fast).root
            controller.captures.kept.disown(controller.classes[0].runner.captured)
            cache = open_cache(Config(cache=str(tmp_path / "cache")))
            assert cache is not None
            deadline = time.monotonic() + 10
            while ask(World(world.folder, cache), model, x).trace is not None and time.monotonic() < deadline:
                time.sleep(0.005)


def test_what_was_kept_and_cannot_serve_is_captured_anew(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 4)
    model = world.model()
    fast = compiled(model, tmp_path / "cache")
    fast(x)
    assert _wait_for(controls(fast).events, "capture.kept") == "capture.kept"
    refusals = [ExecutionError("planted")]
    original = torch_class.serve

    def serve(*args: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return original(*args)

    monkeypatch.setattr(torch_class, "serve", serve)
    model = world.model()
    again = compiled(model, tmp_path / "cache")
    torch.testing.assert_close(again(x), model(x))
    events = controls(again).events
    assert [e.kind for e in events.of("capture")][:3] == ["capture.cached", "capture.missed", "capture.done"]
    assert "planted" in events.of("capture.missed")[0].reason


def test_a_cache_that_is_off_is_not_asked(world: World) -> None:
    fast = hotfuse.compile(world.model(), wait=True, trial=False, capture="blocking", cache="off")
    fast(torch.zeros(2, 4))
    assert {k for k in controls(fast).events.counted() if k.startswith("capture")} == {"capture.done"}


def test_a_module_that_changed_since_is_not_kept(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = world.model()

    def changing(module: Any, *rest: Any) -> bytes:
        entry = make_entry(module, *rest)
        model.factor = 9.0
        return entry

    monkeypatch.setattr("hotfuse.runtime.capture_cache.make_entry", changing)
    fast = compiled(model, tmp_path / "cache")
    fast(torch.zeros(2, 4))
    assert _wait_for(controls(fast).events, "capture.kept", "capture.unkept") == "capture.unkept"


def test_what_is_captured_after_a_change_is_not_kept_as_what_was_before(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change between the look into the cache and the capture: the new state is captured, and not kept under the old one."""
    model = world.model()
    here = torch_capture.capture_here

    def change_first(job: Any) -> None:
        model.factor = 5.0
        here(job)

    monkeypatch.setattr(torch_capture, "capture_here", change_first)
    fast = compiled(model, tmp_path / "cache")
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), model(x))
    assert controls(fast).root.answered == 1
    time.sleep(0.2)
    assert not {"capture.kept", "capture.unkept"} & set(controls(fast).events.counted())
