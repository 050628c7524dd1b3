"""The dataflow graph: frozen nodes over named, typed values.

A `Graph` is a closed function. Values are named; each is defined once: as an input, a weight, a constant, or a node's output.
Nodes are in an order in which every value is defined before it is used. A node that runs other graphs (if, loop, scan,
while) carries them in `graphs`; nested graphs see nothing of the outer one but what the node passes as inputs.

Weights are inputs that the model's owner supplies and may change (a PyTorch module's parameters); constants never change.
Constants are held by reference: an array, a mapping of a file, anything `numpy.asarray` reads.

Nothing here is changed after it is made. An edit is `dataclasses.replace`, or a `GraphBuilder` that writes a new graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from hotfuse.file_map import FilePart
from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS, Facts
from hotfuse.ir.types import ANY, TensorType, Type, type_of
from hotfuse.records import dataclass

CPU = "cpu"


class Attrs(dict[str, Any]):
    """The attributes of a node: a mapping that cannot be changed, so that nodes may share it and be hashed."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise TypeError("attributes are immutable; make a new node")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return (Attrs, (dict(self),))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted((k, _hashable(v)) for k, v in self.items())))


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, (dict, list, np.ndarray)) else value


def _told_apart(value: Any) -> Any:
    """Equal only for values of the same type: 1, 1.0 and True are three."""
    return tuple(map(_told_apart, value)) if isinstance(value, tuple) else (type(value), value)


NO_ATTRS = Attrs()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from in the user's model: the layer's name, the original operator, the source line if known."""

    layer: str = ""
    operator: str = ""
    source: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.layer, self.operator, self.source) if part)

    def __bool__(self) -> bool:
        return bool(self.layer or self.operator or self.source)


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a graph. `contents` holds the elements of small integer tensors (rank 0 or 1) as dims, where known."""

    name: str
    type: Type = ANY
    device: str = CPU
    contents: tuple[Dim, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant by reference. `data` is anything `numpy.asarray` reads without copying; `type` is its type. Data that lies in
    a file may also offer `glance`, `part` and `release`: see those here."""

    data: Any
    type: TensorType

    @staticmethod
    def of(array: Any) -> Constant:
        array = np.asanyarray(array)
        return Constant(array, type_of(array))

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.data)

    def glance(self) -> np.ndarray[Any, Any]:
        """The array for one look: maybe not aligned, and nothing is kept of it."""
        glance = getattr(self.data, "glance", None)
        return self.numpy() if glance is None else glance()

    def part(self) -> FilePart | None:
        """Where its bytes lie in a file; None where they do not."""
        part = getattr(self.data, "part", None)
        return None if part is None else part()

    def release(self) -> None:
        """Nobody will look soon: memory that a file can fill again is given back."""
        release = getattr(self.data, "release", None)
        if release is not None:
            release()


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an operator. An absent optional input is None. `id` is the name of its first output."""

    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = NO_ATTRS
    graphs: tuple[Graph, ...] = ()
    origin: Origin = NO_ORIGIN

    @property
    def id(self) -> str:
        return self.outputs[0]

    @property
    def uses(self) -> Iterator[str]:
        return (name for name in self.inputs if name is not None)


@dataclass(frozen=True, eq=False)
class Graph:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    facts: Facts = NO_FACTS

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that defines each value (inputs, weights and constants have none)."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.uses):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def readers(self) -> Mapping[str, frozenset[str]]:
        """The ids of the nodes that read each value, to be asked whether others do."""
        return {name: frozenset(node.id for node in nodes) for name, nodes in self.consumers.items()}

    @cached_property
    def kept(self) -> frozenset[str]:
        """The outputs, to be asked whether a value is one."""
        return frozenset(self.outputs)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """A number for each node, the same for those with the same operator, attributes and declared results."""
        numbers: dict[Hashable, int] = {}
        return tuple(numbers.setdefault(self._kind(node), len(numbers)) for node in self.nodes)

    def _kind(self, node: Node) -> Hashable:
        results = tuple((self.values[n].type, self.values[n].device) for n in node.outputs)
        key = (node.op, len(node.inputs), results, tuple((k, _told_apart(v)) for k, v in sorted(node.attrs.items())))
        try:
            hash(key)
        except TypeError:  # an array: nobody looks at its elements
            return node.id
        return node.id if node.graphs else key

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    def type(self, name: str) -> Type:
        return self.values[name].type

    def device(self, node: Node) -> str:
        """The device a node runs on: that of its first output."""
        return self.values[node.id].device

    def walk(self) -> Iterator[Graph]:
        """This graph and every graph nested in it."""
        pending = [self]
        while pending:
            graph = pending.pop()
            yield graph
            for node in graph.nodes:
                pending.extend(node.graphs)
