"""ONNX operators over images: Resize, Upsample, GridSample, AffineGrid, and regions of interest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.builder import int64
from hotfuse.ir.types import F64, I64


@onnx_op("Resize")
def resize(n: OnnxNode) -> Imported:
    rank = n.rank(0)
    if rank is None:
        return Decline("the rank of the input is not known")
    if n.version < 11:
        return _resized(n, rank, 1, None, mode=n.attr("mode", "nearest"), coordinates="asymmetric", nearest="floor")
    return _resized(
        n,
        rank,
        2,
        3,
        mode=n.attr("mode", "nearest"),
        coordinates=_coordinates(n),
        nearest=n.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=float(n.attr("cubic_coeff_a", -0.75)),
        exclude_outside=bool(n.attr("exclude_outside", 0)),
        extrapolation=float(n.attr("extrapolation_value", 0.0)),
        antialias=bool(n.attr("antialias", 0)),
        aspect=n.attr("keep_aspect_ratio_policy", "stretch"),
    )


def _coordinates(n: OnnxNode) -> str:
    name = str(n.attr("coordinate_transformation_mode", "half_pixel"))
    return "half_pixel" if name == "tf_half_pixel_for_nn" else name


def _resized(n: OnnxNode, rank: int, scales_at: int, sizes_at: int | None, **attrs: Any) -> Imported:
    axes = tuple(a % rank for a in n.attr("axes") or range(rank))
    region = n.optional(1) if attrs["coordinates"] == "tf_crop_and_resize" else None
    if sizes_at is not None and n.has(sizes_at):
        return n.add("resize", n.input(0), region, None, n.input(sizes_at), axes=axes, **attrs)
    scales = n.constant_of(scales_at)
    if scales is None:
        # the sizes are written out, so that they can be checked before anything is allocated
        before = n.add("gather", n.add("shape_of", n.input(0)), n.constant(int64(*axes)), axis=0)
        exact = n.add("mul", n.add("cast", before, to=F64), n.add("cast", n.input(scales_at), to=F64))
        sizes = n.add("cast", n.add("floor", exact), to=I64)
        return n.add("resize", n.input(0), region, n.input(scales_at), sizes, axes=axes, **attrs)
    return _by_factors(n, axes, scales, region, **attrs)


def _by_factors(n: OnnxNode, axes: tuple[int, ...], scales: Any, region: Any, **attrs: Any) -> Imported:
    """Resize by constant factors; axes that stay as they are drop out."""
    factors = tuple(float(s) for s in np.asarray(scales, dtype=np.float32))
    if len(factors) != len(axes) or any(not f > 0 for f in factors):
        raise InvalidModel(f"scales {factors} must be positive, one for each of the axes {axes}")
    if region is None:
        pairs = [(a, f) for a, f in zip(axes, factors, strict=True) if f != 1]
        if not pairs:
            return n.input(0)
        axes, factors = tuple(a for a, _ in pairs), tuple(f for _, f in pairs)
    return n.add("resize", n.input(0), region, axes=axes, factors=factors, **attrs)


@onnx_op("Upsample")
def upsample(n: OnnxNode) -> Imported:
    rank = n.rank(0)
    if rank is None:
        return Decline("the rank of the input is not known")
    mode = {"bilinear": "linear"}.get(n.attr("mode", "nearest"), n.attr("mode", "nearest"))
    attrs = {"mode": mode, "coordinates": "asymmetric", "nearest": "floor"}
    if n.version >= 9:
        return _resized(n, rank, 1, None, **attrs)
    scales = n.attr("scales") or (1.0, 1.0, n.attr("height_scale", 1.0), n.attr("width_scale", 1.0))
    return _by_factors(n, tuple(range(rank)), scales, None, **attrs)


@onnx_op("GridSample")
def grid_sample(n: OnnxNode) -> Imported:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.attr("mode", "linear"), n.attr("mode", "linear"))
    return n.add(
        "grid_sample",
        n.input(0),
        n.input(1),
        mode=mode,
        padding=n.attr("padding_mode", "zeros"),
        align_corners=bool(n.attr("align_corners", 0)),
    )


@onnx_op("AffineGrid")
def affine_grid(n: OnnxNode) -> Imported:
    return n.add("affine_grid", n.input(0), n.input(1), align_corners=bool(n.attr("align_corners", 0)))


@onnx_op("RoiAlign")
def roi_align(n: OnnxNode) -> Imported:
    default = "half_pixel" if n.version >= 16 else "output_half_pixel"
    return n.add(
        "roi_align",
        n.input(0),
        n.input(1),
        n.input(2),
        height=n.attr("output_height", 1),
        width=n.attr("output_width", 1),
        scale=float(n.attr("spatial_scale", 1.0)),
        sampling=n.attr("sampling_ratio", 0),
        mode=n.attr("mode", "avg"),
        half_pixel=n.attr("coordinate_transformation_mode", default) == "half_pixel",
    )


@onnx_op("MaxRoiPool")
def max_roi_pool(n: OnnxNode) -> Imported:
    height, width = n.attr("pooled_shape")
    return n.add("max_roi_pool", n.input(0), n.input(1), height=height, width=width, scale=float(n.attr("spatial_scale", 1.0)))


@onnx_op("NonMaxSuppression")
def non_max_suppression(n: OnnxNode) -> Imported:
    inputs = (n.input(0), n.input(1), n.optional(2), n.optional(3), n.optional(4))
    return n.add("non_max_suppression", *inputs, centers=bool(n.attr("center_point_box", 0)))
