"""What a traced graph returns: which results are graph outputs, which are the caller's own inputs, which are views or plain
values.

Strides are no part of a value in the IR, but callers see them: each returned tensor's order of axes in memory is recorded
here and restored when a call returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from hotfuse.errors import UnsupportedModel
from hotfuse.frontends.torch_graph import FxGraph
from hotfuse.frontends.torch_node import Number
from hotfuse.frontends.torch_program import OutputLeaf
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Graph, Value

VIEWS = {
    "aten.view.default", "aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.expand.default",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.slice.Tensor",
    "aten.select.int", "aten.alias.default", "aten.detach.default", "aten.split.Tensor", "aten.split_with_sizes.default",
    "aten.unbind.int",
}  # fmt: skip


def collect_outputs(
    found: FxGraph, inputs: Mapping[fx.Node, int], written: Collection[int] = ()
) -> tuple[Graph, tuple[OutputLeaf, ...]]:
    """The finished graph, and what each returned leaf is. `inputs` gives the place of each placeholder the caller owns; the
    results
    at the places `written` are written back somewhere, and always are graph outputs of their own."""
    outputs: list[Value] = []
    leaves = []
    for place, (node, result) in enumerate(zip(found.result_nodes, found.results, strict=True)):
        leaves.append(_leaf(node, result, outputs, found, {} if place in written else inputs))
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
        view = _root(node) in inputs
        return OutputLeaf("value", len(outputs) - 1, view=view, order=None if view else axis_order(node.meta.get("val")))
    if isinstance(result, tuple):
        raise UnsupportedModel(f"the graph returns a nested structure from {node}; flatten its outputs")
    return OutputLeaf("constant", constant=result)


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a chain of views shows."""
    while node.op == "call_function" and (str(node.target) in VIEWS or str(node.target) == "<built-in function getitem>"):
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return node


def axis_order(val: Any) -> tuple[int, ...] | None:
    """The order of a dense tensor's axes in memory, slowest first; None for tensors with gaps or overlaps."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return None
    sizes, strides = [_hint(s) for s in val.shape], [_hint(s) for s in val.stride()]
    if any(s is None for s in (*sizes, *strides)):
        return tuple(range(val.dim()))
    axes = sorted(range(val.dim()), key=lambda a: (-strides[a], a))  # type: ignore[operator]
    return tuple(axes) if _dense(sizes, strides, axes) else None


def _dense(sizes: Sequence[Any], strides: Sequence[Any], axes: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= sizes[axis]
    return True


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return None if hint is None else int(hint)
