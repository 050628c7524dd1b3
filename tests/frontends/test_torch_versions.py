"""No way to write into a dictionary leaves its version as it was."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotfuse.frontends import torch_versions
from hotfuse.frontends.torch_versions import Versions, has_version
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.weights import LiveWeights


class Plain:
    kind = "a"

    def __init__(self) -> None:
        self.size = 1


class Layer(torch.nn.Module):
    scale = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Linear(2, 2)
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * self.scale * self.factor


def set_often(thing: Any) -> None:
    for number in range(1000):  # as often as Python needs to take a shorter way
        thing.size = float(number)


WAYS: dict[str, Callable[[Any], object]] = {
    "an attribute is set": lambda p: setattr(p, "size", 2),
    "it is set often": set_often,
    "one is added": lambda p: setattr(p, "new", 2),
    "one is removed": lambda p: delattr(p, "size"),
    "past the class": lambda p: object.__setattr__(p, "size", 3),
    "through the dictionary": lambda p: vars(p).update(size=4),
    "by a union": lambda p: vars(p).__ior__({"size": 5}),
    "all at once": lambda p: vars(p).clear(),
    "taken out": lambda p: vars(p).pop("size"),
    "by default": lambda p: vars(p).setdefault("other", 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_is_noticed(way: str) -> None:
    thing = Plain()
    seen = Versions([vars(thing)])
    assert not seen.are(seen.now())  # nobody has looked inside yet
    seen.keep(seen.now())
    assert seen.are(seen.now())
    WAYS[way](thing)
    assert not seen.are(seen.now())
    seen.keep(seen.now())
    assert seen.are(seen.now())


FILLED: dict[str, Callable[[dict[str, int]], object]] = {
    "updated": lambda d: d.update({"a": 1}),
    "united": lambda d: d.__ior__({"a": 1}),
    "set": lambda d: d.__setitem__("a", 1),
}


@pytest.mark.parametrize("way", FILLED)
def test_an_empty_dictionary_is_noticed_or_has_no_version(way: str) -> None:
    table: dict[str, int] = {}
    seen = Versions([table])
    seen.keep(seen.now())
    FILLED[way](table)
    assert not seen.are(seen.now())


def test_an_empty_one_has_none_where_it_may_be_filled_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_versions, "_WATCHED", True)
    assert not has_version({})
    assert has_version({"a": 1})


def test_a_class_is_noticed_by_the_dictionary_behind_its_proxy() -> None:
    made = type("Made", (), {"kind": "a"})
    seen = Versions([vars(made)])
    seen.keep(seen.now())
    assert made().kind == "a"
    assert seen.are(seen.now())
    made.kind = "b"
    assert not seen.are(seen.now())
    seen.keep(seen.now())
    made.method = lambda self: 1
    assert not seen.are(seen.now())


def test_what_has_no_version_is_never_the_same() -> None:
    assert all(map(has_version, ({}, defaultdict(int), types.MappingProxyType({"a": 1}))))
    ordered = OrderedDict(a=1, b=2)
    for table in (ordered, types.MappingProxyType(ordered), [1], {1}):
        assert not has_version(table)
    seen = Versions([{}, ordered])
    seen.keep(seen.now())
    assert not seen.are(seen.now())


def test_without_torchs_versions_everything_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_versions, "_READ", None)
    model = Layer()
    watch = ModuleWatch(model)
    for _ in range(2):
        assert watch.changed() == ""
    model.new = 3.0
    assert "added" in watch.changed()
    del model.new
    assert watch.changed() == ""
    model.factor = 3.0
    assert "'factor'" in watch.changed()


def test_an_equal_list_in_place_of_another_is_watched_too() -> None:
    model = torch.nn.Sequential(torch.nn.Upsample(size=[8, 8]))
    watch = ModuleWatch(model)
    assert watch.changed() == ""
    model[0].size = [8, 8]
    assert watch.changed() == ""
    model[0].size[0] = 4
    assert "'size'" in watch.changed()


def test_a_module_is_looked_into_where_a_version_moved_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks = Layer(), []
    watch = ModuleWatch(model)
    inside = watch._changed_inside
    monkeypatch.setattr(watch, "_changed_inside", lambda: looks.append(1) or inside())  # type: ignore[func-returns-value]
    for _ in range(3):
        assert watch.changed() == ""
    assert len(looks) == 1
    model.factor = float("2.0")  # another object of the same value
    for _ in range(3):
        assert watch.changed() == ""
    assert len(looks) == 2
    Layer.scale = 2.5
    assert "'scale'" in watch.changed()
    Layer.scale = 1.5
    assert watch.changed() == ""
    model.part = torch.nn.Linear(2, 2)
    for _ in range(2):  # a difference is never kept
        assert "submodule" in watch.changed()


def test_weights_are_looked_up_again_where_one_was_replaced() -> None:
    model = Layer()
    builder = GraphBuilder()
    weights = {name: builder.weight(name, tensor(F32, *w.shape)) for name, w in model.named_parameters()}
    live = LiveWeights(model, builder.build(list(weights.values())), list(weights))
    first = live.read()
    assert live.read() is first
    model.part.weight = torch.nn.Parameter(torch.ones(2, 2))
    second = live.read()
    assert not isinstance(second, str)
    assert any(tensor is model.part.weight for tensor in second)
    model.part.weight.data = torch.ones(3, 2)  # no dictionary knows of that
    assert live.read() == "a weight has another shape"
    del model.part.weight
    assert live.read() == "a weight was removed or replaced by something else"
