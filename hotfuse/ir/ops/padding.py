"""Operators that repeat, reorder or blank elements: pad, tile, flip, roll, trilu, reverse_sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, Contents, OpDef, Pattern, Sample, contents_by_reference, define, infer_same
from hotfuse.ir.ops.movement import few_elements, no_flops, normal_axes, normal_axis
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]

PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pad(x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str = "constant") -> Array:
    """`pads` holds what to add before each axis, then after each; negative numbers take elements away."""
    places = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    count = len(places)
    widths = {axis: (int(pads[i]), int(pads[i + count])) for i, axis in enumerate(places)}
    kept = [slice(None)] * x.ndim
    for axis, (before, after) in widths.items():
        kept[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    x = x[tuple(kept)]
    grown = {axis: (max(b, 0), max(a, 0)) for axis, (b, a) in widths.items()}
    if mode == "constant":
        shape = tuple(d + sum(grown.get(axis, (0, 0))) for axis, d in enumerate(x.shape))
        result = np.full(shape, 0 if value is None else value.reshape(()), dtype=x.dtype)
        result[tuple(slice(grown.get(i, (0, 0))[0], grown.get(i, (0, 0))[0] + d) for i, d in enumerate(x.shape))] = x
        return result
    result = x.copy()
    for axis, width in grown.items():
        if width != (0, 0):
            result = np.take(result, np.pad(np.arange(x.shape[axis]), width, mode=mode), axis=axis)  # type: ignore[call-overload]
    return result


def _pad_infer(call: Call) -> Sequence[Type]:
    x, pads = call.tensor(0), call.contents(1)
    mode = call.attrs.get("mode", "constant")
    if mode not in PAD_MODES:
        raise call.fail(f"there is no mode {mode!r}; the modes are {', '.join(PAD_MODES)}")
    if call.has(2) and call.dtype(2) != x.dtype:
        raise call.fail(f"the value to fill with is {call.dtype(2)}, the tensor {x.dtype}")
    axes = call.ints(3)
    if x.shape is None:
        return (x,)
    if pads is None or (call.has(3) and axes is None):
        return (TensorType(x.dtype, call.unknown(len(x.shape))),)
    places = range(len(x.shape)) if axes is None else normal_axes(call, axes, len(x.shape))
    if len(pads) != 2 * len(places):
        raise call.fail(f"{len(places)} axes need {2 * len(places)} numbers of elements to add, {len(pads)} are given")
    shape = list(x.shape)
    for i, axis in enumerate(places):
        shape[axis] = shape[axis] + pads[i] + pads[i + len(places)]
        if NO_FACTS.decide(x.shape[axis], 0) is True and mode != "constant" and shape[axis] != 0:
            raise call.fail(f"axis {axis} is empty: mode {mode!r} has nothing to fill with")
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise call.fail(f"taking away {tuple(pads)} leaves a negative size of {x}")
    return (TensorType(x.dtype, tuple(shape)),)


define(
    OpDef(
        "pad", _pad_infer, pad, Pattern.MOVEMENT, "elements added around: a constant, or copies of the tensor's own",
        flops=no_flops,
        samples=lambda: [
            Sample((np.arange(6.0).reshape(2, 3), np.array([1, 0, -1, 2]), np.array(7.0))),
            Sample((np.arange(6.0).reshape(2, 3), np.array([1, 3]), None, np.array([-1])), {"mode": "wrap"}),
            *(Sample((np.arange(12.0).reshape(3, 4), np.array([2, 1, 1, 3])), {"mode": m}) for m in ("edge", "reflect")),
        ],
    )
)  # fmt: skip


def tile(x: Array, repeats: Array) -> Array:
    return np.tile(x, tuple(int(r) for r in repeats))


def _tile_infer(call: Call) -> Sequence[Type]:
    x, repeats = call.tensor(0), call.contents(1)
    if x.shape is None:
        return (x,)
    if repeats is None:
        return (TensorType(x.dtype, call.unknown(len(x.shape))),)
    if any(isinstance(r, int) and r < 0 for r in repeats):
        raise call.fail(f"the numbers of copies {tuple(repeats)} are not all positive")
    rank = max(len(x.shape), len(repeats))
    shape: tuple[Dim, ...] = (1,) * (rank - len(x.shape)) + x.shape
    times: tuple[Dim, ...] = (1,) * (rank - len(repeats)) + tuple(repeats)
    return (TensorType(x.dtype, tuple(d * r for d, r in zip(shape, times, strict=True))),)


def _tile_contents(call: Call) -> Sequence[Contents | None]:
    known, repeats = call.contents(0), call.ints(1)
    if known is None or repeats is None:
        return (None,)
    return contents_by_reference(call) if few_elements((len(known) * max((*repeats, 0)),)) else (None,)


define(
    OpDef(
        "tile", _tile_infer, tile, Pattern.MOVEMENT, "copies of the tensor side by side along each axis",
        contents=_tile_contents, flops=no_flops, torch=("aten.repeat.default",),
        samples=lambda: [Sample((np.arange(6.0).reshape(2, 3), np.array([2, 2])))],
    )
)  # fmt: skip


def flip(x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


def _flip_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is not None:
        normal_axes(call, call.attrs["axes"], len(x.shape))
    return (x,)


define(
    OpDef(
        "flip", _flip_infer, flip, Pattern.MOVEMENT, "the elements backwards along some axes", contents=contents_by_reference,
        flops=no_flops, view=True, torch=("aten.flip.default",),
        samples=lambda: [Sample((np.arange(6.0).reshape(2, 3),), {"axes": (0, -1)})],
    )
)  # fmt: skip


def roll(x: Array, *, shifts: tuple[int, ...], axes: tuple[int, ...] | None) -> Array:
    return np.roll(x, shifts if axes is not None else sum(shifts), axes)


def _roll_infer(call: Call) -> Sequence[Type]:
    x, axes = call.tensor(0), call.attrs["axes"]
    if x.shape is not None and axes is not None:
        for axis in axes:
            normal_axis(call, axis, len(x.shape))
    return (x,)


define(
    OpDef(
        "roll", _roll_infer, roll, Pattern.MOVEMENT, "the elements moved along some axes, round the end (along all for None)",
        flops=no_flops, torch=("aten.roll.default",),
        samples=lambda: [
            Sample((np.arange(6.0).reshape(2, 3),), {"shifts": (1, -2), "axes": (0, 1)}),
            Sample((np.arange(6.0).reshape(2, 3),), {"shifts": (4,), "axes": None}),
        ],
    )
)  # fmt: skip


def trilu(x: Array, k: Array | None = None, *, upper: bool = True) -> Array:
    diagonal = 0 if k is None else int(k.item())
    rows, columns = x.shape[-2:]
    kept = np.tri(rows, columns, diagonal - 1 if upper else diagonal, bool)
    zero = np.zeros((), dtype=x.dtype)
    return np.where(kept, zero, x) if upper else np.where(kept, x, zero)


def _trilu_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is not None and len(x.shape) < 2:
        raise call.fail(f"{x} has no rows and columns")
    return (x,)


define(
    OpDef(
        "trilu", _trilu_infer, trilu, Pattern.MOVEMENT, "the upper or lower triangle from the k-th diagonal, zeros elsewhere",
        flops=no_flops,
        samples=lambda: [
            Sample((np.arange(1.0, 13.0).reshape(3, 4),), {"upper": True}),
            Sample((np.arange(1, 25).reshape(2, 4, 3), np.array(-1)), {"upper": False}),
        ],
    )
)  # fmt: skip


def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int, time_axis: int) -> Array:
    result = x.copy()
    source, target = (np.moveaxis(a, (batch_axis, time_axis), (0, 1)) for a in (x, result))
    for i, length in enumerate(lengths):
        target[i, :length] = source[i, :length][::-1]
    return result


define(
    OpDef(
        "reverse_sequence", infer_same, reverse_sequence, Pattern.GATHER, "the first lengths[i] steps of batch i backwards",
        flops=no_flops,
        samples=lambda: [Sample((np.arange(12.0).reshape(4, 3), np.array([4, 0, 2])), {"batch_axis": 1, "time_axis": 0})],
    )
)  # fmt: skip
