"""Sampling images at places that are data.

grid_sample reads x [batch, channels, *sizes] at grid [batch, *places, axes], whose last axis holds coordinates in -1..1, the
last image axis first. Outside the image: `zeros`, the `border` element, or a `reflection`.

affine_grid makes such a grid of a matrix [batch, axes, axes + 1]: it is applied to the places of an image of the given size, -1
and 1 being the centers of the corner elements (`align_corners`) or their outer edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from hotfuse.ir.facts import NO_FACTS
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


def affine_grid(theta: Array, size: Array, *, align_corners: bool = False) -> Array:
    sizes = [int(d) for d in size[2:]]
    shares = [1.0 if align_corners else (d - 1) / d if d else 0.0 for d in sizes]
    lines = [np.linspace(-a, a, d) if d > 1 else np.zeros(d) for a, d in zip(shares, sizes, strict=True)]
    places = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(sizes)], axis=-1).astype(theta.dtype)
    grid = places.reshape(1, -1, len(sizes) + 1) @ theta.swapaxes(1, 2)
    return grid.reshape(theta.shape[0], *sizes, len(sizes))  # type: ignore[no-any-return]


def _affine_grid_infer(call: Call) -> Sequence[Type]:
    theta, wanted, length = call.tensor(0), call.contents(1), call.shape(1)
    count = (length or (None,))[0]
    if not theta.dtype.is_float or (isinstance(count, int) and count not in (4, 5)):
        raise call.fail(f"a matrix of floats and the size of an image or a volume are needed, not {theta} and {count} sizes")
    axes = count - 2 if isinstance(count, int) else None
    if axes is not None and theta.shape is not None:
        batch = wanted[0] if wanted is not None else theta.shape[0] if theta.shape else 0
        for actual, needed in zip(theta.shape, (batch, axes, axes + 1), strict=False):
            if len(theta.shape) != 3 or NO_FACTS.decide(actual, needed) is False:
                raise call.fail(f"the matrix {theta} does not fit: it must be [{batch}, {axes}, {axes + 1}]")
    if wanted is None or axes is None:
        return (TensorType(theta.dtype, call.unknown(None if axes is None else axes + 2)),)
    if any(isinstance(d, int) and d < 0 for d in wanted):
        raise call.fail(f"the size {wanted} is negative")
    return (TensorType(theta.dtype, (wanted[0], *wanted[2:], axes)),)


def _affine_grid_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    flat, deep = (rng.standard_normal((2, n, n + 1)).astype(np.float32) for n in (2, 3))
    return [
        Sample((theta, np.array(size)), {"align_corners": align})
        for theta, size in ((flat, (2, 3, 4, 5)), (deep, (2, 1, 3, 1, 2)))
        for align in (False, True)
    ]


define(
    OpDef(
        "affine_grid", _affine_grid_infer, widened(affine_grid), Pattern.OTHER, "the places of an image under an affine map",
        flops=lambda call, types: 8 * size_of(types), samples=_affine_grid_samples,
    )
)  # fmt: skip
