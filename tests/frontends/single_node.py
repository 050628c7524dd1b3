"""One ONNX node as a model: what tests of importers run, here and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.runtime.session import Session


def model(
    op: str, inputs: Sequence[Any], opset: int, *, constants: Sequence[int] = (), outputs: int = 1, free: bool = False,
    ranked: bool = True, domain: str = "", **attrs: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node. None is an absent input; those in `constants` are initializers; `free` leaves the sizes open, not
    `ranked` even the ranks."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    given = [(f"x{i}", np.asarray(x), i in constants) for i, x in enumerate(inputs) if x is not None]
    infos = [
        helper.make_tensor_value_info(n, _element_type(x), _declared(n, x, free) if ranked else None)
        for n, x, constant in given
        if not constant
    ]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    initializers = [numpy_helper.from_array(x, n) for n, x, constant in given if constant]
    graph = helper.make_graph([node], "one", infos, results, initializers)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10)


def _declared(name: str, x: np.ndarray[Any, Any], free: bool) -> Sequence[Any]:
    return [f"{name}_{k}" for k in range(x.ndim)] if free else x.shape


def _element_type(x: np.ndarray[Any, Any]) -> int:
    return TensorProto.STRING if x.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(x.dtype)


def load(op: str, inputs: Sequence[Any], opset: int, **rest: Any) -> Session:
    return hotfuse.load(model(op, inputs, opset, **rest))


def run(op: str, inputs: Sequence[Any], opset: int, *, constants: Sequence[int] = (), **rest: Any) -> list[Any]:
    """What hotfuse computes, with fixed and with free sizes; the two must not differ."""
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None and i not in constants}
    session = load(op, inputs, opset, constants=constants, **rest)
    assert not session.opaque, session.opaque
    results = session.run(None, feeds)
    open_session = load(op, inputs, opset, constants=constants, free=True, **rest)
    assert not open_session.opaque, open_session.opaque
    for fixed, free in zip(results, open_session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(*(r if r.dtype.isbuiltin == 1 else r.astype(np.float64) for r in (fixed, free)))
        assert fixed.dtype == free.dtype
    return results


def run_ort(op: str, inputs: Sequence[Any], opset: int, *, constants: Sequence[int] = (), **rest: Any) -> list[Any]:
    """What ONNX Runtime computes, without its optimisations."""
    import onnxruntime

    proto = onnx.shape_inference.infer_shapes(model(op, inputs, opset, constants=constants, **rest))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None and i not in constants})


def ops_of(op: str, inputs: Sequence[Any], opset: int, **rest: Any) -> list[str]:
    """The operators of the imported graph."""
    return [node.op for node in load(op, inputs, opset, **rest).graph.nodes]
