"""Parcels: what travels to a child and back, while other threads use it."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import onnx.parser

import hotfuse
from hotfuse.codegen.recipe import Recipe
from hotfuse.config import Config
from hotfuse.runtime import parcel
from hotfuse.runtime.build import Build, skeleton
from hotfuse.runtime.build_request import BuildRequest
from hotfuse.runtime.build_work import build_here

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 8] x) => (float[n, 8] y) { a = Exp(x)  y = Softmax(a) }"""


def build() -> Build:
    with hotfuse.load(onnx.parser.parse_model(TEXT), tier=0, cache="off") as session:
        return build_here(BuildRequest(skeleton(session.graph), Config(cache="off"))).build


def reached(root: Any) -> Iterator[Any]:
    """What a record holds, however deep, but for classes and functions."""
    todo, seen = [root], set[int]()
    while todo:
        item = todo.pop()
        if id(item) not in seen and not isinstance(item, type) and type(item).__name__ != "function":
            seen.add(id(item))
            yield item
            todo += gc.get_referents(item)


def test_what_works_out_things_about_itself_travels_without_them() -> None:
    """Whatever of a build has cached properties: pickle would walk over the dictionary that another thread adds them to."""
    for module in pkgutil.walk_packages(hotfuse.__path__, "hotfuse."):
        if module.name.startswith(("hotfuse.ir.", "hotfuse.codegen.", "hotfuse.passes.", "hotfuse.fusion.")):
            importlib.import_module(module.name)
    kinds = {type(item) for item in reached(build()) if is_dataclass(item) and type(item).__module__.startswith("hotfuse.")}
    working_out = {k for k in kinds if any(isinstance(v, cached_property) for v in vars(k).values())}
    assert Recipe in working_out
    assert working_out <= set(parcel._FORMS)


def test_a_record_that_changes_while_it_is_wrapped() -> None:
    program: Any = SimpleNamespace(arguments=[], text=bytes(1 << 18))  # longer than what pickle writes at once
    recipe = Recipe(program, (), (3,))

    def use() -> None:
        """As a thread would that has its turn in between."""
        assert recipe.writes == ()

    again = parcel.unwrap(parcel.wrap(recipe, use))
    assert (vars(again.program), again.sizes) == (vars(program), (3,))
    assert "writes" in vars(recipe)
    assert "writes" not in vars(again)
