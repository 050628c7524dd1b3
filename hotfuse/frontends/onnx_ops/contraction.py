"""ONNX matrix products: Gemm, Einsum. (MatMul and Det correspond to one operator each; their records name them.)"""

from __future__ import annotations

from hotfuse.frontends.onnx_node import Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Value


@onnx_op("Gemm")
def gemm(n: OnnxNode) -> Imported:
    a = _transposed(n, n.input(0), n.attr("transA", 0))
    b = _transposed(n, n.input(1), n.attr("transB", 0))
    product = _scaled(n, n.add("matmul", a, b), n.attr("alpha", 1.0))
    if not n.has(2) or n.attr("beta", 1.0) == 0:
        return product
    return n.add("add", product, _scaled(n, n.input(2), n.attr("beta", 1.0)))


def _transposed(n: OnnxNode, value: Value, wanted: int) -> Value:
    return n.add("transpose", value, perm=(1, 0)) if wanted else value


def _scaled(n: OnnxNode, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else n.add("mul", value, n.scalar(factor, value))


@onnx_op("Einsum")
def einsum(n: OnnxNode) -> Imported:
    return n.add("einsum", *n.inputs, equation=n.attr("equation"))
