"""Batch-norm folding: a batch norm that is the only reader of a convolution or matrix product becomes part of its parameters.

    factor = scale / sqrt(variance + epsilon)
    w'     = w * factor  (along the output channels)
    b'     = (b - mean) * factor + bias

The arithmetic is written as nodes: over constants, folding computes it at once; over weights, it is hoisted out of the calls.
"""

from __future__ import annotations

from collections.abc import Callable

from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import F32, F64
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, dtype_of, rewrite, shape_of


@on_every_graph
def fold_batch_norm(graph: Graph) -> Graph:
    if not any(node.op == "batch_norm" for node in graph.nodes):
        return graph
    fixed = fixed_values(graph)

    def fold(draft: Draft, node: Node) -> Value | None:
        x, *parameters = draft.inputs(node)
        if x is None or dtype_of(x) not in (F32, F64) or draft.uses[x.name] != 1:
            return None
        if any(p is None or p.name not in fixed or dtype_of(p) != dtype_of(x) for p in parameters):
            return None
        maker = draft.producer.get(x.name)
        rule = None if maker is None else _FOLDS.get(maker.op)
        return None if rule is None or maker is None else rule(draft, maker, node, fixed)

    return rewrite(graph, {"batch_norm": (fold,)})


def fixed_values(graph: Graph) -> set[str]:
    """Values that do not depend on a call's inputs: constants, weights, and what is computed from them alone."""
    fixed = {*graph.constants, *graph.weights}
    for node in graph.nodes:
        if node.inputs and all(name is None or name in fixed for name in node.inputs) and not node.graphs:
            fixed.update(node.outputs)
    return fixed


def _factor(draft: Draft, norm: Node) -> Value:
    scale, _, _, variance = draft.inputs(norm)[1:]
    assert variance is not None
    padded = draft.add("add", variance, draft.number(norm.attrs.get("epsilon", 1e-5), variance))
    return draft.add("div", scale, draft.add("sqrt", padded))


def _shifted(draft: Draft, norm: Node, factor: Value, before: Value | None) -> Value:
    _, bias, mean, _ = draft.inputs(norm)[1:]
    centered = draft.add("neg", mean) if before is None else draft.add("sub", before, mean)
    return draft.add("add", draft.add("mul", centered, factor), bias)


def _reshaped(draft: Draft, value: Value, *shape: int) -> Value:
    return draft.add("reshape", value, draft.sizes(shape, value.device), allow_zero=False)


def _into_conv(draft: Draft, conv: Node, norm: Node, fixed: set[str]) -> Value | None:
    x, weight, *rest = draft.inputs(conv)
    before = rest[0] if rest else None
    shape = shape_of(weight)
    if weight is None or shape is None or weight.name not in fixed or (before is not None and before.name not in fixed):
        return None
    if conv.op == "conv_transpose" and conv.attrs.get("groups", 1) != 1:
        return None  # the output channels are then spread over two axes of the weight
    factor = _factor(draft, norm)
    channels = (-1, 1) if conv.op == "conv" else (1, -1)
    scaled = draft.add("mul", weight, _reshaped(draft, factor, *channels, *(1,) * (len(shape) - 2)))
    return draft.add(conv.op, x, scaled, _shifted(draft, norm, factor, before), **conv.attrs)


def _into_matmul(draft: Draft, product: Node, norm: Node, fixed: set[str], before: Value | None = None) -> Value | None:
    x, weight = draft.inputs(product)
    if weight is None or weight.name not in fixed or len(shape_of(x) or ()) != 2 or len(shape_of(weight) or ()) != 2:
        return None
    factor = _factor(draft, norm)
    scaled = draft.add("matmul", x, draft.add("mul", weight, factor))
    return draft.add("add", scaled, _shifted(draft, norm, factor, before))


def _into_sum(draft: Draft, total: Node, norm: Node, fixed: set[str]) -> Value | None:
    for value, before in (draft.inputs(total), draft.inputs(total)[::-1]):
        product = draft.maker(value, "matmul")
        if product is None or value is None or before is None or draft.uses[value.name] != 1:
            continue
        if before.name in fixed and len(shape_of(before) or (0, 0)) <= 1:
            return _into_matmul(draft, product, norm, fixed, before)
    return None


_FOLDS: dict[str, Callable[[Draft, Node, Node, set[str]], Value | None]] = {
    "conv": _into_conv,
    "conv_transpose": _into_conv,
    "matmul": _into_matmul,
    "add": _into_sum,
}
