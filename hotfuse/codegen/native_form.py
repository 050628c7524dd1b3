"""The form of a graph that native code is made from.

products      matmul(x, y)  ->  panel_matmul(x, pack(y))
patches       a convolution whose windows lie side by side  ->  a copy of the patches, and a product
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.codegen.loop_order import tile_of
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import F32, F64, TensorType, numel
from hotfuse.passes.rewrite import Draft, rewrite


def native_graph(graph: Graph, spec: Spec) -> Graph:
    def products(draft: Draft, node: Node) -> Value | None:
        x, y = draft.inputs(node)
        return None if x is None or y is None else _product(draft, x, y, spec)

    def patches(draft: Draft, node: Node) -> Value | None:
        return _patches(draft, node, spec)

    return rewrite(graph, {"matmul": [products], "conv": [patches]})


def _product(draft: Draft, x: Value, y: Value, spec: Spec) -> Value | None:
    a, b = _matrix(x), _matrix(y)
    if a is None or b is None or b.shape is None:
        return None
    n = b.shape[-1]
    _, panel = tile_of(spec, n, a.dtype)
    lanes = spec.vector_bytes // a.dtype.bytes
    last = -(-(n % panel) // lanes) * lanes if isinstance(n, int) and n % panel else panel
    panels = draft.add("pack", y, panel=panel, last=last)
    return draft.add("panel_matmul", x, panels, columns=(n,), panel=panel, last=last)


def _matrix(value: Value) -> TensorType | None:
    type = value.type
    if isinstance(type, TensorType) and type.shape is not None and len(type.shape) > 1 and type.dtype in (F32, F64):
        return type
    return None


def _patches(draft: Draft, node: Node, spec: Spec) -> Value | None:
    """before: conv(x, w, bias), each element of x in one window at most, all windows inside
    after:  patches of x as rows, times w, plus bias, axes put back"""
    x, w, *bias = draft.inputs(node)
    if x is None or w is None:
        return None
    image, kernel = _matrix(x), _matrix(w)
    if image is None or kernel is None or image.shape is None or kernel.shape is None or not _side_by_side(node, image, kernel):
        return None
    (batch, channels, *sizes), (filters, _, *window) = image.shape, kernel.shape
    counts: list[Dim] = [size // step for size, step in zip(sizes, window, strict=True)]
    rank = len(window)

    def shaped(value: Value, shape: Sequence[Dim]) -> Value:
        return draft.add("reshape", value, draft.sizes(tuple(shape), value.device), allow_zero=True)

    split = [d for count, step in zip(counts, window, strict=True) for d in (count, step)]
    cut = shaped(x, (batch, channels, *split))
    order = (0, *(2 + 2 * i for i in range(rank)), 1, *(3 + 2 * i for i in range(rank)))
    area = channels * numel(tuple(window))
    rows = shaped(draft.add("transpose", cut, perm=order), (batch, numel(tuple(counts)), area))
    weights = draft.add("transpose", shaped(w, (filters, area)), perm=(1, 0))
    found = _product(draft, rows, weights, spec)
    if found is None:
        return None
    if bias and bias[0] is not None:
        found = draft.add("add", found, bias[0])
    return shaped(draft.add("transpose", found, perm=(0, 2, 1)), (batch, filters, *counts))


def _side_by_side(node: Node, image: TensorType, kernel: TensorType) -> bool:
    attrs = node.attrs
    sizes, window = (image.shape or ())[2:], (kernel.shape or ())[2:]
    return (
        attrs.get("groups", 1) == 1
        and tuple(attrs["strides"]) == tuple(window)
        and not any(attrs["pads"])
        and all(d == 1 for d in attrs["dilations"])
        and all(isinstance(s, int) and isinstance(k, int) and s % k == 0 for s, k in zip(sizes, window, strict=True))
    )
