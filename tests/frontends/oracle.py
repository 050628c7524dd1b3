"""One ONNX node, run here and by ONNX Runtime or onnx's reference evaluator, which nobody here wrote.

`agree` runs a node twice: as given, and with the sizes of its inputs symbols (but for vectors), so that inference cannot lean
on numbers. It holds results to torch.testing's tolerances, inferred shapes to the real ones, and lets no node be opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import hotfuse
from hotfuse.ir.dim import substitute
from hotfuse.ir.types import TensorType
from hotfuse.runtime.session import Session


def model(
    op: str, inputs: Sequence[Any], *, opset: int, outputs: int, constants: Sequence[int], symbolic: bool, **attrs: Any
) -> onnx.ModelProto:
    """A model of one node; `constants` are the inputs that belong to the model."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    fed = [
        helper.make_tensor_value_info(
            f"x{i}",
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [f"s{i}_{k}" for k in range(x.ndim)] if symbolic and x.ndim > 1 else list(x.shape),
        )
        for i, x in enumerate(inputs)
        if x is not None and i not in constants
    ]
    owned = [numpy_helper.from_array(inputs[i], f"x{i}") for i in constants if inputs[i] is not None]
    node = helper.make_node(op, names, results, name="node", **attrs)
    graph = helper.make_graph([node], "one", fed, [onnx.ValueInfoProto(name=r) for r in results], owned)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def by_onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = onnx.shape_inference.infer_shapes(proto).SerializeToString()
    return list(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds))


def by_onnx(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, feeds))


def agree(
    op: str,
    *inputs: Any,
    opset: int = 18,
    outputs: int = 1,
    constants: Sequence[int] = (),
    oracle: Any = by_onnxruntime,
    opaque: Sequence[str] = (),
    **attrs: Any,
) -> Session:
    """Run the node here and by the oracle, and compare. Returns the session of the symbolic form."""
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constants}
    sizes = {f"s{i}_{k}": int(d) for i, x in enumerate(inputs) if x is not None for k, d in enumerate(x.shape)}
    options = {"opset": opset, "outputs": outputs, "constants": constants, **attrs}
    wanted = oracle(model(op, inputs, symbolic=False, **options), feeds)
    for symbolic in (False, True):
        session = hotfuse.load(model(op, inputs, symbolic=symbolic, **options))
        assert [name for _, name, _ in session.opaque] == list(opaque)
        found = session.run(None, feeds)
        for ours, theirs, signature in zip(found, wanted, session.outputs, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(np.array(theirs)), equal_nan=True)
            assert isinstance(signature.type, TensorType)
            assert signature.type.dtype.numpy == theirs.dtype
            for dim, size in zip(signature.type.shape or (), theirs.shape, strict=signature.type.shape is not None):
                known = substitute(dim, sizes)
                assert not isinstance(known, int) or known == size
    return session


def operators(session: Session) -> list[str]:
    return [node.op for node in session.graph.nodes]
