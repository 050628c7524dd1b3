"""Racing: plans of one graph timed in turns, on inputs of a real call, group by group and as whole calls. These go the short
way (`runtime/quick`), as calls of a session do: what one thread does all by itself needs less of Python. Groups of a plan that
is one run of kernels are timed by the stopwatch alone, and not by a tracer, whose own work takes ten times as long as many a
call: there are more calls in the same time, and nothing else goes through the caches in between.

All kernels of a plan are made before it is timed, some by workers where these `help`.

State: a `Track` keeps the kernels that were made, and the executors of the last plans.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.fusion.rules import Fused
from hotfuse.fusion.tuning import Lap, Race, computing
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import Hoisted
from hotfuse.records import dataclass
from hotfuse.runtime.binding import BoundPlan
from hotfuse.runtime.build import Build
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.foundry import Foundry
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.quick import ShortWay
from hotfuse.runtime.segment import Segment
from hotfuse.runtime.stopwatch import Stopwatch, get_stopwatch
from hotfuse.runtime.trace import Trace
from hotfuse.runtime.tracer import Outline, Outlines, Tracer, outline

WARM = 2  # calls of each that nobody times
LEAST, MOST = 7, 250  # calls of each, with times of groups and without
FEWEST, LEAST_S = 2, 1.0  # calls of each, where the least would take longer than that
LONG_S = 0.035  # in which there may be more than the least

Array = np.ndarray[Any, Any]
Laps = tuple[list[Lap], list[Lap]]  # of two plans


@dataclass(frozen=True, eq=False)
class _Runner:
    """A plan that can be called; `units` are the nodes of each of its units."""

    executor: Executor
    short: ShortWay
    units: dict[str, frozenset[str]]
    segment: Segment | None  # where that is all there is to run
    outline: Outline


class Track:
    """Plans of `graph`, whose constants are attached in `main`, run with these inputs. The last `kept` of them are there to be
    called again."""

    def __init__(
        self,
        hoisted: Hoisted,
        graph: Graph,
        main: Graph,
        given: Sequence[Array],
        config: Config,
        kept: int = 3,
        help: AskBack | None = None,
    ) -> None:
        self._hoisted, self._graph, self._main, self._given, self._config = hoisted, graph, main, given, config
        self._spec, self._kept = host_spec(config.isa), kept
        self._foundry = Foundry(self._spec, open_cache(config), help)
        self._kernels: dict[TileProgram, Kernel] = {}
        self._feeds = dict(zip(graph.inputs, given, strict=True))
        self._known: dict[tuple[Fused, ...], _Runner] = {}
        self._outlines = Outlines()
        self._layouts = layouts(graph, graph.values)

    def race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race:
        calls: list[list[float]] = [[], []]
        laps = self.laps(first, second)
        pair = [self._runner(groups) for groups in (first, second)]

        def timed(place: int) -> None:
            started = time.perf_counter()
            self._call(pair[place])
            calls[place].append(time.perf_counter() - started)

        _in_turns(timed)
        return Race(laps, (statistics.median(calls[0]), statistics.median(calls[1])))

    def laps(self, first: Sequence[Fused], second: Sequence[Fused]) -> Laps:
        """What the groups of two plans take; whole calls are not timed."""
        pair = [self._runner(groups) for groups in (first, second)]
        traces: list[list[Trace]] = [[], []]
        readings: list[list[Array]] = [[], []]
        watch = get_stopwatch()
        for runner in pair * WARM:
            self._call(runner)

        def watched(place: int) -> None:
            executor, segment = pair[place].executor, pair[place].segment
            if segment is not None:
                segment.run_by(lambda job: readings[place].append(watch.run(job).cells), *self._given)
                return
            executor.watch_next(self._tracer(executor, traces[place]))
            executor.run(self._given)

        _in_turns(watched)
        before, after = (
            _laps(_taken_in(found, runner.outline, watch) if found else _taken(traced), runner.units)
            for found, traced, runner in zip(readings, traces, pair, strict=True)
        )
        return before, after

    def _call(self, runner: _Runner) -> None:
        if runner.short(self._feeds) is None:
            runner.executor.run(self._given)

    def _runner(self, groups: Sequence[Fused]) -> _Runner:
        key = tuple(groups)
        found = self._known.pop(key, None)
        if found is None:
            executor, build = self._made(groups)
            executor.run(self._given)
            short = ShortWay(self._graph.inputs, 1)
            types = tuple(map(NUMPY.type_of, self._given))
            bound = executor.bound(types)
            short.learn(self._given, bound)
            units = {unit.name: computing(unit.nodes, self._layouts) for unit in build.units}
            found = _Runner(executor, short, units, _segment(bound), outline(executor.plan.graph, bound, types))
        self._known[key] = found
        while len(self._known) > self._kept:
            del self._known[next(iter(self._known))]
        return found

    def _made(self, groups: Sequence[Fused]) -> tuple[Executor, Build]:
        """A plan that can run."""
        spec, config, objects = self._spec, self._config, self._foundry.objects
        build = self._foundry.made(lambda want: build_groups(self._hoisted, self._graph, groups, spec, config, want))
        self._kernels |= {p: Kernel(p, objects[p]) for p in build.programs if p not in self._kernels}
        return build_executor(self._main, build, self._kernels, NUMPY, config), build

    def _tracer(self, executor: Executor, traces: list[Trace]) -> Tracer:
        return Tracer(executor, lambda tracer: traces.append(tracer.trace("", self._outlines.of(tracer))))


def _in_turns(run: Callable[[int], None]) -> None:
    begun = time.perf_counter()
    turn = 0
    while turn < FEWEST or (turn < MOST and time.perf_counter() - begun < (LEAST_S if turn < LEAST else LONG_S)):
        for place in (0, 1) if turn % 2 else (1, 0):
            run(place)
        turn += 1


def _segment(bound: BoundPlan) -> Segment | None:
    """The one run of kernels over the inputs that a bound plan is, if it is one."""
    if len(bound.steps) != 1 or bound.steps[0].inputs != bound.inputs:
        return None
    function = bound.steps[0].function
    return function if isinstance(function, Segment) else None


def _taken(traces: Sequence[Trace]) -> dict[str, Array]:
    """Seconds of each unit, or node, call by call."""
    taken: dict[str, list[float]] = {}
    for trace in traces:
        for piece, lap in zip(trace.pieces, trace.times, strict=True):
            taken.setdefault(piece.unit, []).append(lap.seconds)
    return {name: np.array(times) for name, times in taken.items()}


def _taken_in(readings: Sequence[Array], outline: Outline, watch: Stopwatch) -> dict[str, Array]:
    """The same, of readings of one run of kernels."""
    seconds = watch.laps(np.stack(readings)).seconds
    taken = {piece.unit: np.zeros(len(readings)) for piece in outline.pieces}
    for part, place in enumerate(outline.places[0]):
        taken[outline.pieces[place].unit] += seconds[:, part]
    return taken


def _laps(taken: Mapping[str, Array], units: Mapping[str, frozenset[str]]) -> list[Lap]:
    """What each unit, or node, took: the mean of the shorter half of all times. Some processors' counters move ten nanoseconds
    at a time, which is as long as some kernels take: a mean tells those apart, and no single time does."""
    found = []
    for name, times in taken.items():
        low, middle, high = statistics.quantiles(times.tolist(), n=4)
        error = (high - low) / len(times) ** 0.5
        found.append(Lap(units.get(name, frozenset({name})), float(times[times <= middle].mean()), error))
    return found


def best_of(once: Sequence[Lap], again: Sequence[Lap]) -> list[Lap]:
    """What groups took that were timed at two times: the shorter one, since whoever had a core meanwhile was there once, and as
    far off as both lie apart."""
    others = {lap.nodes: lap for lap in again}
    found = []
    for lap in once:
        other = others.get(lap.nodes, lap)
        best = min(lap, other, key=lambda each: each.seconds)
        found.append(Lap(best.nodes, best.seconds, max(best.spread_s, abs(lap.seconds - other.seconds) / 2)))
    return found
