"""ONNX operators that read, write, sort or select by places."""

from __future__ import annotations

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.movement import int64s
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, I64


@onnx_op("Gather")
def gather(n: OnnxNode) -> Imported:
    return n.add("gather", n.input(0), n.input(1), axis=n.attr("axis", 0))


@onnx_op("GatherElements")
def gather_elements(n: OnnxNode) -> Imported:
    return n.add("gather_elements", n.input(0), n.input(1), axis=n.attr("axis", 0))


@onnx_op("GatherND")
def gather_nd(n: OnnxNode) -> Imported:
    return n.add("gather_nd", n.input(0), n.input(1), batch_dims=n.attr("batch_dims", 0))


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(n: OnnxNode) -> Imported:
    attrs = {"axis": n.attr("axis", 0), "reduction": n.attr("reduction", "none")}
    return n.add("scatter_elements", n.input(0), n.input(1), n.input(2), **attrs)


@onnx_op("ScatterND")
def scatter_nd(n: OnnxNode) -> Imported:
    return n.add("scatter_nd", n.input(0), n.input(1), n.input(2), reduction=n.attr("reduction", "none"))


@onnx_op("TensorScatter")
def tensor_scatter(n: OnnxNode) -> Imported:
    mode = n.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        raise InvalidModel(f"TensorScatter: there is no mode {mode!r}; the modes are linear and circular")
    return n.add("cache_update", n.input(0), n.input(1), n.optional(2), axis=n.attr("axis", -2), circular=mode == "circular")


@onnx_op("OneHot")
def one_hot(n: OnnxNode) -> Imported:
    return n.add("one_hot", int64s(n, n.input(0)), int64s(n, n.input(1)), n.input(2), axis=n.attr("axis", -1))


@onnx_op("NonZero")
def nonzero(n: OnnxNode) -> Imported:
    return n.add("nonzero", n.input(0))


@onnx_op("Compress")
def compress(n: OnnxNode) -> Imported:
    """The slices whose flag is set: a gather at the places of the set flags."""
    x, axis = n.input(0), n.attr("axis")
    if n.dtype(1) is not BOOL:
        raise InvalidModel(f"Compress: the flags must be bool, not {n.dtype(1)}")
    if axis is None:
        x, axis = n.add("reshape", x, n.constant([-1], I64)), 0
    return n.add("gather", x, n.add("squeeze", n.add("nonzero", n.input(1)), axes=(0,)), axis=axis)


@onnx_op("TopK")
def topk(n: OnnxNode) -> Imported:
    attrs = {
        "axis": n.attr("axis", -1),
        "largest": bool(n.attr("largest", 1)),
        "sorted": bool(n.attr("sorted", 1)),
    }
    return n.add_many("topk", [n.input(0), _count(n)], 2, **attrs)


def _count(n: OnnxNode) -> Value:
    if n.has(1):
        return int64s(n, n.input(1))
    return n.constant([n.required("k")], I64)


@onnx_op("Unique")
def unique(n: OnnxNode) -> Imported:
    return n.add_many("unique", [n.input(0)], 4, axis=n.attr("axis"), sorted=bool(n.attr("sorted", 1)))
