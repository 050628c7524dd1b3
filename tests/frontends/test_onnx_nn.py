"""ONNX convolutions, pooling, products and recurrent layers against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.errors import InvalidModel
from tests.frontends.oracle import agree, by_onnx, model, operators

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# products


@pytest.mark.parametrize("opset", [7, 9, 13])
@pytest.mark.parametrize(
    "attrs", [{}, {"transA": 1}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}, {"transA": 1, "transB": 1, "beta": 0.0}], ids=str
)
def test_gemm(opset: int, attrs: dict[str, Any]) -> None:
    a = normal(4, 3) if "transA" in attrs else normal(3, 4)
    b = normal(5, 4) if "transB" in attrs else normal(4, 5)
    for c in (normal(3, 5), normal(5), normal(3, 1), normal()):
        agree("Gemm", a, b, c, opset=opset, **attrs)
    if opset > 9:
        agree("Gemm", a, b, opset=opset, **attrs)


def test_gemm_of_opset_6() -> None:
    agree("Gemm", normal(3, 4), normal(4, 5), normal(5), opset=6, broadcast=1, oracle=by_onnx)


def test_gemm_is_a_plain_product_where_it_can_be() -> None:
    assert operators(agree("Gemm", normal(3, 4), normal(4, 5))) == ["matmul"]


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk", "...ij,...kj->...ik", "ii->i", "ij->", "bhid,bhjd->bhij", "i,j->ij"]
)
def test_einsum(equation: str) -> None:
    sizes = {"i": 3, "j": 4, "k": 5, "b": 2, "h": 2, "d": 6}
    terms = equation.split("->")[0].split(",")
    shapes = [[*([2, 1] if "..." in t else []), *(sizes[c] for c in t.replace("...", ""))] for t in terms]
    agree("Einsum", *(normal(*s) for s in shapes), equation=equation)


def test_einsum_with_a_wrong_equation() -> None:
    inputs = [normal(3, 4), normal(4, 5)]
    for equation, why in (("ij->", "names 1 inputs"), ("ijk,jk->i", "does not fit"), ("ij,jk->il", "in no input")):
        proto = model("Einsum", inputs, opset=13, outputs=1, constants=(), symbolic=False, equation=equation)
        with pytest.raises(InvalidModel, match=why):
            hotfuse.load(proto)


def small(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_matmul_integer(dtype: Any) -> None:
    a, b = small(dtype, 4, 6), small(dtype, 6, 5)
    agree("MatMulInteger", a, b, opset=10)
    agree("MatMulInteger", a, b, np.array(3, dtype), np.array(7, dtype), opset=10)
    agree("MatMulInteger", a, b, np.array(3, dtype), small(dtype, 5), opset=10, oracle=by_onnx)
    agree("MatMulInteger", a, b, small(dtype, 4), None, opset=10, oracle=lambda proto, feeds: [
        (feeds["x0"].astype(np.int32) - feeds["x2"].astype(np.int32)[:, None]) @ feeds["x1"].astype(np.int32)
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_matmul(dtype: Any) -> None:
    scale = [np.array(s, np.float32) for s in (0.02, 0.03, 0.9)]
    zero = [np.array(z, dtype) for z in (5, 9, 100)]
    a, b = small(dtype, 2, 4, 6), small(dtype, 2, 6, 5)
    agree("QLinearMatMul", a, scale[0], zero[0], b, scale[1], zero[1], scale[2], zero[2], opset=10)


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv(per_channel: bool) -> None:
    # Weights of 7 bits: without VNNI, ONNX Runtime adds two products in 16 bits, and larger ones saturate there.
    x, w = small(np.uint8, 1, 3, 7, 6), small(np.int8, 4, 3, 3, 3) // 2
    w_scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32) if per_channel else np.array(0.02, np.float32)
    w_zero = np.zeros(4 if per_channel else (), np.int8)
    bias = RNG.integers(-500, 500, 4).astype(np.int32)
    inputs = [x, np.array(0.05, np.float32), np.array(120, np.uint8), w, w_scale, w_zero]
    inputs += [np.array(0.7, np.float32), np.array(110, np.uint8), bias]
    agree("QLinearConv", *inputs, opset=10, pads=[1, 1, 1, 1], strides=[2, 1], constants=(1, 2, 3, 4, 5, 6, 7, 8))


def test_conv_integer() -> None:
    x, w = small(np.uint8, 1, 3, 7, 6), small(np.uint8, 4, 3, 3, 3)
    agree("ConvInteger", x, w, np.array(120, np.uint8), opset=10, pads=[1, 0, 1, 2])


# windows


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_automatic_padding(auto_pad: str, strides: list[int]) -> None:
    x = normal(1, 3, 8, 9)
    agree("Conv", x, normal(4, 3, 3, 2), auto_pad=auto_pad, strides=strides)
    agree("MaxPool", x, auto_pad=auto_pad, strides=strides, kernel_shape=[3, 2])
    agree("AveragePool", x, auto_pad=auto_pad, strides=strides, kernel_shape=[3, 2])
    agree("LpPool", x, auto_pad=auto_pad, strides=strides, kernel_shape=[3, 2])


def test_conv_forms() -> None:
    agree("Conv", normal(2, 4, 9), normal(6, 2, 3), normal(6), group=2, dilations=[2], pads=[1, 2])
    agree("Conv", normal(1, 2, 5, 6, 7), normal(3, 2, 2, 2, 3), strides=[1, 2, 1], pads=[0, 1, 1, 1, 0, 0], opset=11)
    agree("Conv", normal(1, 8, 6, 6), normal(8, 1, 3, 3), normal(8), group=8, kernel_shape=[3, 3])


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
        {"strides": [3, 2], "output_shape": [10, 8]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"dilations": [2, 1], "auto_pad": "VALID"},
    ],
    ids=str,
)
def test_conv_transpose(attrs: dict[str, Any]) -> None:
    agree("ConvTranspose", normal(1, 4, 3, 3), normal(4, 2, 3, 3), normal(2), **attrs)


def test_conv_transpose_by_groups() -> None:
    agree("ConvTranspose", normal(2, 4, 5), normal(4, 3, 4), normal(6), group=2, strides=[3])


@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_indices(storage_order: int) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    agree("MaxPool", normal(2, 3, 7, 8), outputs=2, storage_order=storage_order, **attrs)


def test_pools_that_round_up() -> None:
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    x = normal(1, 2, 8, 10)
    agree("MaxPool", x, dilations=[1, 2], **attrs)
    for include in (0, 1):
        agree("AveragePool", x, opset=19, count_include_pad=include, pads=[1, 1, 0, 0], **attrs)


def test_average_pool_with_dilations() -> None:
    agree("AveragePool", normal(1, 2, 9, 9), opset=19, kernel_shape=[2, 3], dilations=[2, 2], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op: str) -> None:
    agree(op, normal(2, 3, 4, 5))
    agree(op, normal(2, 3, 7))


def test_max_unpool() -> None:
    indices = np.array([[[[5, 7], [13, 15]]]])
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    agree("MaxUnpool", x, indices, kernel_shape=[2, 2], strides=[2, 2])
    shape = np.array([1, 1, 4, 4])
    agree("MaxUnpool", x, indices, shape, kernel_shape=[2, 2], strides=[2, 2], constants=(2,))
    agree("MaxUnpool", x, indices, shape, kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_col2im(constants: tuple[int, ...]) -> None:
    inputs = (normal(2, 12, 20), np.array([6, 6]), np.array([2, 3]))
    agree("Col2Im", *inputs, constants=constants)
    agree("Col2Im", normal(2, 12, 6), *inputs[1:], constants=constants, strides=[2, 2], pads=[1, 0, 0, 0], dilations=[2, 1])


def test_deform_conv() -> None:
    x, w = normal(1, 4, 6, 6), normal(4, 2, 2, 2)
    offset, mask = normal(1, 16, 5, 5), np.abs(normal(1, 8, 5, 5))
    agree("DeformConv", x, w, offset, normal(4), mask, opset=19, group=2, offset_group=2, oracle=by_onnx)


def test_windows_that_make_no_sense_are_refused() -> None:
    for op, inputs, attrs, why in (
        ("Conv", [normal(1, 3, 8, 8), normal(4, 3, 3, 3)], {"auto_pad": "SOME"}, "auto_pad 'SOME'"),
        ("Conv", [normal(1, 3, 8, 8), normal(4, 3, 3, 3)], {"kernel_shape": [2, 3]}, "does not fit the weight"),
        ("MaxPool", [normal(1, 3, 8, 8)], {}, "'kernel_shape' is missing"),
        ("MaxPool", [normal(1, 3, 1, 8)], {"kernel_shape": [2, 2]}, "too small"),
    ):
        with pytest.raises(InvalidModel, match=why) as caught:
            hotfuse.load(model(op, inputs, opset=18, outputs=1, constants=(), symbolic=False, **attrs))
        assert "node" in str(caught.value)


# recurrent layers

SIZES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(op: str, directions: int = 1, time: int = 5, batch: int = 3, features: int = 4, hidden: int = 6) -> list[Any]:
    gates = SIZES[op]
    return [
        normal(time, batch, features),
        normal(directions, gates * hidden, features),
        normal(directions, gates * hidden, hidden),
        normal(directions, 2 * gates * hidden),
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", SIZES)
def test_recurrent_layers(op: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = layer(op, directions)
    states = [normal(directions, 3, 6) for _ in range(2 if op == "LSTM" else 1)]
    lengths = np.array([5, 2, 3], np.int32)
    attrs = {"hidden_size": 6, "direction": direction, "opset": 14, "outputs": 1 + len(states)}
    agree(op, *inputs, None, *states, **attrs)
    agree(op, *inputs[:3], **attrs)
    agree(op, *inputs, lengths, *states, **attrs)


def test_gru_with_linear_before_reset() -> None:
    agree("GRU", *layer("GRU"), opset=14, hidden_size=6, outputs=2, linear_before_reset=1)


def test_lstm_options() -> None:
    inputs = [*layer("LSTM"), None, normal(1, 3, 6), normal(1, 3, 6), normal(1, 18)]
    agree("LSTM", *inputs, opset=14, hidden_size=6, outputs=3)
    agree("LSTM", *inputs, opset=14, hidden_size=6, outputs=3, clip=0.5)
    agree("LSTM", *inputs[:4], opset=14, hidden_size=6, outputs=3, input_forget=1)


@pytest.mark.parametrize(
    "name", ["Relu", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus", "Affine"]
)
def test_activations(name: str) -> None:
    more: dict[str, Any] = {}
    if name in ("LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Affine"):
        more["activation_alpha"] = [0.3]
    if name in ("ScaledTanh", "HardSigmoid", "Affine"):
        more["activation_beta"] = [0.7]
    agree("RNN", *layer("RNN"), opset=14, hidden_size=6, outputs=2, activations=[name], **more)


@pytest.mark.parametrize("op", SIZES)
def test_batch_first(op: str) -> None:
    x, *weights = layer(op)
    states = [normal(3, 1, 6)]
    if op == "LSTM":
        states.append(normal(3, 1, 6))
    agree(
        op, np.swapaxes(x, 0, 1).copy(), *weights, None, *states, opset=14, hidden_size=6, layout=1, outputs=2, oracle=by_onnx
    )


def test_recurrent_layers_that_make_no_sense_are_refused() -> None:
    for attrs, why in (
        ({"activations": ["Cube"]}, "'cube' is not known"),
        ({"direction": "sideways"}, "none of forward"),
        ({"direction": "bidirectional"}, "weights for 2 directions"),
    ):
        with pytest.raises(InvalidModel, match=why):
            hotfuse.load(model("RNN", layer("RNN"), opset=14, outputs=1, constants=(), symbolic=False, hidden_size=6, **attrs))
