"""Pooling: folds over sliding windows. Maximum and sum are separable, so the references fold one axis after the other.

max_pool      the largest element of each window; padding never wins
average_pool  the mean; `count_include_pad` says whether padding counts in the divisor (what rounding up adds never does)
lp_pool       (sum |x| ** p) ** (1 / p)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.window import Frame, Ints, counts_of, framed, tap, taps, window_counts
from hotfuse.ir.types import I64, TensorType, Type

Array = np.ndarray[Any, Any]


def lowest(dtype: np.dtype[Any]) -> Any:
    """The least value of a numeric type: what a maximum starts from."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.type(-np.inf)


def _fold(function: Any, frame: Frame, counts: Ints, out: Array | None = None) -> Array:
    """`function` over each window of a padded input, axis by axis from the last, so that strides shrink the work early."""
    x, kernel, strides, dilations = frame.x, frame.kernel, frame.strides, frame.dilations
    for i in reversed(range(len(kernel))):
        along = (slice(None),) * (2 + i)
        views = [
            x[(*along, slice(t * dilations[i], t * dilations[i] + (counts[i] - 1) * strides[i] + 1, strides[i]))]
            for t in range(kernel[i])
        ]
        x = views[0] if len(views) == 1 else function(views[0], views[1], out=out if i == 0 else None)
        for view in views[2:]:
            function(x, view, out=x)
    if out is not None and x is not out:
        np.copyto(out, x)
        return out
    return x


def max_pool(
    x: Array, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False, out: Array | None = None
) -> Array:
    counts = counts_of(x, kernel, strides, pads, dilations, ceil)
    frame = framed(x, kernel, strides, pads, dilations, counts, lowest(x.dtype))
    result = _fold(np.maximum, frame, counts, out)
    return result.copy() if np.may_share_memory(result, x) else result


def max_pool_indices(
    x: Array, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False, order: str = "plane"
) -> tuple[Array, Array]:
    """The maximum and its place; of equal elements the first one in the window."""
    counts = counts_of(x, kernel, strides, pads, dilations, ceil)
    sizes = x.shape[2:]
    plane = np.arange(prod(sizes), dtype=np.int64).reshape((1, 1, *sizes), order="F" if order == "tensor_column" else "C")
    frame = framed(x, kernel, strides, pads, dilations, counts, lowest(x.dtype))
    places = framed(plane, kernel, strides, pads, dilations, counts, -1, sparse=frame.strides != strides)
    best = np.full((*x.shape[:2], *counts), lowest(x.dtype), dtype=x.dtype)
    indices = np.full(best.shape, -1, dtype=np.int64)
    for _, offsets in taps(frame.kernel, frame.dilations):
        value, place = (tap(f.x, offsets, frame.strides, counts) for f in (frame, places))
        better = (place >= 0) & ((indices < 0) | (value > best) | (np.isnan(value) & ~np.isnan(best)))
        np.copyto(best, value, where=better)
        np.copyto(indices, place, where=better)
    if order != "plane":
        indices += (np.arange(prod(x.shape[:2])) * prod(sizes)).reshape(*x.shape[:2], *(1,) * len(sizes))
    return best, indices


def _divisor(x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, counts: Ints, include: bool) -> Array:
    """How many elements each window averages over: the outer product of a count along each axis."""
    n = len(kernel)
    axes = []
    for i, size in enumerate(x.shape[2:]):
        places = np.arange(counts[i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i] - pads[i]
        low, high = (-pads[i], size + pads[i + n]) if include else (0, size)
        axes.append(((places >= low) & (places < high)).sum(axis=1))
    return reduce(np.multiply.outer, axes)


def average_pool(
    x: Array,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil: bool = False,
    count_include_pad: bool = False,
    divisor: int | None = None,
) -> Array:
    counts = counts_of(x, kernel, strides, pads, dilations, ceil)
    total = _fold(np.add, framed(x, kernel, strides, pads, dilations, counts), counts)
    if divisor is not None:
        return total / x.dtype.type(divisor)  # type: ignore[no-any-return]
    by = _divisor(x, kernel, strides, pads, dilations, counts, count_include_pad)
    return total / by.astype(x.dtype)  # type: ignore[no-any-return]


def lp_pool(x: Array, *, p: float, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False) -> Array:
    counts = counts_of(x, kernel, strides, pads, dilations, ceil)
    total = _fold(np.add, framed(np.abs(x) ** x.dtype.type(p), kernel, strides, pads, dilations, counts), counts)
    return total ** x.dtype.type(1 / p)  # type: ignore[no-any-return]


def _pool_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    if x.shape is None:
        return (TensorType(x.dtype, call.unknown(len(attrs["kernel"]) + 2)),)
    spatial = window_counts(
        call, x.shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"], attrs["dilations"], attrs.get("ceil", False)
    )
    return (TensorType(x.dtype, (*x.shape[:2], *spatial)),)


def _pool_indices_infer(call: Call) -> Sequence[Type]:
    (values,) = _pool_infer(call)
    assert isinstance(values, TensorType)
    return values, TensorType(I64, values.shape)


def _pool_flops(call: Call, types: Sequence[Type]) -> Dim:
    size: int = prod(call.attrs["kernel"])
    return size * size_of(types)


def _samples(**more: Any) -> list[Sample]:
    rng = np.random.default_rng(0)
    cases = (
        ((2, 3, 7, 8), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
        ((1, 2, 6, 7), (2, 3), (2, 1), (0, 0, 0, 0), (1, 2), True),
        ((1, 2, 9), (3,), (2,), (0, 1), (1,), True),
        ((1, 1, 4, 5, 4), (2, 2, 1), (1, 2, 1), (0, 1, 0, 0, 0, 0), (1, 1, 1), False),
        ((1, 1, 4), (1,), (1,), (0, 0), (1,), False),
    )
    return [
        Sample(
            (rng.standard_normal(shape).astype(np.float32),),
            {"kernel": k, "strides": s, "pads": p, "dilations": d, "ceil": c, **more},
        )
        for shape, k, s, p, d, c in cases
    ]


define(
    OpDef(
        "max_pool", _pool_infer, max_pool, Pattern.WINDOW, "the largest element of each window",
        loops=Loops("max(a, b)", "-inf"), flops=_pool_flops, samples=_samples,
    )
)  # fmt: skip
define(
    OpDef(
        "max_pool_indices", _pool_indices_infer, max_pool_indices, Pattern.WINDOW,
        "the largest element of each window and its place: in its plane, or (order) in the whole tensor, by rows or columns",
        loops=Loops("max(a, b)", "-inf"), flops=_pool_flops, samples=lambda: _samples(order="plane"),
    )
)  # fmt: skip
define(
    OpDef(
        "average_pool", _pool_infer, widened(average_pool), Pattern.WINDOW,
        "the mean of each window; `divisor` overrides its count",
        loops=Loops("a + b", 0.0, finish="a / n"), flops=_pool_flops,
        samples=lambda: [*_samples(count_include_pad=False), *_samples(count_include_pad=True)],
    )
)  # fmt: skip
define(
    OpDef(
        "lp_pool", _pool_infer, widened(lp_pool), Pattern.WINDOW, "the p-norm of each window",
        loops=Loops("a + b", 0.0, map="pow(abs(x), p)", finish="pow(a, 1 / p)"), flops=_pool_flops,
        samples=lambda: _samples(p=2.0),
    )
)  # fmt: skip


def max_unpool(x: Array, indices: Array, shape: Array | None = None, *, kernel: Ints, strides: Ints, pads: Ints) -> Array:
    inner = (*x.shape[:2], *(int(d) for d in unpooled_sizes(x.shape[2:], kernel, strides, pads)))  # type: ignore[arg-type]
    flat = np.zeros(prod(inner), dtype=x.dtype)
    flat[indices.reshape(-1)] = x.reshape(-1)
    placed = flat.reshape(inner)
    if shape is None or tuple(shape.tolist()) == inner:
        return placed
    result = np.zeros(tuple(shape.tolist()), dtype=x.dtype)
    result[tuple(slice(0, d) for d in inner)] = placed
    return result


def unpooled_sizes(sizes: Sequence[Dim], kernel: Ints, strides: Ints, pads: Ints) -> list[Dim]:
    n = len(kernel)
    return [(size - 1) * strides[i] - pads[i] - pads[i + n] + kernel[i] for i, size in enumerate(sizes)]


def _max_unpool_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    if call.has(2):
        wanted = call.contents(2)
        return (TensorType(x.dtype, wanted if wanted is not None else call.unknown(x.rank)),)
    if x.shape is None:
        return (x,)
    spatial = unpooled_sizes(x.shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"])
    return (TensorType(x.dtype, (*x.shape[:2], *spatial)),)


define(
    OpDef(
        "max_unpool", _max_unpool_infer, max_unpool, Pattern.SCATTER,
        "each element at the place it had before pooling, zero elsewhere; places count in the whole tensor",
        flops=lambda call, types: 0,
        samples=lambda: [
            Sample((np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), np.array([[[[5, 7], [13, 15]]]])), {
                "kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}),
        ],
    )
)  # fmt: skip
