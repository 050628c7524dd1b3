"""Resizing: separable interpolation, axis by axis. Each result element is a weighted sum of a few taps around its source place.

The source place x of result element y, for a size s scaled by f to t elements (`coordinates`):

    half_pixel            (y + 0.5) / f - 0.5            pytorch_half_pixel   the same, -0.5 if t == 1
    half_pixel_symmetric  half_pixel, centred where t is not s * f
    asymmetric            y / f                          align_corners        y * (s - 1) / (t - 1)
    tf_crop_and_resize    from the region of interest; places outside the input give `extrapolation`
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim, floordiv
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize",
)  # fmt: skip
MODES = ("nearest", "linear", "cubic")


def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    axes: Ints,
    factors: tuple[float, ...] | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation: float = 0.0,
    antialias: bool = False,
    aspect: str = "stretch",
) -> Array:
    given = factors if factors is not None else None if scales is None else [float(s) for s in scales]
    before = [x.shape[a] for a in axes]
    wanted = None if sizes is None else [int(s) for s in sizes]
    after, used = _sizes_and_factors(before, given, wanted, aspect)
    work = x if (x.dtype.kind == "f" and x.dtype.itemsize >= 4) or mode == "nearest" else x.astype(np.float64)
    outside: Any = np.zeros((1,) * x.ndim, dtype=bool)
    for i, axis in enumerate(axes):
        region = None if roi is None or not roi.size else (float(roi[i]), float(roi[i + len(axes)]))
        if coordinates != "tf_crop_and_resize" and before[i] == after[i] and used[i] == 1:
            continue
        place = source_places(after[i], before[i], used[i], coordinates, region)
        if coordinates == "tf_crop_and_resize":
            outside = outside | _along((place < 0) | (place > before[i] - 1), axis, x.ndim)
        if mode == "nearest":
            work = np.take(work, np.clip(_rounded(place, nearest), 0, before[i] - 1), axis=axis)
            continue
        indices, weights = _taps(place, used[i], before[i], mode, cubic_a, antialias, exclude_outside)
        work = _weighted(work, axis, indices, weights.astype(work.dtype))
    if outside.any():
        work = np.where(outside, work.dtype.type(extrapolation), work)
    if x.dtype.kind in "iu" and work.dtype != x.dtype:
        limits = np.iinfo(x.dtype)
        work = np.clip(work, limits.min, limits.max)
    return work.astype(x.dtype, copy=work is x)


def _sizes_and_factors(
    before: Sequence[int], factors: Sequence[float] | None, wanted: Sequence[int] | None, aspect: str
) -> tuple[list[int], list[float]]:
    """The sizes after, and the factor each axis is scaled by."""
    if wanted is None:
        assert factors is not None
        return [int(scaled_size(b, f)) for b, f in zip(before, factors, strict=True)], list(factors)  # type: ignore[arg-type]
    if factors is not None:
        return list(wanted), list(factors)
    ratios = [w / b for w, b in zip(wanted, before, strict=True)]
    if aspect == "stretch":
        return list(wanted), ratios
    ratio = min(ratios) if aspect == "not_larger" else max(ratios)
    return [int(ratio * b + 0.5) for b in before], [ratio] * len(before)


def scaled_size(size: Dim, factor: float) -> Dim | None:
    """floor(size * factor); None where a symbolic size meets a factor that is no short fraction."""
    if isinstance(size, int):
        return int(size * factor)
    exact = Fraction(factor).limit_denominator(64)
    if float(exact) != factor:
        return None
    return floordiv(size * exact.numerator, exact.denominator)


def source_places(count: int, size: int, factor: float, coordinates: str, region: tuple[float, float] | None) -> Array:
    """The place in the input, as a real number, of each of `count` result elements."""
    y, length = np.arange(count, dtype=np.float64), factor * size
    if coordinates == "align_corners":
        return y * 0 if length == 1 else y * (size - 1) / (length - 1)
    if coordinates == "asymmetric":
        return y / factor
    if coordinates == "tf_crop_and_resize":
        start, end = region if region is not None else (0.0, 1.0)
        inner = y * 0 + (end - start) * (size - 1) / 2 if length == 1 else y * (end - start) * (size - 1) / (length - 1)
        return inner + start * (size - 1)
    if coordinates == "pytorch_half_pixel" and length == 1:
        return y * 0 - 0.5
    place = (y + 0.5) / factor - 0.5
    return place + size / 2 * (1 - count / length) if coordinates == "half_pixel_symmetric" else place


def _rounded(place: Array, nearest: str) -> Array:
    rounded = {
        "round_prefer_floor": np.ceil(place - 0.5),
        "round_prefer_ceil": np.floor(place + 0.5),
        "floor": np.floor(place),
        "ceil": np.ceil(place),
    }[nearest]
    return rounded.astype(np.int64)


def cubic_weight(distance: Array, a: float) -> Array:
    """Keys' cubic kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(
    place: Array, factor: float, size: int, mode: str, cubic_a: float, antialias: bool, exclude_outside: bool
) -> tuple[Array, Array]:
    """The taps of each result element, [elements, taps], and their weights. Antialiasing widens the kernel when shrinking."""
    shrink = min(factor, 1.0) if antialias else 1.0
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    base = np.ceil(place) - 1  # a place on an element takes it as its right neighbour
    steps = np.arange(first, 2 - first)
    distance = (steps - (place - base)[:, None]) * shrink
    weights = np.clip(1 - np.abs(distance), 0, 1) if mode == "linear" else cubic_weight(distance, cubic_a)
    indices = (base[:, None] + steps).astype(np.int64)
    if exclude_outside:
        weights = np.where((indices < 0) | (indices >= size), 0.0, weights)
    if exclude_outside or antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(indices, 0, size - 1), weights


def _weighted(x: Array, axis: int, indices: Array, weights: Array) -> Array:
    total: Any = None
    for t in range(indices.shape[1]):
        part = np.take(x, indices[:, t], axis=axis)
        part *= _along(weights[:, t], axis, x.ndim)
        total = part if total is None else np.add(total, part, out=total)
    return total  # type: ignore[no-any-return]


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _resize_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    if attrs.get("mode", "nearest") not in MODES or attrs.get("coordinates", "half_pixel") not in COORDINATES:
        raise call.fail(
            f"mode {attrs.get('mode')!r} must be one of {MODES}, coordinates {attrs.get('coordinates')!r} of {COORDINATES}"
        )
    if x.shape is None:
        return (x,)
    axes, factors, wanted = attrs["axes"], attrs.get("factors"), call.contents(3)
    if (factors is not None and len(factors) != len(axes)) or (wanted is not None and len(wanted) != len(axes)):
        raise call.fail(f"there must be one scale or size for each of the axes {axes}")
    result = list(x.shape)
    before = [x.shape[a] for a in axes]
    if any(b == 0 for b in before) and wanted is not None and any(w != 0 for w in wanted):
        raise call.fail(f"an axis of size 0 cannot be resized to {wanted}")
    aspect = attrs.get("aspect", "stretch")
    for i, axis in enumerate(axes):
        size: Dim | None = None
        if factors is not None:
            size = scaled_size(before[i], factors[i])
        elif wanted is not None and aspect == "stretch":
            size = wanted[i]
        elif wanted is not None and all(isinstance(d, int) for d in (*before, *wanted)):
            size = _sizes_and_factors(before, None, wanted, aspect)[0][i]  # type: ignore[arg-type]
        result[axis] = call.fresh() if size is None else size
    return (TensorType(x.dtype, tuple(result)),)


def _resize_samples() -> list[Sample]:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)
    return [
        Sample((x,), {"axes": (2, 3), "factors": (2.0, 0.5), "mode": mode, "coordinates": coordinates, "antialias": antialias})
        for mode, coordinates, antialias in (
            ("nearest", "asymmetric", False), ("linear", "half_pixel", False), ("linear", "align_corners", False),
            ("cubic", "pytorch_half_pixel", False), ("linear", "half_pixel", True),
        )
    ] + [Sample((x, None, None, np.array([3, 3])), {"axes": (2, 3), "mode": "linear"})]  # fmt: skip


define(
    OpDef(
        "resize", _resize_infer, resize, Pattern.WINDOW,
        "interpolate some axes: by `factors`, or to the sizes input (scales then say how places are mapped)",
        flops=lambda call, types: 8 * size_of(types), samples=_resize_samples,
    )
)  # fmt: skip
