"""Reproductions: the smallest part of a model that shows a wrong kernel, with the values that show it.

    Build, place of a unit, inputs of a call  ->  graph of the unit's nodes alone  + its programs  + what tier 0 computed for
                                                  what they read                                     (kind "unit")
    Build, inputs of a call                   ->  the whole graph                  + all programs  + inputs and weights ("call")

A reproduction needs nothing but itself: `replay` builds and judges it anywhere. Source files of the model are named without
their folders.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.errors import LimitExceeded
from hotfuse.ir.dim import Dim, Expr, Symbol, symbol, symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import I64, SizeType, TensorType, Type, tensor, type_of
from hotfuse.passes.hoist import Hoisted
from hotfuse.records import dataclass
from hotfuse.runtime.build import Build, Unit
from hotfuse.runtime.concrete import learned_sizes
from hotfuse.runtime.unit_proof import Subject

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]
UNIT, CALL = "unit", "call"


@dataclass(frozen=True)
class Circumstances:
    """Under which it was wrong. `generator` names the version of LLVM too; `objects` are digests of the wrong kernels' code, in
    the order of the programs; `seed` is that of the order in which tasks are interpreted."""

    hotfuse: str = ""
    generator: str = ""
    numpy: str = ""
    isa: str = "native"
    machine: str = ""
    threads: int = 1
    seed: int = 0
    edited: bool = False  # programs came from a folder of edited ones
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Reproduction:
    """`tensors` are the values of the graph's inputs and weights. `reason` says what was wrong, `what` which values were looked
    at and by which rules."""

    kind: str
    reason: str
    what: str
    graph: Graph
    units: tuple[Unit, ...]
    tensors: Values
    circumstances: Circumstances = field(default_factory=Circumstances)
    shrunk: bool = False

    @property
    def build(self) -> Build:
        return Build(Hoisted(self.graph), self.units)

    @property
    def programs(self) -> tuple[TileProgram, ...]:
        return self.build.programs

    @property
    def inputs(self) -> dict[str, Any]:
        """By name; a size that is passed as a number is one."""
        sizes = {name for name in self.graph.inputs if is_size(self.graph.values[name])}
        return {name: int(self.tensors[name]) if name in sizes else self.tensors[name] for name in self.graph.inputs}

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers that its symbols stand for."""
        return learned_sizes(self.graph, given_types(self.graph, self.tensors))

    @property
    def elements(self) -> int:
        return sum(array.size for array in self.tensors.values())

    @property
    def not_zero(self) -> int:
        """Elements that are another number."""
        return sum(int(np.count_nonzero(array)) for array in self.tensors.values())


def is_size(value: Value) -> bool:
    """Whether an input stands for a size and nothing else."""
    return value.type == tensor(I64) and value.contents is not None


def given_types(graph: Graph, tensors: Values) -> dict[str, Type]:
    names = (*graph.inputs, *graph.weights)
    return {n: SizeType(int(tensors[n])) if is_size(graph.values[n]) else type_of(tensors[n]) for n in names}


def circumstances_of(config: Config, objects: Iterable[bytes] = ()) -> Circumstances:
    """Those of this process."""
    from hotfuse.hardware.spec import host_spec
    from hotfuse.runtime.objects import generator_version
    from hotfuse.runtime.threads import team_size

    spec = host_spec(config.isa)
    return Circumstances(
        hotfuse=_own_version(),
        generator=generator_version(),
        numpy=np.__version__,
        isa=spec.isa,
        machine=spec.processor,
        threads=team_size(spec, config.threads),
        edited=bool(config.tiles),
        objects=tuple(hashlib.sha256(data).hexdigest() for data in objects),
    )


def _own_version() -> str:
    try:
        return importlib.metadata.version("hotfuse")
    except importlib.metadata.PackageNotFoundError:  # run from a folder that nobody installed
        return ""


def cut_unit(build: Build, place: int, subject: Subject, values: Values) -> tuple[Graph, dict[str, Array]]:
    """The nodes of one unit as a graph of their own, with the views before them, and the values that it takes."""
    halves = [half for half in (build.main, build.hoisted.prepare) if half is not None]
    known = {node.id: node for half in halves for node in half.nodes}
    declared = {name: value for half in halves for name, value in half.values.items()}
    constants = {name: constant for half in halves for name, constant in half.constants.items()}
    lasting = {name for half in halves for name in (*half.weights, *build.hoisted.prepared)}

    own = [known[node.id] for node in (*subject.views, *subject.nodes)]
    nodes = [_without_folders(node) for node in (*_of_sizes(own, known, declared), *own)]
    made = {name for node in nodes for name in node.outputs}
    given = [n for n in dict.fromkeys((*subject.reads, *(n for node in nodes for n in node.uses))) if n not in made]
    kept = {name: constants[name] for name in given if name in constants}
    weights = tuple(name for name in given if name in lasting and name not in kept)
    inputs = tuple(name for name in given if name not in kept and name not in weights)
    graph = replace(
        build.main,
        name="unit",
        inputs=inputs,
        outputs=subject.writes,
        nodes=tuple(nodes),
        values={name: declared[name] for name in (*given, *(n for node in nodes for n in node.outputs))},
        constants=kept,
        weights=weights,
    )
    tensors = {name: _in_order(values[name]) for name in (*inputs, *weights)}
    return _with_sizes(graph, tensors, build.units[place], subject.sizes)


def _of_sizes(nodes: Sequence[Node], known: Mapping[str, Node], declared: Mapping[str, Value]) -> list[Node]:
    """The nodes that make what others read of sizes alone, in order: as an input a shape would be one shape's."""
    producer = {name: node for node in known.values() for name in node.outputs}
    inside = {node.id for node in nodes}
    found: dict[str, Node] = {}

    def visit(node: Node) -> None:
        for name in node.uses:
            made = producer.get(name)
            if made is not None and made.id not in inside and made.id not in found and declared[name].contents is not None:
                visit(made)
                found[made.id] = made

    for node in nodes:
        visit(node)
    return list(found.values())


def _with_sizes(graph: Graph, tensors: Values, unit: Unit, sizes: Mapping[str, int]) -> tuple[Graph, dict[str, Array]]:
    """With an input for each size that the shapes of the others do not tell."""
    told = learned_sizes(graph, given_types(graph, tensors))
    named = [*_dims(graph), *(dim for recipe in unit.recipes for dim in recipe.sizes)]
    missing = {s.name: s for s in symbols_of(named) if s.name in sizes and s.name not in told}
    for name, size in missing.items():
        graph = _with_size(graph, size)
        tensors = {**tensors, f"size of {name}": np.array(sizes[name], np.int64)}
    return graph, dict(tensors)


def _with_size(graph: Graph, size: Symbol) -> Graph:
    name = f"size of {size.name}"
    value = Value(name, tensor(I64), contents=(symbol(size.name, size.minimum),))
    return replace(graph, inputs=(*graph.inputs, name), values={name: value, **graph.values})


def _dims(graph: Graph) -> Iterable[Dim]:
    for value in graph.values.values():
        yield from (value.type.shape or ()) if isinstance(value.type, TensorType) else ()
        yield from value.contents or ()
    for node in graph.nodes:
        for attr in node.attrs.values():
            yield from (d for d in (attr if isinstance(attr, tuple) else (attr,)) if isinstance(d, Expr))


def cut_call(build: Build, inputs: Values, weight: Callable[[str], Array], most_bytes: int) -> tuple[Graph, dict[str, Array]]:
    """The whole graph, what was prepared computed in it again, and all that it takes. LimitExceeded, before weights are asked
    for, where those are too large."""
    main, prepare = build.main, build.hoisted.prepare
    nodes: Sequence[Node] = main.nodes if prepare is None else (*prepare.nodes, *main.nodes)
    own = [name for name in main.weights if name not in build.hoisted.prepared]
    weights = tuple(dict.fromkeys((*(prepare.weights if prepare else ()), *own)))
    graph = replace(
        main,
        nodes=tuple(_without_folders(node) for node in nodes),
        weights=weights,
        constants={**(prepare.constants if prepare else {}), **main.constants},
        values={**(prepare.values if prepare else {}), **main.values},
    )
    taken = sum(type.nbytes for type in map(graph.type, weights) if isinstance(type, TensorType))
    if taken > most_bytes:
        raise LimitExceeded(f"the weights of the whole call take {taken:,} bytes; at most {most_bytes:,} are kept")
    given = {name: _in_order(inputs[name]) for name in graph.inputs}
    return graph, {**given, **{name: _in_order(weight(name)) for name in weights}}


def _in_order(value: Any) -> Array:
    """An array whose elements lie in order; `ascontiguousarray` would give a number an axis."""
    return np.require(np.asarray(value), requirements="C")


def _without_folders(node: Node) -> Node:
    """Where a node comes from, without the folders that its source lies in."""
    source = node.origin.source.replace("\\", "/").rpartition("/")[2]
    return replace(node, origin=replace(node.origin, source=source), graphs=tuple(_nested(graph) for graph in node.graphs))


def _nested(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(_without_folders(node) for node in graph.nodes))
