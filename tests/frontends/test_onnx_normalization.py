"""ONNX normalizations in all their versions, against torch and ONNX Runtime by the float64 rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nn

from hotfuse.errors import InvalidModel
from hotfuse.ir.op import OPS
from hotfuse.numerics import close_to_exact, same_bits
from tests.frontends.single_node import load, ops_of, run, run_ort

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (2, 6, 4, 5)).astype(np.float32)
SCALE, BIAS, MEAN = (RNG.uniform(-1, 2, 6).astype(np.float32) for _ in range(3))
VAR = RNG.uniform(0.5, 2, 6).astype(np.float32)


def check(ours: np.ndarray, function: Any, *inputs: np.ndarray) -> None:
    """`ours` is as close to `function` in float64 as torch's float32 is."""
    original, exact = (function(*(torch.from_numpy(x).to(t) for x in inputs)).numpy() for t in (torch.float32, torch.float64))
    verdict = close_to_exact(ours, original, exact)
    assert verdict, verdict.reason


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_along_an_axis(op: str, axis: int) -> None:
    (ours,) = run(op, [X], 13, axis=axis)
    if op == "Hardmax":
        assert same_bits(ours, run_ort(op, [X], 13, axis=axis)[0])
    else:
        check(ours, lambda x: getattr(torch, {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[op])(x, axis), X)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -2])
def test_softmax_took_the_rest_together_before_opset_13(op: str, axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    np.testing.assert_allclose(run(op, [X], 11, **attrs)[0], run_ort(op, [X], 11, **attrs)[0], rtol=2e-6, atol=1e-6)


def test_softmax_needs_a_rank_and_an_axis() -> None:
    ((_, _, reason),) = load("Softmax", [X], 11, ranked=False).opaque
    assert "rank is not known" in reason
    with pytest.raises(InvalidModel, match="axis 5 is out of range"):
        load("Softmax", [X], 11, axis=5)
    with pytest.raises(InvalidModel, match="axis 4 is out of range"):
        load("Softmax", [X], 13, axis=4)


def test_softmax_of_masked_rows_and_nothing() -> None:
    x = np.array([[-np.inf, 0.0, 1.0], [-np.inf] * 3], np.float32)
    np.testing.assert_allclose(run("Softmax", [x], 13)[0], torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-6)
    assert run("Softmax", [np.zeros((2, 0), np.float32)], 13)[0].shape == (2, 0)


@pytest.mark.parametrize("axis", [-1, 2, 1, -3])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(axis: int, bias: bool) -> None:
    shape = X.shape[axis:]
    given = [RNG.uniform(0.5, 2, shape).astype(np.float32) for _ in range(1 + bias)]
    (ours,) = run("LayerNormalization", [X, *given], 17, axis=axis, epsilon=1e-3)
    check(ours, lambda x, s, b=None: nn.layer_norm(x, shape, s, b, 1e-3), X, *given)
    results = run("LayerNormalization", [X, *given], 17, axis=axis, outputs=3)
    for mine, theirs in zip(results, run_ort("LayerNormalization", [X, *given], 17, axis=axis, outputs=3), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_layer_norm_statistics_need_a_rank() -> None:
    with pytest.raises(InvalidModel, match="rank of the input must be known"):
        load("LayerNormalization", [X, np.ones(5, np.float32)], 17, ranked=False, outputs=3)


def test_rms_norm() -> None:
    scale = RNG.uniform(0.5, 2, (4, 5)).astype(np.float32)
    check(run("RMSNormalization", [X, scale], 23, axis=2)[0], lambda x, s: nn.rms_norm(x, (4, 5), s, 1e-5), X, scale)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm(groups: int) -> None:
    (ours,) = run("GroupNormalization", [X, SCALE, BIAS], 21, num_groups=groups, epsilon=1e-3)
    check(ours, lambda x, s, b: nn.group_norm(x, groups, s, b, 1e-3), X, SCALE, BIAS)
    per_group = [RNG.uniform(0.5, 2, groups).astype(np.float32) for _ in range(2)]
    (ours,) = run("GroupNormalization", [X, *per_group], 18, num_groups=groups)
    check(ours, lambda x, s, b: nn.group_norm(x, groups, *(v.repeat_interleave(6 // groups) for v in (s, b))), X, *per_group)


def test_group_norm_without_a_rank_is_written_out() -> None:
    """The standard's own function serves where the channels cannot be counted."""
    inputs = [X, SCALE[:3], BIAS[:3]]
    session = load("GroupNormalization", inputs, 18, num_groups=3, ranked=False)
    (ours,) = session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})
    np.testing.assert_allclose(ours, run("GroupNormalization", inputs, 18, num_groups=3)[0], rtol=1e-4, atol=1e-5)


def test_group_norm_refusals() -> None:
    with pytest.raises(InvalidModel, match="'num_groups' is missing"):
        load("GroupNormalization", [X, SCALE, BIAS], 21)
    with pytest.raises(InvalidModel, match="4 equal groups"):
        load("GroupNormalization", [X, SCALE, BIAS], 21, num_groups=4)
    with pytest.raises(InvalidModel, match="does not fit 6 channels"):
        load("GroupNormalization", [X, SCALE[:3], BIAS], 21, num_groups=3)
    with pytest.raises(InvalidModel, match="has no channels"):
        load("InstanceNormalization", [SCALE, SCALE, BIAS], 6)


def test_instance_norm() -> None:
    (ours,) = run("InstanceNormalization", [X, SCALE, BIAS], 6, epsilon=1e-2)
    check(ours, lambda x, s, b: nn.instance_norm(x, weight=s, bias=b, eps=1e-2), X, SCALE, BIAS)


@pytest.mark.parametrize(("opset", "attrs"), [(6, {"is_test": 1}), (7, {}), (9, {}), (14, {}), (15, {"training_mode": 0})])
def test_batch_norm(opset: int, attrs: dict[str, Any]) -> None:
    inputs = [X, SCALE, BIAS, MEAN, VAR]
    (ours,) = run("BatchNormalization", inputs, opset, epsilon=1e-3, **attrs)
    check(ours, lambda x, s, b, m, v: nn.batch_norm(x, m, v, s, b, eps=1e-3), *inputs)


def test_batch_norm_that_trains() -> None:
    inputs = [X, SCALE, BIAS, MEAN, VAR]
    y, mean, var = run("BatchNormalization", inputs, 15, outputs=3, training_mode=1, momentum=0.75)
    check(y, lambda x, s, b, m, v: nn.batch_norm(x, m.clone(), v.clone(), s, b, training=True), *inputs)
    np.testing.assert_allclose(mean, 0.75 * MEAN + 0.25 * X.mean(axis=(0, 2, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, 0.75 * VAR + 0.25 * X.var(axis=(0, 2, 3)), rtol=1e-5)
    older = run("BatchNormalization", inputs, 9, outputs=5, momentum=0.75)
    for a, b in zip(older, [y, mean, var, X.mean(axis=(0, 2, 3)), X.var(axis=(0, 2, 3))], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_batch_norm_with_statistics_of_every_place() -> None:
    given = [RNG.uniform(0.5, 2, X.shape[1:]).astype(np.float32) for _ in range(4)]
    (ours,) = run("BatchNormalization", [X, *given], 7, spatial=0)
    scale, bias, mean, var = (v.astype(np.float64) for v in given)
    np.testing.assert_allclose(ours, (X - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-5, atol=1e-5)
    assert "each place" in load("BatchNormalization", [X, *given], 7, spatial=0, outputs=5).opaque[0][2]


def test_half_inputs_with_float_statistics() -> None:
    x = X.astype(np.float16)
    (ours,) = run("BatchNormalization", [x, SCALE.astype(np.float16), BIAS.astype(np.float16), MEAN, VAR], 15)
    assert ours.dtype == np.float16
    exact = nn.batch_norm(*(torch.from_numpy(v).double() for v in (x, MEAN, VAR, SCALE, BIAS))).numpy()
    np.testing.assert_allclose(ours.astype(np.float64), exact, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    check(run("LpNormalization", [X], 22, p=p, axis=axis)[0], lambda x: nn.normalize(x, p=p, dim=axis), X)


def test_lp_normalization_of_nothing_is_nothing() -> None:
    assert not run("LpNormalization", [np.zeros((2, 3), np.float32)], 22)[0].any()
    with pytest.raises(InvalidModel, match="p must be 1 or 2"):
        load("LpNormalization", [X], 22, p=3)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response(size: int) -> None:
    (ours,) = run("LRN", [X], 13, size=size, alpha=0.3, beta=0.6, bias=1.5)
    check(ours, lambda x: nn.local_response_norm(x, size, alpha=0.3, beta=0.6, k=1.5), X)
    np.testing.assert_allclose(ours, run_ort("LRN", [X], 13, size=size, alpha=0.3, beta=0.6, bias=1.5)[0], rtol=1e-5)


def test_local_response_needs_a_window() -> None:
    with pytest.raises(InvalidModel, match="size must be at least 1"):
        load("LRN", [X], 13, size=0)
    with pytest.raises(InvalidModel, match="'size' is missing"):
        load("LRN", [X], 13)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Softmax", [X], {}), ("LayerNormalization", [X, np.ones(5, np.float32)], {}), ("LRN", [X], {"size": 3}),
        ("GroupNormalization", [X, SCALE, BIAS], {"num_groups": 2}), ("InstanceNormalization", [X, SCALE, BIAS], {}),
        ("BatchNormalization", [X, SCALE, BIAS, MEAN, VAR], {}),
    ],
)  # fmt: skip
def test_normalizations_stay_whole(op: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    assert len(ops_of(op, inputs, 21, **attrs)) == 1


def test_parameters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"LayerNormalization"):
        load("LayerNormalization", [X, np.ones(4, np.float32)], 17)
    with pytest.raises(InvalidModel, match="does not fit f32"):
        load("LayerNormalization", [X[0, 0], np.ones((2, 4, 5), np.float32)], 17)
    with pytest.raises(InvalidModel, match="input 1 must be a float"):
        load("LayerNormalization", [X, np.ones(5, np.int64)], 17)


def test_mean_variance_does_not_cancel() -> None:
    """Values far from zero: the variance as E[x^2] - E[x]^2 would have no digit left."""
    x = (X + 1000).astype(np.float32)
    (ours,) = run("MeanVarianceNormalization", [x], 13, axes=[2, 3])

    def standardized(x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean((2, 3), keepdim=True)
        return centered / (centered.square().mean((2, 3), keepdim=True).sqrt() + 1e-9)

    check(ours, standardized, x)


def test_mean_variance_without_axes_is_over_all_but_channels() -> None:
    (ours,) = run("MeanVarianceNormalization", [X], 13)
    np.testing.assert_allclose(ours, run_ort("MeanVarianceNormalization", [X], 13)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.3827, 1 / 3, 7.77])
def test_a_row_of_equal_elements_is_normalized_to_nothing(value: float) -> None:
    x = np.full((2, 3, 6), value, np.float32)
    for op in ("instance_norm", "layer_norm"):
        assert not OPS[op].reference(x).any()
