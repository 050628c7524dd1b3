"""Reductions, products, normalizations, windows and attention in torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hotfuse.ir.graph import Node, Value
from hotfuse.ir.types import BOOL
from hotfuse.runtime.torch_eager.table import EAGER, Function, Maker, Tensor, dtype_of, eager, rank_of, shape_of


def _axes(node: Node, x: Value) -> tuple[int, ...]:
    axes = node.attrs.get("axes")
    return tuple(range(rank_of(x))) if axes is None else tuple(axes)


def _empty(x: Value) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape_of(x))


def _fold(function: Any, floats_only: bool = False, keepdims: bool = True) -> Maker:
    def make(node: Node, values: Sequence[Value]) -> Function | None:
        axes, keep, dtype = _axes(node, values[0]), node.attrs.get("keepdims", keepdims), dtype_of(values[0])
        if not axes or (floats_only and not dtype.is_float):
            return None
        if function in (torch.sum, torch.mean):
            return lambda x: function(x, axes, keepdim=keep, dtype=x.dtype)
        return None if _empty(values[0]) and function in (torch.amax, torch.amin) else lambda x: function(x, axes, keepdim=keep)

    return make


EAGER["reduce_sum"] = _fold(torch.sum)
EAGER["reduce_mean"] = _fold(torch.mean, floats_only=True)
EAGER["reduce_max"] = _fold(torch.amax)
EAGER["reduce_min"] = _fold(torch.amin)
EAGER["reduce_any"] = _fold(torch.any, keepdims=False)
EAGER["reduce_all"] = _fold(torch.all, keepdims=False)


@eager("reduce_prod")
def reduce_prod(node: Node, values: Sequence[Value]) -> Function | None:
    axes, keep = (
        sorted((a % rank_of(values[0]) for a in _axes(node, values[0])), reverse=True),
        node.attrs.get("keepdims", True),
    )

    def run(x: Tensor) -> Tensor:
        for axis in axes:
            x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
        return x

    return run if axes else None


@eager("argmax", "argmin")
def argument(node: Node, values: Sequence[Value]) -> Function | None:
    function = torch.argmax if node.op == "argmax" else torch.argmin
    axis, keep = node.attrs.get("axis"), node.attrs.get("keepdims", False)
    if node.attrs.get("last", False) or (axis is None and keep):
        return None
    return lambda x: function(x, axis, keepdim=keep)


@eager("cumsum", "cumprod")
def running(node: Node, values: Sequence[Value]) -> Function | None:
    function = torch.cumsum if node.op == "cumsum" else torch.cumprod
    if len(values) > 1 or node.attrs.get("exclusive", False) or node.attrs.get("reverse", False):
        return None
    axis = node.attrs.get("axis", 0)
    return lambda x: function(x, axis, dtype=x.dtype)


EAGER["matmul"] = lambda node, values: torch.matmul


@eager("einsum")
def einsum(node: Node, values: Sequence[Value]) -> Function:
    return functools.partial(torch.einsum, node.attrs["equation"])


# normalizations


@eager("softmax", "log_softmax")
def softmax(node: Node, values: Sequence[Value]) -> Function:
    function = torch.softmax if node.op == "softmax" else torch.log_softmax
    axis = node.attrs["axis"]
    return lambda x: function(x, axis)


def _same_types(values: Sequence[Value]) -> bool:
    return all(v.name == "" or dtype_of(v) == dtype_of(values[0]) for v in values)


@eager("layer_norm", "rms_norm")
def trailing_norm(node: Node, values: Sequence[Value]) -> Function | None:
    """torch wants parameters of exactly the normalized shape; the reference also takes those that broadcast."""
    axis, epsilon = node.attrs.get("axis", -1), node.attrs.get("epsilon", 1e-5)
    shape = shape_of(values[0])[axis:]
    fits = all(v.name == "" or shape_of(v) == shape for v in values[1:])
    if not fits or not _same_types(values) or not all(isinstance(d, int) for d in shape):
        return None
    sizes = list(shape)
    if node.op == "rms_norm":
        return lambda x, scale=None: F.rms_norm(x, sizes, scale, epsilon)  # type: ignore[arg-type]
    return lambda x, scale=None, bias=None: torch.layer_norm(x, sizes, scale, bias, epsilon)  # type: ignore[arg-type]


@eager("group_norm")
def group_norm(node: Node, values: Sequence[Value]) -> Function | None:
    groups, epsilon = node.attrs["groups"], node.attrs.get("epsilon", 1e-5)
    if not _same_types(values):
        return None
    return lambda x, scale=None, bias=None: F.group_norm(x, groups, scale, bias, epsilon)


@eager("batch_norm")
def batch_norm(node: Node, values: Sequence[Value]) -> Function | None:
    epsilon = node.attrs.get("epsilon", 1e-5)
    if len({dtype_of(v) for v in values[1:]}) > 1:
        return None
    return lambda x, scale, bias, mean, var: F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


@eager("attention")
def attention(node: Node, values: Sequence[Value]) -> Function | None:
    scale, causal = node.attrs.get("scale"), node.attrs.get("causal", False)
    masked = len(values) > 3 and values[3].name != ""
    if node.attrs.get("align", "start") != "start" or node.attrs.get("softcap", 0.0) or (masked and causal):
        return None
    grouped = shape_of(values[0])[1] != shape_of(values[1])[1]
    if node.attrs.get("unseen", "zero") == "nan":  # torch's own operator gives zeros there
        return None if grouped or causal else functools.partial(_spelled_attention, scale=scale)

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)

    return run


def _spelled_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None) -> Tensor:
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


# windows


def _symmetric(pads: Sequence[int]) -> bool:
    half = len(pads) // 2
    return tuple(pads[:half]) == tuple(pads[half:]) and all(p >= 0 for p in pads)


def _around(pads: Sequence[int]) -> list[int]:
    """Padding in torch's order: from the last axis, before and after."""
    half = len(pads) // 2
    return [p for axis in reversed(range(half)) for p in (pads[axis], pads[axis + half])]


@eager("conv")
def conv(node: Node, values: Sequence[Value]) -> Function:
    strides, pads, dilations = node.attrs["strides"], node.attrs["pads"], node.attrs["dilations"]
    groups, count = node.attrs.get("groups", 1), len(node.attrs["strides"])
    zeros = (0,) * count
    if _symmetric(pads):
        inner, around = tuple(pads[:count]), None
    else:
        inner, around = zeros, _around(pads)

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        source = x if around is None else F.pad(x, around)
        return torch.convolution(source, w, bias, strides, inner, dilations, False, zeros, groups)

    return run


@eager("conv_transpose")
def conv_transpose(node: Node, values: Sequence[Value]) -> Function | None:
    strides, pads, dilations = node.attrs["strides"], node.attrs["pads"], node.attrs["dilations"]
    groups, extra = node.attrs.get("groups", 1), node.attrs.get("output_padding") or (0,) * len(node.attrs["strides"])
    if not _symmetric(pads):
        return None
    inner = tuple(pads[: len(strides)])

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.convolution(x, w, bias, strides, inner, dilations, True, extra, groups)

    return run


_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Any] = {2: F.avg_pool2d, 3: F.avg_pool3d}


def _fits_pool(node: Node, values: Sequence[Value]) -> bool:
    pads, kernel = node.attrs["pads"], node.attrs["kernel"]
    return (
        _symmetric(pads)
        and all(2 * p <= k for p, k in zip(pads, (*kernel, *kernel), strict=True))
        and dtype_of(values[0]) is not BOOL
        and dtype_of(values[0]).is_float
        and not _empty(values[0])
    )


@eager("max_pool")
def max_pool(node: Node, values: Sequence[Value]) -> Function | None:
    a, count = node.attrs, len(node.attrs["kernel"])
    if count not in _MAX or not _fits_pool(node, values):
        return None
    function, pads = _MAX[count], tuple(a["pads"][:count])
    kernel, strides, dilations, ceil = a["kernel"], a["strides"], a["dilations"], a.get("ceil", False)
    return lambda x: function(x, kernel, strides, pads, dilations, ceil_mode=ceil)


@eager("average_pool")
def average_pool(node: Node, values: Sequence[Value]) -> Function | None:
    a, count = node.attrs, len(node.attrs["kernel"])
    if count not in _AVERAGE or not _fits_pool(node, values) or any(d != 1 for d in a["dilations"]):
        return None
    function, pads = _AVERAGE[count], tuple(a["pads"][:count])
    kernel, strides, ceil = a["kernel"], a["strides"], a.get("ceil", False)
    include, divisor = a.get("count_include_pad", False), a.get("divisor")
    return lambda x: function(x, kernel, strides, pads, ceil, include, divisor)
