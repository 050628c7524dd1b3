"""Opaque ONNX nodes: run by onnx's reference evaluator, one node at a time.

Everything after such a node is planned by the types that the front end found for its results (onnx's schemas, the model's own
declarations), so what the evaluator returns is held against them. Some operators of ai.onnx.ml it computes in float64 where
onnx says float32: such results are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import ExecutionError, UnsupportedModel
from hotfuse.ir.graph import Node
from hotfuse.ir.op import FreshSymbols
from hotfuse.ir.types import F32, MapType, OptionalType, SequenceType, TensorType, Type, dtype_of
from hotfuse.runtime.engine import Compute

_WRONG_WORD = "the model declares so: correct or remove its value_info or the type of the output"
_RULES_BROKEN = (
    "onnx's rules, or the rank that the model declares, say so: cast the inputs to float32, or correct its value_info"
)


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
    from hotfuse.frontends.onnx_types import type_from_proto

    model = onnx.ModelProto.FromString(node.attrs["proto"])
    names = [v.name for v in model.graph.input]
    ruled = node.attrs.get("ruled", ())
    types = [type_from_proto(v.type, FreshSymbols()) for v in model.graph.output]
    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # NotImplementedError for an operator it lacks; other kinds for a node that breaks its rules
        raise UnsupportedModel(
            f"{node.origin or node.id}: neither hotfuse nor onnx's evaluator can run {node.attrs.get('op_type')}: {error}"
        ) from error

    def run(*values: Any) -> list[Any]:
        given = (v for v in values if v is not None)
        results = list(evaluator.run(None, dict(zip(names, given, strict=True))))
        for i in ruled:
            results[i] = _rounded(results[i], types[i])
        _check(node, results, types)
        return results

    return run


def _rounded(value: Any, type: Type) -> Any:
    wide = isinstance(value, np.ndarray | np.generic) and value.dtype == np.float64
    return value.astype(np.float32) if wide and isinstance(type, TensorType) and type.dtype is F32 else value


def _check(node: Node, results: Sequence[Any], types: Sequence[Type]) -> None:
    for i, (value, type) in enumerate(zip(results, types, strict=False)):
        if not _is_of(value, type):
            found = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray | np.generic) else str(value.__class__)
            raise ExecutionError(
                f"{node.origin or node.id}: onnx's evaluator gives {found} for result {i} of {node.attrs.get('op_type')}, "
                f"which should be {type}; " + (_RULES_BROKEN if i in node.attrs.get("ruled", ()) else _WRONG_WORD)
            )


def _is_of(value: Any, type: Type) -> bool:
    """Whether a run-time value is of a type, as far as that is known."""
    if isinstance(type, TensorType):
        if not isinstance(value, np.ndarray | np.generic) or dtype_of(np.asarray(value)) != type.dtype:
            return False
        if type.shape is None:
            return True
        same = (size == dim or not isinstance(dim, int) for size, dim in zip(value.shape, type.shape, strict=False))
        return value.ndim == len(type.shape) and all(same)
    if isinstance(type, SequenceType):
        return isinstance(value, list | tuple) and all(_is_of(v, type.element) for v in value)
    if isinstance(type, OptionalType):
        return value is None or _is_of(value, type.element)
    return isinstance(value, dict) if isinstance(type, MapType) else True
