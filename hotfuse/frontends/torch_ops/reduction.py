"""ATen reductions. An empty list of axes means all of them, as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.frontends.torch_node import (
    Decline,
    Imported,
    TorchNode,
    aten,
    axis_of,
    dtype_of_value,
    opmath,
    rank_of,
    shape_of_value,
)
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, F64, numel

_COMPLEX = Decline("complex arithmetic is run by torch")


def axes_of(x: Value, dims: int | Sequence[int] | None) -> tuple[int, ...] | None:
    rank = rank_of(x)
    named = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({axis_of(d, rank) for d in named})) if named and rank else None


def _reduce(n: TorchNode, op: str, x: Value, dims: Any, keepdim: bool) -> Value:
    """A reduction of one or more axes; a scalar has none."""
    if rank_of(x) == 0:
        return x
    return n.add(op, x, axes=axes_of(x, dims), keepdims=bool(keepdim))


@aten("aten.sum.default")
def sum_all(n: TorchNode, x: Value, dtype: Any) -> Imported:
    return _fold(n, "reduce_sum", x, None, False)


@aten("aten.sum.dim_IntList")
def sum_dims(n: TorchNode, x: Value, dims: Any, keepdim: bool, dtype: Any) -> Imported:
    return _fold(n, "reduce_sum", x, dims, keepdim)


@aten("aten.mean.default")
def mean_all(n: TorchNode, x: Value, dtype: Any) -> Imported:
    return _fold(n, "reduce_mean", x, None, False)


@aten("aten.mean.dim")
def mean_dims(n: TorchNode, x: Value, dims: Any, keepdim: bool, dtype: Any) -> Imported:
    return _fold(n, "reduce_mean", x, dims, keepdim)


@aten("aten.prod.default")
def prod_all(n: TorchNode, x: Value, dtype: Any) -> Imported:
    return _fold(n, "reduce_prod", x, None, False)


@aten("aten.prod.dim_int")
def prod_dim(n: TorchNode, x: Value, dim: int, keepdim: bool, dtype: Any) -> Imported:
    return _fold(n, "reduce_prod", x, dim, keepdim)


def _fold(n: TorchNode, op: str, x: Value, dims: Any, keepdim: bool) -> Imported:
    if "complex" in (n.dtype.kind, dtype_of_value(x).kind):
        return _COMPLEX
    return _reduce(n, op, n.cast(x, n.dtype), dims, keepdim)


@aten("aten.amax.default", "aten.amin.default")
def extreme(n: TorchNode, x: Value, dims: Any, keepdim: bool) -> Imported:
    return _reduce(n, "reduce_max" if "amax" in n.name else "reduce_min", x, dims, keepdim)


@aten("aten.max.default", "aten.min.default")
def extreme_of_all(n: TorchNode, x: Value) -> Imported:
    return _reduce(n, "reduce_max" if "max" in n.name else "reduce_min", x, None, False)


@aten("aten.max.dim", "aten.min.dim")
def extreme_and_place(n: TorchNode, x: Value, dim: int, keepdim: bool) -> Imported:
    if n.uses(1):
        return Decline("the places of extremes are found by torch")
    return [_reduce(n, "reduce_max" if "max" in n.name else "reduce_min", x, dim, keepdim), None]


@aten("aten.argmax.default", "aten.argmin.default")
def argument(n: TorchNode, x: Value, dim: int | None, keepdim: bool) -> Imported:
    if rank_of(x) == 0:
        return Decline("of a scalar")
    axis = None if dim is None else axis_of(dim, rank_of(x))
    return n.add("argmax" if "argmax" in n.name else "argmin", x, axis=axis, keepdims=bool(keepdim))


@aten(
    "aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims",
)  # fmt: skip
def truth(n: TorchNode, x: Value, dims: Any = None, keepdim: bool = False) -> Imported:
    if n.dtype is not BOOL or dtype_of_value(x).kind == "complex" or dims == ():
        return Decline("of bytes, of complex numbers, or over no axis")
    return _reduce(n, "reduce_any" if ".any." in n.name else "reduce_all", n.cast(x, BOOL), dims, keepdim)


@aten("aten.var.correction", "aten.var_mean.correction")
def variance(n: TorchNode, x: Value, dims: Any, correction: Any, keepdim: bool) -> Imported:
    """mean((x - mean(x)) ** 2), divided by count - correction instead of count."""
    if not n.dtype.is_float or not isinstance(correction, (int, float, type(None))) or rank_of(x) == 0:
        return Decline("of complex numbers, scalars, or with an unusual correction")
    wide = opmath(n.dtype)
    source = n.cast(x, wide)
    axes = axes_of(x, dims)
    shape = shape_of_value(x)
    count = numel(tuple(shape[a] for a in (range(len(shape)) if axes is None else axes)))
    mean = n.add("reduce_mean", source, axes=axes, keepdims=True)
    centered = n.add("sub", source, mean)
    total = n.add("reduce_sum", n.add("mul", centered, centered), axes=axes, keepdims=bool(keepdim))
    free = n.add("sub", n.number(count, F64), n.number(1.0 if correction is None else float(correction), F64))
    divisor = n.add("maximum", free, n.number(0.0, F64))
    result = n.cast(n.add("div", total, n.cast(divisor, wide)), n.dtype)
    if "var_mean" not in n.name:
        return result
    return [result, n.cast(n.add("reduce_mean", source, axes=axes, keepdims=bool(keepdim)), n.dtype)]


@aten("aten.cumsum.default", "aten.cumprod.default")
def running(n: TorchNode, x: Value, dim: int, dtype: Any) -> Imported:
    if rank_of(x) == 0 or n.dtype.kind == "complex":
        return Decline("of a scalar or of complex numbers")
    return n.add("cumsum" if "cumsum" in n.name else "cumprod", n.cast(x, n.dtype), axis=axis_of(dim, rank_of(x)))
