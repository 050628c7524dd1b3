"""Sampling images at places that are data.

grid_sample reads x [batch, channels, *sizes] at grid [batch, *places, axes], whose last axis holds coordinates in -1..1, the
last image axis first. Outside the image: `zeros`, the `border` element, or a `reflection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from hotfuse.ir.dim import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.image import cubic_weight
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]


def grid_sample(x: Array, grid: Array, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False) -> Array:
    sizes, places = x.shape[2:], grid.shape[1:-1]
    choices = [
        _axis_taps(grid[..., len(sizes) - 1 - i].reshape(x.shape[0], -1), size, mode, padding, align_corners)
        for i, size in enumerate(sizes)
    ]
    flat = x.reshape(x.shape[0], x.shape[1], -1)
    total = np.zeros((x.shape[0], x.shape[1], int(np.prod(places))), dtype=x.dtype)
    for taps in product(*choices):
        index: Any = 0
        weight: Any = 1
        for size, (place, factor) in zip(sizes, taps, strict=True):
            index = index * size + place
            weight = weight * factor
        seen = np.take_along_axis(flat, index[:, None], axis=2)
        total += seen * np.asarray(weight, dtype=x.dtype)[:, None]
    return total.reshape(*x.shape[:2], *places)


def _axis_taps(coordinate: Array, size: int, mode: str, padding: str, align_corners: bool) -> list[tuple[Array, Array]]:
    """Along one axis: each tap's index and its weight (zero where it lies outside and that counts as zero)."""
    coordinate = coordinate.astype(np.float32) if coordinate.dtype.itemsize < 4 else coordinate
    at = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    if mode == "nearest":
        at = np.rint(at)
    if padding == "border" and mode != "cubic":  # the taps of a cubic are brought inside one by one
        at = np.clip(at, 0, size - 1)
    elif padding == "reflection" and mode != "cubic":
        at = _reflected(at, low, high)
    base = at if mode == "nearest" else np.floor(at)
    if mode == "nearest":
        steps = [(0, np.ones_like(at))]
    elif mode == "linear":
        steps = [(0, 1 - (at - base)), (1, at - base)]
    else:
        steps = [(t, cubic_weight(at - base - t, -0.75)) for t in (-1, 0, 1, 2)]
    return [_inside(base + step, weight, size, padding, low, high) for step, weight in steps]


def _inside(place: Array, weight: Array, size: int, padding: str, low: float, high: float) -> tuple[Array, Array]:
    if padding == "zeros":
        weight = np.where((place >= 0) & (place < size), weight, 0)
    elif padding == "reflection":
        place = np.trunc(_reflected(place, low, high))
    place = np.nan_to_num(place, nan=0.0)
    return np.clip(place, 0, size - 1).astype(np.int64), weight


def _reflected(at: Array, low: float, high: float) -> Array:
    """Fold places outside low..high back by reflecting at the ends."""
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    beyond = np.where(at < low, low - at, at - high)
    turns = np.floor(beyond / span)
    rest = beyond - turns * span
    even = turns % 2 == 0
    folded = np.where((at < low) == even, low + rest, high - rest)
    return np.where((at < low) | (at > high), folded, at)


def _grid_sample_infer(call: Call) -> Sequence[Type]:
    x, grid = call.tensor(0), call.tensor(1)
    if call.attrs.get("mode", "linear") not in ("nearest", "linear", "cubic"):
        raise call.fail(f"mode {call.attrs['mode']!r} must be nearest, linear or cubic")
    if call.attrs.get("padding", "zeros") not in ("zeros", "border", "reflection"):
        raise call.fail(f"padding {call.attrs['padding']!r} must be zeros, border or reflection")
    if x.shape is None or grid.shape is None:
        return (TensorType(x.dtype, call.unknown(x.rank or grid.rank)),)
    if len(x.shape) != len(grid.shape) or NO_FACTS.decide(grid.shape[-1], len(x.shape) - 2) is False:
        raise call.fail(
            f"the grid {grid} does not fit the image {x}: it needs as many axes, and {len(x.shape) - 2} coordinates"
        )
    return (TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1.4, 1.4, (2, 3, 2, 2)).astype(np.float32)
    return [
        Sample((x, grid), {"mode": mode, "padding": padding, "align_corners": align})
        for mode, padding, align in (
            ("linear", "zeros", False), ("linear", "reflection", True), ("nearest", "border", False), ("cubic", "zeros", True),
        )
    ]  # fmt: skip


define(
    OpDef(
        "grid_sample", _grid_sample_infer, widened(grid_sample), Pattern.GATHER, "read an image at the places a grid names",
        flops=lambda call, types: 20 * size_of(types), samples=_samples,
    )
)  # fmt: skip
