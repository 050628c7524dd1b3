"""Metadata: facts about nodes, values and groups, kept beside the graph, never in it.

`describe` gives what is known of a node from the graph alone: operator, shapes, dtype, estimated compute and bytes moved,
origin. `MetaTable` holds what is learned later (sparsity, ranges, execution counts, compile history). It is immutable and
versioned: `with_facts` returns a new table, so a reader never sees a half-written one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from hotfuse.ir.dim import Dim, substitute
from hotfuse.ir.graph import Graph, Node, Origin
from hotfuse.ir.op import OPS, Call, FreshSymbols, Pattern
from hotfuse.ir.types import TensorType, Type, numel
from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic and memory traffic of one node or group, as dims: numbers once the shapes are."""

    flops: Dim = 0
    bytes_read: Dim = 0
    bytes_written: Dim = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written)

    @property
    def bytes_moved(self) -> Dim:
        return self.bytes_read + self.bytes_written

    def at(self, sizes: Mapping[str, Dim]) -> Cost:
        """The cost with sizes put in for symbols."""
        return Cost(*(substitute(d, sizes) for d in (self.flops, self.bytes_read, self.bytes_written)))


@dataclass(frozen=True, slots=True)
class NodeMeta:
    """What is known of a node before it ever ran."""

    id: str
    operator: str
    inputs: tuple[Type | None, ...]
    outputs: tuple[Type, ...]
    device: str
    cost: Cost
    origin: Origin
    opaque: str = ""  # why no operator of ours computes it


def bytes_of(type: Type) -> Dim:
    """Bytes of a value; 0 where its size is not known."""
    if isinstance(type, TensorType) and type.shape is not None:
        return numel(type.shape) * type.dtype.bytes
    return 0


def cost_of(graph: Graph, node: Node) -> Cost:
    """Estimated cost of one node. Views move nothing; a node that runs graphs costs one round of each."""
    record = OPS[node.op]
    outputs = [graph.type(n) for n in node.outputs]
    if record.pattern is Pattern.CONTROL:
        total = Cost()
        for nested in node.graphs:
            total = total + total_cost(nested)
        return total
    if record.view or record.pattern is Pattern.SHAPE:
        return Cost()
    read: Dim = 0
    for name in dict.fromkeys(node.uses):
        read = read + bytes_of(graph.type(name))
    written: Dim = 0
    for type in outputs:
        written = written + bytes_of(type)
    flops: Dim = 0
    if record.flops is not None:
        inputs = [None if n is None else graph.values[n] for n in node.inputs]
        flops = record.flops(Call(node.op, inputs, node.attrs, node.graphs, FreshSymbols(), len(outputs)), outputs)
    return Cost(flops, read, written)


def total_cost(graph: Graph) -> Cost:
    total = Cost()
    for node in graph.nodes:
        total = total + cost_of(graph, node)
    return total


def describe(graph: Graph, node: Node) -> NodeMeta:
    return NodeMeta(
        node.id,
        node.attrs.get("op_type") or node.attrs.get("target") or node.op,
        tuple(None if n is None else graph.type(n) for n in node.inputs),
        tuple(graph.type(n) for n in node.outputs),
        graph.device(node),
        cost_of(graph, node),
        node.origin,
        node.attrs.get("reason", "") if OPS[node.op].pattern is Pattern.OPAQUE else "",
    )


@dataclass(frozen=True)
class MetaTable:
    """Learned facts by id. `version` grows by one with every change."""

    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: int = 0

    def of(self, id: str) -> Mapping[str, Any]:
        return self.facts.get(id, {})

    def with_facts(self, id: str, **facts: Any) -> MetaTable:
        return MetaTable({**self.facts, id: {**self.of(id), **facts}}, self.version + 1)

    def without(self, id: str) -> MetaTable:
        return MetaTable({k: v for k, v in self.facts.items() if k != id}, self.version + 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)
