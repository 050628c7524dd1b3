"""The table from IR operators to torch, and the way round it: an operator that is not listed runs its numpy reference on the
tensors' own memory.

A maker sees a node and its input values (types, and contents where known) once, when a plan is bound, and returns the
function that runs at every call; None sends this node to the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from hotfuse.frontends.torch_tensor import to_numpy, to_torch
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.op import OPS
from hotfuse.ir.types import DType, Shape, TensorType
from hotfuse.runtime.engine import Compute

Tensor: TypeAlias = torch.Tensor
Function = Callable[..., Any]
Maker = Callable[[Node, Sequence[Value]], Function | None]
EAGER: dict[str, Maker] = {}
ALIASING = {"reshape", "unsqueeze", "squeeze", "transpose", "expand", "slice", "split", "cast", "bitcast"}


def eager(*ops: str) -> Callable[[Maker], Maker]:
    """Register the maker of some operators."""

    def register(maker: Maker) -> Maker:
        for op in ops:
            EAGER[op] = maker
        return maker

    return register


def bind_eager(node: Node, values: Sequence[Value]) -> Compute:
    """The function of a node that has a meaning of its own (no control flow, not opaque)."""
    many = OPS[node.op].many or len(node.outputs) > 1
    maker = EAGER.get(node.op)
    function = maker(node, values) if maker is not None else None
    if function is not None:
        return Compute(function, many, aliases="first" if node.op in ALIASING else "none")
    return Compute(by_reference(node), many, aliases="first" if OPS[node.op].view else "none")


def by_reference(node: Node) -> Function:
    """The operator's numpy reference, on arrays over the tensors' memory."""
    record = OPS[node.op]
    assert record.reference is not None, f"operator {node.op} has no reference and no engine runs it"
    reference = functools.partial(record.reference, **node.attrs) if node.attrs else record.reference

    def run(*inputs: Tensor | None) -> Any:
        result = reference(*(None if x is None else to_numpy(x) for x in inputs))
        if isinstance(result, (tuple, list)):
            return tuple(to_torch(np.asarray(r)) for r in result)
        return to_torch(np.asarray(result))

    return run


def dtype_of(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def shape_of(value: Value) -> Shape:
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    return value.type.shape


def rank_of(value: Value) -> int:
    return len(shape_of(value))


def numbers(value: Value) -> tuple[int, ...] | None:
    """The contents of a small integer tensor, where all of them are known."""
    if value.contents is None or not all(isinstance(d, int) for d in value.contents):
        return None
    return value.contents  # type: ignore[return-value]
