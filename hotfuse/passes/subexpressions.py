"""Common subexpressions: of nodes that compute the same thing from the same values, the first serves all.

Small constants with the same bytes become one first, so that `x * 2` is found equal to another `x * 2`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.types import STRING, DType
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, is_pure, rewrite

SMALL = 64  # elements of a constant that is compared by its bytes; larger ones are compared by identity


@on_every_graph
def merge_subexpressions(graph: Graph) -> Graph:
    seen: dict[Hashable, tuple[Value, ...]] = {}
    names = _shared_constants(graph)

    def merge(draft: Draft, node: Node) -> tuple[Value, ...] | None:
        attrs = _attrs_key(node)
        if attrs is None or not is_pure(node):
            return None
        inputs = tuple(None if n is None else names.get(n, n) for n in node.inputs)
        device = draft.graph.values[node.id].device
        key = (node.op, inputs, attrs, tuple(id(g) for g in node.graphs), len(node.outputs), device)
        if key not in seen:
            seen[key] = tuple(draft.graph.values[name] for name in node.outputs)
            return None
        return seen[key]

    return rewrite(graph, merge)


def _shared_constants(graph: Graph) -> dict[str, str]:
    """For each constant, the first with the same type, device and elements."""
    first: dict[Hashable, str] = {}
    return {name: first.setdefault(_constant_key(graph.values[name], c), name) for name, c in graph.constants.items()}


def _constant_key(value: Value, constant: Constant) -> Hashable:
    size = 1
    for dim in constant.type.shape or ():
        size *= dim if isinstance(dim, int) else SMALL + 1
    if size > SMALL or constant.type.dtype is STRING:
        return (constant.type, value.device, id(constant.data))
    return (constant.type, value.device, constant.numpy().tobytes())


def _attrs_key(node: Node) -> Hashable:
    """The attributes as something to compare; None when they hold data that is not compared. -0.0 and 0.0, 1 and 1.0 differ."""
    if not node.attrs:
        return ()
    if not all(_is_plain(v) for v in node.attrs.values()):
        return None
    return tuple(sorted((name, repr(value)) for name, value in node.attrs.items()))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(v) for v in value)
    from hotfuse.ir.dim import Expr

    return value is None or isinstance(value, (int, float, str, bytes, bool, complex, DType, Expr, np.generic))
