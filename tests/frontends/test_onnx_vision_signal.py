"""ONNX attention, image and signal operators against ONNX Runtime and onnx's reference evaluator."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import hotfuse
from hotfuse.errors import InvalidModel, LimitExceeded
from tests.frontends.oracle import agree, by_onnx, by_onnxruntime, model, operators

RNG = np.random.default_rng(13)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# attention


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"scale": 0.3, "softcap": 1.5}], ids=str)
def test_attention(heads: tuple[int, int], attrs: dict[str, Any]) -> None:
    q, k, v = normal(2, heads[0], 5, 8), normal(2, heads[1], 5, 8), normal(2, heads[1], 5, 6)
    session = agree("Attention", q, k, v, opset=23, oracle=by_onnx, **attrs)
    assert operators(session) == ["attention"]


@pytest.mark.parametrize("mask", [(5, 5), (2, 1, 5, 5), (4, 5, 5)])
def test_attention_masks(mask: tuple[int, ...]) -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 5, 8), normal(2, 4, 5, 8)
    added = normal(*mask)
    added[..., 0, :] = -np.inf  # a query that sees nothing
    for chosen in (added, RNG.random(mask) > 0.4):
        agree("Attention", q, k, v, chosen, opset=23, oracle=by_onnx)
        agree("Attention", q, k, v, chosen, opset=23, oracle=by_onnx, is_causal=1)


def test_attention_with_a_cache() -> None:
    q, k, v = normal(2, 3, 8 * 4), normal(2, 3, 8 * 2), normal(2, 3, 6 * 2)
    past = normal(2, 2, 4, 8), normal(2, 2, 4, 6)
    attrs = {"q_num_heads": 4, "kv_num_heads": 2, "outputs": 3, "opset": 23, "oracle": by_onnx}
    agree("Attention", q, k, v, None, *past, **attrs)
    agree("Attention", q, k, v, None, *past, is_causal=1, **attrs)


@pytest.mark.parametrize(("mode", "outputs"), [(0, 4), (1, 4), (2, 4), (3, 4)])
def test_attention_scores_come_from_the_function_body(mode: int, outputs: int) -> None:
    q, k, v = normal(1, 2, 3, 8), normal(1, 2, 3, 8), normal(1, 2, 3, 8)
    past = normal(1, 2, 2, 8), normal(1, 2, 2, 8)
    session = agree("Attention", q, k, v, None, *past, opset=23, outputs=outputs, oracle=by_onnx, qk_matmul_output_mode=mode)
    assert "attention" not in operators(session)


# resizing

COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]


@pytest.mark.parametrize(("mode", "coordinates"), product(["nearest", "linear", "cubic"], COORDINATES))
@pytest.mark.parametrize("factors", [(2.0, 3.0), (0.7, 0.9), (1.5, 1.0)])
def test_resize_by_scales(mode: str, coordinates: str, factors: tuple[float, float]) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    # ONNX Runtime aligns corners by the whole number of elements, ONNX's own tests by the scaled length
    oracle = by_onnx if coordinates == "align_corners" else by_onnxruntime
    agree("Resize", normal(1, 2, 6, 5), None, floats(1, 1, *factors), constants=(2,), oracle=oracle, **attrs)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_rounding(nearest: str) -> None:
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": nearest}
    agree("Resize", normal(1, 1, 4, 6), None, None, np.array([1, 1, 7, 3]), constants=(3,), **attrs)
    agree("Resize", normal(1, 1, 4, 6), None, None, np.array([1, 1, 8, 12]), **attrs)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str) -> None:
    x = normal(1, 2, 12, 10)
    agree("Resize", x, None, floats(1, 1, 0.5, 0.4), constants=(2,), mode=mode, antialias=1, oracle=by_onnx)
    agree("Resize", x, None, floats(1, 1, 0.5, 0.4), constants=(2,), mode=mode, antialias=1, exclude_outside=1, oracle=by_onnx)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_aspect_ratio(policy: str) -> None:
    attrs = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "nearest", "oracle": by_onnx}
    agree("Resize", normal(1, 2, 4, 6), None, None, np.array([7, 8]), constants=(3,), **attrs)


def test_crop_and_resize() -> None:
    region = floats(0, 0, 0.4, 0.6, 1, 1, 1.4, 0.9)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    agree("Resize", normal(1, 1, 4, 4), region, None, np.array([1, 1, 3, 5]), constants=(1, 3), oracle=by_onnx, **attrs)
    agree("Resize", normal(1, 1, 4, 4), region, None, np.array([1, 1, 3, 5]), oracle=by_onnx, **attrs)


def test_symmetric_coordinates() -> None:
    attrs = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric", "oracle": by_onnx}
    agree("Resize", normal(1, 1, 1, 4), None, floats(1, 1, 1, 0.6), constants=(2,), **attrs)


def test_resize_with_scales_from_data() -> None:
    agree("Resize", normal(1, 2, 4, 4), None, floats(1, 1, 2, 1.5), mode="linear")


def test_scales_from_data_cannot_ask_for_too_much() -> None:
    x, scales = normal(1, 1, 4, 4), floats(1, 1, 1e5, 1e5)
    session = hotfuse.load(model("Resize", [x, None, scales], opset=18, outputs=1, constants=(), symbolic=False))
    with pytest.raises(LimitExceeded, match="the limit is"):
        session.run(None, {"x0": x, "x2": scales})


def test_resize_of_opset_10_and_upsample() -> None:
    agree("Resize", normal(1, 2, 3, 4), floats(1, 1, 2, 0.5), opset=10, constants=(1,))
    for mode in ("nearest", "linear"):
        agree("Upsample", normal(1, 2, 3, 4), floats(1, 1, 2, 3), opset=9, constants=(1,), mode=mode)
        agree("Upsample", normal(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode=mode)


def test_resizing_integers() -> None:
    x = RNG.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
    agree("Resize", x, None, floats(1, 1, 2, 2), constants=(2,), mode="nearest")


def test_resize_that_changes_nothing_is_nothing() -> None:
    assert operators(agree("Resize", normal(1, 2, 3, 3), None, floats(1, 1, 1, 1), constants=(2,))) == []


def test_resizes_that_make_no_sense_are_refused() -> None:
    x = normal(1, 1, 4, 4)
    for inputs, constants, attrs, why in (
        ([x, None, floats(1, 1, -1, 2)], (2,), {}, "must be positive"),
        ([x, None, floats(1, 2)], (2,), {}, "one for each of the axes"),
        ([x, None, floats(1, 1, 2, 2)], (2,), {"mode": "sinc"}, "mode 'sinc'"),
        ([x, None, None, np.array([1, 4])], (3,), {}, "one scale or size"),
        ([normal(1, 1, 0, 4), None, None, np.array([1, 1, 4, 4])], (3,), {}, "size 0 cannot be resized"),
    ):
        with pytest.raises(InvalidModel, match=why):
            hotfuse.load(model("Resize", inputs, opset=18, outputs=1, constants=constants, symbolic=False, **attrs))


# sampling and regions


@pytest.mark.parametrize(("mode", "padding"), product(["linear", "nearest", "cubic"], ["zeros", "border", "reflection"]))
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = RNG.uniform(-1.5, 1.5, (2, 4, 3, 2)).astype(np.float32)
    old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    agree("GridSample", normal(2, 3, 5, 6), grid, opset=16, mode=old, padding_mode=padding, align_corners=align)


def test_grid_sample_of_volumes() -> None:
    grid = RNG.uniform(-1.3, 1.3, (1, 2, 3, 4, 3)).astype(np.float32)
    for padding in ("zeros", "border"):
        agree("GridSample", normal(1, 2, 4, 5, 6), grid, opset=20, mode="linear", padding_mode=padding)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 5), (3, 2, 4)])
def test_affine_grid(batch: int, align: int, sizes: tuple[int, ...]) -> None:
    axes = len(sizes)
    agree("AffineGrid", normal(batch, axes, axes + 1), np.array([batch, 3, *sizes]), opset=20, align_corners=align)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling", [0, 2])
def test_roi_align(mode: str, sampling: int) -> None:
    boxes = np.array([[0, 0, 9, 7], [2, 1.5, 6, 8], [-3, 4, 20, 30]], np.float32)
    batch = np.array([0, 1, 1])
    attrs = {"mode": mode, "sampling_ratio": sampling, "output_height": 3, "output_width": 2, "spatial_scale": 0.7}
    for kind in ("half_pixel", "output_half_pixel"):
        agree("RoiAlign", normal(2, 3, 8, 9), boxes, batch, opset=16, coordinate_transformation_mode=kind, **attrs)
    agree("RoiAlign", normal(2, 3, 8, 9), boxes, batch, opset=10, **attrs)


def test_max_roi_pool() -> None:
    boxes = np.array([[0, 1, 1, 6, 5], [1, 0, 2, 8, 7]], np.float32)
    agree("MaxRoiPool", normal(2, 3, 9, 10), boxes, opset=1, pooled_shape=[2, 3], spatial_scale=0.8, oracle=_max_roi_pool)


def _max_roi_pool(proto: Any, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    proto.opset_import[0].version = 8  # the same operator; ONNX Runtime reads no opset before 7
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("centers", [0, 1])
def test_non_max_suppression(centers: int) -> None:
    boxes = RNG.uniform(0, 1, (2, 30, 4)).astype(np.float32)
    boxes[..., 2:] += 0.1
    scores = RNG.uniform(0, 1, (2, 3, 30)).astype(np.float32)
    limits = (np.array([5]), floats(0.3), floats(0.2))
    agree("NonMaxSuppression", boxes, scores, *limits, opset=11, center_point_box=centers)
    agree("NonMaxSuppression", boxes, scores, limits[0], opset=11, center_point_box=centers)


def test_grids_that_do_not_fit_are_refused() -> None:
    for grid, attrs, why in (
        (normal(1, 2, 2, 3), {}, "does not fit the image"),
        (normal(1, 2, 2, 2), {"mode": "sinc"}, "nearest, linear or cubic"),
        (normal(1, 2, 2, 2), {"padding_mode": "mirror"}, "zeros, border or reflection"),
    ):
        with pytest.raises(InvalidModel, match=why):
            hotfuse.load(
                model("GridSample", [normal(1, 1, 4, 4), grid], opset=20, outputs=1, constants=(), symbolic=False, **attrs)
            )


# signals


@pytest.mark.parametrize(("parts", "onesided"), [(1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("length", [None, 6, 16])
def test_dft(parts: int, onesided: int, length: int | None) -> None:
    x = normal(2, 10, 3, parts)
    size = None if length is None else np.array(length)
    attrs = {"onesided": onesided, "oracle": lambda proto, feeds: [_torch_dft(x, length, bool(onesided))]}
    agree("DFT", x, size, opset=17, axis=1, **attrs)
    for constants in ((), (2,)):
        agree("DFT", x, size, np.array(1), opset=20, constants=constants, **attrs)


def _torch_dft(x: Any, length: int | None, onesided: bool) -> Any:
    """ONNX Runtime's transform is less exact than ours; torch's in float64 is not."""
    pairs = torch.from_numpy(x).double()
    signal = torch.complex(pairs[..., 0], pairs[..., 1] if x.shape[-1] == 2 else torch.zeros_like(pairs[..., 0]))
    found = torch.fft.fft(signal, n=length, dim=1)
    found = found[:, : found.shape[1] // 2 + 1] if onesided else found
    return torch.view_as_real(found).float().numpy()


def test_inverse_dft() -> None:
    x = normal(2, 10, 2)
    agree("DFT", x, opset=17, axis=1, inverse=1)
    agree("DFT", x, opset=20, inverse=1, onesided=1, oracle=by_onnx)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int) -> None:
    x, window = normal(2, 64, 1), np.hanning(16).astype(np.float32)
    step, length = np.array(8), np.array(16)
    agree("STFT", x, step, window, opset=17, onesided=onesided, constants=(1,))
    agree("STFT", x, step, window, length, opset=17, onesided=onesided)
    agree("STFT", x, step, None, length, opset=17, onesided=onesided, constants=(1, 3))


def test_mel_weight_matrix() -> None:
    numbers = (np.array(8), np.array(64), np.array(8000), np.array(20.0, np.float32), np.array(3800.0, np.float32))
    agree("MelWeightMatrix", *numbers, opset=17, constants=(0, 1))


def test_det() -> None:
    agree("Det", normal(2, 3, 3))


def test_signals_that_make_no_sense_are_refused() -> None:
    signal, window = normal(1, 8, 1), normal(4)
    for op, inputs, attrs, why in (
        ("DFT", [normal(2, 8, 3)], {"axis": 1}, "real and imaginary"),
        ("DFT", [normal(2, 8, 2)], {"axis": 2}, "is not transformed"),
        ("STFT", [normal(8, 1), np.array(2), window], {}, "batch, time"),
        ("STFT", [signal, np.array(2), None, np.array(9)], {}, "longer than the signal"),
        ("STFT", [signal, np.array(2), window, np.array(5)], {}, "window has 4"),
        ("Det", [normal(2, 3)], {}, "no square matrices"),
    ):
        constants = tuple(i for i, x in enumerate(inputs) if x is not None and x.dtype.kind == "i")
        with pytest.raises(InvalidModel, match=why):
            hotfuse.load(model(op, inputs, opset=17, outputs=1, constants=constants, symbolic=False, **attrs))
