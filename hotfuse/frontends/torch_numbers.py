"""Python arithmetic inside a traced graph: numbers that depend on data, or that are not whole, as 0-d tensors.

Whole numbers that depend on shapes alone are dims and never get here.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from hotfuse.errors import UnsupportedModel
from hotfuse.frontends.torch_node import Number, tensor_type
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, F64, I64, DType

_BINARY = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div", operator.floordiv: "floor_div",
    operator.mod: "mod", operator.pow: "pow", torch.sym_max: "maximum", torch.sym_min: "minimum",
}  # fmt: skip
_COMPARE = {
    operator.eq: "equal", operator.ne: "not_equal", operator.lt: "less", operator.le: "less_equal", operator.gt: "greater",
    operator.ge: "greater_equal",
}  # fmt: skip
_UNARY = {operator.neg: "neg", torch.sym_float: None, torch.sym_int: "trunc", math.sqrt: "sqrt"}


def import_number(node: fx.Node, args: tuple[Any, ...], builder: GraphBuilder) -> Number | None:
    """The value of one arithmetic call, or None where it is not arithmetic."""
    val = node.meta.get("val")
    result = BOOL if isinstance(val, (bool, torch.SymBool)) else F64 if isinstance(val, (float, torch.SymFloat)) else I64
    target: Any = node.target
    name = str(target)
    if name in ("aten._local_scalar_dense.default", "aten.item.default"):
        return Number(_reshaped_scalar(_cast(args[0], result, builder), builder))
    if name == "aten.sym_size.int" or target is torch.ops.aten.sym_size.int:
        axis = int(args[1])
        sizes = builder.add("shape_of", args[0], start=axis, end=axis + 1 if axis != -1 else None)
        return Number(builder.add("squeeze", sizes, axes=(0,)))
    if target in _BINARY or target in _COMPARE:
        floating = result is F64 or any(_is_float(a) for a in args)
        both = [_operand(a, F64 if floating or target is operator.truediv else I64, builder) for a in args]
        found = builder.add(_BINARY.get(target) or _COMPARE[target], *both)
        return Number(_cast(found, result, builder))
    if target in _UNARY or name.startswith("<function _sym_sqrt") or getattr(target, "__name__", "") == "_sym_sqrt":
        op = _UNARY.get(target, "sqrt")
        operand = _operand(args[0], I64 if op == "neg" and result is I64 else F64, builder)
        return Number(_cast(builder.add(op, operand) if op else operand, result, builder))
    if isinstance(target, torch._ops.OpOverload):
        return None
    raise UnsupportedModel(f"{node.target} of numbers is not covered")


def _is_float(argument: Any) -> bool:
    if isinstance(argument, Number):
        return tensor_type(argument.value).dtype.is_float
    return isinstance(argument, float)


def _operand(argument: Any, dtype: DType, builder: GraphBuilder) -> Value:
    if isinstance(argument, Number):
        return _cast(argument.value, dtype, builder)
    if isinstance(argument, Expr):
        return _cast(builder.dims((argument,), scalar=True), dtype, builder)
    import numpy as np

    return builder.constant(np.array(argument, dtype=dtype.numpy))


def _cast(value: Value, dtype: DType, builder: GraphBuilder) -> Value:
    return value if tensor_type(value).dtype == dtype else builder.add("cast", value, to=dtype)


def _reshaped_scalar(value: Value, builder: GraphBuilder) -> Value:
    return value if tensor_type(value).shape == () else builder.add("reshape", value, builder.dims(()))
