"""Matrix products. Products of matrices and vectors are one `matmul`; scaled sums are written out."""

from __future__ import annotations

from typing import Any

from hotfuse.frontends.torch_node import Decline, Imported, Scalar, TorchNode, aten, dtype_of_value, opmath, rank_of
from hotfuse.frontends.torch_ops.movement import permuted
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL

_UNUSUAL = Decline("of integers, booleans or complex numbers")


def _plain(*values: Value) -> bool:
    return all(dtype_of_value(v).is_float and dtype_of_value(v) == dtype_of_value(values[0]) for v in values)


@aten("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(n: TorchNode, x: Value, y: Value) -> Imported:
    return n.add("matmul", x, y) if _plain(x, y) else _UNUSUAL


@aten("aten.linear.default")
def linear(n: TorchNode, x: Value, weight: Value, bias: Value | None) -> Imported:
    if not _plain(x, weight):
        return _UNUSUAL
    product = n.add("matmul", x, permuted(n, weight, (1, 0)) if rank_of(weight) == 2 else weight)
    return product if bias is None else n.add("add", product, bias)


@aten("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def scaled_sum(n: TorchNode, x: Value, a: Value, b: Value, beta: Scalar, alpha: Scalar) -> Imported:
    """beta * x + alpha * (a @ b); beta = 0 leaves x out, even where it is NaN."""
    if not _plain(a, b, x):
        return _UNUSUAL
    product = n.add("matmul", a, b)
    if alpha != 1:
        product = _scaled(n, product, alpha)
    if beta == 0:
        return product
    return n.add("add", x if beta == 1 else _scaled(n, x, beta), product)


def _scaled(n: TorchNode, x: Value, factor: Any) -> Value:
    wide = opmath(n.dtype)
    return n.cast(n.add("mul", n.cast(x, wide), n.operand(factor, wide)), n.dtype)


@aten("aten.einsum.default")
def einsum(n: TorchNode, equation: str, operands: Any, path: Any) -> Imported:
    if not _plain(*operands) or BOOL in (dtype_of_value(v) for v in operands):
        return _UNUSUAL
    return n.add("einsum", *operands, equation=equation.replace(" ", ""))
