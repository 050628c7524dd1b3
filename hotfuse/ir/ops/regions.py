"""Regions of images: pooling boxes to one size, and choosing among overlapping boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.pooling import lowest
from hotfuse.ir.types import I64, TensorType, Type

Array = np.ndarray[Any, Any]


def roi_align(
    x: Array,
    boxes: Array,
    batch: Array,
    *,
    height: int,
    width: int,
    scale: float = 1.0,
    sampling: int = 0,
    mode: str = "avg",
    half_pixel: bool = True,
) -> Array:
    """Each box [x1, y1, x2, y2] cut into height x width bins; bins hold sampling x sampling bilinear samples."""
    result = np.zeros((boxes.shape[0], x.shape[1], height, width), dtype=x.dtype)
    shift = 0.5 if half_pixel else 0.0
    for number, box in enumerate(boxes):
        left, top, right, bottom = (float(e) * scale - shift for e in box)
        across, down = right - left, bottom - top
        if not half_pixel:
            across, down = max(across, 1.0), max(down, 1.0)
        rows = _axis_samples(top, down, height, sampling, x.shape[2])
        columns = _axis_samples(left, across, width, sampling, x.shape[3])
        if rows is None or columns is None:
            continue
        plane = x[int(batch[number])]
        parts = []
        for y, row_weight in ((rows[0], rows[2]), (rows[1], rows[3])):
            for c, column_weight in ((columns[0], columns[2]), (columns[1], columns[3])):
                weight = np.multiply.outer(row_weight, column_weight).transpose(0, 2, 1, 3).astype(x.dtype)
                parts.append(plane[:, y[:, None, :, None], c[None, :, None, :]] * weight)
        if mode == "max":
            result[number] = np.max(np.stack(parts), axis=(0, 4, 5))
        else:
            result[number] = sum(parts).mean(axis=(3, 4))  # type: ignore[union-attr]
    return result


def _axis_samples(start: float, length: float, bins: int, sampling: int, size: int) -> tuple[Array, Array, Array, Array] | None:
    """Along one axis, for each bin and sample: lower and upper neighbour and their weights; outside the image they are zero."""
    count = sampling if sampling > 0 else int(np.ceil(length / bins))
    if count <= 0:
        return None
    at = start + (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / count) * (length / bins)
    outside = (at < -1.0) | (at > size)
    at = np.maximum(at, 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    rest = np.where(low >= size - 1, 0.0, at - low)
    return low, high, np.where(outside, 0.0, 1 - rest), np.where(outside, 0.0, rest)


def max_roi_pool(x: Array, boxes: Array, *, height: int, width: int, scale: float = 1.0) -> Array:
    """Boxes [batch, x1, y1, x2, y2], rounded to whole elements, cut into bins that may overlap; the maximum of each bin."""
    result = np.zeros((boxes.shape[0], x.shape[1], height, width), dtype=x.dtype)
    for number, box in enumerate(boxes):
        left, top, right, bottom = (int(np.floor(float(e) * scale + 0.5)) for e in box[1:])
        down, across = max(bottom - top + 1, 1) / height, max(right - left + 1, 1) / width
        for i in range(height):
            y1, y2 = _bin(i, down, top, x.shape[2])
            for j in range(width):
                x1, x2 = _bin(j, across, left, x.shape[3])
                if y2 > y1 and x2 > x1:
                    result[number, :, i, j] = x[int(box[0]), :, y1:y2, x1:x2].max(axis=(1, 2), initial=lowest(x.dtype))
    return result


def _bin(number: int, size: float, start: int, limit: int) -> tuple[int, int]:
    low, high = int(np.floor(number * size)) + start, int(np.ceil((number + 1) * size)) + start
    return min(max(low, 0), limit), min(max(high, 0), limit)


def non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    threshold: Array | None = None,
    *,
    centers: bool = False,
) -> Array:
    """Rows [batch, class, box]: for each class the best boxes, none overlapping a better one by more than `overlap`."""
    limit = int(most.reshape(-1)[0]) if most is not None and most.size else 0
    allowed = float(overlap.reshape(-1)[0]) if overlap is not None and overlap.size else 0.0
    chosen: list[tuple[int, int, int]] = []
    for b, corners in enumerate(_corners(boxes, centers)):
        for c, of_class in enumerate(scores[b]):
            order = np.argsort(-of_class, kind="stable")
            if threshold is not None and threshold.size:
                order = order[of_class[order] > threshold.reshape(-1)[0]]
            kept: list[int] = []
            for box in order.tolist():
                if len(kept) >= limit:
                    break
                if not kept or not (_overlaps(corners[box], corners[kept]) > allowed).any():
                    kept.append(box)
            chosen.extend((b, c, box) for box in kept)
    return np.array(chosen, dtype=np.int64).reshape(-1, 3)


def _corners(boxes: Array, centers: bool) -> Array:
    """Boxes as [low y, low x, high y, high x]."""
    if centers:
        x, y, w, h = (boxes[..., i] for i in range(4))
        return np.stack((y - h / 2, x - w / 2, y + h / 2, x + w / 2), axis=-1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate((np.minimum(first, second), np.maximum(first, second)), axis=-1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with each of the others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=-1)
    union = np.prod(box[2:] - box[:2]) + areas - common
    return np.where((common > 0) & (union > 0), common / np.where(union > 0, union, 1), 0)


def _roi_infer(call: Call) -> Sequence[Type]:
    x, boxes = call.tensor(0), call.tensor(1)
    count = boxes.shape[0] if boxes.shape else call.fresh()
    channels = x.shape[1] if x.shape else call.fresh()
    if x.shape is not None and len(x.shape) != 4:
        raise call.fail(f"the image must have four axes, not {x}")
    return (TensorType(x.dtype, (count, channels, call.attrs["height"], call.attrs["width"])),)


def _samples() -> list[Sample]:
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 9)).astype(np.float32)
    boxes = np.array([[0, 0, 6, 7], [1, 2, 8, 5]], dtype=np.float32)
    batch = np.array([0, 1])
    return [
        Sample((x, boxes, batch), {"height": 2, "width": 3, "scale": 0.9, "sampling": 2, "mode": "avg", "half_pixel": True}),
        Sample((x, boxes, batch), {"height": 2, "width": 2, "scale": 1.0, "sampling": 0, "mode": "max", "half_pixel": False}),
    ]


define(
    OpDef(
        "roi_align", _roi_infer, widened(roi_align), Pattern.GATHER, "boxes of an image, sampled to one size",
        flops=lambda call, types: 32 * size_of(types), samples=_samples,
    )
)  # fmt: skip
define(
    OpDef(
        "max_roi_pool", _roi_infer, max_roi_pool, Pattern.GATHER, "the maximum over the bins of each box",
        flops=lambda call, types: 8 * size_of(types),
        samples=lambda: [
            Sample((np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5), np.array([[0, 1, 1, 4, 3]], dtype=np.float32)), {
                "height": 2, "width": 2, "scale": 1.0})
        ],
    )
)  # fmt: skip
define(
    OpDef(
        "non_max_suppression", lambda call: (TensorType(I64, (call.fresh(), 3)),), non_max_suppression, Pattern.OTHER,
        "the boxes that no better box of their class overlaps too much",
        samples=lambda: [
            Sample((np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]]], np.float32),
                    np.array([[[0.9, 0.8, 0.7]]], np.float32), np.array([3]), np.array([0.5], np.float32),
                    np.array([0.0], np.float32)), {"centers": False}),
        ],
    )
)  # fmt: skip
