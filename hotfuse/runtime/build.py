"""Builds: a graph as recipes of kernels. A build is data: made here or by a worker (`building`), or read from disk.

    graph --native form--> --hoist--> prepare: weights -> packed and otherwise prepared values     run when weights are new
                                      main: units (nodes that became kernels together), and nodes that stay with tier 0

A variant is units for the same main graph: made for one choice of sizes, or with other groups (`fusion/grouping`).

A skeleton is a graph without its large constants: they are weights there, known by name and type. What is made from a skeleton
serves the graph: `attached` puts the constants back, and what `prepare` makes of them beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile import TileProgram
from hotfuse.fusion.engine import Step
from hotfuse.fusion.grouping import Joint
from hotfuse.ir.dim import substitute
from hotfuse.ir.graph import Constant, Graph, Value
from hotfuse.ir.op import OPS
from hotfuse.ir.types import STRING, TensorType, Type
from hotfuse.pace import Pace, breathe, going_at, hurry
from hotfuse.passes.fold import immutable
from hotfuse.passes.hoist import Hoisted
from hotfuse.records import dataclass
from hotfuse.runtime.concrete import concrete_attrs, concrete_type, learned_sizes
from hotfuse.runtime.shelf import Shelf, in_order_of_use

LARGE_BYTES = 64 * 1024  # constants of this size and more are weights of a skeleton

Sizes = tuple[tuple[str, int], ...]  # of the symbols of a main graph, by name


@dataclass(frozen=True)
class Unit:
    """Nodes that became kernels together, by id, and the kernels' recipes. Units of the same `row`, not 0, that follow each
    other run side by side. `team`, not 0, are the threads that its plan was measured to be fastest with. One that `fetches` for
    the other unit of its row is woven with it."""

    kind: str
    nodes: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    row: int = 0
    team: int = 0
    fetches: bool = False

    @property
    def name(self) -> str:
        """That of its last node: no other unit of a build has it."""
        return self.nodes[-1]


PLAN_FAILED = "plan.failed"  # the event: the rules planned, for the engine failed


@dataclass(frozen=True, eq=False)
class Build:
    """What `hoisted.main` runs as; `reasons` say of nodes that could have had kernels why they have none, `joints` where units
    could be merged. Calls of some sizes may have units of their own (`special`). Where something failed that may not fail
    again it is not `lasting`. How its plan came about: the engine's `steps`, and the edits of units that it is `unsure` of; or
    why the engine failed and the rules planned (`unplanned`)."""

    hoisted: Hoisted
    units: tuple[Unit, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    joints: tuple[Joint, ...] = ()
    special: Mapping[Sizes, tuple[Unit, ...]] = field(default_factory=dict)
    lasting: bool = True
    steps: tuple[Step, ...] = ()
    unsure: tuple[Step, ...] = ()
    unplanned: str = ""

    @property
    def main(self) -> Graph:
        return self.hoisted.main

    @property
    def programs(self) -> tuple[TileProgram, ...]:
        """Each once."""
        units = (*self.units, *(unit for units in self.special.values() for unit in units))
        return tuple(dict.fromkeys(recipe.program for unit in units for recipe in unit.recipes))


def baked(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with numbers for some of its symbols. Nested graphs keep theirs."""
    values = {name: _baked_value(value, sizes) for name, value in graph.values.items()}
    nodes = tuple(replace(node, attrs=concrete_attrs(node.attrs, sizes)) for node in graph.nodes)
    return replace(graph, values=values, nodes=nodes)


def _baked_value(value: Value, sizes: Mapping[str, int]) -> Value:
    contents = None if value.contents is None else tuple(substitute(d, sizes) for d in value.contents)
    return replace(value, type=concrete_type(value.type, sizes), contents=contents)


def sizes_of(graph: Graph, given: Mapping[str, Type]) -> Sizes:
    """The numbers that inputs of these types give to the graph's symbols."""
    return tuple(sorted(learned_sizes(graph, given).items()))


def skeleton(graph: Graph) -> Graph:
    """The graph with its large constants as weights. Nested graphs keep theirs."""
    large = tuple(name for name, constant in graph.constants.items() if _is_large(constant.type))
    kept = {name: constant for name, constant in graph.constants.items() if name not in set(large)}
    return replace(graph, constants=kept, weights=(*graph.weights, *large))


def _is_large(type: TensorType) -> bool:
    return type.is_static and type.dtype is not STRING and type.nbytes >= LARGE_BYTES


def attached(hoisted: Hoisted, constants: Mapping[str, Constant], pace: Pace = hurry) -> Graph:
    """The main graph with a skeleton's constants in place, and with what is prepared from them. Pages of the others are given
    back at once where somebody waits; behind calls these still read them."""
    main, is_last = hoisted.main, pace is hurry
    with going_at(pace):
        known = {**constants, **_prepared(hoisted, constants, is_last)}
    mine = {name: known[name] for name in main.weights if name in known}
    for name, constant in constants.items():
        if is_last and name not in mine:
            constant.release()
    return replace(main, constants={**main.constants, **mine}, weights=tuple(w for w in main.weights if w not in mine))


def _prepared(hoisted: Hoisted, constants: Mapping[str, Constant], is_last: bool) -> dict[str, Constant]:
    """What a prepare graph makes of constants, on one shelf; whether it is the last to read these."""
    prepare = hoisted.prepare
    if prepare is None:
        return {}
    known = {**constants, **prepare.constants}
    order = in_order_of_use(hoisted.main, prepare.outputs)
    types = {name: type for name in order if isinstance(type := prepare.type(name), TensorType)}
    shelf = Shelf([types[name].nbytes for name in order])
    places = {name: number for number, name in enumerate(order)}
    left = {name: len(readers) for name, readers in prepare.consumers.items()}
    for node in prepare.nodes:
        breathe()
        record = OPS[node.op]
        assert record.reference is not None
        room = {}
        if record.writes_out and len(node.outputs) == 1 and node.outputs[0] in places:
            type = types[node.outputs[0]]
            room = {"out": shelf.place(places[node.outputs[0]], type.dtype.numpy, type.sizes)}
        with np.errstate(all="ignore"):
            made = record.reference(*(None if n is None else known[n].glance() for n in node.inputs), **room, **node.attrs)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for name, result in zip(node.outputs, results, strict=False):
            array = np.asarray(result)
            is_there = name not in places or array is room.get("out")
            known[name] = Constant.of(immutable(array if is_there else shelf.put(places[name], array)))
        for name in dict.fromkeys(node.uses):
            left[name] -= 1
            if is_last and not left[name] and not record.view and name in constants:
                constants[name].release()
    return {name: known[name] for name in prepare.outputs}
