"""Every elementwise operation of tile programs means what torch means by it, specials included, for every type it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.codegen.scalar_ops import BLOCK_DTYPES, NOT_OFFERED, SCALAR_OPS, ScalarOp, fused_multiply_add, result_dtype
from hotfuse.errors import TileError
from hotfuse.ir.ops.elementwise import SCALAR_FUNCTIONS
from hotfuse.ir.types import BF16, BOOL, C64, F16, F32, F64, I32, I64, U8, DType
from hotfuse.numerics import close_to_exact, same_bits, within_ulp

TORCH: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in (
        "add", "sub", "mul", "fmod", "neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log",
        "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "erf", "erfc", "sigmoid", "pow", "floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le", "gt",
        "ge", "where", "isnan", "isinf",
    )},
    "div": lambda x, y: torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc"),
    "floor_div": torch.floor_divide, "mod": torch.remainder, "max": torch.maximum, "min": torch.minimum,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "gelu_erf": torch.nn.functional.gelu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "fma": lambda x, y, z: x * y + z,
}  # fmt: skip
SPECIAL = [
    0.0,
    -0.0,
    0.25,
    -0.25,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.5,
    -2.5,
    3.0,
    7.75,
    -20.0,
    20.0,
    math.nan,
    math.inf,
    -math.inf,
]
WHOLE = [0, 1, 2, 3, 5, 7, 20, 100]
TAKEN = [
    pytest.param(op, dtype, id=f"{op.name}-{dtype}")
    for op in SCALAR_OPS.values()
    for dtype in (F64, F32, I64, I32, U8, BOOL)
    if dtype.kind in op.kinds
]


def values(op: ScalarOp, dtype: DType) -> list[np.ndarray]:
    """Every combination of interesting arguments, as columns."""
    if dtype.is_float:
        row = np.array(SPECIAL, dtype.numpy)
    else:
        row = np.array([0, 1] if dtype == BOOL else WHOLE if dtype == U8 else [*WHOLE, *(-x for x in WHOLE)], dtype.numpy)
    columns = [x.reshape(-1) for x in np.meshgrid(*[row] * op.arity)]
    if dtype.is_integer and op.name in ("div", "floor_div", "mod", "fmod"):  # torch raises where we say 0
        keep = columns[1] != 0
        columns = [x[keep] for x in columns]
    if op.name == "sign" and dtype.is_float:  # torch says 0 for NaN
        columns = [columns[0][~np.isnan(columns[0])]]
    if op.name == "gelu_erf":  # torch says NaN for infinity in float32, and infinity in float64
        columns = [columns[0][columns[0] != np.inf]]
    if op.name in ("shl", "shr"):  # counts that torch defines
        columns[1] = np.abs(columns[1]) % dtype.bits
        columns[1] = columns[1].astype(dtype.numpy)
    if op.name == "where":
        columns[0] = np.arange(columns[0].size) % 2 == 0
    return columns


def test_every_operation_has_an_oracle() -> None:
    assert sorted(TORCH) == sorted(SCALAR_OPS)


def test_every_function_of_scalar_bodies_is_here_or_listed_as_not_offered() -> None:
    plain = {name.rstrip("_") for name in SCALAR_FUNCTIONS}
    assert plain - set(NOT_OFFERED) <= set(SCALAR_OPS)
    assert set(NOT_OFFERED) <= plain - set(SCALAR_OPS)


@pytest.mark.parametrize(("op", "dtype"), TAKEN)
def test_torch_agrees(op: ScalarOp, dtype: DType) -> None:
    columns = values(op, dtype)
    ours = op.reference(*columns)
    tensors = [torch.from_numpy(x) for x in columns]
    original = TORCH[op.name](*tensors).numpy()
    if original.dtype.kind != "f" or op.ulp == 0:
        assert original.dtype == ours.dtype
        equal = (ours == original) | ((ours != ours) & (original != original))
        assert equal.all(), [x[~equal][:5] for x in (*columns, ours, original)]
        return
    wide = TORCH[op.name](*(t.double() for t in tensors)).numpy()
    if op.ulp is None:
        verdict = close_to_exact(ours, original, wide)
    else:
        verdict = within_ulp(ours, wide.astype(dtype.numpy), op.ulp)
    assert verdict, verdict.reason


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("op", [op for op in SCALAR_OPS.values() if "float" in op.kinds], ids=lambda op: op.name)
def test_half_types_are_rounded_once(op: ScalarOp, dtype: DType) -> None:
    columns = [x if x.dtype == bool else x.astype(dtype.numpy) for x in values(op, F32)]
    ours = op.reference(*columns)
    wide = op.reference(*(x if x.dtype == bool else x.astype(np.float32) for x in columns))
    with np.errstate(over="ignore"):
        assert same_bits(ours, wide if op.is_test else wide.astype(dtype.numpy))


@pytest.mark.parametrize("op", SCALAR_OPS.values(), ids=lambda op: op.name)
def test_results_have_the_promised_type_and_shape(op: ScalarOp) -> None:
    for dtype in BLOCK_DTYPES:
        if dtype.kind not in op.kinds:
            continue
        args = [np.ones((2, 1) if i else (1, 3)).astype(dtype.numpy) for i in range(op.arity)]
        dtypes = [dtype] * op.arity
        if op.name == "where":
            args[0], dtypes[0] = args[0].astype(bool), BOOL
        result = op.reference(*args)
        assert result.dtype == result_dtype(op.name, dtypes).numpy
        assert result.shape == ((2, 3) if op.arity > 1 else (1, 3))


def test_float32_fma_is_rounded_once() -> None:
    """Against exact rational arithmetic, on numbers that make a second rounding show."""
    from fractions import Fraction

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(2000).astype(np.float32) for _ in range(2))
    z = (-(x * y) * (1 + rng.integers(-3, 4, 2000) * 2.0**-23)).astype(np.float32)
    z[::2] *= np.float32(2.0**-24)
    ours = fused_multiply_add(x, y, z)
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z, strict=True)]
    for found, truth in zip(ours, exact, strict=True):
        error = abs(Fraction(float(found)) - truth)
        for neighbour in (np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - truth)


def test_a_tie_is_not_rounded_twice() -> None:
    """The product lies just above the middle of two float32 numbers, by less than float64 can hold."""
    x, y, z = np.float32([1 + 2.0**-23]), np.float32([2.0**-60]), np.float32([1 + 2.0**-23])
    halfway = fused_multiply_add(np.float32([1.0]), np.float32([2.0**-24]), z)
    above = fused_multiply_add(np.float32([2.0**-24]), np.float32([1 + 2.0**-23]), np.float32([1.0]))
    assert halfway[0] == np.float32(1 + 2.0**-22)  # the tie goes to even
    assert above[0] == np.float32(1 + 2.0**-23)
    assert fused_multiply_add(x, y, z)[0] == z[0]


def test_integers_divided_by_zero_are_zero_and_shifts_by_too_much_are_empty() -> None:
    one, zero, far = (np.array([x], np.int32) for x in (-5, 0, 32))
    for name in ("div", "floor_div", "mod", "fmod"):
        assert SCALAR_OPS[name].reference(one, zero)[0] == 0
    assert SCALAR_OPS["shl"].reference(one, far)[0] == 0
    assert SCALAR_OPS["shr"].reference(one, far)[0] == -1


@pytest.mark.parametrize(
    ("name", "dtypes", "message"),
    [
        ("plus", [F32, F32], "there is no operation 'plus'"),
        ("add", [F32], "add takes 2 arguments, not 1"),
        ("add", [F32, F64], "arguments of one type"),
        ("where", [F32, F32, F32], "condition of where must be bool"),
        ("exp", [I32], "exp is not defined for i32"),
        ("and", [F32, F32], "and is not defined for f32"),
        ("add", [BOOL, BOOL], "add is not defined for bool"),
        ("neg", [C64], "neg is not defined for c64"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, dtypes: list[DType], message: str) -> None:
    with pytest.raises(TileError, match=message):
        result_dtype(name, dtypes)
