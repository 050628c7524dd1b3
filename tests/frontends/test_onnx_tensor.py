"""Tensors of a model file decode as onnx decodes them; those that cannot be are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hotfuse.errors import InvalidModel, LimitExceeded
from hotfuse.frontends.onnx_external import DataFiles
from hotfuse.frontends.onnx_tensor import sparse_constant, tensor_constant


@pytest.mark.parametrize("kind", sorted(helper.get_all_tensor_dtypes() - {TensorProto.STRING}))
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_tensors_decode_as_onnx_does(kind: int, count: int) -> None:
    from hotfuse.frontends.onnx_node import ONNX_DTYPES

    if kind not in ONNX_DTYPES:
        with pytest.raises(InvalidModel, match="unknown element type"):
            tensor_constant(TensorProto(name="t", data_type=kind, dims=[1]))
        return
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.arange(count).astype(np.float32).astype(dtype) if dtype != np.bool_ else np.arange(count) % 2 == 1
    raw = numpy_helper.from_array(values, "t")
    typed = helper.make_tensor("t", kind, [count], values)
    for tensor in (raw, typed):
        found, expected = tensor_constant(tensor).numpy(), numpy_helper.to_array(tensor)
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
        wrong = TensorProto.FromString(tensor.SerializeToString())
        wrong.dims[0] = count + 9
        with pytest.raises(InvalidModel, match="tensor 't'"):
            tensor_constant(wrong)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([-1], "negative size"),
        ([2**32, 2**32], "more elements than can be counted"),
        ([2**40], "takes 4,398,046,511,104 bytes"),
        ([0, 2**62, 4], "more elements than can be counted"),
        ([1] * 65, "65 dimensions"),
    ],
)
def test_impossible_shapes(dims: list[int], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        tensor_constant(TensorProto(name="t", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"1234"))


def test_strings_must_fill_their_shape() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", "ä".encode()])
    assert tensor_constant(tensor).numpy().tolist() == ["a", "ä"]
    tensor.dims[0] = 2**40
    with pytest.raises(InvalidModel, match="2 strings instead of"):
        tensor_constant(tensor)


def sparse(dims: list[int], indices: np.ndarray[Any, Any]) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(1, len(indices) + 1, dtype=np.float32), "s")
    return onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(indices, "i"), dims=dims)


def test_sparse_tensors() -> None:
    files = DataFiles()
    flat = sparse_constant(sparse([2, 3], np.array([1, 5])), files, 1000).numpy()
    pairs = sparse_constant(sparse([2, 3], np.array([[0, 1], [1, 2]])), files, 1000).numpy()
    for found in (flat, pairs):
        np.testing.assert_array_equal(found, np.array([[0, 1, 0], [0, 0, 2]], np.float32))
    for dims, indices in (([2, 3], [6]), ([2, 3], [-1]), ([2, 3], [[0, 3]]), ([2, 3], [[0, 1, 1]])):
        with pytest.raises(InvalidModel, match="indices that do not fit"):
            sparse_constant(sparse(dims, np.array(indices)), files, 1000)
    with pytest.raises(LimitExceeded, match="max_value_bytes"):
        sparse_constant(sparse([2**20, 2**20], np.array([1])), files, 1 << 30)
