"""The rules of equality: each accepts what it should and catches a planted defect."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hotfuse.numerics import alike, close_to_exact, same_bits, spacing, within_ulp

RNG = np.random.default_rng(0)


def product(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((64, 256)), rng.standard_normal((256, 32))
    exact = a.astype(np.float32).astype(np.float64) @ b.astype(np.float32).astype(np.float64)
    return a.astype(np.float32) @ b.astype(np.float32), exact


def test_bits() -> None:
    x = np.array([1.0, np.nan, -0.0, np.inf], np.float32)
    assert same_bits(x, x.copy())
    assert not same_bits(x, np.array([1.0, np.nan, 0.0, np.inf], np.float32))
    assert not same_bits(x, x.astype(np.float64))
    assert "shape" in same_bits(x, x[:2]).reason
    assert same_bits(np.array(["a"], object), np.array(["a"], object))
    assert "first at (1,)" in same_bits(np.array([1, 2]), np.array([1, 3])).reason


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_spacing_agrees_with_numpy(dtype: str) -> None:
    values = np.abs(RNG.standard_normal(1000) * 10.0 ** RNG.integers(-6, 4, 1000)).astype(dtype)
    np.testing.assert_array_equal(spacing(values.astype(np.float64), dtype), np.spacing(values).astype(np.float64))


def test_ulp() -> None:
    x = np.array([1.0, 3.0, np.inf, np.nan], np.float32)
    two_up = np.nextafter(np.nextafter(x, np.float32(9)), np.float32(9))
    two_up[2:] = x[2:]
    assert within_ulp(two_up, x, 2)
    assert not within_ulp(two_up, x, 1)
    assert "NaN" in within_ulp(np.array([1.0, 3.0, 9.0, np.nan], np.float32), x, 2).reason


def test_reordered_sums_pass_the_float64_rule() -> None:
    original, exact = product()
    other = np.zeros_like(original)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 256)).astype(np.float32), rng.standard_normal((256, 32)).astype(np.float32)
    for k in range(0, 256, 32):
        other += a[:, k : k + 32] @ b[k : k + 32]
    assert close_to_exact(other, original, exact)


@pytest.mark.parametrize("defect", ["tail row", "one element", "scale", "nan", "bias", "type"])
def test_planted_defects_are_caught(defect: str) -> None:
    original, exact = product()
    wrong = original.copy()
    if defect == "tail row":
        wrong[-1] += 3e-4
    elif defect == "one element":
        wrong[5, 7] += 2e-3
    elif defect == "scale":
        wrong *= np.float32(1 + 1e-5)
    elif defect == "nan":
        wrong[0, 0] = np.nan
    elif defect == "bias":
        wrong += np.float32(1e-4)
    else:
        wrong = wrong.astype(np.float64)
    verdict = close_to_exact(wrong, original, exact)
    assert not verdict
    assert verdict.reason


def test_half_types() -> None:
    exact = RNG.standard_normal((8, 64))
    original = exact.astype(ml_dtypes.bfloat16)
    assert close_to_exact(original, original, exact)
    wrong = (exact * 1.05).astype(ml_dtypes.bfloat16)
    assert not close_to_exact(wrong, original, exact)


def test_integers_are_compared_exactly() -> None:
    x = np.array([1, 2, 3])
    assert close_to_exact(x, x, x.astype(np.float64))
    assert not close_to_exact(x + 1, x, x.astype(np.float64))


def test_complex_numbers_are_compared_in_both_parts() -> None:
    x = np.array([1 + 2j, complex(np.nan, 0.0)], np.complex64)
    assert same_bits(x, x.copy())
    assert not same_bits(x, np.array([1 - 2j, complex(np.nan, 0.0)], np.complex64))
    assert close_to_exact(x[:1], x[:1], x[:1].astype(np.complex128))


def test_empty_results_are_equal() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert close_to_exact(empty, empty, empty.astype(np.float64))
    assert within_ulp(empty, empty, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_answers_are_alike_if_half_of_their_digits_agree(dtype: str) -> None:
    original = np.random.default_rng(0).standard_normal((8, 64)).astype(dtype)
    unit = np.finfo(dtype).eps
    assert alike((original * (1 + 4 * unit)).astype(dtype), original)
    assert alike(original, np.where(original > 9, np.nan, original).astype(dtype))
    assert not alike((original * (1 + 8 * unit**0.5)).astype(dtype), original)
    for wrong in (np.nan, np.inf):
        planted = original.copy()
        planted[3, 5] = wrong
        assert not alike(planted, original)
        assert not alike(original, planted)
    assert not alike(original[:4], original)
    assert not alike(original.astype("complex128"), original)


def test_what_does_not_round_is_alike_by_its_bits() -> None:
    assert alike(np.arange(4), np.arange(4))
    assert not alike(np.arange(4), np.array([0, 1, 2, 4]))
    assert alike(np.array([1 + 1j]), np.array([1 + 1j]))
    assert not alike(np.array([1 + 1j]), np.array([1 - 1j]))
    assert alike(np.zeros(0, np.float32), np.zeros(0, np.float32))
