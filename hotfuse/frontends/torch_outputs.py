"""What a traced graph returns: which results are graph outputs, which are the caller's own inputs, which are views or plain
values.

Strides are no part of a value in the IR, but callers see them: each returned tensor's order of axes in memory is recorded
here and restored when a call returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import fx

from hotfuse.errors import UnsupportedModel
from hotfuse.frontends.torch_graph import FxGraph, view_root
from hotfuse.frontends.torch_node import Number
from hotfuse.frontends.torch_program import OutputLeaf
from hotfuse.frontends.torch_tensor import axis_order
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Graph, Value


def collect_outputs(
    found: FxGraph,
    inputs: Mapping[fx.Node, int],
    written: Collection[int] = (),
    known: Mapping[int, OutputLeaf | None] = MappingProxyType({}),
) -> tuple[Graph, tuple[OutputLeaf, ...]]:
    """The finished graph, and what each returned leaf is. `inputs` gives the place of each placeholder the caller owns; the
    results at the places `written` are written back somewhere, and always are graph outputs of their own. `known` says what
    results at other places are, where tracing found out."""
    outputs: list[Value] = []
    leaves = []
    for place, (node, result) in enumerate(zip(found.result_nodes, found.results, strict=True)):
        leaf = known.get(place)
        if leaf is not None and leaf.kind != "value":
            leaves.append(leaf)
            continue
        plain = _leaf(node, result, outputs, found, {} if place in written or leaf is not None else inputs)
        leaves.append(plain if leaf is None else replace(leaf, kind=plain.kind, index=plain.index, constant=plain.constant))
    return found.builder.build(outputs), tuple(leaves)


def _leaf(node: Any, result: Any, outputs: list[Value], found: FxGraph, inputs: Mapping[fx.Node, int]) -> OutputLeaf:
    if isinstance(node, fx.Node) and node in inputs:
        return OutputLeaf("input", inputs[node])
    if isinstance(result, Expr):
        result = Number(found.builder.dims((result,), scalar=True))
    if isinstance(result, Number):
        outputs.append(result.value)
        return OutputLeaf("number", len(outputs) - 1)
    if isinstance(result, Value):
        outputs.append(result)
        view = view_root(node) in inputs
        return OutputLeaf("value", len(outputs) - 1, order=None if view else axis_order(node.meta.get("val")), shared=view)
    if isinstance(result, tuple):
        raise UnsupportedModel(f"the graph returns a nested structure from {node}; flatten its outputs")
    return OutputLeaf("constant", constant=result)
