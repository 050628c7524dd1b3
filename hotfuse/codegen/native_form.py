"""The form of a graph that native code is made from.

products        matmul(x, y)  ->  panel_matmul(x, pack(y)); of half types, x as f32 and the result rounded once
sums            einsum of two inputs  ->  a product of their views
patches         a convolution whose windows lie side by side  ->  a copy of the patches, and a product
channel norms   group, instance and batch norm  ->  a norm over the last axes of a view, and elementwise steps
moves           see `native_moves`

Nodes with sizes that depend on data stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotfuse.codegen.loop_order import tile_of
from hotfuse.codegen.native_moves import MOVES, shaped
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, floordiv, symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import BF16, F16, F32, F64, DType, TensorType, numel
from hotfuse.passes.rewrite import Draft, Rule, rewrite

FLOATS = (F64, F32, F16, BF16)


def native_graph(graph: Graph, spec: Spec) -> Graph:
    def products(draft: Draft, node: Node) -> Value | None:
        x, y = draft.inputs(node)
        return None if x is None or y is None else _product(draft, x, y, spec)

    def patches(draft: Draft, node: Node) -> Value | None:
        return _patches(draft, node, spec)

    def sums(draft: Draft, node: Node) -> Value | None:
        return _einsum(draft, node, spec)

    known = {s.name for name in (*graph.inputs, *graph.weights) for s in symbols_of(_dims(graph.values[name]))}

    def told(rule: Rule) -> Rule:
        """The rule for nodes whose sizes follow from those of the graph's inputs: others cannot be written into a graph."""

        def apply(draft: Draft, node: Node) -> Value | Sequence[Value] | None:
            dims = [d for name in (*node.uses, *node.outputs) for d in _dims(graph.values.get(name) or draft.value(name))]
            return rule(draft, node) if known.issuperset(s.name for s in symbols_of(dims)) else None

        return apply

    norms: dict[str, Rule] = {"group_norm": _group_norm, "instance_norm": _instance_norm, "batch_norm": _batch_norm}
    rules: dict[str, Rule] = {"matmul": products, "einsum": sums, "conv": patches, **norms, **MOVES}
    return rewrite(graph, {op: [told(rule)] for op, rule in rules.items()})


def _dims(value: Value) -> tuple[Dim, ...]:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def _product(draft: Draft, x: Value, y: Value, spec: Spec) -> Value | None:
    a, b = _matrix(x), _matrix(y)
    if a is None or b is None or b.shape is None:
        return None
    n, wide = b.shape[-1], F64 if a.dtype == F64 else F32
    _, panel = tile_of(spec, n, wide)
    lanes = spec.vector_bytes // wide.bytes
    last = -(-(n % panel) // lanes) * lanes if isinstance(n, int) and n % panel else panel
    panels = draft.add("pack", y, panel=panel, last=last)
    found = draft.add("panel_matmul", _cast(draft, x, wide), panels, columns=(n,), panel=panel, last=last)
    return _cast(draft, found, a.dtype)


def _einsum(draft: Draft, node: Node, spec: Spec) -> Value | None:
    """before: einsum(x, y), each axis in the result or in both inputs
    after:  x as [batch..., rows, shared], times y as [batch..., shared, columns], axes put back"""
    terms, _, result = node.attrs["equation"].replace(" ", "").partition("->")
    given, labels = draft.inputs(node), terms.split(",")
    if len(given) != 2 or not result or "." in terms or any(len(set(t)) != len(t) for t in (*labels, result)):
        return None
    sizes: dict[str, Dim] = {}
    for value, term in zip(given, labels, strict=True):
        type = None if value is None else _matrix(value)
        if type is None or any(sizes.setdefault(a, d) != d for a, d in zip(term, type.shape or (), strict=True)):
            return None
    (x, y), (left, right) = given, labels
    assert x is not None
    assert y is not None
    shared = [a for a in left if a in right and a not in result]
    batch, rows = ([a for a in result if a in left and (a in right) == both] for both in (True, False))
    columns = [a for a in result if a not in left]
    if {*left, *right} != {*shared, *batch, *rows, *columns}:
        return None

    def matrix(value: Value, term: str, *parts: list[str]) -> Value:
        order = [a for part in (batch, *parts) for a in part]
        turned = draft.add("transpose", value, perm=tuple(term.index(a) for a in order))
        return shaped(draft, turned, [*(sizes[a] for a in batch), *(numel(tuple(sizes[a] for a in part)) for part in parts)])

    found = _product(draft, matrix(x, left, rows, shared), matrix(y, right, shared, columns), spec)
    if found is None:
        return None
    made = [*batch, *rows, *columns]
    return draft.add("transpose", shaped(draft, found, [sizes[a] for a in made]), perm=tuple(made.index(a) for a in result))


def _cast(draft: Draft, value: Value, to: DType) -> Value:
    assert isinstance(value.type, TensorType)
    return value if value.type.dtype == to else draft.add("cast", value, to=to)


def _matrix(value: Value) -> TensorType | None:
    type = value.type
    if isinstance(type, TensorType) and type.shape is not None and len(type.shape) > 1 and type.dtype in FLOATS:
        return type
    return None


def _group_norm(draft: Draft, node: Node) -> Value | None:
    """before: group_norm(x, scale, bias)     after: layer_norm of x as [n, groups, channels of a group, places], scaled"""
    x, *given = draft.inputs(node)
    type = None if x is None else _matrix(x)
    if x is None or type is None or type.shape is None:
        return None
    (batch, channels, *sizes), groups = type.shape, node.attrs["groups"]
    if not isinstance(channels, int) or channels % groups:
        return None
    each = (groups, channels // groups)
    grouped = shaped(draft, _cast(draft, x, _wide(type)), (batch, *each, numel(tuple(sizes))))
    found = draft.add("layer_norm", grouped, axis=2, epsilon=node.attrs.get("epsilon", 1e-5))
    found = _affine(draft, found, given, (*each, 1))
    return _cast(draft, shaped(draft, found, type.shape), type.dtype)


def _instance_norm(draft: Draft, node: Node) -> Value | None:
    """before: instance_norm(x, scale, bias)     after: layer_norm over the places of a channel, scaled"""
    x, *given = draft.inputs(node)
    type = None if x is None else _matrix(x)
    if x is None or type is None or type.shape is None or len(type.shape) < 3:
        return None
    found = draft.add("layer_norm", _cast(draft, x, _wide(type)), axis=2, epsilon=node.attrs.get("epsilon", 1e-5))
    found = _affine(draft, found, given, (type.shape[1], *(1,) * (len(type.shape) - 2)))
    return _cast(draft, found, type.dtype)


def _batch_norm(draft: Draft, node: Node) -> Value | None:
    """before: batch_norm(x, scale, bias, mean, variance)     after: (x - mean) * (scale / sqrt(variance + epsilon)) + bias"""
    x, *given = draft.inputs(node)
    type = None if x is None else _matrix(x)
    if x is None or type is None or type.shape is None or len(given) != 4 or None in given:
        return None
    wide = _wide(type)
    shape = (type.shape[1], *(1,) * (len(type.shape) - 2))
    scale, bias, mean, variance = (shaped(draft, _cast(draft, v, wide), shape) for v in given if v is not None)
    epsilon = draft.define(np.array(node.attrs.get("epsilon", 1e-5), wide.numpy), x.device)
    factor = draft.add("div", scale, draft.add("sqrt", draft.add("add", variance, epsilon)))
    found = draft.add("mul", draft.add("sub", _cast(draft, x, wide), mean), factor)
    return _cast(draft, draft.add("add", found, bias), type.dtype)


def _wide(type: TensorType) -> DType:
    return F64 if type.dtype == F64 else F32


def _affine(draft: Draft, value: Value, given: Sequence[Value | None], shape: Sequence[Dim]) -> Value:
    """value * scale + bias, each of them given or not, in shape."""
    assert isinstance(value.type, TensorType)
    for op, parameter in zip(("mul", "add"), given, strict=False):
        if parameter is not None:
            value = draft.add(op, value, shaped(draft, _cast(draft, parameter, value.type.dtype), shape))
    return value


def _patches(draft: Draft, node: Node, spec: Spec) -> Value | None:
    """before: conv(x, w, bias), each element of x in one window at most, all windows inside; or windows of one element
    after:  patches of x as rows, times w, plus bias, axes put back"""
    x, w, *bias = draft.inputs(node)
    if x is None or w is None:
        return None
    image, kernel = _matrix(x), _matrix(w)
    if image is None or kernel is None or image.shape is None or kernel.shape is None or not _side_by_side(node, kernel):
        return None
    (batch, channels, *sizes), (filters, _, *window) = image.shape, kernel.shape
    rank, axes = len(window), list(zip(sizes, window, node.attrs["strides"], strict=True))
    counts: list[Dim] = [floordiv(size - 1, step) + 1 if k == 1 else size // k for size, k, step in axes]
    ends: list[Dim] = [size if k == 1 else count * k for count, (size, k, _) in zip(counts, axes, strict=True)]
    steps = tuple(step if k == 1 else 1 for _, k, step in axes)
    if ends != sizes or steps != (1,) * rank:  # some elements are in no window
        limits = (draft.sizes(d, x.device) for d in ((0,) * rank, ends))
        x = draft.add("slice", x, *limits, axes=tuple(range(2, 2 + rank)), steps=steps)

    split = [d for count, step in zip(counts, window, strict=True) for d in (count, step)]
    cut = shaped(draft, x, (batch, channels, *split))
    order = (0, *(2 + 2 * i for i in range(rank)), 1, *(3 + 2 * i for i in range(rank)))
    area = channels * numel(tuple(window))
    rows = shaped(draft, draft.add("transpose", cut, perm=order), (batch, numel(tuple(counts)), area))
    weights = draft.add("transpose", shaped(draft, w, (filters, area)), perm=(1, 0))
    found = _product(draft, rows, weights, spec)
    if found is None:
        return None
    if bias and bias[0] is not None:
        found = draft.add("add", found, bias[0])
    return shaped(draft, draft.add("transpose", found, perm=(0, 2, 1)), (batch, filters, *counts))


def _side_by_side(node: Node, kernel: TensorType) -> bool:
    attrs = node.attrs
    window = (kernel.shape or ())[2:]
    return (
        attrs.get("groups", 1) == 1
        and all(k in (1, step) for k, step in zip(window, attrs["strides"], strict=True))
        and all(pad == 0 for pad in attrs["pads"])
        and all(d == 1 for d in attrs["dilations"])
        and all(isinstance(k, int) for k in window)
    )
