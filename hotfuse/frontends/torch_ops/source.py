"""ATen operators that make tensors from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.frontends.torch_node import Decline, Imported, Scalar, TorchNode, aten
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Value


def filled(n: TorchNode, number: Scalar) -> Value:
    """A tensor of the result's type with every element the same."""
    if isinstance(number, (bool, int, float)):
        n.number(number, n.dtype)  # refuses a number that does not fit
        return n.add("full", n.dims(n.shape), value=number, dtype=n.dtype)
    return n.add("expand", n.number(number, n.dtype), n.dims(n.shape))


@aten("aten.full.default", "aten.full_like.default")
def full(n: TorchNode, like: Any, number: Scalar, *rest: Any) -> Imported:
    return filled(n, number)


@aten("aten.new_full.default")
def new_full(n: TorchNode, like: Any, size: Any, number: Scalar, *rest: Any) -> Imported:
    return filled(n, number)


@aten("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
def zeros(n: TorchNode, *rest: Any) -> Imported:
    return filled(n, 0)


@aten("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(n: TorchNode, *rest: Any) -> Imported:
    return filled(n, 1)


@aten("aten.fill.Scalar")
def fill(n: TorchNode, x: Value, number: Scalar) -> Imported:
    return filled(n, number)


@aten("aten.scalar_tensor.default")
def scalar_tensor(n: TorchNode, number: Scalar, *rest: Any) -> Imported:
    return n.number(number, n.dtype)


def _arange(n: TorchNode, bounds: Sequence[Any]) -> Imported:
    if not n.dtype.is_integer or not all(isinstance(b, (int, Expr)) for b in bounds):
        return Decline("of fractions")
    return n.add("arange", *(n.number(b, n.dtype) for b in bounds))


@aten("aten.arange.default")
def arange(n: TorchNode, end: Any, *rest: Any) -> Imported:
    return _arange(n, (0, end, 1))


@aten("aten.arange.start")
def arange_start(n: TorchNode, start: Any, end: Any, *rest: Any) -> Imported:
    return _arange(n, (start, end, 1))


@aten("aten.arange.start_step")
def arange_step(n: TorchNode, start: Any, end: Any, step: Any, *rest: Any) -> Imported:
    return _arange(n, (start, end, step))


@aten("prims.iota.default")
def iota(n: TorchNode, length: Any, start: Any, step: Any, *rest: Any) -> Imported:
    return _arange(n, (start, start + step * length, step))
