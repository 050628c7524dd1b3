"""Convolutions over any number of spatial axes, with groups.

    conv:            y[n, o, p] = bias[o] + sum over c, t of w[o, c, t] * x[n, c, p * stride + t * dilation - before]
    conv_transpose:  the gradient of conv: y[n, o, p * stride + t * dilation - before] += w[c, o, t] * x[n, c, p]

The reference is a matrix product over patches; kernels of one tap need no patches, depthwise kernels no matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.contraction import matmul
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.window import Ints, at_place, check_scratch, counts_of, framed, patches, spatial, tap, taps, window_counts
from hotfuse.ir.types import TensorType, Type, numel

Array = np.ndarray[Any, Any]

PATCH_BYTES = 8 << 20  # patches are made in blocks: from 2 to 32 MiB take the same time, and large images stay bounded
DEPTHWISE_BYTES = 1 << 20  # channels in a block of a depthwise convolution: smaller ones pay more for calls than they save


def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int = 1,
    out: Array | None = None,
) -> Array:
    kernel = w.shape[2:]
    counts = counts_of(x, kernel, strides, pads, dilations)
    usable = out is not None and out.flags.c_contiguous  # the result is written through reshaped views
    result = out if usable else np.empty((x.shape[0], w.shape[0], *counts), dtype=x.dtype)
    assert result is not None
    frame = framed(x, kernel, strides, pads, dilations, counts)
    x, strides, dilations = frame.x, frame.strides, frame.dilations
    if frame.kernel != kernel:
        w, kernel = w[np.ix_(np.arange(w.shape[0]), np.arange(w.shape[1]), *frame.kept)], frame.kernel
    if groups > 1 and w.shape[1] == 1:
        _depthwise(x, w, strides, dilations, counts, result)
    elif prod(kernel) == 1:
        _product(tap(x, (0,) * len(kernel), strides, counts), w, groups, result)
    else:
        _by_patches(x, w, strides, dilations, counts, groups, result)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(kernel))
    if out is not None and not usable:
        out[...] = result
        return out
    return result


def _product(columns: Array, w: Array, groups: int, result: Array) -> None:
    """result[n, group] = w[group] @ columns[n, group]: a kernel of one tap."""
    n, depth, per_group = columns.shape[0], w.shape[1], w.shape[0] // groups
    right = columns.reshape(n, groups, depth, prod(columns.shape[2:]))
    matmul(w.reshape(groups, per_group, depth), right, out=result.reshape(n, groups, per_group, right.shape[3]))


def _by_patches(x: Array, w: Array, strides: Ints, dilations: Ints, counts: Ints, groups: int, result: Array) -> None:
    """Copy the patches of some rows of the result into a buffer, and multiply; repeat for the next rows."""
    view = patches(x, w.shape[2:], strides, dilations, counts)
    channels, kernel = view.shape[1], w.shape[2:]
    row_size = channels * prod(kernel) * prod(counts[1:])
    rows = max(1, min(counts[0], PATCH_BYTES // max(row_size * x.itemsize, 1)))
    buffer = np.empty(row_size * rows, dtype=x.dtype)
    depth, per_group = w[0].size, w.shape[0] // groups
    weights = w.reshape(groups, per_group, depth)
    flat = result.reshape(x.shape[0], groups, per_group, prod(counts))
    across = prod(counts[1:])
    for image in range(x.shape[0]):
        for start in range(0, counts[0], rows):
            count = min(rows, counts[0] - start)
            block = buffer[: row_size * count].reshape(channels, *kernel, count, *counts[1:])
            np.copyto(block, view[image][spatial((slice(start, start + count), *(slice(None),) * (len(kernel) - 1)))])
            place = slice(start * across, (start + count) * across)
            matmul(weights, block.reshape(groups, depth, count * across), out=flat[image, :, :, place])


def _depthwise(x: Array, w: Array, strides: Ints, dilations: Ints, counts: Ints, result: Array) -> None:
    """One input channel for each group: a weighted sum of shifted views, a few channels at a time."""
    channels, repeat = x.shape[1], w.shape[0] // x.shape[1]
    places = prod(counts)
    step = max(1, DEPTHWISE_BYTES // max(places * repeat * x.itemsize, 1))
    kernel = w.shape[2:]
    ones = (1,) * len(kernel)
    for image in range(x.shape[0]):
        for first in range(0, channels, step):
            last = min(first + step, channels)
            target = result[image, first * repeat : last * repeat].reshape(last - first, repeat, *counts)
            scratch = np.empty_like(target)
            weights = w[first * repeat : last * repeat].reshape(last - first, repeat, *kernel)
            for number, (place, offsets) in enumerate(taps(kernel, dilations)):
                seen = tap(x[image, first:last], offsets, strides, counts)[:, None]
                weight = at_place(weights, place).reshape(last - first, repeat, *ones)
                np.multiply(seen, weight, out=scratch if number else target)
                if number:
                    target += scratch


def _bias_checked(call: Call, channels: Dim) -> None:
    if call.has(2):
        bias = call.shape(2)
        if bias is not None and (len(bias) != 1 or NO_FACTS.decide(bias[0], channels) is False):
            raise call.fail(f"the bias has shape {bias}, but there are {channels} output channels")


def _operands(call: Call) -> tuple[TensorType, TensorType]:
    x, w = call.tensor(0), call.tensor(1)
    if x.dtype != w.dtype:
        raise call.fail(f"input and weight have different types, {x.dtype} and {w.dtype}; cast one of them")
    if x.shape is not None and w.shape is not None and (len(x.shape) != len(w.shape) or len(x.shape) < 3):
        raise call.fail(f"input {x} and weight {w} must have the same rank, at least 3")
    return x, w


def _conv_infer(call: Call) -> Sequence[Type]:
    x, w = _operands(call)
    attrs = call.attrs
    if x.shape is None or w.shape is None:
        return (TensorType(x.dtype, call.unknown(len(attrs["strides"]) + 2)),)
    groups = attrs.get("groups", 1)
    if NO_FACTS.decide(x.shape[1], w.shape[1] * groups) is False:
        raise call.fail(f"the input has {x.shape[1]} channels, the weight takes {groups} groups of {w.shape[1]}")
    if isinstance(w.shape[0], int) and w.shape[0] % groups:
        raise call.fail(f"{w.shape[0]} output channels do not divide into {groups} groups")
    _bias_checked(call, w.shape[0])
    spatial = window_counts(call, x.shape[2:], w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"])
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *spatial)),)


def conv_flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(1)
    return 0 if shape is None else 2 * numel(shape[1:]) * size_of(types)


def _normal(*shapes: Ints) -> tuple[Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


def _conv_samples() -> list[Sample]:
    def attrs(strides: Ints, pads: Ints, dilations: Ints, groups: int = 1) -> dict[str, Any]:
        return {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}

    return [
        Sample(_normal((2, 3, 7, 6), (4, 3, 3, 3), (4,)), attrs((1, 1), (1, 1, 1, 1), (1, 1))),
        Sample(_normal((1, 4, 9, 8), (6, 2, 3, 2)), attrs((2, 1), (0, 1, 2, 0), (2, 1), 2)),
        Sample(_normal((2, 4, 5, 5), (8, 4, 1, 1), (8,)), attrs((2, 2), (0, 0, 0, 0), (1, 1))),
        Sample(_normal((2, 3, 6, 5), (6, 1, 3, 3), (6,)), attrs((1, 2), (1, 1, 1, 1), (1, 1), 3)),
        Sample(_normal((1, 2, 9), (3, 2, 4)), attrs((2,), (3, 1), (1,))),
        Sample(_normal((1, 2, 4, 5, 4), (3, 2, 2, 3, 2)), attrs((1, 1, 1), (0, 1, 0, 1, 0, 1), (1, 2, 1))),
        Sample(_normal((0, 2, 4, 4), (3, 2, 3, 3)), attrs((1, 1), (0, 0, 0, 0), (1, 1))),
    ]


define(
    OpDef(
        "conv", _conv_infer, widened(conv), Pattern.WINDOW, "correlation of channels with a sliding kernel, by groups",
        loops=Loops("a + b", 0.0, map="x * y"), flops=conv_flops, samples=_conv_samples,
    )
)  # fmt: skip


def conv_transpose(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int = 1,
    output_padding: Ints | None = None,
) -> Array:
    kernel, sizes, n = w.shape[2:], x.shape[2:], len(strides)
    extra = output_padding or (0,) * n
    spans = [(kernel[i] - 1) * dilations[i] + 1 for i in range(n)]
    full = [(sizes[i] - 1) * strides[i] + spans[i] for i in range(n)]
    outer = [full[i] + extra[i] - pads[i] - pads[i + n] for i in range(n)]
    canvas_sizes = [max(full[i], pads[i] + outer[i]) + max(-pads[i], 0) for i in range(n)]
    per_group = w.shape[1]
    check_scratch("conv_transpose", (x.shape[0], groups * per_group, *canvas_sizes), x.itemsize, x.size + w.size + prod(outer))
    canvas = np.zeros((x.shape[0], groups * per_group, *canvas_sizes), dtype=x.dtype)
    left = np.ascontiguousarray(w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2))
    right = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    columns = matmul(left, right).reshape(x.shape[0], groups * per_group, *kernel, *sizes)
    for place, offsets in taps(kernel, dilations):
        start = [o + max(-pads[i], 0) for i, o in enumerate(offsets)]
        target = tap(canvas, start, strides, sizes)
        target += at_place(columns, place)
    result = canvas[spatial(slice(max(pads[i], 0), max(pads[i], 0) + outer[i]) for i in range(n))]
    result = np.ascontiguousarray(result)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * n)
    return result


def transposed_size(size: Dim, kernel: Dim, stride: int, before: Dim, after: Dim, dilation: int, extra: int) -> Dim:
    return (size - 1) * stride + (kernel - 1) * dilation + 1 + extra - before - after


def _conv_transpose_infer(call: Call) -> Sequence[Type]:
    x, w = _operands(call)
    attrs, n = call.attrs, len(call.attrs["strides"])
    if x.shape is None or w.shape is None:
        return (TensorType(x.dtype, call.unknown(n + 2)),)
    if NO_FACTS.decide(x.shape[1], w.shape[0]) is False:
        raise call.fail(f"the input has {x.shape[1]} channels, the weight takes {w.shape[0]}")
    groups, pads, extra = attrs.get("groups", 1), attrs["pads"], attrs.get("output_padding") or (0,) * n
    if not len(x.shape) - 2 == n == len(attrs["dilations"]) == len(extra) or len(pads) != 2 * n:
        raise call.fail(f"strides, dilations, pads and output_padding do not fit {len(x.shape) - 2} spatial axes")
    if isinstance(w.shape[0], int) and w.shape[0] % groups:
        raise call.fail(f"{w.shape[0]} input channels do not divide into {groups} groups")
    channels = w.shape[1] * groups
    _bias_checked(call, channels)
    spatial = []
    for i in range(n):
        stride, dilation = attrs["strides"][i], attrs["dilations"][i]
        size = transposed_size(x.shape[2 + i], w.shape[2 + i], stride, pads[i], pads[i + n], dilation, extra[i])
        if isinstance(size, int) and size < 1:
            raise call.fail(f"spatial axis {i} would have size {size}; pads {pads} take more than there is")
        spatial.append(size)
    return (TensorType(x.dtype, (x.shape[0], channels, *spatial)),)


def _conv_transpose_flops(call: Call, types: Sequence[Type]) -> Dim:
    x, w = call.shape(0), call.shape(1)
    return 0 if x is None or w is None else 2 * numel(x) * numel(w[1:])


define(
    OpDef(
        "conv_transpose", _conv_transpose_infer, widened(conv_transpose), Pattern.WINDOW,
        "the transpose of conv: spreads each input",
        loops=Loops("a + b", 0.0, map="x * y"), flops=_conv_transpose_flops,
        samples=lambda: [
            Sample(_normal((1, 4, 5, 6), (4, 3, 3, 3), (3,)), {
                "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1, "output_padding": (1, 0)}),
            Sample(_normal((2, 4, 4), (4, 2, 3)), {
                "strides": (1,), "pads": (0, 0), "dilations": (2,), "groups": 2, "output_padding": (0,)}),
        ],
    )
)  # fmt: skip
