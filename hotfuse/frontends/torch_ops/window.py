"""Convolutions and pooling. Sizes of windows are fixed numbers; sizes of tensors need not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.frontends.torch_node import Decline, Imported, TorchNode, aten, dtype_of_value, rank_of
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32

_SIZES = Decline("the sizes of its window depend on the model's inputs")


def _per_axis(numbers: Any, count: int) -> tuple[int, ...] | None:
    """One number per spatial axis: torch writes a single one for all."""
    listed = tuple(numbers) if isinstance(numbers, (tuple, list)) else (numbers,)
    if not all(isinstance(v, int) for v in listed):
        return None
    return listed * count if len(listed) == 1 else listed


@aten("aten.convolution.default")
def convolution(
    n: TorchNode, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: Any,
) -> Imported:  # fmt: skip
    axes = rank_of(weight) - 2
    numbers = [_per_axis(v, axes) for v in (stride, padding, dilation, output_padding)]
    strides, pads, dilations, extra = numbers
    if rank_of(x) != rank_of(weight) or not isinstance(groups, int) or None in numbers or not n.dtype.is_float:
        return _SIZES
    assert strides is not None
    assert pads is not None
    assert dilations is not None
    assert extra is not None
    attrs: dict[str, Any] = {"strides": strides, "pads": pads + pads, "dilations": dilations, "groups": groups}
    if transposed:
        return n.add("conv_transpose", x, weight, bias, **attrs, output_padding=extra)
    return n.add("conv", x, weight, bias, **attrs)


def _pool_attrs(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, axes: int) -> dict[str, Any] | None:
    numbers = [_per_axis(v, axes) for v in (kernel, stride if stride else kernel, padding, dilation)]
    if None in numbers:
        return None
    kernels, strides, pads, dilations = numbers
    assert pads is not None
    return {"kernel": kernels, "strides": strides, "pads": pads + pads, "dilations": dilations, "ceil": bool(ceil)}


def _batched(n: TorchNode, op: str, x: Value, axes: int, attrs: dict[str, Any]) -> Value:
    """A pooling node; torch also takes inputs without a batch axis."""
    if rank_of(x) == axes + 2:
        return n.add(op, x, **attrs)
    whole = n.add(op, n.add("unsqueeze", x, axes=(0,)), **attrs)
    return n.add("squeeze", whole, axes=(0,))


@aten("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(
    n: TorchNode, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Imported:
    axes = 3 if "3d" in n.name else 2
    attrs = _pool_attrs(kernel, stride, padding, dilation, ceil, axes)
    if n.uses(1):
        return Decline("the places of its maxima are used")
    if attrs is None or not n.dtype.is_float:
        return _SIZES
    return [_batched(n, "max_pool", x, axes, attrs), None]


@aten("aten.max_pool2d.default", "aten.max_pool1d.default", "aten.max_pool3d.default")
def max_pool(n: TorchNode, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Imported:
    axes = int(n.name[len("aten.max_pool")])
    attrs = _pool_attrs(kernel, stride, padding, dilation, ceil, axes)
    return _SIZES if attrs is None or not n.dtype.is_float else _batched(n, "max_pool", x, axes, attrs)


@aten("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def average_pool(
    n: TorchNode, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: int | None
) -> Imported:
    axes = 3 if "3d" in n.name else 2
    attrs = _pool_attrs(kernel, stride, padding, 1, ceil, axes)
    if attrs is None or not n.dtype.is_float:
        return _SIZES
    return _batched(n, "average_pool", x, axes, {**attrs, "count_include_pad": bool(include), "divisor": divisor})


@aten("aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_average_pool(n: TorchNode, x: Value, size: Sequence[Any]) -> Imported:
    if any(s != 1 for s in size) or dtype_of_value(x).bits < F32.bits:
        return Decline("windows of different sizes")
    rank = rank_of(x)
    return n.add("reduce_mean", x, axes=tuple(range(rank - len(size), rank)), keepdims=True)
