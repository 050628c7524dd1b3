"""Tracers: a call watched, and made a trace of.

    executor --watch_next--> Tracer: the call's steps with clocks --> Trace, made afterwards and elsewhere

A tracer only leaves marks while the caller waits; costs are worked out for every bound plan once, times are converted later.

State: a `Tracer` watches one call. `Outlines` keeps those of the last bound plans.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.metadata import Cost, bytes_of, cost_of
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import TensorType, Type
from hotfuse.records import dataclass
from hotfuse.runtime.binding import BoundPlan, Step
from hotfuse.runtime.concrete import learned_sizes
from hotfuse.runtime.driver import Job
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.segment import Segment
from hotfuse.runtime.stopwatch import Reading, Stopwatch, get_stopwatch
from hotfuse.runtime.tables import Part
from hotfuse.runtime.trace import Piece, PieceTime, Trace

KEPT = 64  # outlines


@dataclass(frozen=True, slots=True)
class Outline:
    """The pieces of a bound plan, in order. `places` has for each step the piece of each of its parts; a node is one part."""

    form: str
    pieces: tuple[Piece, ...]
    places: tuple[tuple[int, ...], ...]


class Tracer:
    """Watches one call of an executor; `report` gets this when the call is answered, in the caller's thread. A stopwatch, which
    takes a while to find, may be given."""

    def __init__(self, executor: Executor, report: Callable[[Tracer], None], stopwatch: Stopwatch | None = None) -> None:
        self.graph = executor.plan.graph  # not the executor: that holds this
        self._stopwatch = stopwatch or (get_stopwatch() if executor.kernels else None)
        self._report = report
        self._marks: list[Reading | tuple[float, float]] = []  # for each step; those of nodes in seconds, and in CPU time
        self.bound: BoundPlan | None = None
        self.types: tuple[Type, ...] = ()
        self.seconds = self.cpu_s = 0.0

    def begin(self, bound: BoundPlan, types: tuple[Type, ...]) -> Sequence[Step]:
        self._begun, self._begun_cpu = time.perf_counter(), time.thread_time()
        self.bound, self.types = bound, types
        return [replace(step, function=self._clocked(step.function)) for step in bound.steps]

    def end(self) -> None:
        self.cpu_s, self.seconds = time.thread_time() - self._begun_cpu, time.perf_counter() - self._begun
        self._report(self)

    def _clocked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mark = self._marks.append
        if isinstance(function, Segment) and self._stopwatch is not None:
            watch = self._stopwatch

            def run(job: Job) -> None:
                mark(watch.run(job))

            return lambda *inputs: function.run_by(run, *inputs)

        def timed(*inputs: Any, **options: Any) -> Any:
            begun_cpu, begun = time.thread_time(), time.perf_counter()
            result = function(*inputs, **options)
            mark((time.perf_counter() - begun, time.thread_time() - begun_cpu))
            return result

        return timed

    def trace(self, plan: str, outline: Outline) -> Trace:
        """What was found, as the trace of a plan with this id."""
        count = len(outline.pieces)
        seconds, busy, waiting, threads = [0.0] * count, [0.0] * count, [0.0] * count, [0] * count
        cpu_s = 0.0
        for mark, places in zip(self._marks, outline.places, strict=True):
            if not isinstance(mark, Reading):
                (place,) = places
                seconds[place], busy[place], threads[place] = mark[0], mark[0], 1
                cpu_s += mark[1]
                continue
            assert self._stopwatch is not None
            laps = self._stopwatch.laps(mark.cells)
            cpu_s += mark.cpu_s
            rows = (laps.seconds.tolist(), laps.busy_s.tolist(), laps.waiting_s.tolist(), (laps.tasks > 0).sum(0).tolist())
            for place, took, worked, waited, team in zip(places, *rows, strict=True):
                seconds[place] += took
                busy[place] += worked
                waiting[place] += waited
                threads[place] = max(threads[place], team)
        times = tuple(map(PieceTime, seconds, busy, waiting, threads))
        outside_s = max(0.0, self.cpu_s - cpu_s)
        return Trace(plan, outline.form, self.seconds, cpu_s, outside_s, outline.pieces, times)


class Outlines:
    """Those of bound plans that were traced of late."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[weakref.ref[BoundPlan], Outline]] = OrderedDict()

    def of(self, tracer: Tracer) -> Outline:
        """The outline of the bound plan that a tracer watched."""
        bound = tracer.bound
        assert bound is not None
        known = self._known.get(id(bound))
        if known is None or known[0]() is not bound:  # the number was another plan's before
            known = self._known[id(bound)] = weakref.ref(bound), outline(tracer.graph, bound, tracer.types)
        self._known.move_to_end(id(bound))
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known[1]


def form_text(types: Iterable[Type]) -> str:
    """The shapes of a call's inputs as a text."""
    return str(tuple(type.shape for type in types if isinstance(type, TensorType)))


def outline(graph: Graph, bound: BoundPlan, types: Sequence[Type]) -> Outline:
    """The pieces of a plan that is bound to inputs and weights of these types."""
    sizes = learned_sizes(graph, dict(zip((*graph.inputs, *graph.weights), types, strict=True)))
    pieces: list[Piece] = []
    places: list[tuple[int, ...]] = []
    for step in bound.steps:
        segment = step.function
        if not isinstance(segment, Segment):
            cost = cost_of(graph, step.node).at(sizes)
            moved = _number(cost.bytes_moved) - _spared((step.node,), bound.types)
            places.append((len(pieces),))
            pieces.append(Piece(step.node.id, step.node.op, 0, 1, _number(cost.flops), max(0, moved)))
            continue
        of_parts: list[int] = []
        for nodes, found in groupby(zip(segment.parts, segment.tasks, strict=True), lambda pair: pair[0].nodes):
            parts, tasks = zip(*found, strict=True)
            of_parts += [len(pieces)] * len(parts)
            pieces.append(unit_piece(graph, nodes, parts, sum(tasks), bound.types, sizes))
        places.append(tuple(of_parts))
    return Outline(form_text(types[: len(graph.inputs)]), tuple(pieces), tuple(places))


def unit_piece(
    graph: Graph, nodes: Sequence[Node], parts: Sequence[Part], tasks: int, types: Mapping[str, Type], sizes: Mapping[str, Dim]
) -> Piece:
    """What is known of a unit whose values have these types."""
    cost = sum((cost_of(graph, node) for node in nodes), Cost()).at(sizes)
    written = dict.fromkeys(name for part in parts for name in part.recipe.writes)
    read = dict.fromkeys(name for part in parts for name in part.recipe.reads if name not in written)
    moved = sum(_number(bytes_of(types[name])) for name in (*read, *written)) - _spared(nodes, types, read)
    return Piece(nodes[-1].id, "kernels", len(parts), tasks, _number(cost.flops), max(0, moved))


def _spared(nodes: Sequence[Node], types: Mapping[str, Type], read: Iterable[str] | None = None) -> int:
    """Bytes of tables that nodes read some rows of: no more than come out of them."""
    spared = 0
    for node in nodes:
        table = node.inputs[0] if node.inputs else None
        if OPS[node.op].pattern is Pattern.GATHER and table is not None and (read is None or table in read):
            come_out = sum(_number(bytes_of(types[name])) for name in node.outputs)
            spared += max(0, _number(bytes_of(types[table])) - come_out)
    return spared


def _number(dim: Dim) -> int:
    """0 where it depends on data."""
    return dim if isinstance(dim, int) else 0
