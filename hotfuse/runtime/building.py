"""How builds are made: graphs become groups, groups become recipes, and what has none is left to tier 0, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.codegen.lower import Known, lower
from hotfuse.codegen.native_form import native_graph
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_files import edited
from hotfuse.config import Config
from hotfuse.errors import CodegenError, IllegalEdit, TileError
from hotfuse.fusion.engine import Planned
from hotfuse.fusion.grouping import AS_PLANNED, Grouping, joints, make_plan
from hotfuse.fusion.rules import Fused
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import symbols_of
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import Layout, layouts
from hotfuse.ir.types import TensorType, Type
from hotfuse.passes.dead_code import remove_dead
from hotfuse.passes.fold import fold_constants
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.build import Build, Sizes, Unit, baked
from hotfuse.runtime.partition import with_share
from hotfuse.runtime.planning import known_model, planner_of
from hotfuse.runtime.threads import team_size

MakeCode = Callable[[TileProgram], object]  # raises CodegenError where there can be none


def make_build(
    graph: Graph,
    spec: Spec,
    config: Config,
    make: MakeCode,
    live: Collection[str] = (),
    sizes: Sizes = (),
    grouping: Grouping = AS_PLANNED,
) -> Build:
    """The build of a graph, `make` having made code of every program. Weights named in `live` change with every call. With
    `sizes`, or another grouping, its units are a variant."""
    return build_hoisted(hoist(native_form(graph, spec), live), spec, config, make, sizes, grouping)


def native_form(graph: Graph, spec: Spec) -> Graph:
    """The graph in the form that native code is made from, what follows from constants computed."""
    return remove_dead(fold_constants(native_graph(graph, spec)))


def build_hoisted(
    hoisted: Hoisted,
    spec: Spec,
    config: Config,
    make: MakeCode,
    sizes: Sizes = (),
    grouping: Grouping = AS_PLANNED,
) -> Build:
    """The build of a graph that is in its native form and split already."""
    graph = baked(hoisted.main, dict(sizes)) if sizes else hoisted.main
    planned = make_planned(graph, spec, config, sizes, grouping)
    build = build_groups(hoisted, graph, planned.groups, spec, config, make)
    made = {unit.name for unit in build.units}
    is_calibrated = known_model(config, spec).pairs is not None  # what a roofline guesses is not worth a trial on traffic
    unsure = tuple(step for step in planned.unsure if is_calibrated and made.issuperset(step.groups))
    lasting = build.lasting and not planned.failure
    return replace(build, steps=planned.steps, unsure=unsure, unplanned=planned.failure, lasting=lasting)


def make_planned(graph: Graph, spec: Spec, config: Config, sizes: Sizes, grouping: Grouping = AS_PLANNED) -> Planned:
    """The engine's plan; the rules' where it can make none."""
    places, cache_bytes = layouts(graph, graph.values), _share(spec, config).l2_bytes
    try:
        planner = planner_of(config, spec, graph, dict(sizes))
        return make_plan(graph, graph.values, places, cache_bytes, grouping, planner)
    except IllegalEdit:
        raise
    except Exception as error:  # no defect of the planner may keep a model from native code
        if config.strict:
            raise
        failure = f"{type(error).__name__}: {error}"
        return replace(make_plan(graph, graph.values, places, cache_bytes, grouping), failure=failure)


def _share(spec: Spec, config: Config) -> Spec:
    """The machine as one thread of a team sees it."""
    return with_share(spec, team_size(spec, config.threads))


def build_groups(hoisted: Hoisted, graph: Graph, groups: Sequence[Fused], spec: Spec, config: Config, make: MakeCode) -> Build:
    """The build of these groups of a main graph, or of that graph with numbers for its sizes."""
    places = layouts(graph, graph.values)
    builder = _Builder(graph, places, _share(spec, config), config, make)
    for group in groups:
        builder.add(group)
    found = joints(groups, graph, graph.values, places)
    made = {unit.name for unit in builder.units}
    kept = tuple(joint for joint in found if made.issuperset(joint.groups))
    return Build(hoisted, tuple(builder.units), builder.reasons, kept, lasting=builder.lasting)


class _Builder:
    """State: the units made so far, why other nodes have none, and whether they never will."""

    def __init__(self, graph: Graph, places: Mapping[str, Layout], spec: Spec, config: Config, make: MakeCode) -> None:
        self._graph, self._places, self._spec, self._config, self._make = graph, places, spec, config, make
        self._known = {s.name for n in (*graph.inputs, *graph.weights) for s in symbols_of(_dims(graph.type(n)))}
        self._lowered: Known = {}
        self._tried: set[tuple[Any, ...]] = set()
        self.units: list[Unit] = []
        self.reasons: dict[str, str] = {}
        self.lasting = True

    def add(self, group: Fused) -> None:
        """Make a group's recipes and code. One of several that cannot be made is made part by part, each of them once."""
        key = group.variant, group.fetches, tuple(node.id for node in group.nodes)
        if key in self._tried:
            return
        self._tried.add(key)
        try:
            recipes = lower(self._graph, self._graph.values, self._places, group, self._spec, self._lowered)
            strangers = {s.name for r in recipes for s in symbols_of(r.sizes)} - self._known
            if strangers:
                raise TileError(f"its sizes depend on data ({', '.join(sorted(strangers))})")
            used = tuple(replace(r, program=edited(r.program, self._config.tiles)) for r in recipes)
            for recipe in used:
                self._make(recipe.program)
            self.units.append(Unit(group.kind, self._with_views(group), used, group.row, group.team, bool(group.fetches)))
        except Exception as error:  # no defect of the generator may keep a model from answering
            if not isinstance(error, TileError | CodegenError):
                self.lasting = False
                if self._config.strict:
                    raise
            parts = group.parts or group.links
            for part in parts:
                self.add(part)
            if not parts:
                self.reasons |= {node.id: str(error) for node in group.nodes}

    def _with_views(self, group: Fused) -> tuple[str, ...]:
        """The nodes of a group, and the views through which they look at each other's results, in the graph's order."""
        found = {node.id: node for node in group.nodes}
        inside = {name for node in group.nodes for name in node.outputs}
        for node in group.nodes:
            for name in node.uses:
                layout = self._places.get(name)
                while name not in inside and layout is not None and layout.root in inside:
                    view = self._graph.producer[name]
                    found[view.id] = view
                    name = view.inputs[0] or ""
        if len(found) == len(group.nodes):
            return tuple(found)
        return tuple(node.id for node in self._graph.nodes if node.id in found)


def _dims(type: Type) -> tuple[Any, ...]:
    return (type.shape or ()) if isinstance(type, TensorType) else ()
