"""Values at exact sizes: a graph inferred anew from the exact types of its inputs, so that sizes are numbers wherever they do
not depend on data.

Layers are the same operators on the same types: each is inferred once. Nodes are of one `kind` that have the same operator,
attributes and declared results; what is found for a kind and the types of its inputs holds for all of that kind, unless there
are sizes in it that only running the model reveals: those are each node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from hotfuse.errors import DimError, LimitExceeded
from hotfuse.ir.builder import infer_node
from hotfuse.ir.dim import Dim, Expr, solve, substitute
from hotfuse.ir.graph import Attrs, Graph, Node, Value
from hotfuse.ir.op import OPS, FreshSymbols, Pattern
from hotfuse.ir.types import ANY, OptionalType, SequenceType, SizeType, TensorType, Type, numel


def concrete_values(graph: Graph, given: Mapping[str, Type], check: Callable[[Node, Value], None]) -> dict[str, Value]:
    """Every value of the graph, inferred from the exact types of its inputs and weights."""
    values = {name: _given_value(graph.values[name], given[name]) for name in (*graph.inputs, *graph.weights)}
    values |= {name: graph.values[name] for name in graph.constants}
    sizes = learned_sizes(graph, given)
    fresh = FreshSymbols("?r")  # names that no declared type has
    numbers: dict[Hashable, int] = {}

    def number(value: Value) -> int:
        """The same for values of which the same is known."""
        return numbers.setdefault((value.type, value.contents, value.device), len(numbers))

    alike: dict[str | None, int] = {name: number(value) for name, value in values.items()}
    met: dict[Hashable, list[tuple[Value, int]]] = {}
    for node, kind in zip(graph.nodes, graph.kinds, strict=True):
        key = (kind, *map(alike.get, node.inputs))
        found = met.get(key)
        if found is None:
            handed_out = fresh.count
            found = [(value, number(value)) for value in _inferred(graph, node, values, sizes, fresh, check)]
            if fresh.count == handed_out:
                met[key] = found
        for name, (value, known) in zip(node.outputs, found, strict=True):
            alike[name] = known
            values[name] = value if value.name == name else Value(name, value.type, value.device, value.contents)
    return values


def _inferred(
    graph: Graph,
    node: Node,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    fresh: FreshSymbols,
    check: Callable[[Node, Value], None],
) -> list[Value]:
    """The results of one node."""
    attrs = concrete_attrs(node.attrs, sizes) if sizes else node.attrs
    opaque = OPS[node.op].pattern is Pattern.OPAQUE
    types = [concrete_type(graph.values[n].type, sizes) for n in node.outputs] if opaque else None
    inputs = [None if n is None else values[n] for n in node.inputs]
    found = infer_node(node.op, inputs, attrs, node.graphs, fresh, len(node.outputs), types, node.origin)
    made = []
    for name, value in zip(node.outputs, found, strict=True):
        made.append(Value(name, value.type, graph.values[name].device, value.contents))
        check(node, made[-1])
        if node.op == "reshape":
            _check_copied_sizes(node, graph.values[name].type, value.type, sizes)
    return made


def _check_copied_sizes(node: Node, declared: Type, actual: Type, sizes: Mapping[str, int]) -> None:
    """A reshape takes the input's size for 0 and what is left for -1. Passes went by what the model said of sizes that turn out
    so now; where the result is another, what they wrote does not hold."""
    try:
        said = concrete_type(declared, sizes)
    except DimError:  # a share of nothing
        said = declared
    if not (isinstance(said, TensorType) and isinstance(actual, TensorType) and said.shape and actual.shape):
        return
    if any(isinstance(d, int) and isinstance(s, int) and d != s for d, s in zip(said.shape, actual.shape, strict=False)):
        raise DimError(
            f"{node.origin or node.id}: with these inputs a size of the shape turns out to be 0 or -1, which Reshape reads as "
            f"another size: the result is {actual}, the model was prepared for {said}. Write such a shape in constants, or set "
            "allowzero"
        )


def _given_value(declared: Value, actual: Type) -> Value:
    if isinstance(actual, SizeType):
        return replace(declared, contents=(actual.value,))
    return replace(declared, type=_without_sizes(declared.type) if actual is ANY else actual)


def _without_sizes(type: Type) -> Type:
    """What the model says of an input whose value tells nothing: an empty sequence or optional."""
    if isinstance(type, TensorType):
        return TensorType(type.dtype, None)
    if isinstance(type, SequenceType | OptionalType):
        return replace(type, element=_without_sizes(type.element))
    return type


def _learn_sizes(declared: Value, actual: Type, sizes: dict[str, int]) -> None:
    """Read the sizes of symbols off one input."""
    if isinstance(actual, SizeType):
        for dim in declared.contents or ():
            _learn_size(dim, actual.value, sizes)
    elif isinstance(declared.type, TensorType) and isinstance(actual, TensorType) and declared.type.shape and actual.shape:
        for dim, size in zip(declared.type.shape, actual.shape, strict=False):
            _learn_size(dim, size, sizes)


def _learn_size(dim: Dim, size: Dim, sizes: dict[str, int]) -> None:
    """`dim` is `size` now: solve for its symbol where it is a multiple of just one, plus a number."""
    if isinstance(dim, int) or not isinstance(size, int):
        return
    solved = solve(dim, size)
    if solved is not None and not solved[2]:
        sizes.setdefault(solved[0], solved[1])


def concrete_attrs(attrs: Attrs, sizes: Mapping[str, Dim]) -> Attrs:
    """Attributes with the known sizes in place of their symbols."""
    if not attrs or not any(isinstance(v, tuple) and any(isinstance(d, Expr) for d in v) for v in attrs.values()):
        return attrs
    return Attrs({k: _concrete_attr(v, sizes) for k, v in attrs.items()})


def _concrete_attr(value: Any, sizes: Mapping[str, Dim]) -> Any:
    if not isinstance(value, tuple):
        return value
    return tuple(substitute(d, sizes) if isinstance(d, Expr) else d for d in value)


def concrete_type(type: Type, sizes: Mapping[str, Dim]) -> Type:
    if isinstance(type, TensorType) and type.shape is not None:
        return TensorType(type.dtype, tuple(substitute(d, sizes) for d in type.shape))
    return type


def learned_sizes(graph: Graph, given: Mapping[str, Type]) -> dict[str, int]:
    """The numbers that the types of inputs and weights give to the graph's symbols."""
    sizes: dict[str, int] = {}
    for name in (*graph.inputs, *graph.weights):
        _learn_sizes(graph.values[name], given[name], sizes)
    return sizes


def check_size(limit: int) -> Callable[[Node, Value], None]:
    """A check that refuses a value larger than `limit` bytes, before anything is allocated for it."""

    def check(node: Node, value: Value) -> None:
        type = value.type
        view = OPS[node.op].view and node.op != "expand"  # a broadcast takes no memory, but whoever reads it walks it all
        if isinstance(type, TensorType) and type.is_static and not view:
            size = numel(type.shape or ()) * type.dtype.bytes
            if isinstance(size, int) and size > limit:
                raise LimitExceeded(
                    f"{node.origin or node.id}: {node.op} would make {type}, {size:,} bytes; the limit is {limit:,} "
                    "(raise max_value_bytes if the model is right)"
                )

    return check


def check_static_sizes(graph: Graph, limit: int) -> None:
    """Refuse a graph that makes a value larger than `limit` bytes whatever its inputs are."""
    check = check_size(limit)
    for inner in graph.walk():
        for node in inner.nodes:
            for name in node.outputs:
                check(node, inner.values[name])
