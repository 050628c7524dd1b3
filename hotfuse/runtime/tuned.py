"""Plans that were tuned: measured on inputs of a real call, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.config import Config
from hotfuse.fusion.engine import Planned
from hotfuse.fusion.tuning import tune
from hotfuse.hardware.spec import Spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.building import build_groups, native_form
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import planner_of
from hotfuse.runtime.racing import Track


def tuned_plan(
    hoisted: Hoisted,
    graph: Graph,
    main: Graph,
    given: Sequence[Any],
    sizes: Mapping[str, int],
    spec: Spec,
    config: Config,
    seconds: float,
) -> Planned:
    """The plan of `graph`, a main graph maybe with numbers for its sizes, for calls with such inputs."""
    planner = planner_of(config, spec, graph, sizes)
    assert planner is not None, "rules measure nothing"
    track = Track(hoisted, graph, main, given, config)
    return tune(graph, graph.values, layouts(graph, graph.values), planner, track.race, seconds)


def tuned_executor(graph: Graph, given: Sequence[Any], config: Config, seconds: float) -> Executor:
    """An executor of a graph whose constants never change, tuned for calls with such inputs."""
    shop = Workshop(config)
    hoisted = hoist(native_form(skeleton(graph), shop.spec), ())
    main = attached(hoisted, graph.constants)
    planned = tuned_plan(hoisted, hoisted.main, main, given, {}, shop.spec, config, seconds)
    build = build_groups(hoisted, hoisted.main, planned.groups, shop.spec, config, shop)
    return build_executor(main, build, shop.kernels, NUMPY, config)
