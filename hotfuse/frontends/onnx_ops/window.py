"""ONNX convolutions and pooling. `auto_pad` becomes explicit pads, which may be expressions of the input's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, symbols_of
from hotfuse.ir.graph import Value
from hotfuse.ir.types import Shape, TensorType

UNKNOWN_SIZES = "automatic padding needs sizes that are known before the model runs"


def weight_window(n: OnnxNode, data: int, weight: int) -> dict[str, Any] | Decline:
    """Strides, pads and dilations of a node whose kernel is as large as its weight."""
    shape = n.type(weight).shape
    kernel: Sequence[Dim] | None = n.attr("kernel_shape")
    if shape is not None:
        if kernel is not None and any(isinstance(d, int) and d != k for d, k in zip(shape[2:], kernel, strict=False)):
            raise InvalidModel(f"kernel_shape {list(kernel)} does not fit the weight {n.type(weight)}")
        kernel = shape[2:]
    if kernel is None:
        return Decline("the shape of the kernel is not known")
    return window_attrs(n, kernel, n.type(data).shape)


def window_attrs(n: OnnxNode, kernel: Sequence[Dim], shape: Shape | None) -> dict[str, Any] | Decline:
    """Strides, pads and dilations from the attributes; absent ones have their defaults."""
    rank = len(kernel)
    strides = tuple(n.attr("strides") or (1,) * rank)
    dilations = tuple(n.attr("dilations") or (1,) * rank)
    pads: Sequence[Dim] = tuple(n.attr("pads") or (0,) * (2 * rank))
    auto = n.attr("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        if shape is None or any(s.name.startswith("?") for s in symbols_of(shape[2:])):
            return Decline(UNKNOWN_SIZES)
        totals = [
            maximum((ceildiv(size, strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - size, 0)
            for i, size in enumerate(shape[2:])
        ]
        pads = split_pads(totals, auto == "SAME_UPPER")
    elif auto not in ("NOTSET", ""):
        raise InvalidModel(f"auto_pad {auto!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    return {"strides": strides, "pads": pads, "dilations": dilations}


def split_pads(totals: Sequence[Dim], more_at_end: bool) -> tuple[Dim, ...]:
    """Each total divided between both ends; the odd element goes to the end, or to the start."""
    halves = [floordiv(t, 2) for t in totals]
    rests = [t - h for t, h in zip(totals, halves, strict=True)]
    return (*halves, *rests) if more_at_end else (*rests, *halves)


@onnx_op("Conv")
def conv(n: OnnxNode) -> Imported:
    attrs = weight_window(n, 0, 1)
    if isinstance(attrs, Decline):
        return attrs
    return n.add("conv", n.input(0), n.input(1), n.optional(2), groups=n.attr("group", 1), **attrs)


@onnx_op("ConvTranspose")
def conv_transpose(n: OnnxNode) -> Imported:
    w, x = n.type(1).shape, n.type(0).shape
    if w is None or x is None:
        return Decline("the shape of the kernel is not known")
    rank = len(w) - 2
    strides = tuple(n.attr("strides") or (1,) * rank)
    dilations = tuple(n.attr("dilations") or (1,) * rank)
    extra = tuple(n.attr("output_padding") or (0,) * rank)
    pads: Sequence[Dim] = tuple(n.attr("pads") or (0,) * (2 * rank))
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted is not None or auto.startswith("SAME"):
        if any(s.name.startswith("?") for s in symbols_of(x[2:])):
            return Decline(UNKNOWN_SIZES)
        sizes = wanted[-rank:] if wanted is not None else [d * s for d, s in zip(x[2:], strides, strict=True)]
        totals = [(x[2 + i] - 1) * strides[i] + extra[i] + (w[2 + i] - 1) * dilations[i] + 1 - sizes[i] for i in range(rank)]
        pads = split_pads(totals, auto == "SAME_UPPER")
    elif auto == "VALID":
        pads = (0,) * (2 * rank)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra}
    return n.add("conv_transpose", n.input(0), n.input(1), n.optional(2), groups=n.attr("group", 1), **attrs)


@onnx_op("DeformConv")
def deform_conv(n: OnnxNode) -> Imported:
    attrs = weight_window(n, 0, 1)
    if isinstance(attrs, Decline) or n.rank(0) != 4:
        return Decline("only images of two spatial axes are covered")
    inputs = (n.input(0), n.input(1), n.input(2), n.optional(3), n.optional(4))
    return n.add("deform_conv", *inputs, groups=n.attr("group", 1), offset_groups=n.attr("offset_group", 1), **attrs)


@onnx_op("Col2Im")
def col2im(n: OnnxNode) -> Imported:
    shape = n.type(1).shape
    if shape is None or not isinstance(shape[0], int):
        return Decline("the number of spatial axes is not known")
    attrs = window_attrs(n, (1,) * shape[0], None)
    assert not isinstance(attrs, Decline)
    return n.add("col2im", n.input(0), n.input(1), n.input(2), **attrs)


# pooling


def _pool_attrs(n: OnnxNode) -> dict[str, Any] | Decline:
    kernel = n.required("kernel_shape")
    attrs = window_attrs(n, kernel, n.type(0).shape)
    return attrs if isinstance(attrs, Decline) else {"kernel": tuple(kernel), "ceil": bool(n.attr("ceil_mode", 0)), **attrs}


@onnx_op("MaxPool")
def max_pool(n: OnnxNode) -> Imported:
    attrs = _pool_attrs(n)
    if isinstance(attrs, Decline):
        return attrs
    if not n.wants(1):
        return n.add("max_pool", n.input(0), **attrs)
    order = "tensor_column" if n.attr("storage_order", 0) else "tensor"
    return n.add_many("max_pool_indices", [n.input(0)], 2, order=order, **attrs)


@onnx_op("AveragePool")
def average_pool(n: OnnxNode) -> Imported:
    attrs = _pool_attrs(n)
    if isinstance(attrs, Decline):
        return attrs
    return n.add("average_pool", n.input(0), count_include_pad=bool(n.attr("count_include_pad", 0)), **attrs)


@onnx_op("LpPool")
def lp_pool(n: OnnxNode) -> Imported:
    attrs = _pool_attrs(n)
    return attrs if isinstance(attrs, Decline) else n.add("lp_pool", n.input(0), p=float(n.attr("p", 2)), **attrs)


def _spatial(n: OnnxNode) -> tuple[int, ...] | None:
    rank = n.rank(0)
    return None if rank is None else tuple(range(2, rank))


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(n: OnnxNode) -> Imported:
    axes = _spatial(n)
    if axes is None:
        return Decline("the rank of the input is not known")
    x = n.input(0)
    if n.op_type != "GlobalLpPool":
        return n.add("reduce_mean" if n.op_type == "GlobalAveragePool" else "reduce_max", x, axes=axes, keepdims=True)
    p = float(n.attr("p", 2))
    total = n.add("reduce_sum", _power(n, n.add("abs", x), p), axes=axes, keepdims=True)
    return _power(n, total, 1 / p)


def _power(n: OnnxNode, value: Value, exponent: float) -> Value:
    assert isinstance(value.type, TensorType)
    return value if exponent == 1 else n.add("pow", value, n.scalar(exponent, value))


@onnx_op("MaxUnpool")
def max_unpool(n: OnnxNode) -> Imported:
    kernel = tuple(n.attr("kernel_shape"))
    strides = tuple(n.attr("strides") or (1,) * len(kernel))
    pads = tuple(n.attr("pads") or (0,) * (2 * len(kernel)))
    return n.add("max_unpool", n.input(0), n.input(1), n.optional(2), kernel=kernel, strides=strides, pads=pads)
