"""Opaque ONNX nodes: run by onnx's reference evaluator, one node at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotfuse.errors import UnsupportedModel
from hotfuse.ir.graph import Node
from hotfuse.runtime.engine import Compute


def bind_onnx(node: Node) -> Compute:
    """`proto` is a serialized ModelProto that holds just this node; its inputs and outputs are named in order."""
    return Compute(_evaluator(node), many=True, aliases="any")


def _evaluator(node: Node) -> Callable[..., Any]:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise UnsupportedModel(
            f"{node.origin or node.id}: no operator here computes {node.attrs.get('op_type')}, and onnx's reference evaluator "
            "cannot be imported; install onnx with its reference evaluator"
        ) from error
    model = onnx.ModelProto.FromString(node.attrs["proto"])
    names = [v.name for v in model.graph.input]
    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # NotImplementedError for an operator it lacks; other kinds for a node that breaks its rules
        raise UnsupportedModel(
            f"{node.origin or node.id}: neither hotfuse nor onnx's evaluator can run {node.attrs.get('op_type')}: {error}"
        ) from error

    def run(*values: Any) -> list[Any]:
        given = (v for v in values if v is not None)
        return list(evaluator.run(None, dict(zip(names, given, strict=True))))

    return run
