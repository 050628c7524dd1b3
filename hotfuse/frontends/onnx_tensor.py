"""ONNX tensors as constants, by reference where the format allows."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import ONNX_DTYPES
from hotfuse.ir.graph import Constant
from hotfuse.ir.types import STRING, TensorType


def tensor_constant(tensor: onnx.TensorProto, base_dir: str | None) -> Constant:
    """The constant a TensorProto holds."""
    if tensor.data_type not in ONNX_DTYPES:
        raise InvalidModel(f"tensor {tensor.name!r} has the unknown element type {tensor.data_type}")
    dtype = ONNX_DTYPES[tensor.data_type]
    type = TensorType(dtype, tuple(int(d) for d in tensor.dims))
    if dtype is STRING:
        array = np.array([s.decode("utf-8", "surrogateescape") for s in tensor.string_data], dtype=object)
        return Constant(array.reshape(tuple(tensor.dims)), type)
    return Constant(numpy_helper.to_array(tensor), type)
