"""Patches: windows laid out as columns, and columns summed back into an image.

im2col  [batch, channels, *sizes]                   -> [batch, channels * taps, windows]
col2im  [batch, channels * taps, windows]           -> [batch, channels, *image], overlapping elements added
deform_conv  a convolution whose taps are moved by learned offsets and sampled bilinearly
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.contraction import matmul
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.window import (
    Ints,
    at_place,
    check_scratch,
    counts_of,
    padded,
    patches,
    spatial,
    tap,
    taps,
    window_count,
    window_counts,
)
from hotfuse.ir.types import TensorType, Type, numel

Array = np.ndarray[Any, Any]


def im2col(x: Array, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> Array:
    counts = counts_of(x, kernel, strides, pads, dilations)
    view = patches(padded(x, pads), kernel, strides, dilations, counts)
    return view.copy().reshape(x.shape[0], x.shape[1] * prod(kernel), prod(counts))


def _im2col_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    if x.shape is None:
        return (TensorType(x.dtype, call.unknown(3)),)
    counts = window_counts(call, x.shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"], attrs["dilations"])
    return (TensorType(x.dtype, (x.shape[0], x.shape[1] * prod(attrs["kernel"]), numel(counts))),)


_WINDOW = {"kernel": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1)}
define(
    OpDef(
        "im2col", _im2col_infer, im2col, Pattern.MOVEMENT, "each window as a column", flops=lambda call, types: 0,
        samples=lambda: [Sample((np.arange(48, dtype=np.float32).reshape(1, 2, 4, 6),), _WINDOW)],
    )
)  # fmt: skip


def col2im(x: Array, image: Array, kernel: Array, *, strides: Ints, pads: Ints, dilations: Ints) -> Array:
    n, sizes, block = len(strides), tuple(image.tolist()), tuple(kernel.tolist())
    counts = tuple(
        int(window_count(sizes[i], block[i], strides[i], pads[i], pads[i + n], dilations[i]))  # type: ignore[arg-type]
        for i in range(n)
    )
    channels = x.shape[1] // prod(block)
    columns = x.reshape(x.shape[0], channels, *block, *counts)
    shape = (x.shape[0], channels, *(sizes[i] + pads[i] + pads[i + n] for i in range(n)))
    check_scratch("col2im", shape, x.itemsize, x.size + prod(sizes))
    canvas = np.zeros(shape, dtype=x.dtype)
    for place, offsets in taps(block, dilations):
        target = tap(canvas, offsets, strides, counts)
        target += at_place(columns, place)
    return np.ascontiguousarray(canvas[spatial(slice(pads[i], pads[i] + sizes[i]) for i in range(n))])


def _col2im_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    shape = x.shape or (call.fresh(), call.fresh(), call.fresh())
    image, kernel = call.contents(1), call.contents(2)
    if image is None or kernel is None:
        return (TensorType(x.dtype, (shape[0], call.fresh(), *(call.fresh() for _ in attrs["strides"]))),)
    counts = window_counts(call, image, kernel, attrs["strides"], attrs["pads"], attrs["dilations"])
    size = numel(kernel)
    if len(shape) != 3 or NO_FACTS.decide(shape[2], numel(counts)) is False or NO_FACTS.decide(shape[1] % size, 0) is False:
        raise call.fail(f"columns {x} do not fit {numel(counts)} windows of {size} elements")
    return (TensorType(x.dtype, (shape[0], shape[1] // size, *image)),)


_FOLDED = {name: value for name, value in _WINDOW.items() if name != "kernel"}
define(
    OpDef(
        "col2im", _col2im_infer, widened(col2im), Pattern.SCATTER, "columns added back into the image they were cut from",
        flops=lambda call, types: numel(call.shape(0) or ()),
        samples=lambda: [
            Sample((np.arange(120, dtype=np.float32).reshape(1, 12, 10), np.array([4, 6]), np.array([2, 3])), _FOLDED)
        ],
    )
)  # fmt: skip


def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int = 1,
    offset_groups: int = 1,
) -> Array:
    (n, channels), kernel, counts = x.shape[:2], w.shape[2:], offset.shape[2:]
    moves = offset.reshape(n, offset_groups, prod(kernel), 2, *counts)
    factors = None if mask is None else mask.reshape(n, offset_groups, prod(kernel), *counts)
    planes = x.reshape(n, offset_groups, channels // offset_groups, *x.shape[2:])
    columns = np.empty((n, offset_groups, channels // offset_groups, prod(kernel), *counts), dtype=x.dtype)
    for number, (_, offsets) in enumerate(taps(kernel, dilations)):
        rows = np.arange(counts[0])[:, None] * strides[0] - pads[0] + offsets[0] + moves[:, :, number, 0]
        across = np.arange(counts[1])[None, :] * strides[1] - pads[1] + offsets[1] + moves[:, :, number, 1]
        seen = sample_bilinear(planes, rows, across)
        columns[:, :, :, number] = seen if factors is None else seen * factors[:, :, None, number]
    left = w.reshape(groups, w.shape[0] // groups, -1)
    right = columns.reshape(n, groups, left.shape[2], prod(counts))
    result: Array = matmul(left, right).reshape(n, w.shape[0], *counts)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def sample_bilinear(planes: Array, rows: Array, across: Array) -> Array:
    """planes [n, g, c, h, w] at fractional places [n, g, *p] -> [n, g, c, *p]; what lies outside is zero."""
    n, g, c, height, width = planes.shape
    flat = planes.reshape(n, g, c, height * width)
    top, left = np.floor(rows), np.floor(across)
    total: Any = 0
    for y, x in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        weight = (1 - np.abs(rows - y)) * (1 - np.abs(across - x))
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        place = np.where(inside, y * width + x, 0).astype(np.int64).reshape(n, g, 1, -1)
        seen = np.take_along_axis(flat, place, axis=3).reshape(n, g, c, *rows.shape[2:])
        total = total + seen * np.where(inside, weight, 0).astype(planes.dtype)[:, :, None]
    return total  # type: ignore[no-any-return]


def _deform_conv_infer(call: Call) -> Sequence[Type]:
    x, w, offset, attrs = call.tensor(0), call.tensor(1), call.tensor(2), call.attrs
    if x.shape is None or w.shape is None:
        return (TensorType(x.dtype, call.unknown(4)),)
    if len(x.shape) != 4:
        raise call.fail(f"only images of two spatial axes are supported, not {x}")
    if NO_FACTS.decide(x.shape[1], w.shape[1] * attrs.get("groups", 1)) is False:
        raise call.fail(
            f"the input has {x.shape[1]} channels, the weight takes {attrs.get('groups', 1)} groups of {w.shape[1]}"
        )
    counts = window_counts(call, x.shape[2:], w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"])
    expected = (x.shape[0], 2 * attrs.get("offset_groups", 1) * numel(w.shape[2:]), *counts)
    if offset.shape is not None and any(NO_FACTS.decide(a, b) is False for a, b in zip(offset.shape, expected, strict=True)):
        raise call.fail(f"the offsets {offset} must have shape {expected}")
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *counts)),)


def _deform_conv_flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(1)
    return 0 if shape is None else 10 * numel(shape[1:]) * size_of(types)


def _deform_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    shapes = ((1, 2, 5, 5), (3, 2, 2, 2), (1, 8, 4, 4), (3,), (1, 4, 4, 4))
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1, "offset_groups": 1}
    return [Sample(tuple(rng.standard_normal(s).astype(np.float32) for s in shapes), attrs)]


define(
    OpDef(
        "deform_conv", _deform_conv_infer, widened(deform_conv), Pattern.WINDOW,
        "a convolution whose taps are moved by offsets",
        flops=_deform_conv_flops, samples=_deform_samples,
    )
)  # fmt: skip
