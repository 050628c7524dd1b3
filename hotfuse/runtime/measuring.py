"""Measuring: every unit of a graph with what it does (`Work`) and what it takes, as it runs among the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.fusion.analyzer import analyse
from hotfuse.fusion.grouping import AS_PLANNED, Grouping, make_groups, name_of
from hotfuse.hardware.work import Work
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.runtime.build import attached, sizes_of, skeleton
from hotfuse.runtime.building import make_build
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import planner_of
from hotfuse.runtime.proof import given_types
from hotfuse.runtime.trace import Trace
from hotfuse.runtime.tracer import Outlines, Tracer

WARM = 3  # calls that nobody times
ROUNDS = 15

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Timed:
    """A unit: what it does, and what it takes where nobody disturbs it: a quarter of all times are shorter. Half of them lie
    within `spread` of their median."""

    unit: str
    work: Work
    seconds: float
    spread: float


def measure(
    graph: Graph, inputs: Mapping[str, Array], config: Config, grouping: Grouping = AS_PLANNED, rounds: int = ROUNDS
) -> list[Timed]:
    """The units that a grouping makes of a graph, timed on these inputs."""
    shop = Workshop(config)
    build = make_build(skeleton(graph), shop.spec, config, shop, grouping=grouping)
    executor = build_executor(attached(build.hoisted, graph.constants), build, shop.kernels, NUMPY, config)
    main, given = build.main, [inputs[name] for name in build.main.inputs]
    types = given_types(main, inputs, lambda name: graph.constants[name].glance())
    places = layouts(main, main.values)
    planner = planner_of(config, shop.spec, {})
    groups = make_groups(main, main.values, places, shop.spec.l2_bytes, grouping, planner)
    works = analyse(groups, main, main.values, places, dict(sizes_of(main, types)))
    outlines, traces = Outlines(), list[Trace]()

    def report(tracer: Tracer) -> None:
        traces.append(tracer.trace("", outlines.of(tracer)))

    for turn in range(WARM + rounds):
        if turn >= WARM:
            executor.watch_next(Tracer(executor, report))
        executor.run(given)
    taken: dict[str, list[float]] = {}
    for trace in traces:
        for piece, time in zip(trace.pieces, trace.times, strict=True):
            taken.setdefault(piece.unit, []).append(time.seconds)
    made = {unit.name for unit in build.units}
    return [
        Timed(name, work, *_typical(taken[name]))
        for name, work in zip(map(name_of, groups), works, strict=True)
        if name in made and name in taken
    ]


def _typical(times: list[float]) -> tuple[float, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return low, (high - low) / 2 / middle if middle > 0 else 0.0
