"""ONNX elementwise operators in their old and new forms, against ONNX Runtime, torch and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.errors import InvalidModel
from hotfuse.numerics import close_to_exact, same_bits
from tests.frontends.single_node import load, ops_of, run, run_ort

RNG = np.random.default_rng(0)
X = RNG.uniform(-4, 4, (2, 3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 4)), (0, (2,)), (2, (4, 5)), (-2, (4,)), (0, (2, 3, 4, 5))])
def test_before_opset_7_an_axis_lays_the_second_input(op: str, axis: int, shape: tuple[int, ...]) -> None:
    y = RNG.uniform(0.5, 2, shape).astype(np.float32)
    (ours,) = run(op, [X, y], 6, broadcast=1, axis=axis)
    start = axis % 4
    laid = y.reshape(shape + (1,) * (4 - start - len(shape)))
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op]
    assert same_bits(ours, function(X, laid))


def test_before_opset_7_broadcasting_without_an_axis_is_numpys() -> None:
    y = RNG.uniform(0.5, 2, (4, 5)).astype(np.float32)
    assert same_bits(run("Add", [X, y], 6, broadcast=1)[0], X + y)


def test_an_axis_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidModel, match="does not fit rank 4 from axis 3"):
        load("Add", [X, np.zeros((4, 5), np.float32)], 6, broadcast=1, axis=3)


def test_forms_that_need_a_rank_say_so() -> None:
    with pytest.raises(InvalidModel, match="needs inputs of known rank"):
        load("Add", [X, X[0]], 6, ranked=False, broadcast=1, axis=0)
    ((_, _, reason),) = load("PRelu", [X, np.ones(3, np.float32)], 6, constants=(1,), ranked=False).opaque
    assert "known rank" in reason


def test_marks_of_the_first_opset_mean_nothing() -> None:
    assert same_bits(run("Relu", [X], 1, consumed_inputs=[0])[0], np.maximum(X, 0))


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(op: str, count: int) -> None:
    inputs = [X, X[:, :1], X[0, 0]][:count]
    np.testing.assert_allclose(run(op, inputs, 13)[0], run_ort(op, inputs, 13)[0], rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8, np.float32])
@pytest.mark.parametrize("fmod", [0, 1])
def test_mod(dtype: Any, fmod: int) -> None:
    if dtype is np.float32:
        fmod = 1
    a, b = (np.asarray(v).astype(dtype) for v in (RNG.integers(-9, 9, 40), RNG.integers(1, 5, 40)))
    if np.dtype(dtype).kind == "u":
        a = np.abs(a)
    assert same_bits(run("Mod", [a, b], 13, fmod=fmod)[0], run_ort("Mod", [a, b], 13, fmod=fmod)[0])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction: str) -> None:
    a, b = np.arange(8, dtype=np.uint32), np.array(3, np.uint32)
    assert same_bits(
        run("BitShift", [a, b], 11, direction=direction)[0], run_ort("BitShift", [a, b], 11, direction=direction)[0]
    )


def test_a_shift_needs_a_direction() -> None:
    with pytest.raises(InvalidModel, match="LEFT or RIGHT"):
        load("BitShift", [np.arange(4, dtype=np.uint8)] * 2, 11, direction="UP")


@pytest.mark.parametrize("bounds", [{}, {"min": -1.0}, {"max": 0.5}, {"min": -1.0, "max": 0.5}, {"min": 2.0, "max": -2.0}])
def test_clip_with_attributes(bounds: dict[str, float]) -> None:
    assert same_bits(run("Clip", [X], 6, **bounds)[0], np.minimum(np.maximum(X, bounds.get("min", -9)), bounds.get("max", 9)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.int8])
@pytest.mark.parametrize("given", [(None, None), (-1, None), (None, 2), (-1, 2), (3, -3)])
def test_clip_with_inputs(dtype: Any, given: tuple[int | None, int | None]) -> None:
    bounds = [None if v is None else np.array(v, dtype) for v in given]
    inputs = [X.astype(dtype), *bounds]
    assert same_bits(run("Clip", inputs, 13)[0], run_ort("Clip", inputs, 13)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("given", [(0.0, 6.0), (0.0, None), (None, 0.0), (-0.0, 0.0), (None, -0.0), (-6.0, -0.0)])
def test_clip_keeps_what_equals_a_bound(dtype: Any, given: tuple[float | None, float | None]) -> None:
    inputs = [np.resize(np.array([0.0, -0.0, 1, -1], dtype), 37), *(None if v is None else np.array(v, dtype) for v in given)]
    assert same_bits(run("Clip", inputs, 13)[0], run_ort("Clip", inputs, 13)[0])


@pytest.mark.parametrize(
    ("op", "opset", "attrs"),
    [
        ("LeakyRelu", 6, {}), ("LeakyRelu", 16, {"alpha": 0.3}), ("Elu", 6, {}), ("Elu", 6, {"alpha": 2.0}),
        ("Selu", 6, {}), ("Selu", 6, {"alpha": 2.0, "gamma": 3.0}), ("Celu", 12, {}), ("Celu", 12, {"alpha": 2.5}),
        ("HardSigmoid", 6, {}), ("HardSigmoid", 6, {"alpha": 0.5, "beta": 0.6}), ("HardSwish", 14, {}), ("Softplus", 1, {}),
        ("Softsign", 1, {}), ("ThresholdedRelu", 10, {}), ("ThresholdedRelu", 10, {"alpha": 2.0}), ("Shrink", 9, {}),
        ("Shrink", 9, {"lambd": 1.5, "bias": 1.0}), ("Gelu", 20, {}), ("Gelu", 20, {"approximate": "tanh"}), ("Mish", 18, {}),
    ],
)  # fmt: skip
def test_activations(op: str, opset: int, attrs: dict[str, Any]) -> None:
    """As close to float64 as ONNX Runtime's float32 is. float64 runs through the same importers."""
    original = run_ort(op, [X], opset, **attrs)[0]
    (exact,) = run(op, [X.astype(np.float64)], opset, **attrs)
    np.testing.assert_allclose(exact, original, rtol=1e-4, atol=2e-6)
    verdict = close_to_exact(run(op, [X], opset, **attrs)[0], original, exact)
    assert verdict, verdict.reason


def test_swish() -> None:
    for alpha in (1.0, 1.702):
        np.testing.assert_allclose(
            run("Swish", [X], 24, alpha=alpha)[0], X * torch.sigmoid(torch.from_numpy(X) * alpha).numpy(), rtol=1e-6, atol=1e-7
        )


def test_softplus_of_large_numbers() -> None:
    x = np.array([-1e3, -100, 30.0, 50.0, 1e3])
    assert same_bits(run("Softplus", [x], 22)[0], np.logaddexp(x, 0.0))


@pytest.mark.parametrize("op", ["Gelu", "Swish", "Mish", "Softplus", "HardSigmoid", "LeakyRelu"])
def test_activations_stay_whole(op: str) -> None:
    assert len(ops_of(op, [X], 24)) == 1


@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_slopes_of_channels_before_opset_7(shape: tuple[int, ...]) -> None:
    slope = RNG.uniform(0, 1, shape).astype(np.float32)
    expected = torch.nn.functional.prelu(torch.from_numpy(X), torch.from_numpy(slope)).numpy()
    assert same_bits(run("PRelu", [X, slope], 6)[0], expected)


def test_slopes_broadcast_from_opset_7() -> None:
    slope = RNG.uniform(0, 1, (3, 1, 5)).astype(np.float32)
    assert same_bits(run("PRelu", [X, slope], 16)[0], run_ort("PRelu", [X, slope], 16)[0])


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_is_inf(positive: int, negative: int) -> None:
    x = np.array([1.0, np.inf, -np.inf, np.nan, 0.0], np.float32)
    attrs = {"detect_positive": positive, "detect_negative": negative}
    assert same_bits(run("IsInf", [x], 20, **attrs)[0], run_ort("IsInf", [x], 20, **attrs)[0])


@pytest.mark.parametrize(
    ("base", "exponent"),
    [(np.float32, np.float32), (np.float32, np.int64), (np.int32, np.float32), (np.int64, np.int64), (np.int32, np.int32)],
)
def test_pow_of_mixed_types(base: Any, exponent: Any) -> None:
    a, b = np.array([1, 2, 3, 2.5]).astype(base), np.array([0, 3, 2, 1]).astype(exponent)
    np.testing.assert_allclose(run("Pow", [a, b], 15)[0], run_ort("Pow", [a, b], 15)[0], rtol=1e-6)


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (-8, 2)])
def test_integers_divide_toward_zero(a: int, b: int) -> None:
    inputs = [np.array([a], np.int32), np.array([b], np.int32)]
    assert same_bits(run("Div", inputs, 14)[0], run_ort("Div", inputs, 14)[0])


def test_dropout_lets_everything_pass_at_inference() -> None:
    for opset, attrs in ((1, {"is_test": 1}), (6, {"is_test": 1}), (7, {}), (10, {})):
        y, mask = run("Dropout", [X], opset, outputs=2, **attrs)
        assert same_bits(y, X)
        assert same_bits(mask, np.ones(X.shape, bool if opset >= 10 else np.float32))
    ratio, off, on = np.float32(0.5).reshape(()), np.array(False), np.array(True)
    y, mask = run("Dropout", [X, ratio, off], 13, outputs=2, constants=(1, 2))
    assert same_bits(y, X)
    assert mask.all()
    assert same_bits(run("Dropout", [X, np.float32(0).reshape(()), on], 13, constants=(1, 2))[0], X)


def test_dropout_that_trains_is_left_to_others_and_says_so() -> None:
    ratio, on = np.float32(0.5).reshape(()), np.array(True)
    ((_, op, reason),) = load("Dropout", [X, ratio, on], 13, constants=(1, 2)).opaque
    assert op == "Dropout"
    assert "random" in reason
    ((_, _, reason),) = load("Dropout", [X, ratio, on], 13).opaque
    assert "only a run tells" in reason
    assert load("Dropout", [X], 6).opaque


def test_celu_is_not_divided_by_zero() -> None:
    with pytest.raises(InvalidModel, match="alpha must not be 0"):
        load("Celu", [X], 12, alpha=0.0)


def test_functions_of_floats_refuse_integers() -> None:
    with pytest.raises(InvalidModel, match="cast the input to a float type"):
        load("Exp", [np.arange(3)], 13)


def test_inputs_of_different_types_are_refused() -> None:
    with pytest.raises(InvalidModel, match="different types, f32 and f64"):
        load("Add", [X, X.astype(np.float64)], 14)


def test_a_default_is_the_number_that_float32_has() -> None:
    x = X.astype(np.float64)
    (default,), (written,) = run("LeakyRelu", [x], 16), run("LeakyRelu", [x], 16, alpha=0.01)
    assert same_bits(default, written)
    assert same_bits(default, run_ort("LeakyRelu", [x], 16)[0])
