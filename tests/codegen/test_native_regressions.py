"""Small models that native code once answered otherwise than it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import hotfuse
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F32, tensor
from tests.codegen.lowering import check_all_ways, graph_of, run_native

S = symbol("seq", 1)
Array = np.ndarray[Any, Any]


def answer(text: str, **feeds: Array) -> list[Array]:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    found: list[Array] = hotfuse.load(model, tier=1, wait=True, strict=True).run(None, feeds)
    return found


@pytest.mark.parametrize("count", [1, 40])
def test_a_zero_keeps_its_sign_at_a_bound(count: int) -> None:
    x = np.full(count, -0.0, np.float32)
    (found,) = answer("g (float[N] x) => (float[N] y) <float a = {0}, float b = {6}> { y = Clip(x, a, b) }", x=x)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.clip(x, 0.0, 6.0)))


@pytest.mark.parametrize("count", [1, 40])
def test_what_is_bounded_by_nan_is_nan(count: int) -> None:
    graph = graph_of(lambda b, x, y, z: b.add("clip", x, y, z), {n: tensor(F32, count) for n in "xyz"})
    one, nan = np.ones(count, np.float32), np.full(count, np.nan, np.float32)
    for x, y, z in ((nan, one, one), (one, nan, one), (one, one, nan)):
        (found,) = run_native(graph, {"x": x, "y": y, "z": z})
        np.testing.assert_array_equal(found, np.clip(x, y, z))


def test_a_product_of_nothing() -> None:
    text = "g (float[M, K] x) => (float[M, 1] y) <float[0, 1] w = {}> { y = MatMul(x, w) }"
    (found,) = answer(text, x=np.zeros((3, 0), np.float32))
    np.testing.assert_array_equal(found, np.zeros((3, 1), np.float32))


def test_a_product_with_as_many_columns_as_data_says() -> None:
    text = """g (float[S, 4] x, bool[S] c) => (float[S, T] y) {
        few = Compress <axis: int = 0> (x, c)  turned = Transpose <perm: ints = [1, 0]> (few)  y = MatMul(x, turned) }"""
    x, c = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32), np.array([1, 0, 1, 1, 0], bool)
    (found,) = answer(text, x=x, c=c)
    np.testing.assert_allclose(found, x @ x[c].T, rtol=1e-6)


@pytest.mark.parametrize("place", [-1, 1])
def test_two_tables_under_one_index(place: int) -> None:
    text = (
        "g (float[9, 4] x, float[3, 4] y, int64[N] i) => (float[N, 4] z) { a = Gather(x, i)  b = Gather(y, i)  z = Add(a, b) }"
    )
    x, y = (np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32) for n in (9, 3))
    (found,) = answer(text, x=x, y=y, i=np.array([place]))
    np.testing.assert_array_equal(found, (x[place] + y[place])[None])


def test_an_index_that_only_one_of_two_tables_has_is_refused() -> None:
    text = (
        "g (float[9, 4] x, float[3, 4] y, int64[N] i) => (float[N, 4] z) { a = Gather(x, i)  b = Gather(y, i)  z = Add(a, b) }"
    )
    with pytest.raises(hotfuse.errors.HotfuseError):
        answer(text, x=np.zeros((9, 4), np.float32), y=np.zeros((3, 4), np.float32), i=np.array([5]))


def test_a_product_without_rows() -> None:
    text = "g (float[N, 0, 4] x) => (float[N, 0, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) }"
    (found,) = answer(text, x=np.zeros((2, 0, 4), np.float32))
    assert found.shape == (2, 0, 3)


def test_scales_of_groups_of_as_many_channels_as_data_says() -> None:
    text = """g (float[2, S, 3] x, bool[S] c) => (float[2, T, 3] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
        few = Compress <axis: int = 1> (x, c)  y = GroupNormalization <num_groups: int = 2> (few, a, b) }"""
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    (found,) = answer(text, x=x, c=np.array([1, 1, 0, 1, 1], bool))
    import torch

    few, (a, b) = torch.tensor(x[:, [0, 1, 3, 4]]), (torch.tensor(v).repeat_interleave(2) for v in ([1.0, 2.0], [3.0, 4.0]))
    np.testing.assert_allclose(found, torch.nn.functional.group_norm(few, 2, a, b).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_total_over_an_axis_of_one_element_too(rows: int) -> None:
    text = """g (float[N, 1] x, float[3, 1, N] z) => (float[1, 1] y, float[3, 1, 1] w)
        <int64[2] a = {0, 1}, int64[2] b = {1, 2}> { y = ReduceProd(x, a)  w = ReduceSum(z, b) }"""
    x, z = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in enumerate(((rows, 1), (3, 1, rows))))
    y, w = answer(text, x=x, z=z)
    np.testing.assert_allclose(y, np.prod(x, axis=(0, 1), keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(w, np.sum(z, axis=(1, 2), keepdims=True), rtol=1e-6)


def test_a_total_over_an_axis_of_one_element_is_a_kernel() -> None:
    graph = graph_of(lambda b, x: b.add("reduce_sum", x, axes=(1, 2), keepdims=True), {"x": tensor(F32, 3, 1, 70)})
    x = np.ones((3, 1, 70), np.float32)
    np.testing.assert_array_equal(run_native(graph, {"x": x})[0], np.full((3, 1, 1), 70, np.float32))


def test_softmax_along_an_axis_whose_stride_is_a_size() -> None:
    """It reads neighbours along the axis and writes them apart, by as much as only run time tells."""

    def make(b: Any, x: Any) -> Any:
        return b.add("softmax", b.add("transpose", x, perm=(0, 2, 1)), axis=1)

    check_all_ways(make, {"x": tensor(F32, 2, S, 3)}, {"x": np.random.default_rng(0).random((2, 9, 3), np.float32)}, {"seq": 9})


@pytest.mark.parametrize("length", [7, 40])
def test_windows_whose_padding_is_a_size(length: int) -> None:
    text = """g (float[1, 2, N] x) => (float[1, 2, M] y)
        { y = MaxPool <kernel_shape: ints = [3], strides: ints = [2], auto_pad: string = "SAME_UPPER"> (x) }"""
    x = np.random.default_rng(0).standard_normal((1, 2, length)).astype(np.float32)
    (found,) = answer(text, x=x)
    count = -(-length // 2)
    total = max((count - 1) * 2 + 3 - length, 0)
    wide = np.pad(x, ((0, 0), (0, 0), (total // 2, total - total // 2)), constant_values=-np.inf)
    want = np.stack([wide[..., 2 * i : 2 * i + 3].max(-1) for i in range(count)], -1)
    np.testing.assert_array_equal(found, want)
