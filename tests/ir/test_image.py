"""Resizing and sampling against torch, by the float64 rule."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hotfuse.errors import InvalidModel
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import substitute, symbol
from hotfuse.ir.op import OPS
from hotfuse.ir.ops.image import scaled_size
from hotfuse.ir.types import F32, TensorType, tensor
from hotfuse.numerics import close_to_exact

RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


MODES = {"linear": "bilinear", "cubic": "bicubic"}


@pytest.mark.parametrize(
    ("mode", "align", "antialias"), [*product(MODES, [False, True], [False]), *product(MODES, [False], [True])]
)
@pytest.mark.parametrize("size", [(16, 30), (5, 7), (9, 4)])
def test_resize(mode: str, align: bool, antialias: bool, size: tuple[int, int]) -> None:
    x = normal(2, 3, 10, 12)
    # torch's antialiased cubic is Pillow's, with another constant, and both drop taps outside
    attrs = {"cubic_a": -0.5 if antialias else -0.75, "exclude_outside": antialias, "antialias": antialias}
    coordinates = "align_corners" if align else "half_pixel"
    ours = OPS["resize"].reference(x, None, None, np.array(size), axes=(2, 3), mode=mode, coordinates=coordinates, **attrs)

    def theirs(dtype: Any) -> Any:
        image = torch.from_numpy(x).to(dtype)
        return F.interpolate(image, size, mode=MODES[mode], align_corners=align, antialias=antialias).numpy()

    verdict = close_to_exact(ours, theirs(torch.float32), theirs(torch.float64))
    assert verdict, verdict.reason


def test_resize_to_the_nearest() -> None:
    x = normal(1, 2, 5, 6)
    ours = OPS["resize"].reference(
        x, axes=(2, 3), factors=(2.0, 3.0), mode="nearest", coordinates="asymmetric", nearest="floor"
    )
    np.testing.assert_array_equal(ours, F.interpolate(torch.from_numpy(x), scale_factor=(2.0, 3.0), mode="nearest"))


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.5, 0.75, 3.0])
def test_scaled_sizes_of_symbols(factor: float) -> None:
    scaled = scaled_size(symbol("s"), factor)
    assert scaled is not None
    assert all(substitute(scaled, {"s": n}) == int(n * factor) for n in range(50))


def test_a_factor_that_is_no_short_fraction_leaves_the_size_open() -> None:
    assert scaled_size(symbol("s"), 0.123456) is None
    b = GraphBuilder()
    y = b.add("resize", b.input("x", tensor(F32, 1, 1, symbol("h"), 4)), axes=(2,), factors=(0.123456,), mode="nearest")
    assert isinstance(y.type, TensorType)
    assert y.type.shape is not None
    assert str(y.type.shape[2]).startswith("?")


@pytest.mark.parametrize(("mode", "padding"), product(["linear", "nearest", "cubic"], ["zeros", "border", "reflection"]))
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    x, grid = normal(2, 3, 6, 7), RNG.uniform(-1.6, 1.6, (2, 5, 4, 2)).astype(np.float32)
    ours = OPS["grid_sample"].reference(x, grid, mode=mode, padding=padding, align_corners=align)

    def theirs(dtype: Any) -> Any:
        args = [torch.from_numpy(a).to(dtype) for a in (x, grid)]
        return F.grid_sample(*args, mode=MODES.get(mode, mode), padding_mode=padding, align_corners=align).numpy()

    verdict = close_to_exact(ours, theirs(torch.float32), theirs(torch.float64))
    assert verdict, verdict.reason


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 4, 4), (3, 2, 1, 7), (1, 3, 1, 1), (2, 1, 3, 4, 5), (1, 1, 2, 1, 6)])
@pytest.mark.parametrize("align", [False, True])
def test_affine_grid(size: tuple[int, ...], align: bool) -> None:
    theta = normal(size[0], len(size) - 2, len(size) - 1)
    ours = OPS["affine_grid"].reference(theta, np.array(size), align_corners=align)
    narrow, wide = (
        F.affine_grid(torch.from_numpy(theta).to(t), list(size), align).numpy() for t in (torch.float32, torch.float64)
    )
    verdict = close_to_exact(ours, narrow, wide)
    assert verdict, verdict.reason


@pytest.mark.parametrize(
    ("theta", "size", "why"),
    [
        ((2, 2, 3), (2, 1, 4), "size of an image or a volume"),
        ((2, 3, 4), (2, 1, 4, 5), r"must be \[2, 2, 3\]"),
        ((1, 2, 3), (2, 1, 4, 5), r"must be \[2, 2, 3\]"),
        ((2, 3), (2, 1, 4, 5), r"must be \[2, 2, 3\]"),
        ((2, 2, 3), (2, 1, -4, 5), "negative"),
    ],
)
def test_affine_grids_that_do_not_fit_are_refused(theta: tuple[int, ...], size: tuple[int, ...], why: str) -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidModel, match=why):
        b.add("affine_grid", b.input("theta", tensor(F32, *theta)), b.constant(np.array(size)))
