"""Proofs: the kernels of a build against the original operators, unit by unit, on the inputs of a real call.

Tier 0 computes the values of the graph node by node, in numpy. As soon as a unit's nodes are done, its kernels run on what tier
0 computed for what they read (`unit_proof`), so that no error hides behind another's. Weights are asked for when needed first,
prepared values are computed then, and everything is dropped after its last use: at any time there is little more than a layer
in memory, and what is kept, within bounds, for proofs at other sizes. Kernels may write anywhere: this belongs into a process
that can be lost.

Layers are the same code at the same sizes, with other weights: of such units the first two speak for all. What only others need
is not computed, and where what they write is read, what the second of the two writes stands in for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.errors import DimError, InputError, VerifyError
from hotfuse.fusion.arithmetic import steps_of
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.metadata import bytes_of, cost_of
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import SizeType, TensorType, Type
from hotfuse.pace import Pace, hurry
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.build import Build, Unit
from hotfuse.runtime.concrete import check_size, concrete_attrs, concrete_type, concrete_values, learned_sizes
from hotfuse.runtime.driver import Driver, get_driver
from hotfuse.runtime.exact import is_float
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.proof_sizes import resized, shape_of
from hotfuse.runtime.tables import Part
from hotfuse.runtime.threads import team_size
from hotfuse.runtime.tier0_values import Tier0Values
from hotfuse.runtime.tracer import unit_piece
from hotfuse.runtime.unit_proof import Outcome, Subject, prove_unit
from hotfuse.runtime.verdict import UnitVerdict

MET = 8  # what units met is kept in one of so many parts of the process's memory

Array = np.ndarray[Any, Any]
Prover = Callable[[Subject, Mapping[str, Array], Driver, int], Outcome]


def prove(
    build: Build,
    kernels: Mapping[TileProgram, Kernel],
    inputs: Mapping[str, Array],
    weight: Callable[[str], Array],
    config: Config,
    units: Collection[int] | None = None,
    pace: Pace = hurry,
    by: Prover | None = None,
    met: dict[str, Array] | None = None,
    elsewhere: Mapping[str, Array] | None = None,
) -> list[UnitVerdict]:
    """A verdict on each unit (on those at the places `units`, if given), in order. `weight` is asked, by name, for the weights
    of the graph that was built. `by` judges a unit in place of `prove_unit`. What units read of what a call computes is put
    into `met`, as far as there is room. `elsewhere` is what they met at other sizes: it is resized, and nothing that it follows
    from is computed."""
    chosen = sorted(range(len(build.units)) if units is None else set(units))
    for place in chosen:
        _check_kernels(place, build.units[place], kernels)
    graph = _needed_graph(build.hoisted, [build.units[place] for place in chosen])
    given = given_types(graph, inputs, weight)
    values = concrete_values(graph, given, check_size(config.max_value_bytes))
    sizes = learned_sizes(graph, given)
    nodes = {node.id: replace(node, attrs=concrete_attrs(node.attrs, sizes)) for node in graph.nodes}
    subjects = {place: _subject(graph, build.units[place], kernels, values, sizes, nodes) for place in chosen}
    speakers = _speakers(subjects)
    for place, (first, second) in speakers.items():
        subjects[place] = replace(subjects[place], again=place == second != first, elsewhere=elsewhere is not None)
    driver, threads = get_driver(), team_size(host_spec(config.isa), config.threads)

    tried = sorted({place for pair in speakers.values() for place in pair})
    own = [build.units[place] for place in tried]
    known: dict[str, Array] = {}
    if elsewhere is not None:
        inside = {id for unit in own for id in unit.nodes}
        made = {name for node in graph.nodes if node.id in inside for name in node.outputs}
        read = {name for unit in own for recipe in unit.recipes for name in recipe.reads}
        known = {name: resized(elsewhere[name], _sizes(values[name])) for name in (read - made) & elsewhere.keys()}
    stand_ins = _stand_ins(subjects, speakers)
    try:
        graph = _needed_graph(build.hoisted, own, known, stand_ins)
    except VerifyError:  # what would stand in follows from what it would stand in for
        graph, stand_ins = _needed_graph(build.hoisted, own, known), {}
    inputs = {**inputs, **known}
    order = {node.id: turn for turn, node in enumerate(graph.nodes)}
    due: dict[int, list[int]] = {}
    for place in tried:
        due.setdefault(max(order[id] for id in build.units[place].nodes), []).append(place)
    uses = [
        [*node.inputs, *node.outputs, *(n for place in due.get(turn, ()) for n in subjects[place].needs)]
        for turn, node in enumerate(graph.nodes)
    ]
    tier_0 = Tier0Values(graph, values, inputs, weight, config, uses, stand_ins)
    found: list[UnitVerdict] = []
    for turn, node in enumerate(graph.nodes):
        pace()
        tier_0.compute(nodes[node.id])
        for place in due.get(turn, ()):
            subject = replace(subjects[place], rows=tier_0.tables.rows)
            misfit = _misfit(subject, graph, values, sizes)
            verdict = _verdict(place, subject, tier_0, misfit, driver, threads, config.strict, by or prove_unit)
            with contextlib.suppress(Exception):  # what cannot be counted takes no verdict away
                verdict = _counted(verdict, subjects[place], graph, values, sizes, threads) if verdict.tried else verdict
            found.append(verdict)
            if met is not None and place == speakers[place][0]:
                _note(met, subjects[place], graph, tier_0, config.max_worker_bytes // MET)
            pace()
        tier_0.drop(turn)
    judged = {verdict.unit: verdict for verdict in found}
    return [replace(_worse(*(judged[place] for place in speakers[unit])), unit=unit) for unit in chosen]


def _note(met: dict[str, Array], subject: Subject, graph: Graph, tier_0: Tier0Values, most_bytes: int) -> None:
    """Keep the floats that a unit reads and that have other sizes in other calls, while there is room."""
    for name in subject.reads:
        if not tier_0.why_lost(name) and any(symbols_of(shape_of(graph, name))):
            array = tier_0.value(name)
            if is_float(array) and sum(a.nbytes for a in met.values()) + array.nbytes <= most_bytes:
                met[name] = array


def _sizes(value: Value) -> tuple[int, ...]:
    return _type(value).sizes


def _speakers(subjects: Mapping[int, Subject]) -> dict[int, tuple[int, int]]:
    """For each unit the first two of those that are the same code at the same sizes."""
    alike: dict[Any, list[int]] = {}
    for place, subject in subjects.items():
        programs = tuple(part.recipe.program for part in subject.parts)
        shapes = tuple(type for name in (*subject.reads, *subject.writes) if (type := subject.types.get(name)) is not None)
        alike.setdefault((programs, shapes), []).append(place)
    return {place: (same[0], same[min(1, len(same) - 1)]) for same in alike.values() for place in same}


def _stand_ins(subjects: Mapping[int, Subject], speakers: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """For what units write that are not tried, what those write that speak for them: values of the same kind, from which what
    comes behind many layers can be proved without these."""
    found: dict[str, str] = {}
    for place, pair in speakers.items():
        if place not in pair:
            found |= zip(subjects[place].writes, subjects[pair[1]].writes, strict=True)
    return found


def _worse(first: UnitVerdict, second: UnitVerdict) -> UnitVerdict:
    return first if not first.ok else second


def _verdict(
    place: int, subject: Subject, tier_0: Tier0Values, misfit: str, driver: Driver, threads: int, strict: bool, by: Prover
) -> UnitVerdict:
    begun = time.perf_counter()
    reason = misfit or next((why for n in subject.needs if (why := tier_0.why_lost(n))), "")
    outcome = Outcome()
    if not reason:
        try:
            outcome = by(subject, {name: tier_0.value(name) for name in subject.needs}, driver, threads)
        except Exception as error:  # a defect of the proof says nothing of the kernels, nor of other units
            if strict:
                raise
            reason = f"the proof failed: {type(error).__name__}: {error}"
    seconds = time.perf_counter() - begun
    if reason:
        return UnitVerdict(place, False, f"nothing was proved: {reason}", "", seconds, 0.0, tried=False)
    return UnitVerdict(place, not outcome.reason, outcome.reason, outcome.what, seconds, outcome.seconds)


def _counted(
    verdict: UnitVerdict, subject: Subject, graph: Graph, values: Mapping[str, Value], sizes: Mapping[str, int], threads: int
) -> UnitVerdict:
    """With what a run of the unit had to do."""
    piece = unit_piece(graph, subject.nodes, subject.parts, 0, {name: value.type for name, value in values.items()}, sizes)
    steps = 0.0
    for node in subject.nodes:
        cost = cost_of(graph, node).at(sizes).flops
        points = bytes_of(values[node.outputs[0]].type)
        if OPS[node.op].pattern is Pattern.ELEMENTWISE and isinstance(points, int):
            steps += points // max(1, _type(values[node.outputs[0]]).dtype.bytes) * steps_of(node.op)
        elif isinstance(cost, int):
            steps += cost / 2
    return replace(verdict, flops=piece.flops, steps=steps, bytes_moved=piece.bytes_moved, threads=threads)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _check_kernels(place: int, unit: Unit, kernels: Mapping[TileProgram, Kernel]) -> None:
    missing = next((r.program.name for r in unit.recipes if r.program not in kernels), None)
    if missing is not None:
        raise VerifyError(f"unit {place} ({', '.join(unit.nodes)}) has no kernel for its program {missing}; compile it first")


def _needed_graph(
    hoisted: Hoisted, units: Sequence[Unit], known: Collection[str] = (), stand_ins: Mapping[str, str] = MappingProxyType({})
) -> Graph:
    """What was split is one graph again: the nodes that some units need, each just before what needs it first, and none for
    what is known or has something else standing in for it. VerifyError where that makes a circle."""
    halves = [hoisted.main] if hoisted.prepare is None else [hoisted.main, hoisted.prepare]
    producer = {name: node for half in halves for name, node in half.producer.items()}
    wanted = [n for unit in units for n in (*unit.nodes, *(n for r in unit.recipes for n in (*r.reads, *r.writes)))]
    order: dict[str, Node] = {}
    begun: set[str] = set()
    waiting = [(name, False) for name in reversed(wanted)]
    while waiting:
        name, ready = waiting.pop()
        name = stand_ins.get(name, name)
        node = producer.get(name)
        if node is None or node.id in order or name in known:
            continue
        if ready:
            order[node.id] = node
        elif node.id in begun:
            raise VerifyError(f"{node.id} follows from itself")
        else:
            begun.add(node.id)
            waiting.append((name, True))
            waiting.extend((n, False) for n in reversed([*node.uses]))
    used = {n for node in order.values() for n in node.uses} | set(wanted)
    made = {n for node in order.values() for n in node.outputs}
    weights = dict.fromkeys(w for half in halves for w in half.weights if w in used and w not in made)
    constants = {n: c for half in halves for n, c in half.constants.items() if n in used}
    values = {n: v for half in halves for n, v in half.values.items()}
    return replace(
        hoisted.main, nodes=tuple(order.values()), weights=tuple(weights), constants=constants, values=values, outputs=()
    )


def given_types(graph: Graph, inputs: Mapping[str, Array], weight: Callable[[str], Array]) -> dict[str, Type]:
    given: dict[str, Type] = {}
    for name in graph.inputs:
        if name not in inputs:
            raise InputError(f"input {name} is missing; a proof needs all inputs of one call")
        value: Any = inputs[name]
        given[name] = SizeType(value) if isinstance(value, int) else NUMPY.type_of(value)
    for name in graph.weights:
        declared = graph.type(name)
        known = isinstance(declared, TensorType) and declared.is_static
        given[name] = declared if known else NUMPY.type_of(weight(name))
    return given


def _subject(
    graph: Graph,
    unit: Unit,
    kernels: Mapping[TileProgram, Kernel],
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    nodes: Mapping[str, Node],
) -> Subject:
    parts = tuple(Part(recipe, kernels[recipe.program]) for recipe in unit.recipes)
    writes = tuple(dict.fromkeys(n for r in unit.recipes for n in r.writes))
    reads = tuple(dict.fromkeys(n for r in unit.recipes for n in r.reads if n not in writes))
    types = {n: t for n in (*reads, *writes) if isinstance(t := values[n].type, TensorType)}
    own = tuple(nodes[id] for id in unit.nodes)
    views = _views(graph, Subject(own, (), parts, reads, writes, types, sizes).given, reads)
    return Subject(own, tuple(nodes[node.id] for node in views), parts, reads, writes, types, sizes)


def _views(graph: Graph, given: Sequence[str], reads: Sequence[str]) -> list[Node]:
    """The nodes that only look at what kernels read, from there to what a unit's nodes are given."""
    found: set[str] = set()
    for name in given:
        chain: list[str] = []
        while name not in reads and name in graph.producer and OPS[graph.producer[name].op].view:
            chain.append(graph.producer[name].id)
            name = graph.producer[name].inputs[0] or ""
        if name in reads:
            found.update(chain)
    return [node for node in graph.nodes if node.id in found]


def _misfit(subject: Subject, graph: Graph, values: Mapping[str, Value], sizes: Mapping[str, int]) -> str:
    """Why a unit's kernels do not run at these sizes, if they do not."""
    try:
        for symbol in symbols_of(d for part in subject.parts for d in part.recipe.sizes):
            if sizes[symbol.name] < symbol.minimum:
                return f"{symbol.name} is {sizes[symbol.name]}; native code was made for {symbol.minimum} and more"
        for name in (*subject.reads, *subject.writes):
            said, actual = concrete_type(graph.type(name), sizes), values[name].type
            if said != actual:
                return f"{name} is {actual}, and its kernels were made for {said}"
    except DimError as error:  # a share of nothing
        return str(error)
    return ""
