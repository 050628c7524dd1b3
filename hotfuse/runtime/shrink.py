"""Shrinking: a reproduction made smaller for as long as it shows the same fault.

    units    all but a wrong one are left out, and the graph is cut down to it
    nodes    one after the other is left out; what others read of it is an input then. Only where today's generator makes the
             wrong program, for a program stands for its nodes and others need another one
    sizes    each symbol to its least value, to half, to one less; elements are left out
    values   each tensor to zeros, ones, a pattern of small integers, whole numbers

It is greedy: what still shows the fault is the start of the next attempt. `still` judges, so nothing wrong runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.ir.dim import evaluate, symbols_of
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.types import TensorType
from hotfuse.records import dataclass
from hotfuse.runtime.build import Unit
from hotfuse.runtime.concrete import concrete_attrs
from hotfuse.runtime.driver import Driver
from hotfuse.runtime.exact import is_float, run_nodes
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.proof import prove
from hotfuse.runtime.replay import Finding
from hotfuse.runtime.reproduction import UNIT, Array, Reproduction, Values, cut_unit, is_size
from hotfuse.runtime.unit_proof import Outcome, Subject

MOST_TRIES = 500

Still = Callable[[Reproduction], Finding | None]  # the fault that a reproduction shows, if it does
Lower = Callable[[Graph], tuple[Unit, ...]]  # today's units of a graph
Tell = Callable[[str, int], None]  # what is tried now, and the number of the try


@dataclass(frozen=True)
class Shrunk:
    """The smallest that was found, the fault that it shows, and how many were tried."""

    reproduction: Reproduction
    finding: Finding
    tries: int


def shrink(
    reproduction: Reproduction,
    finding: Finding,
    still: Still,
    lower: Lower | None = None,
    config: Config | None = None,
    tell: Tell = lambda text, tries: None,
) -> Shrunk:
    """A smaller reproduction of a fault. `lower` makes new units where nodes may be left out."""
    found = Shrunk(reproduction, finding, 0)
    first = found.finding
    steps: list[tuple[str, Callable[[Shrunk], Iterator[Reproduction]]]] = [
        ("values that show it", lambda s: _on_reads(s.reproduction, first) if s.finding is first else iter(())),
        ("fewer units", lambda s: _fewer_units(s, config or Config())),
        ("fewer nodes", lambda s: _fewer_nodes(s.reproduction, lower) if lower else iter(())),
        ("smaller sizes", lambda s: _smaller_sizes(s.reproduction)),
        ("simpler values", lambda s: _simpler_values(s.reproduction)),
    ]
    for text, candidates in steps:
        found = _exhaust(found, candidates, still, lambda tries, text=text: tell(text, tries))  # type: ignore[misc]
    kept = replace(found.reproduction, reason=found.finding.reason, what=found.finding.what, shrunk=True)
    return replace(found, reproduction=kept)


def _exhaust(
    found: Shrunk, candidates: Callable[[Shrunk], Iterator[Reproduction]], still: Still, tell: Callable[[int], None]
) -> Shrunk:
    """Take the first candidate that shows the fault, and begin again from there, until none does."""
    while True:
        for candidate in candidates(found):
            if found.tries >= MOST_TRIES:
                return found
            found = replace(found, tries=found.tries + 1)
            tell(found.tries)
            shown = still(candidate)
            if shown is not None:
                found = replace(found, reproduction=candidate, finding=shown)
                break
        else:
            return found


# units


def _on_reads(reproduction: Reproduction, finding: Finding) -> Iterator[Reproduction]:
    """On the very values that it was found wrong on, where these were made from the saved ones."""
    reads = {n: np.asarray(a) for n, a in finding.reads.items() if n in reproduction.tensors}
    if any(not np.array_equal(array, reproduction.tensors[n], equal_nan=is_float(array)) for n, array in reads.items()):
        yield replace(reproduction, tensors={**reproduction.tensors, **reads})


def _fewer_units(found: Shrunk, config: Config) -> Iterator[Reproduction]:
    reproduction = found.reproduction
    if reproduction.kind == UNIT:
        return
    order = sorted(range(len(reproduction.units)), key=lambda i: reproduction.units[i].name != found.finding.unit)
    for place in order:
        cut = isolated(reproduction, place, config)
        if cut is not None:
            yield cut


def isolated(reproduction: Reproduction, place: int, config: Config) -> Reproduction | None:
    """One unit of a reproduction, on what tier 0 computes for it; None where tier 0 cannot. No kernel runs."""
    seen: list[tuple[Subject, Values]] = []

    def look(subject: Subject, values: Values, driver: Driver, threads: int) -> Outcome:
        seen.append((subject, dict(values)))
        return Outcome()

    build = reproduction.build
    nothing = cast(Mapping[TileProgram, Kernel], dict.fromkeys(build.programs))
    try:
        prove(build, nothing, reproduction.inputs, reproduction.tensors.__getitem__, config, [place], by=look)
    except HotfuseError:
        return None
    if not seen:
        return None
    graph, tensors = cut_unit(build, place, *seen[0])
    objects = dict(zip(build.programs, reproduction.circumstances.objects, strict=False))
    unit = reproduction.units[place]
    kept = tuple(objects[program] for program in dict.fromkeys(r.program for r in unit.recipes) if program in objects)
    circumstances = replace(reproduction.circumstances, objects=kept)
    return replace(reproduction, kind=UNIT, graph=graph, units=(unit,), tensors=tensors, circumstances=circumstances)


# nodes


def _fewer_nodes(reproduction: Reproduction, lower: Lower) -> Iterator[Reproduction]:
    graph = reproduction.graph
    if len(graph.nodes) < 2:
        return
    values = values_of(reproduction)
    for node in reversed(graph.nodes):
        smaller = without_node(graph, node)
        if smaller is None:
            continue
        try:
            units = lower(smaller)
        except HotfuseError:
            continue
        tensors = {name: np.asarray(values[name]) for name in (*smaller.inputs, *smaller.weights)}
        if units:
            objects = replace(reproduction.circumstances, objects=())
            yield replace(reproduction, graph=smaller, units=units, tensors=tensors, circumstances=objects)


def values_of(reproduction: Reproduction) -> dict[str, Array]:
    """Every value of its graph, by tier 0."""
    graph, sizes = reproduction.graph, reproduction.sizes
    given = {**{name: c.numpy() for name, c in graph.constants.items()}, **reproduction.tensors}
    return run_nodes([replace(node, attrs=concrete_attrs(node.attrs, sizes)) for node in graph.nodes], given)


def without_node(graph: Graph, gone: Node) -> Graph | None:
    """The graph without a node: what others read of it is an input, and what it read is a result if nothing else is."""
    made = {name for node in graph.nodes for name in node.outputs}
    read = {name for node in graph.nodes if node is not gone for name in node.uses}
    outputs = tuple(n for n in graph.outputs if n not in gone.outputs) or tuple(
        n for n in dict.fromkeys(gone.uses) if n in made
    )
    if not outputs:
        return None
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if node is not gone and wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.uses)
    new = [name for name in gone.outputs if name in read and name in wanted]
    names = [n for n in (*graph.inputs, *new) if n in wanted or (n not in new and is_size(graph.values[n]))]
    weights = tuple(name for name in graph.weights if name in wanted)
    constants = {name: constant for name, constant in graph.constants.items() if name in wanted}
    defined = [*names, *weights, *constants, *(name for node in kept[::-1] for name in node.outputs)]
    return replace(
        graph,
        inputs=tuple(names),
        outputs=outputs,
        nodes=tuple(kept[::-1]),
        weights=weights,
        constants=constants,
        values={name: graph.values[name] for name in defined},
    )


# sizes


def _smaller_sizes(reproduction: Reproduction) -> Iterator[Reproduction]:
    graph, sizes = reproduction.graph, reproduction.sizes
    named = [d for name in (*graph.inputs, *graph.weights) for d in _dims(graph, name)]
    least = {symbol.name: max(1, symbol.minimum) for symbol in symbols_of(named)}
    for name, size in sizes.items():
        for smaller in dict.fromkeys((least.get(name, 1), size // 2, size - 1)):
            if least.get(name, 1) <= smaller < size:
                yield resized(reproduction, {**sizes, name: smaller})


def _dims(graph: Graph, name: str) -> tuple[Any, ...]:
    value = graph.values[name]
    return (*((value.type.shape or ()) if isinstance(value.type, TensorType) else ()), *(value.contents or ()))


def resized(reproduction: Reproduction, sizes: Mapping[str, int]) -> Reproduction:
    """The same with fewer elements along the axes whose sizes are other ones now."""
    graph = reproduction.graph
    return replace(reproduction, tensors={n: _resized(graph, n, a, sizes) for n, a in reproduction.tensors.items()})


def _resized(graph: Graph, name: str, array: Array, sizes: Mapping[str, int]) -> Array:
    value = graph.values[name]
    if is_size(value):
        assert value.contents is not None
        return np.array(evaluate(value.contents[0], sizes), np.int64)
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    for axis, dim in enumerate(shape or ()):
        array = array[(slice(None),) * axis + (slice(evaluate(dim, sizes)),)]
    return np.require(array, requirements="C")


# values


def _simpler_values(reproduction: Reproduction) -> Iterator[Reproduction]:
    for name, array in reproduction.tensors.items():
        if is_size(reproduction.graph.values[name]):
            continue
        for simpler in _simpler(array):
            if np.array_equal(simpler, array):
                break  # it is as simple as that already
            yield replace(reproduction, tensors={**reproduction.tensors, name: simpler})


def _simpler(array: Array) -> Iterator[Array]:
    """The simplest first."""
    yield np.zeros_like(array)
    yield np.ones_like(array)
    if is_float(array):
        yield (np.arange(array.size) % 5 - 2).astype(array.dtype).reshape(array.shape)
        with np.errstate(all="ignore"):
            yield np.nan_to_num(np.round(array.astype(np.float64)), posinf=0, neginf=0).astype(array.dtype)
