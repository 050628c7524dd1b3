"""Hoisting: work that depends on weights alone is done once, not in every call.

    graph  ->  prepare graph: weights -> prepared values        (run when weights change)
               main graph: inputs, weights, prepared values -> outputs

A node is hoisted when it is deterministic, runs no nested graph, belongs to this IR, and all it reads are weights, constants
and other hoisted values. What only looks at memory another way (a transpose) is free in every call and stays, and so does what
would grow: a prepared value is kept for good, so it may not be larger than the weights it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import STRING, TensorType, Type, numel
from hotfuse.records import dataclass

_NOT_OURS = (Pattern.CONTROL, Pattern.OPAQUE, Pattern.TRANSFER)


@dataclass(frozen=True, eq=False)
class Hoisted:
    """`prepare` computes, from `sources`, the values that `main` takes as its last weights; None if there are none."""

    main: Graph
    prepare: Graph | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return () if self.prepare is None else self.prepare.weights

    @property
    def prepared(self) -> tuple[str, ...]:
        return () if self.prepare is None else self.prepare.outputs


def hoist(graph: Graph, live: Collection[str] = ()) -> Hoisted:
    """Split a graph. Weights named in `live` change with every call (the graph writes them): nothing is hoisted over them."""
    origins: dict[str, frozenset[str]] = {w: frozenset((w,)) for w in graph.weights if w not in live}
    origins |= {c: frozenset() for c in graph.constants}
    copies: dict[str, bool] = dict.fromkeys(origins, False)  # whether a value is more than another look at a weight
    for node in graph.nodes:
        if not _can_hoist(node) or not all(name in origins for name in node.uses):
            continue
        if not all(_is_static(graph.type(name)) for name in node.outputs):
            continue
        above = frozenset().union(*(origins[name] for name in node.uses))
        for name in node.outputs:
            origins[name] = above
            copies[name] = not OPS[node.op].view or any(copies[n] for n in node.uses)
    needed = [n for node in graph.nodes if node.id not in origins for n in node.uses] + list(graph.outputs)
    wanted = [
        n for n in dict.fromkeys(needed) if n in graph.producer and copies.get(n) and origins[n] and _fits(graph, n, origins[n])
    ]
    if not wanted:
        return Hoisted(graph)
    inner = _needed(graph, wanted, lambda name: False)
    prepare = _subgraph(graph, "prepare", inner, (), tuple(wanted))
    outer = _needed(graph, graph.outputs, lambda name: name in wanted)
    return Hoisted(_subgraph(graph, graph.name, outer, graph.inputs, graph.outputs, tuple(wanted)), prepare)


def _can_hoist(node: Node) -> bool:
    record = OPS[node.op]
    symbolic = any(isinstance(d, Expr) for v in node.attrs.values() for d in (v if isinstance(v, tuple) else (v,)))
    return (
        record.deterministic and record.pattern not in _NOT_OURS and not node.graphs and not symbolic and bool(list(node.uses))
    )


def _is_static(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static and type.dtype is not STRING


def _bytes(type: Type) -> int:
    assert isinstance(type, TensorType)
    assert type.shape is not None
    return int(numel(type.shape)) * type.dtype.bytes  # type: ignore[arg-type]


def _fits(graph: Graph, name: str, sources: frozenset[str]) -> bool:
    """Whether a value is no larger than all the weights behind it, each of known size."""
    if not all(_is_static(graph.type(s)) for s in sources):
        return False
    if graph.producer[name].op == "pack":  # a little padding, and read in every call
        return True
    return _bytes(graph.type(name)) <= sum(_bytes(graph.type(s)) for s in sources)


def _needed(graph: Graph, outputs: Collection[str], given: Callable[[str], bool]) -> list[Node]:
    """The nodes that `outputs` need, in order, not going behind values that are given."""
    wanted = {name for name in outputs if not given(name)}
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            found.append(node)
            wanted.update(name for name in node.uses if not given(name))
    return found[::-1]


def _subgraph(
    graph: Graph, name: str, nodes: list[Node], inputs: tuple[str, ...], outputs: tuple[str, ...], extra: tuple[str, ...] = ()
) -> Graph:
    used = {n for node in nodes for n in node.uses} | set(outputs)
    weights = tuple(w for w in graph.weights if w in used) + extra
    constants = {n: c for n, c in graph.constants.items() if n in used}
    defined = {*inputs, *weights, *constants, *(n for node in nodes for n in node.outputs)}
    return replace(
        graph,
        name=name,
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(nodes),
        values={n: v for n, v in graph.values.items() if n in defined},
        constants=constants,
        weights=weights,
    )
