"""ONNX constants, casts and quantization, against ml_dtypes, ONNX Runtime and the tables of the standard."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotfuse
from hotfuse.errors import InvalidModel
from hotfuse.numerics import same_bits
from tests.frontends.single_node import load, model, run, run_ort

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value_float", 1.5, np.float32(1.5).reshape(())), ("value_floats", [1.0, 2.0], np.array([1, 2], np.float32)),
        ("value_int", 7, np.array(7)), ("value_ints", [1, 2], np.array([1, 2])), ("value_string", "a", np.array("a", object)),
        ("value_strings", ["a", "b"], np.array(["a", "b"], object)),
        ("value", onnx.numpy_helper.from_array(np.eye(2, dtype=np.int8)), np.eye(2, dtype=np.int8)),
        (
            "sparse_value",
            helper.make_sparse_tensor(
                onnx.numpy_helper.from_array(np.array([5.0], np.float32)), onnx.numpy_helper.from_array(np.array([2])), [4]
            ),
            np.array([0, 0, 5, 0], np.float32),
        ),
    ],
)  # fmt: skip
def test_constants_in_every_form(attribute: str, value: Any, expected: np.ndarray) -> None:
    (found,) = run("Constant", [], 21, **{attribute: value})
    assert same_bits(found, expected)


def test_a_constant_has_one_value() -> None:
    with pytest.raises(InvalidModel, match="exactly one value"):
        load("Constant", [], 21)
    with pytest.raises(InvalidModel, match="no attribute 'value_tensor'"):
        load("Constant", [], 21, value_tensor=1)


NUMBERS = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64, "i32": np.int32,
    "i8": np.int8, "u8": np.uint8, "bool": np.bool_, "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "f4": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool", "i4"])
@pytest.mark.parametrize("target", NUMBERS)
def test_casts_between_numbers(source: str, target: str) -> None:
    x = np.array([0, 1, 2, 3, 6]).astype(NUMBERS[source])
    (found,) = run("Cast", [x], 25, to=helper.np_dtype_to_tensor_dtype(np.dtype(NUMBERS[target])))
    assert same_bits(
        found, np.array([0, 1, 2, 3, 6], np.float32).astype(NUMBERS[source]).astype(np.float32).astype(NUMBERS[target])
    )
    like = np.zeros(1, NUMBERS[target])
    assert same_bits(run("CastLike", [x, like], 25)[0], found)


# value, then its cast to e4m3fn, e4m3fnuz, e5m2, e5m2fnuz: saturating, not saturating (the table of ONNX's Cast)
FLOAT8 = {
    1e6: ((448, np.nan), (240, np.nan), (57344, np.inf), (57344, np.nan)),
    -np.inf: ((-448, np.nan), (-240, np.nan), (-57344, -np.inf), (-57344, np.nan)),
    np.nan: ((np.nan, np.nan),) * 4,
    1.0625: ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
}


@pytest.mark.parametrize("value", FLOAT8)
@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_float8_saturates_unless_told_otherwise(value: float, saturate: int, source: Any) -> None:
    types = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
    with np.errstate(over="ignore"):
        x = np.array([value]).astype(source)
    for to, (saturated, plain) in zip(types, FLOAT8[value], strict=True):
        (found,) = run("Cast", [x], 23, to=to, saturate=saturate)
        np.testing.assert_array_equal(found.astype(np.float64), [saturated if saturate else plain])


@pytest.mark.parametrize(("rounding", "expected"), [("up", [1, 4, 8, 2]), ("down", [1, 2, 4, 1]), ("nearest", [1, 4, 4, 1])])
def test_powers_of_two(rounding: str, expected: list[float]) -> None:
    x = np.array([1.0, 3.0, 5.0, 1.25], np.float32)
    (found,) = run("Cast", [x], 24, to=TensorProto.FLOAT8E8M0, round_mode=rounding)
    np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_strings() -> None:
    text = np.array(["1.5", "-inf", "NaN", "3"], object)
    np.testing.assert_array_equal(
        run("Cast", [text], 21, to=TensorProto.FLOAT)[0], np.array([1.5, -np.inf, np.nan, 3], np.float32)
    )
    np.testing.assert_array_equal(run("Cast", [np.array(["12"], object)], 21, to=TensorProto.INT64)[0], [12])
    assert run("Cast", [np.array([3, -4])], 21, to=TensorProto.STRING)[0].tolist() == ["3", "-4"]


def test_the_first_opset_names_types_by_text() -> None:
    assert run("Cast", [np.array([1.7], np.float32)], 1, to="INT32")[0].dtype == np.int32
    with pytest.raises(InvalidModel, match="unknown element type 'QUAD'"):
        load("Cast", [np.array([1.7], np.float32)], 1, to="QUAD")


def test_casts_need_a_type() -> None:
    x = np.zeros(1, np.float32)
    with pytest.raises(InvalidModel, match="'to' is missing"):
        hotfuse.load(model("Cast", [x], 21))
    with pytest.raises(InvalidModel, match="unknown element type 99"):
        load("Cast", [x], 21, to=99)
    with pytest.raises(InvalidModel, match="'to' is missing"):
        load("BitCast", [x], 26)


def test_bits_are_read_as_another_type() -> None:
    x = np.array([1.0, -2.5], np.float32)
    (found,) = run("BitCast", [x], 26, to=TensorProto.INT32)
    assert same_bits(found, x.view(np.int32))
    with pytest.raises(InvalidModel, match="widths must be equal"):
        load("BitCast", [x], 26, to=TensorProto.INT16)


QUANTIZED = [np.uint8, np.int8, np.uint16, np.int16]


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize_and_back(dtype: Any, axis: int | None) -> None:
    x = RNG.uniform(-300, 300, (3, 4, 5)).astype(np.float32)
    count = () if axis is None else (x.shape[axis],)
    scale = np.asarray(RNG.uniform(0.4, 2, count), dtype=np.float32)
    zero = np.asarray(RNG.integers(0, 100, count)).astype(dtype)
    attrs = {} if axis is None else {"axis": axis}
    (q,) = run("QuantizeLinear", [x, scale, zero], 21, **attrs)
    assert same_bits(q, run_ort("QuantizeLinear", [x, scale, zero], 21, **attrs)[0])
    back = [q, scale, zero]
    assert same_bits(run("DequantizeLinear", back, 21, **attrs)[0], run_ort("DequantizeLinear", back, 21, **attrs)[0])


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("size", [6, 5])
def test_blocks(axis: int, size: int) -> None:
    x = RNG.uniform(-100, 100, (2, size) if axis == -1 else (2, size, 3)).astype(np.float32)
    places = tuple(-(-n // 3) if i == axis % x.ndim else n for i, n in enumerate(x.shape))
    scale = RNG.uniform(0.4, 2, places).astype(np.float32)
    zero = RNG.integers(-10, 10, places).astype(np.int8)
    (q,) = run("QuantizeLinear", [x, scale, zero], 21, axis=axis, block_size=3)
    assert same_bits(q, run_ort("QuantizeLinear", [x, scale, zero], 21, axis=axis, block_size=3)[0])
    back = [q, scale, zero]
    ours, theirs = (f("DequantizeLinear", back, 21, axis=axis, block_size=3)[0] for f in (run, run_ort))
    assert same_bits(ours, theirs)


def test_without_a_zero_point_the_type_is_an_attribute() -> None:
    x, scale = np.array([-3.0, 2.0, 900.0], np.float32), np.float32(2).reshape(())
    assert same_bits(run("QuantizeLinear", [x, scale], 21)[0], np.array([0, 1, 255], np.uint8))
    assert same_bits(run("QuantizeLinear", [x, scale], 21, output_dtype=TensorProto.INT8)[0], np.array([-2, 1, 127], np.int8))


def test_a_zero_point_that_does_not_fit_the_scales_is_seen() -> None:
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(InvalidModel, match="do not fit axis 1"):
        load("QuantizeLinear", [x, np.ones(3, np.float32)], 21)
    with pytest.raises(InvalidModel, match="blocked scales of rank 1"):
        load("QuantizeLinear", [x, np.ones(2, np.float32)], 21, block_size=2)
    with pytest.raises(InvalidModel, match="the scale must be a float"):
        load("QuantizeLinear", [x, np.array(1)], 21)


@pytest.mark.parametrize("shift", [-20, 0, 20])
def test_dynamic_quantization(shift: float) -> None:
    x = (RNG.uniform(-5, 5, (4, 7)) + shift).astype(np.float32)
    for ours, theirs in zip(
        run("DynamicQuantizeLinear", [x], 11, outputs=3), run_ort("DynamicQuantizeLinear", [x], 11, outputs=3), strict=True
    ):
        assert same_bits(ours, theirs)
