"""Rewriting: a new graph from an old one in one sweep over its nodes, so that every pass is linear in the graph.

A `Rule` sees the draft (everything rewritten so far) and the next node, its inputs already renamed to the draft's values. It
answers what stands for the node's outputs, or None to keep the node. What it adds to the draft and nobody reads is dead code,
which `rewrite` removes at the end. A replacement whose type differs from the original's is refused, so a rule need not check
broadcasting: `x + 0` with a zero of higher rank than x stays as it is.

State: the draft; it is changed by its own methods only and ends with `finish`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim, symbol, symbols_of
from hotfuse.ir.facts import Facts
from hotfuse.ir.graph import Constant, Graph, Node, Origin, Value
from hotfuse.ir.op import OPS
from hotfuse.ir.types import STRING, DType, Shape, TensorType, Type
from hotfuse.passes.dead_code import has_effect, remove_dead_nodes

Rule = Callable[["Draft", Node], Value | Sequence[Value] | None]
UNIFORM_LIMIT = 1024  # elements of a constant that is looked through for being one number everywhere


class Draft:
    """The new graph while it is written. `uses` counts the reads of each value in the old graph, results included."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer: dict[str, Node] = {}
        self.uses: Counter[str] = count_uses(graph)
        self.builder = GraphBuilder(graph.name, self._fresh_symbol, graph.facts)
        self.builder.inputs.extend(graph.inputs)
        self.builder.weights.extend(graph.weights)
        self.builder.constants.update(graph.constants)
        for names in (graph.inputs, graph.weights, graph.constants):
            self.builder.values.update((name, graph.values[name]) for name in names)
        self._replaced: dict[str, Value] = {}
        self._scalars: dict[str, float | None] = {}
        self._numbers: Counter[str] = Counter()
        self._symbols: int | None = None

    # reading

    def value(self, name: str) -> Value:
        """The draft's value of a name that a node given to a rule reads."""
        return self.builder.values[name]

    def inputs(self, node: Node) -> list[Value | None]:
        values = self.builder.values
        return [None if name is None else values[name] for name in node.inputs]

    def maker(self, value: Value | None, op: str) -> Node | None:
        """The node that makes `value`, if its operator is `op`."""
        node = None if value is None else self.producer.get(value.name)
        return node if node is not None and node.op == op else None

    def constant(self, value: Value | None) -> np.ndarray[Any, Any] | None:
        """The array of a constant; None for every other value."""
        found = None if value is None else self.builder.constants.get(value.name)
        return None if found is None else found.numpy()

    def scalar(self, value: Value | None) -> float | None:
        """The number that a constant holds in every element (large constants are not looked at)."""
        if value is None or value.name not in self.builder.constants:
            return None
        if value.name not in self._scalars:
            self._scalars[value.name] = _uniform(self.builder.constants[value.name])
        return self._scalars[value.name]

    # writing

    def add(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """A new node with one result."""
        (value,) = self.builder.add_node(op, inputs, attrs, names=[self.unique(op)])
        self.producer[value.name] = self.builder.nodes[-1]
        self.uses[value.name] = 1
        for given in inputs:
            if given is not None:
                self.uses[given.name] += 1
        return value

    def define(self, data: Any, device: str) -> Value:
        """A new constant."""
        return self.builder.constant(data, self.unique("const"), device)

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant of the element type and device of `like`."""
        assert isinstance(like.type, TensorType)
        return self.define(np.array(number, dtype=like.type.dtype.numpy), like.device)

    def sizes(self, sizes: Sequence[Dim], device: str) -> Value:
        """An int64 tensor of sizes."""
        if all(isinstance(d, int) for d in sizes):
            return self.define(np.array(sizes, dtype=np.int64), device)
        return self.add("dims", dims=tuple(sizes), scalar=False)

    def keep(self, node: Node) -> None:
        """The node as it is. (Its names were unique in the old graph and stay so: `unique` avoids them.)"""
        self.builder.nodes.append(node)
        for name in node.outputs:
            self.builder.values[name] = self.graph.values[name]
            self.producer[name] = node

    def renamed(self, node: Node) -> Node:
        """A node of the old graph with its inputs in the draft's names."""
        gone = self._replaced
        if gone.keys().isdisjoint(node.inputs):
            return node
        return replace(node, inputs=tuple(gone[n].name if n in gone else n for n in node.inputs))  # type: ignore[index]

    def put(self, node: Node, found: Sequence[Value]) -> bool:
        """Let `found` stand for the outputs of `node`, if their types allow it."""
        before = [self.graph.values[name] for name in node.outputs]
        if len(before) != len(found) or not all(
            can_replace(a, b, self.graph.facts) for a, b in zip(before, found, strict=True)
        ):
            return False
        for old, new in zip(before, found, strict=True):
            self._replaced[old.name] = new
            self.uses[new.name] = self.uses[old.name] + (self.uses[new.name] if new.name in self.graph.values else 0)
        return True

    def finish(self) -> Graph:
        values = self.builder.values
        return self.builder.build(self._replaced.get(name) or values[name] for name in self.graph.outputs)

    def unique(self, stem: str) -> str:
        """A name that neither graph has."""
        while True:
            name = f"{stem}_{self._numbers[stem]}"
            self._numbers[stem] += 1
            if name not in self.graph.values and name not in self.builder.values:
                return name

    def _fresh_symbol(self) -> Dim:
        """A size of its own, numbered after every unnamed size of the old graph."""
        if self._symbols is None:
            shapes = (v.type.shape for v in self.graph.values.values() if isinstance(v.type, TensorType) and v.type.shape)
            names = (s.name for shape in shapes for s in symbols_of(shape))
            self._symbols = max((int(n[1:]) for n in names if n[0] == "?" and n[1:].isdigit()), default=-1)
        self._symbols += 1
        return symbol(f"?{self._symbols}")


def rewrite(graph: Graph, rules: Rule | Mapping[str, Sequence[Rule]]) -> Graph:
    """The graph after one sweep; itself if no rule answered. `rules` is one rule for every node, or the rules of each operator,
    of which the first that answers wins."""
    if isinstance(rules, Mapping) and not any(node.op in rules for node in graph.nodes):
        return graph
    every = None if isinstance(rules, Mapping) else (rules,)
    draft, changed = Draft(graph), False
    for old in graph.nodes:
        node = draft.renamed(old) if changed else old
        chosen = every or rules.get(node.op)  # type: ignore[union-attr]
        if chosen and _apply(draft, node, chosen):
            changed = True
        else:
            draft.keep(node)
    return remove_dead_nodes(draft.finish()) if changed else graph


def _apply(draft: Draft, node: Node, rules: Sequence[Rule]) -> bool:
    draft.builder.origin = node.origin
    for rule in rules:
        found = rule(draft, node)
        if found is not None and draft.put(node, (found,) if isinstance(found, Value) else found):
            return True
    return False


def count_uses(graph: Graph) -> Counter[str]:
    """How often each value is read: once for each input that names it, and once for each result of the graph it is."""
    uses = Counter(name for node in graph.nodes for name in node.inputs if name is not None)
    uses.update(graph.outputs)
    return uses


def can_replace(old: Value, new: Value, facts: Facts) -> bool:
    """Whether `new` may stand for `old`: the same device and element type, and no size that could differ."""
    if old.device != new.device or not isinstance(old.type, TensorType) or not isinstance(new.type, TensorType):
        return old.device == new.device and old.type == new.type
    if old.type.dtype != new.type.dtype:
        return False
    return old.type.shape is None or same_shape(old.type.shape, new.type.shape, facts)


def same_shape(a: Shape | None, b: Shape | None, facts: Facts) -> bool:
    """Whether both are known and equal for every size."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(x == y or facts.decide(x, y) is True for x, y in zip(a, b, strict=True))


def first_origin(nodes: Sequence[Node]) -> Origin:
    """Where a group of nodes begins in the user's model."""
    return next((n.origin for n in nodes if n.origin.layer), nodes[0].origin)


def shape_of(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def dtype_of(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None


def is_float(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype.is_float


def is_pure(node: Node) -> bool:
    """Whether a node's outputs depend on its inputs alone."""
    return OPS[node.op].deterministic and not has_effect(node)


def _uniform(constant: Constant) -> float | None:
    shape = constant.type.shape
    if shape is None or constant.type.dtype is STRING or constant.type.dtype.kind == "complex":
        return None
    size = int(np.prod([int(d) for d in shape], dtype=np.int64))  # type: ignore[arg-type]
    if not 0 < size <= UNIFORM_LIMIT:
        return None
    elements = constant.numpy().reshape(-1)
    first = float(elements[0])
    same = size == 1 or bool((elements == elements[0]).all() and len({np.signbit(float(e)) for e in elements.tolist()}) == 1)
    return first if same else None
