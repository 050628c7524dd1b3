"""An ONNX model with every float32 made float64: the function that a float32 run approximates."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_float64(model: Any) -> Any:
    """A copy of the `onnx.ModelProto` in double precision: weights, constants, casts, inputs and outputs."""
    import onnx

    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    for function in wide.functions:
        for node in function.node:
            _widen_node(node)
    return wide


def _widen_graph(graph: Any) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output):
        _widen_type(info.type)
    del graph.value_info[:]  # inferred again by whoever loads it
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: Any) -> None:
    from onnx import AttributeProto, TensorProto, helper, numpy_helper

    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g)
        elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = np.array(attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: Any) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_type(type: Any) -> None:
    from onnx import TensorProto

    if type.HasField("tensor_type") and type.tensor_type.elem_type == TensorProto.FLOAT:
        type.tensor_type.elem_type = TensorProto.DOUBLE
    elif type.HasField("sequence_type"):
        _widen_type(type.sequence_type.elem_type)
    elif type.HasField("optional_type"):
        _widen_type(type.optional_type.elem_type)
