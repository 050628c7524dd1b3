"""Tier 0 in torch: each node is a torch function; what has none runs its numpy reference on the tensors' memory.

Stateless. Values are CPU tensors; symbolic integers that a call passes are Python ints and belong to the bound shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

import hotfuse.runtime.torch_eager  # noqa: F401  (fills the table)
from hotfuse.frontends.torch_template import caller, find_operator
from hotfuse.frontends.torch_tensor import FROM_TORCH, TO_TORCH, alone_in_order, to_torch
from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import ANY, SizeType, TensorType, Type
from hotfuse.runtime.control import bind_control
from hotfuse.runtime.engine import Compute, RunGraph
from hotfuse.runtime.torch_eager.table import bind_eager


@lru_cache(maxsize=65536)
def _tensor_type(dtype: torch.dtype, shape: torch.Size) -> Type:
    found = FROM_TORCH.get(dtype)
    return ANY if found is None else TensorType(found, tuple(shape))


class TorchEngine:
    """Stateless; one instance serves all models."""

    name = "torch"
    plans_memory = False
    shares_threads = True  # torch's operators and generated code run on the same team

    def constant(self, constant: Constant, anywhere: bool = False) -> Any:
        return to_torch(constant.numpy())

    def reads_anywhere(self, graph: Graph, name: str) -> bool:
        return False

    def type_of(self, value: Any) -> Type:
        if isinstance(value, torch.Tensor):
            return _tensor_type(value.dtype, value.shape)
        if isinstance(value, int) and not isinstance(value, bool):
            return SizeType(value)
        return ANY

    def own(self, value: Any, shared: bool) -> Any:
        return value.clone() if shared and isinstance(value, torch.Tensor) else value

    def bind(self, node: Node, values: Sequence[Value], run_graph: RunGraph) -> Compute:
        pattern = OPS[node.op].pattern
        if pattern is Pattern.CONTROL:
            return bind_control(node, self, run_graph)
        if node.op == "torch_op":
            return bind_torch_op(node)
        if node.op == "transfer":
            return Compute(torch.clone)
        return bind_eager(node, values)

    # what native code needs

    address = staticmethod(torch.Tensor.data_ptr)
    contiguous = staticmethod(torch.Tensor.contiguous)  # the tensor itself where it is

    def results(self, type: TensorType) -> Callable[[], tuple[torch.Tensor, int]]:
        sizes, dtype = type.sizes, TO_TORCH[type.dtype.name]

        def fresh() -> tuple[torch.Tensor, int]:
            made = torch.empty(sizes, dtype=dtype)
            return made, made.data_ptr()

        return fresh

    # what control flow needs

    def item(self, value: Any) -> Any:
        return value.item()

    def scalar(self, value: int | bool) -> Any:
        return torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else torch.int64)

    def stack(self, values: list[Any], axis: int, like: Type) -> Any:
        if values:
            return torch.stack(tuple(values), dim=axis)
        assert isinstance(like, TensorType)
        shape = [d if isinstance(d, int) else 0 for d in like.shape or ()]
        shape.insert(axis % (len(shape) + 1), 0)
        return torch.empty(shape, dtype=TO_TORCH[like.dtype.name])

    def slice(self, value: Any, axis: int, index: int) -> Any:
        return value.select(axis, index)

    def length(self, value: Any, axis: int) -> int:
        return int(value.shape[axis])


def bind_torch_op(node: Node) -> Compute:
    """An opaque call: its template, filled with the node's inputs, to torch's own operator."""
    attrs = node.attrs
    live = attrs.get("callee")
    target = live.item if live is not None else find_operator(attrs["target"])
    call = caller(target, attrs["args"], dict(attrs["kwargs"]), attrs.get("dims", ()))
    if "orders" in attrs:
        call = _with_operands_laid_out(call, attrs["orders"])
    aliases = "any" if live is not None or _may_alias(target) else "none"
    if len(node.outputs) == 1 and live is None and _returns_one(target):
        return Compute(call, aliases=aliases)

    def run(*inputs: Any) -> list[Any]:
        return _flat(call(*inputs))

    return Compute(run, many=True, aliases=aliases)


def _with_operands_laid_out(call: Callable[..., Any], orders: Sequence[tuple[int, ...] | None]) -> Callable[..., Any]:
    return lambda *inputs: call(*(alone_in_order(x, o) for x, o in zip(inputs, orders, strict=True)))


def _returns_one(target: Any) -> bool:
    returns = target._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _may_alias(target: Any) -> bool:
    return any(r.alias_info is not None for r in target._schema.returns)


def _flat(result: Any) -> list[Any]:
    """Results in order; numbers become 0-d tensors, as the graph's types say."""
    if isinstance(result, (tuple, list)):
        return [leaf for r in result for leaf in _flat(r)]
    if isinstance(result, (bool, int, float)):
        kinds: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
        return [torch.tensor(result, dtype=kinds[type(result)])]
    return [result]


TORCH = TorchEngine()
