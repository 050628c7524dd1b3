"""Patterns: how a piece of a graph is written down so that it reads like the maths.

    x                               Var("x"): any value, the same one wherever it stands in the pattern
    0.5                             a constant that is this number in every element
    Number("epsilon")               a constant that is one number, which is captured
    ("exp", x)                      a node; add, mul, maximum, minimum and the logical ones match in either order
    ("reduce_mean:mean", x)         the same, and the node is captured under a name (to look at its attributes)
    Either(p, q)                    the first that matches
    Product(0.5, x, y)              x * y * 0.5 however it is spelled: any order and grouping of mul, div by a constant,
                                    neg and whole powers; Product(Number("scale"), ...) captures the coefficient

`match` answers the first way a pattern fits, or None. It fits only if everything inside the pattern is read by the pattern
alone: an inner value that somebody else needs would have to be computed twice. Products take as many numbers as they can.

Numbers that a half-precision float holds exactly (0.5, 1, 2, 3) must be exact; others (sqrt 2, 0.044715) are compared within
the precision of the constant's type, and of float32 for float64, as exporters round them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import TypeAlias

import numpy as np

from hotfuse.ir.graph import Node, Value
from hotfuse.ir.types import TensorType
from hotfuse.passes.rewrite import Draft
from hotfuse.records import dataclass

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "equal"})
DEEPEST_PRODUCT = 8  # nodes of one product on the way to a factor: long chains of products are no pattern of anybody's
TOLERANCE = {"f64": 1e-6, "f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}


@dataclass(frozen=True, slots=True)
class Var:
    name: str


@dataclass(frozen=True, slots=True)
class Number:
    name: str


class Either:
    __slots__ = ("options",)

    def __init__(self, *options: Pattern) -> None:
        self.options = options


class Product:
    __slots__ = ("coefficient", "factors")

    def __init__(self, coefficient: float | Number, *factors: Pattern) -> None:
        self.coefficient = coefficient
        self.factors = factors


# A node pattern is a tuple: the operator's name, then a pattern for each input (None for an absent one).
Pattern: TypeAlias = Var | Number | Either | Product | float | int | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern captured. `edges` are the reads of inner values, by reading node and input place."""

    values: Mapping[str, Value] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    edges: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]


Edge = tuple[str, int] | None


def match(draft: Draft, pattern: Pattern, node: Node) -> Match | None:
    """How `pattern` fits the value that `node`, the next node of the draft, makes."""
    matcher = _Matcher(draft, node)
    for found in matcher.node_output(pattern, node, Match()):
        if _is_closed(draft, found):
            return found
    return None


def match_value(draft: Draft, pattern: Pattern, value: Value) -> Match | None:
    """How `pattern` fits a value that the draft has already, inner reads closed, the value itself read by anybody."""
    node = draft.producer.get(value.name)
    return None if node is None else match(draft, pattern, node)


def inner_nodes(draft: Draft, found: Match, root: Node) -> list[Node]:
    """The nodes that a match replaces, first to last as far as the match tells."""
    names = dict.fromkeys(found.edges.values())
    return [*(draft.producer[name] for name in reversed(list(names))), root]


def _is_closed(draft: Draft, found: Match) -> bool:
    reads: dict[str, int] = {}
    for name in found.edges.values():
        reads[name] = reads.get(name, 0) + 1
    return all(draft.uses[name] == count for name, count in reads.items())


class _Matcher:
    """One attempt: walks from the root against the data flow and yields every way a pattern fits."""

    def __init__(self, draft: Draft, root: Node) -> None:
        self.draft = draft
        self.root = root
        self.depth = 0  # product nodes above the one being read

    def value(self, pattern: object, value: Value | None, edge: Edge, found: Match) -> Iterator[Match]:
        if value is None or pattern is None:
            if value is None and pattern is None:
                yield found
            return
        if isinstance(pattern, Var):
            bound = found.values.get(pattern.name)
            if bound is None:
                yield Match({**found.values, pattern.name: value}, found.numbers, found.nodes, found.edges)
            elif bound.name == value.name:
                yield found
        elif isinstance(pattern, Number):
            number = self.draft.scalar(value)
            if number is not None and found.numbers.get(pattern.name, number) == number:
                yield Match(found.values, {**found.numbers, pattern.name: number}, found.nodes, found.edges)
        elif isinstance(pattern, (int, float)):
            if is_number(self.draft, value, pattern):
                yield found
        elif isinstance(pattern, Either):
            for option in pattern.options:
                yield from self.value(option, value, edge, found)
        elif isinstance(pattern, Product):
            yield from self.whole_product(pattern, value, edge, found)
        else:
            node = self.draft.producer.get(value.name)
            if node is not None and len(node.outputs) == 1:
                yield from self.node(pattern, node, _with_edge(found, edge, value.name))

    def node_output(self, pattern: Pattern, node: Node, found: Match) -> Iterator[Match]:
        """Matches of the root, whose value the draft does not have yet."""
        if isinstance(pattern, Either):
            for option in pattern.options:
                yield from self.node_output(option, node, found)
        elif isinstance(pattern, Product):
            for coefficient, after in self.product_node(node, pattern.factors, found):
                yield from self.coefficient(pattern, coefficient, node.outputs[0], after)
        else:
            yield from self.node(pattern, node, found)

    def node(self, pattern: object, node: Node, found: Match) -> Iterator[Match]:
        assert isinstance(pattern, tuple)
        op, _, label = pattern[0].partition(":")
        wanted = pattern[1:]
        if node.op != op:
            return
        inputs = self.draft.inputs(node)
        inputs += [None] * (len(wanted) - len(inputs))
        if len(inputs) > len(wanted):
            return
        if label:
            found = Match(found.values, found.numbers, {**found.nodes, label: node}, found.edges)
        yield from self.arguments(wanted, inputs, range(len(wanted)), node.id, found)
        if op in COMMUTATIVE and inputs[0] is not inputs[1]:
            yield from self.arguments(wanted, inputs[::-1], (1, 0), node.id, found)

    def arguments(
        self, wanted: Sequence[object], inputs: Sequence[Value | None], places: Sequence[int], reader: str, found: Match
    ) -> Iterator[Match]:
        if not wanted:
            yield found
            return
        for after in self.value(wanted[0], inputs[0], (reader, places[0]), found):
            yield from self.arguments(wanted[1:], inputs[1:], places[1:], reader, after)

    # products

    def whole_product(self, pattern: Product, value: Value, edge: Edge, found: Match) -> Iterator[Match]:
        for coefficient, after in self.product(value, pattern.factors, edge, found):
            yield from self.coefficient(pattern, coefficient, value.name, after)

    def coefficient(self, pattern: Product, coefficient: float, name: str, found: Match) -> Iterator[Match]:
        wanted = pattern.coefficient
        if isinstance(wanted, Number):
            if found.numbers.get(wanted.name, coefficient) == coefficient:
                yield Match(found.values, {**found.numbers, wanted.name: coefficient}, found.nodes, found.edges)
        elif is_close(coefficient, wanted, self.dtype_name(name)):
            yield found

    def dtype_name(self, name: str) -> str:
        type = (self.draft.graph.values if name == self.root.id else self.draft.builder.values)[name].type
        return type.dtype.name if isinstance(type, TensorType) else ""

    def product(self, value: Value, factors: Sequence[Pattern], edge: Edge, found: Match) -> Iterator[tuple[float, Match]]:
        """Ways to read `value` as a number times the factors."""
        node = self.draft.producer.get(value.name)
        if node is not None and node.op in ("mul", "div", "neg", "pow") and self.depth < DEEPEST_PRODUCT:
            self.depth += 1
            for result in self.product_node(node, factors, _with_edge(found, edge, value.name)):
                self.depth -= 1
                yield result
                self.depth += 1
            self.depth -= 1
        if len(factors) == 1:
            for after in self.value(factors[0], value, edge, found):
                yield 1.0, after

    def product_node(self, node: Node, factors: Sequence[Pattern], found: Match) -> Iterator[tuple[float, Match]]:
        inputs = self.draft.inputs(node)
        if node.op not in ("mul", "div", "neg", "pow") or inputs[0] is None:
            return
        if node.op == "neg":
            for number, after in self.product(inputs[0], factors, (node.id, 0), found):
                yield -number, after
            return
        assert inputs[1] is not None
        scale = self.draft.scalar(inputs[1])
        if node.op == "pow":
            if scale == len(factors):
                yield from self.power(inputs[0], factors, (node.id, 0), found)
        elif node.op == "div":
            if scale:
                for number, after in self.product(inputs[0], factors, (node.id, 0), found):
                    yield number / scale, after
        else:
            yield from self.mul(node, inputs[0], inputs[1], factors, found)

    def power(self, base: Value, factors: Sequence[Pattern], edge: Edge, found: Match) -> Iterator[tuple[float, Match]]:
        if not factors:
            yield 1.0, found
            return
        for after in self.value(factors[0], base, edge, found):
            yield from self.power(base, factors[1:], edge, after)

    def mul(self, node: Node, a: Value, b: Value, factors: Sequence[Pattern], found: Match) -> Iterator[tuple[float, Match]]:
        for place, (number, other) in enumerate(((b, a), (a, b))):
            scale = self.draft.scalar(number)
            if scale is not None:
                for rest, after in self.product(other, factors, (node.id, place), found):
                    yield rest * scale, after
                return
        for size in range(1, len(factors)):
            for chosen in combinations(range(len(factors)), size):
                left = [f for i, f in enumerate(factors) if i in chosen]
                right = [f for i, f in enumerate(factors) if i not in chosen]
                for first, middle in self.product(a, left, (node.id, 0), found):
                    for second, after in self.product(b, right, (node.id, 1), middle):
                        yield first * second, after


def _with_edge(found: Match, edge: Edge, name: str) -> Match:
    if edge is None:
        return found
    return Match(found.values, found.numbers, found.nodes, {**found.edges, edge: name})


def is_number(draft: Draft, value: Value, wanted: float) -> bool:
    """Whether `value` is a constant that is `wanted` in every element."""
    number = draft.scalar(value)
    name = value.type.dtype.name if isinstance(value.type, TensorType) else ""
    return number is not None and is_close(number, wanted, name)


def is_close(number: float, wanted: float, dtype: str) -> bool:
    """Equal where float16 holds `wanted` exactly; else within the rounding of the type that the number was stored in."""
    if float(np.float16(wanted)) == wanted:
        return number == wanted
    return abs(number - wanted) <= TOLERANCE.get(dtype, 0.0) * abs(wanted)
