"""Softmax and normalizations, kept whole. Statistics that only a backward pass reads stay with torch's own operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.frontends.torch_node import Decline, Imported, TorchNode, aten, axis_of, dtype_of_value, rank_of, shape_of_value
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, DType

_STATISTICS = Decline("its statistics are kept for the backward pass")


def _softmax(n: TorchNode, op: str, x: Value, dim: int) -> Imported:
    if rank_of(x) == 0 or not n.dtype.is_float:
        return Decline("of a scalar or of integers")
    return n.add(op, n.cast(x, n.dtype), axis=axis_of(dim, rank_of(x)))


@aten("aten._softmax.default", "aten.softmax.int")
def softmax(n: TorchNode, x: Value, dim: int, *rest: Any) -> Imported:
    return _softmax(n, "softmax", x, dim)


@aten("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(n: TorchNode, x: Value, dim: int, *rest: Any) -> Imported:
    return _softmax(n, "log_softmax", x, dim)


@aten("aten.layer_norm.default")
def layer_norm(
    n: TorchNode, x: Value, shape: Sequence[Any], weight: Value | None, bias: Value | None, epsilon: float, *rest: Any
) -> Imported:
    if not shape:
        return Decline("over no axis")
    return n.add("layer_norm", x, weight, bias, axis=rank_of(x) - len(shape), epsilon=float(epsilon))


@aten("aten.native_layer_norm.default")
def native_layer_norm(
    n: TorchNode, x: Value, shape: Sequence[Any], weight: Value | None, bias: Value | None, epsilon: float
) -> Imported:
    if n.uses(1) or n.uses(2) or not shape:
        return _STATISTICS
    return [n.add("layer_norm", x, weight, bias, axis=rank_of(x) - len(shape), epsilon=float(epsilon)), None, None]


def _epsilon(epsilon: float | None, dtype: DType) -> float:
    """torch's default is the machine epsilon of the type it computes in."""
    return float(np.finfo(np.float64 if dtype.bits == 64 else np.float32).eps) if epsilon is None else float(epsilon)


@aten("aten.rms_norm.default")
def rms_norm(n: TorchNode, x: Value, shape: Sequence[Any], weight: Value | None, epsilon: float | None) -> Imported:
    if not shape or (epsilon is None and n.dtype != F32):
        return Decline("over no axis, or with the default epsilon of a half type")
    return n.add("rms_norm", x, weight, axis=rank_of(x) - len(shape), epsilon=_epsilon(epsilon, n.dtype))


@aten("aten._fused_rms_norm.default")
def fused_rms_norm(n: TorchNode, x: Value, shape: Sequence[Any], weight: Value | None, epsilon: float | None) -> Imported:
    if n.uses(1):
        return _STATISTICS
    found = rms_norm(n, x, shape, weight, epsilon)
    return found if isinstance(found, Decline) else [found, None]


@aten("aten.group_norm.default")
def group_norm(
    n: TorchNode, x: Value, groups: int, weight: Value | None, bias: Value | None, epsilon: float, *rest: Any
) -> Imported:
    return n.add("group_norm", x, weight, bias, groups=int(groups), epsilon=float(epsilon))


@aten("aten.native_group_norm.default")
def native_group_norm(
    n: TorchNode, x: Value, weight: Value | None, bias: Value | None, batch: Any, channels: Any, places: Any, groups: int,
    epsilon: float,
) -> Imported:  # fmt: skip
    if n.uses(1) or n.uses(2):
        return _STATISTICS
    return [n.add("group_norm", x, weight, bias, groups=int(groups), epsilon=float(epsilon)), None, None]


@aten("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    n: TorchNode, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, epsilon: float
) -> Imported:
    if n.uses(1) or n.uses(2):
        return _STATISTICS
    channels = shape_of_value(x)[1]
    if not isinstance(channels, int):
        return Decline("the number of channels is not fixed")
    dtype = dtype_of_value(mean)
    scale = weight if weight is not None else n.constant(np.ones(channels), dtype)
    offset = bias if bias is not None else n.constant(np.zeros(channels), dtype)
    return [n.add("batch_norm", x, scale, offset, mean, var, epsilon=float(epsilon)), None, None]
