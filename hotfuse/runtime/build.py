"""Builds: a graph as recipes of kernels. A build is data, made in this process or in a worker's.

    graph --native form--> --hoist--> prepare: weights -> packed and otherwise prepared values     run when weights are new
                                      main: units (nodes that became kernels together), and nodes that stay with tier 0

A skeleton is a graph without its large constants: they are weights there, known by name and type. What is made from a skeleton
serves the graph: `attached` puts the constants back, and what `prepare` makes of them beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hotfuse.codegen.lower import Known, Recipe, lower
from hotfuse.codegen.native_form import native_graph
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_files import edited
from hotfuse.config import Config
from hotfuse.errors import CodegenError, TileError
from hotfuse.fusion.chains import make_chains
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import symbols_of
from hotfuse.ir.graph import Constant, Graph
from hotfuse.ir.layout import Layout, layouts
from hotfuse.ir.op import OPS
from hotfuse.ir.types import STRING, TensorType, Type
from hotfuse.pace import Pace, hurry
from hotfuse.passes.dead_code import remove_dead
from hotfuse.passes.fold import fold_constants, immutable
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.shelf import Shelf, in_order_of_use

LARGE_BYTES = 64 * 1024  # constants of this size and more are weights of a skeleton

MakeCode = Callable[[TileProgram], object]  # raises CodegenError where there can be none


@dataclass(frozen=True)
class Unit:
    """Nodes that became kernels together, by id, and the kernels' recipes."""

    kind: str
    nodes: tuple[str, ...]
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class Build:
    """What `hoisted.main` runs as; `reasons` say of nodes that could have had kernels why they have none."""

    hoisted: Hoisted
    units: tuple[Unit, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Graph:
        return self.hoisted.main

    @property
    def programs(self) -> tuple[TileProgram, ...]:
        """Each once."""
        return tuple(dict.fromkeys(recipe.program for unit in self.units for recipe in unit.recipes))


def make_build(graph: Graph, spec: Spec, config: Config, make: MakeCode, live: Collection[str] = ()) -> Build:
    """The build of a graph, `make` having made code of every program. Weights named in `live` change with every call."""
    return build_hoisted(hoist(native_form(graph, spec), live), spec, config, make)


def native_form(graph: Graph, spec: Spec) -> Graph:
    """The graph in the form that native code is made from, what follows from constants computed."""
    return remove_dead(fold_constants(native_graph(graph, spec)))


def build_hoisted(hoisted: Hoisted, spec: Spec, config: Config, make: MakeCode) -> Build:
    """The build of a graph that is in its native form and split already."""
    graph = hoisted.main
    places = layouts(graph, graph.values)
    builder = _Builder(graph, places, spec, config, make)
    for group in make_chains(fuse(graph, graph.values, places), graph, graph.values, places, spec.l2_bytes):
        builder.add(group)
    return Build(hoisted, tuple(builder.units), builder.reasons)


class _Builder:
    """State: the units made so far, and why other nodes have none."""

    def __init__(self, graph: Graph, places: Mapping[str, Layout], spec: Spec, config: Config, make: MakeCode) -> None:
        self._graph, self._places, self._spec, self._config, self._make = graph, places, spec, config, make
        self._known = {s.name for n in (*graph.inputs, *graph.weights) for s in symbols_of(_dims(graph.type(n)))}
        self._lowered: Known = {}
        self.units: list[Unit] = []
        self.reasons: dict[str, str] = {}

    def add(self, group: Fused) -> None:
        """Make a group's recipes and code. A chain that cannot be made is made link by link."""
        try:
            recipes = lower(self._graph, self._graph.values, self._places, group, self._spec, self._lowered)
            strangers = {s.name for r in recipes for s in symbols_of(r.sizes)} - self._known
            if strangers:
                raise TileError(f"its sizes depend on data ({', '.join(sorted(strangers))})")
            used = tuple(replace(r, program=edited(r.program, self._config.tiles)) for r in recipes)
            for recipe in used:
                self._make(recipe.program)
            self.units.append(Unit(group.kind, tuple(node.id for node in group.nodes), used))
        except Exception as error:  # no defect of the generator may keep a model from answering
            if self._config.strict and not isinstance(error, TileError | CodegenError):
                raise
            for link in group.links:
                self.add(link)
            if not group.links:
                self.reasons |= {node.id: str(error) for node in group.nodes}


def _dims(type: Type) -> tuple[Any, ...]:
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def skeleton(graph: Graph) -> Graph:
    """The graph with its large constants as weights. Nested graphs keep theirs."""
    large = tuple(name for name, constant in graph.constants.items() if _is_large(constant.type))
    kept = {name: constant for name, constant in graph.constants.items() if name not in set(large)}
    return replace(graph, constants=kept, weights=(*graph.weights, *large))


def _is_large(type: TensorType) -> bool:
    return type.is_static and type.dtype is not STRING and _bytes(type) >= LARGE_BYTES


def _bytes(type: Type) -> int:
    assert isinstance(type, TensorType)
    return math.prod(type.sizes) * type.dtype.numpy.itemsize


def attached(hoisted: Hoisted, constants: Mapping[str, Constant], pace: Pace = hurry) -> Graph:
    """The main graph with a skeleton's constants in place, and with what is prepared from them."""
    main = hoisted.main
    known = {**constants, **_prepared(hoisted, constants, pace)}
    mine = {name: known[name] for name in main.weights if name in known}
    for name, constant in constants.items():
        if name not in mine:
            constant.release()
    return replace(main, constants={**main.constants, **mine}, weights=tuple(w for w in main.weights if w not in mine))


def _prepared(hoisted: Hoisted, constants: Mapping[str, Constant], pace: Pace) -> dict[str, Constant]:
    """What a prepare graph makes of constants, on one shelf."""
    prepare = hoisted.prepare
    if prepare is None:
        return {}
    known = {**constants, **prepare.constants}
    order = in_order_of_use(hoisted.main, prepare.outputs)
    shelf = Shelf([_bytes(prepare.type(name)) for name in order])
    places = {name: number for number, name in enumerate(order)}
    left = {name: len(readers) for name, readers in prepare.consumers.items()}
    for node in prepare.nodes:
        pace()
        record = OPS[node.op]
        assert record.reference is not None
        with np.errstate(all="ignore"):
            made = record.reference(*(None if n is None else known[n].glance() for n in node.inputs), **node.attrs)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for name, result in zip(node.outputs, results, strict=False):
            array = np.asarray(result)
            known[name] = Constant.of(immutable(shelf.put(places[name], array) if name in places else array))
        for name in dict.fromkeys(node.uses):
            left[name] -= 1
            if not left[name] and not record.view and name in constants:
                constants[name].release()
    return {name: known[name] for name in prepare.outputs}
