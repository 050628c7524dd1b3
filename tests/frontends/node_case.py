"""Cases of one ONNX node whose results are held bit by bit against an oracle we did not write.

A case runs three times, since the importer takes different ways: with all inputs fed and shapes fixed, with small integer
inputs as constants of the model, and with every size of the first input a symbol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import hotfuse
from hotfuse.ir.dim import evaluate, symbols_of
from hotfuse.ir.types import TensorType
from hotfuse.runtime.session import Session

WAYS = ("fed", "constant", "symbolic")


@dataclass(frozen=True)
class Case:
    """One node: operator, opset, inputs (None where absent) and attributes."""

    op: str
    opset: int
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    oracle: str = "onnxruntime"
    note: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.op, str(self.opset), self.note)))


def model_of(case: Case, way: str = "fed") -> onnx.ModelProto:
    names, infos, constants = [], [], []
    for i, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{i}")
        if value is None:
            continue
        if way == "constant" and i > 0 and value.dtype.kind in "iub" and value.ndim <= 1:
            constants.append(numpy_helper.from_array(value, f"x{i}"))
            continue
        free = way == "symbolic" and i == 0
        shape = [f"d{i}_{k}" for k in range(value.ndim)] if free else list(value.shape)
        element = TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(helper.make_tensor_value_info(f"x{i}", element, shape))
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", **case.attrs)
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "single", infos, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)


def feeds_of(case: Case, model: onnx.ModelProto) -> dict[str, Any]:
    wanted = {i.name for i in model.graph.input}
    return {f"x{i}": v for i, v in enumerate(case.inputs) if f"x{i}" in wanted}


def expected(case: Case) -> list[Any]:
    model = model_of(case)
    feeds = feeds_of(case, model)
    if case.oracle == "onnx":
        return list(ReferenceEvaluator(model).run(None, feeds))
    typed = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(typed.SerializeToString(), options).run(None, feeds))


def check(case: Case, way: str) -> Session:
    """Run the case and hold results, inferred types and the list of opaque nodes against what they must be."""
    model = model_of(case, way)
    session = hotfuse.load(model)
    assert not session.opaque
    found = session.run(None, feeds_of(case, model))
    wanted = expected(case)
    assert len(found) == len(wanted) == case.outputs
    sizes = {f"d0_{k}": d for k, d in enumerate(np.shape(case.inputs[0]))} if case.inputs else {}
    for ours, theirs, signature in zip(found, wanted, session.outputs, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()
        assert isinstance(signature.type, TensorType)
        assert signature.type.dtype.numpy == theirs.dtype
        for dim, size in zip(signature.type.shape or (), theirs.shape, strict=signature.type.shape is not None):
            if all(s.name in sizes for s in symbols_of([dim])):
                assert evaluate(dim, sizes) == size
    return session
