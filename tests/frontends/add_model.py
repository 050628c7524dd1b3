"""y = x + w as a model file, its weight inside or in another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hotfuse

WEIGHT = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


def add_model(weight: np.ndarray[Any, Any] = WEIGHT) -> onnx.ModelProto:
    """y = x + w."""
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", kind, weight.shape)],
        [helper.make_tensor_value_info("y", kind, weight.shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def external_model(directory: Path, location: str, *, offset: str | None = "0", length: str | None = "16384") -> Path:
    """The same model with its weight in another file."""
    model = add_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path = directory / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def answer(source: Any, **options: Any) -> np.ndarray[Any, Any]:
    x = np.ones((64, 64), np.float32)
    (y,) = hotfuse.load(source, **options).run(None, {"x": x})
    return y
