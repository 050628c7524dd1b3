"""Measuring: every unit of a graph with what it does (`Work`) and what it takes, as it runs among the others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.fusion.analyzer import analyse
from hotfuse.fusion.grouping import make_groups, name_of
from hotfuse.fusion.rules import Fused
from hotfuse.hardware.work import Work
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import attached, sizes_of, skeleton
from hotfuse.runtime.building import build_groups, native_form
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import planner_of
from hotfuse.runtime.proof import given_types
from hotfuse.runtime.trace import Trace
from hotfuse.runtime.tracer import Outlines, Tracer

WARM = 3  # calls that nobody times
ROUNDS, MOST_ROUNDS = 15, 120
LONG_S = 0.02  # where more rounds than the least take no longer than that, there are more

Array = np.ndarray[Any, Any]
Plan = Callable[[Graph], Sequence[Fused]]  # the groups of a main graph


@dataclass(frozen=True)
class Timed:
    """A unit: what it does, and what it takes where nobody disturbs it: a quarter of all times are shorter. Half of them lie
    within `spread` of their median."""

    unit: str
    work: Work
    seconds: float
    spread: float


def measure(
    graph: Graph, inputs: Mapping[str, Array], config: Config, plan: Plan | None = None, rounds: int = ROUNDS
) -> list[Timed]:
    """The units of a graph, timed on these inputs: those of a plan, or by default those that it would be built with."""
    shop = Workshop(config)
    hoisted = hoist(native_form(skeleton(graph), shop.spec), ())
    main, given = hoisted.main, [inputs[name] for name in hoisted.main.inputs]
    types = given_types(main, inputs, lambda name: graph.constants[name].glance())
    sizes, places = dict(sizes_of(main, types)), layouts(main, main.values)
    if plan is None:
        planner = planner_of(config, shop.spec, main, {})
        groups = make_groups(main, main.values, places, shop.spec.l2_bytes, planner=planner)
    else:
        groups = list(plan(main))
    build = build_groups(hoisted, main, groups, shop.spec, config, shop)
    executor = build_executor(attached(hoisted, graph.constants), build, shop.kernels, NUMPY, config)
    works = analyse(groups, main, main.values, places, sizes)
    outlines, traces = Outlines(), list[Trace]()

    def report(tracer: Tracer) -> None:
        traces.append(tracer.trace("", outlines.of(tracer)))

    for _ in range(WARM):
        executor.run(given)
    begun = time.perf_counter()
    while len(traces) < rounds or (len(traces) < MOST_ROUNDS and time.perf_counter() - begun < LONG_S):
        executor.watch_next(Tracer(executor, report))
        executor.run(given)
    taken: dict[str, list[float]] = {}
    for trace in traces:
        for piece, lap in zip(trace.pieces, trace.times, strict=True):
            taken.setdefault(piece.unit, []).append(lap.seconds)
    made = {unit.nodes for unit in build.units}
    return [
        Timed(name_of(group), work, *_typical(taken[name_of(group)]))
        for group, work in zip(groups, works, strict=True)
        if tuple(node.id for node in group.nodes) in made and name_of(group) in taken
    ]


def _typical(times: list[float]) -> tuple[float, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return low, (high - low) / 2 / middle if middle > 0 else 0.0
