"""Binding: a plan and the exact types of its inputs become a list of steps with every place fixed.

Values whose contents are known with the exact shapes (`concrete`) are computed now, once. Intermediates of known size get a
place in the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.ir.arena import Interval, plan_arena
from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.ops.sequence import GATHERING
from hotfuse.ir.plan import Plan
from hotfuse.ir.types import STRING, TensorType, Type
from hotfuse.records import dataclass
from hotfuse.runtime.concrete import check_size, concrete_attrs, concrete_values, learned_sizes
from hotfuse.runtime.engine import Compute, Engine, RunGraph
from hotfuse.runtime.memory import Placement


@dataclass(frozen=True, slots=True)
class Step:
    """One computation: read `inputs` from the slots, write `outputs`, then drop `dead`. `view` is its place in the arena."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    many: bool
    view: int  # -1: the function allocates
    node: Node
    check: bool  # its size depends on data: check the limit before it runs


@dataclass(frozen=True)
class BoundPlan:
    """A plan with exact shapes. Immutable, so any number of threads may run it, each with slots and an arena of its own."""

    steps: tuple[Step, ...]
    template: tuple[Any, ...]  # the slots before the first step: constants in place, everything else None
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, bool], ...]  # slot, and whether its memory may be shared
    placements: tuple[Placement, ...]
    arena_bytes: int
    types: Mapping[str, Type]
    kept_bytes: int = 0  # of what was computed when it was bound


def bind(plan: Plan, given: Mapping[str, Type], engine: Engine, run_graph: RunGraph, limit: int) -> BoundPlan:
    """Fix every place of `plan` for inputs and weights of the given types, each node computed by the engine."""
    graph = plan.graph
    values = concrete_values(graph, given, check_size(limit))
    ordered = [node for group in plan.groups for node in plan.nodes(group)]
    return assemble(graph, values, learned_sizes(graph, given), engine, run_graph, ordered)


def assemble(
    graph: Graph,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    engine: Engine,
    run_graph: RunGraph,
    items: Sequence[Any],
    bind_other: Callable[[Any, Callable[[str], Any]], tuple[Node, Compute]] | None = None,
    fold: bool = False,
) -> BoundPlan:
    """A bound plan of nodes, in order; what is no node among the items is bound by `bind_other`, which may ask for the values
    that are known already (None if one is not). With `fold`, what follows from constants and sizes is computed now."""
    slots: dict[str, int] = {}
    template: list[Any] = [None]  # slot 0 stands for an absent input

    def slot(name: str) -> int:
        if name not in slots:
            slots[name] = len(template)
            template.append(None)
        return slots[name]

    inputs = tuple(slot(name) for name in (*graph.inputs, *graph.weights))
    for name, constant in graph.constants.items():
        template[slot(name)] = engine.constant(constant, anywhere=fold or engine.reads_anywhere(graph, name))

    def settled(name: str) -> Any:
        return template[slots[name]] if name in slots else None

    known: set[str] = set()
    kept_bytes = 0
    computes: list[tuple[Node, Compute]] = []
    for item in items:
        if not isinstance(item, Node):
            assert bind_other is not None
            computes.append(bind_other(item, settled))
        elif _known(item, values):
            known.add(item.id)
            template[slot(item.id)] = engine.constant(_constant_of(values[item.id]))
        else:
            attrs = concrete_attrs(item.attrs, sizes)
            exact = item if attrs is item.attrs else replace(item, attrs=attrs)
            compute = engine.bind(exact, [values[n] if n else Value("") for n in item.inputs], run_graph)
            if fold and _follows(item, values, slots, template):
                known.update(item.outputs)
                _compute_now(item, compute, slot, template)
                kept_bytes += 0 if OPS[item.op].view else sum(_bytes_of(values[name].type) for name in item.outputs)
            else:
                computes.append((item, compute))

    placements, offsets_of, total = _place(graph, values, computes, engine.plans_memory)
    steps = _steps(graph, values, computes, slot, offsets_of)
    outputs = _outputs(graph, computes, slot, known)
    types = {name: value.type for name, value in values.items()}
    return BoundPlan(steps, tuple(template), inputs, outputs, placements, total, types, kept_bytes)


_SMALL = 1 << 24  # bytes of a result that is kept with a bound plan


def _follows(node: Node, values: Mapping[str, Value], slots: Mapping[str, int], template: Sequence[Any]) -> bool:
    """Whether a node's inputs are there already, its results are small, and it gives the same ones every time."""
    return all(name in slots and template[slots[name]] is not None for name in node.uses) and _repeats(node, values)


def _repeats(node: Node, values: Mapping[str, Value], exact: bool = True) -> bool:
    """Whether a node gives the same small results every time, for the same inputs."""
    record = OPS[node.op]
    if not record.deterministic or record.pattern in (Pattern.CONTROL, Pattern.OPAQUE, Pattern.TRANSFER) or not node.outputs:
        return False
    return not exact or all(is_small(values[name].type) for name in node.outputs)


def is_small(type: Type) -> bool:
    """Whether a value of this type may be kept with a bound plan."""
    return isinstance(type, TensorType) and type.is_static and type.nbytes <= _SMALL


def _bytes_of(type: Type) -> int:
    return type.nbytes if isinstance(type, TensorType) and type.is_static else 0


def settled_values(graph: Graph, values: Mapping[str, Value], exact: bool = True) -> set[str]:
    """The values that follow from constants and sizes alone, and are small enough to be kept with a bound plan. Without
    `exact`, `values` are those of all calls, whose sizes are not known yet."""
    settled = set(graph.constants)
    for node in graph.nodes:
        known = _known(node, values) if exact else values[node.id].contents is not None
        if known or (settled.issuperset(node.uses) and _repeats(node, values, exact)):
            settled.update(node.outputs)
    return settled


def _compute_now(node: Node, compute: Compute, slot: Callable[[str], int], template: list[Any]) -> None:
    with np.errstate(all="ignore"):
        result = compute.function(*(None if n is None else template[slot(n)] for n in node.inputs))
    for name, value in zip(node.outputs, result if compute.many else (result,), strict=False):
        template[slot(name)] = value


def _known(node: Node, values: Mapping[str, Value]) -> bool:
    contents = values[node.id].contents
    return len(node.outputs) == 1 and contents is not None and all(isinstance(d, int) for d in contents)


def _constant_of(value: Value) -> Constant:
    assert isinstance(value.type, TensorType)
    array = np.array(value.contents, dtype=value.type.dtype.numpy).reshape(value.type.sizes)
    return Constant(array, value.type)


def _roots(graph: Graph, computes: Sequence[tuple[Node, Compute]]) -> dict[str, tuple[str, ...]]:
    """For each value, the values whose memory it may share (itself if none)."""
    roots: dict[str, tuple[str, ...]] = {}
    for node, compute in computes:
        sources: tuple[str, ...] = ()
        if compute.aliases == "first":
            sources = tuple(n for n in node.inputs[:1] if n is not None)
        elif compute.aliases == "any":
            sources = tuple(node.uses)
        shared = tuple(dict.fromkeys(r for n in sources for r in roots.get(n, (n,))))
        for name in node.outputs:
            roots[name] = (name, *shared)
    return roots


def _place(
    graph: Graph, values: Mapping[str, Value], computes: Sequence[tuple[Node, Compute]], enabled: bool
) -> tuple[tuple[Placement, ...], dict[str, int], int]:
    """Arena places for intermediates of known size that their function can write into."""
    if not enabled:
        return (), {}, 0
    roots = _roots(graph, computes)
    kept = {r for name in graph.outputs for r in roots.get(name, (name,))}
    last: dict[str, int] = {}
    for index, (node, _) in enumerate(computes):
        for name in node.uses:
            for root in roots.get(name, (name,)):
                last[root] = index
    names: list[str] = []
    intervals: list[Interval] = []
    placements: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
    for index, (node, compute) in enumerate(computes):
        type = values[node.id].type
        if not compute.into or node.id in kept or not isinstance(type, TensorType):
            continue
        if not type.is_static or type.dtype is STRING:
            continue
        names.append(node.id)
        size = type.nbytes
        intervals.append(Interval(index, max(index, last.get(node.id, index)), size))
        placements.append((type.sizes, type.dtype.numpy))
    offsets, total = plan_arena(intervals)
    made = tuple(Placement(o, s, d) for o, (s, d) in zip(offsets, placements, strict=True))
    return made, {name: i for i, name in enumerate(names)}, total


def _steps(
    graph: Graph,
    values: Mapping[str, Value],
    computes: Sequence[tuple[Node, Compute]],
    slot: Callable[[str], int],
    views: Mapping[str, int],
) -> tuple[Step, ...]:
    last_use: dict[str, int] = {}
    for index, (node, _) in enumerate(computes):
        for name in (*node.uses, *node.outputs):
            last_use[name] = index
    permanent = {*graph.inputs, *graph.weights, *graph.constants, *graph.outputs}
    dying: dict[int, list[int]] = {}
    produced = {n for node, _ in computes for n in node.outputs}
    for name, index in last_use.items():
        if name not in permanent and name in produced:
            dying.setdefault(index, []).append(slot(name))
    steps = []
    for index, (node, compute) in enumerate(computes):
        type = values[node.id].type
        steps.append(
            Step(
                compute.function,
                tuple(0 if n is None else slot(n) for n in node.inputs),
                tuple(slot(n) for n in node.outputs),
                tuple(dying.get(index, ())),
                compute.many,
                views.get(node.id, -1),
                node,
                node.op in GATHERING
                or (isinstance(type, TensorType) and not type.is_static and OPS[node.op].reference is not None),
            )
        )
    return tuple(steps)


def _outputs(
    graph: Graph, computes: Sequence[tuple[Node, Compute]], slot: Callable[[str], int], known: set[str]
) -> tuple[tuple[int, bool], ...]:
    roots = _roots(graph, computes)
    foreign = {*graph.inputs, *graph.weights, *graph.constants, *known}
    seen: set[str] = set()
    outputs = []
    for name in graph.outputs:
        mine = roots.get(name, (name,))
        shared = any(r in foreign or r in seen for r in mine)
        seen.update(mine)
        outputs.append((slot(name), shared))
    return tuple(outputs)
