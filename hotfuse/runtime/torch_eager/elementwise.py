"""Elementwise operators in torch. Inputs have one element type already, so nothing is promoted here."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hotfuse.frontends.torch_tensor import TO_TORCH
from hotfuse.ir.graph import Node, Value
from hotfuse.runtime.torch_eager.table import EAGER, Function, Maker, Tensor, dtype_of, eager

DIRECT: dict[str, Function] = {
    **{name: getattr(torch, name) for name in (
        "abs", "neg", "sign", "ceil", "floor", "trunc", "round", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log",
        "log1p", "log2", "log10", "exp2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "erf", "lgamma", "digamma", "sigmoid", "relu", "add", "sub", "mul", "fmod", "atan2", "maximum",
        "minimum", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor",
        "bitwise_not", "isnan", "isinf", "where",
    )},
    "silu": F.silu,
    "mish": F.mish,
    "ndtr": torch.special.ndtr,
    "floor_div": torch.floor_divide,
    "mod": torch.remainder,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
}  # fmt: skip


def _direct(function: Function) -> Maker:
    return lambda node, values: function if all(k in ("approximate",) for k in node.attrs) else None


for _op, _function in DIRECT.items():
    EAGER[_op] = _direct(_function)


@eager("div")
def div(node: Node, values: Sequence[Value]) -> Function:
    return functools.partial(torch.div, rounding_mode="trunc") if dtype_of(values[0]).is_integer else torch.div


@eager("pow")
def power(node: Node, values: Sequence[Value]) -> Function | None:
    """The result has the type of the base."""
    if not dtype_of(values[0]).is_float:
        return None
    if dtype_of(values[0]) == dtype_of(values[1]):
        return lambda x, y: torch.pow(x, y)
    target = TO_TORCH[dtype_of(values[0]).name]
    return lambda x, y: torch.pow(x, y.to(target))


@eager("gelu")
def gelu(node: Node, values: Sequence[Value]) -> Function:
    approximate = node.attrs.get("approximate", "none")
    return lambda x: F.gelu(x, approximate=approximate)


@eager("leaky_relu")
def leaky_relu(node: Node, values: Sequence[Value]) -> Function:
    alpha = node.attrs.get("alpha", 0.01)
    return lambda x: F.leaky_relu(x, alpha)


@eager("elu")
def elu(node: Node, values: Sequence[Value]) -> Function:
    alpha, scale, input_scale = (node.attrs.get(k, 1.0) for k in ("alpha", "scale", "input_scale"))
    return lambda x: torch.ops.aten.elu.default(x, alpha, scale, input_scale)


@eager("softplus")
def softplus(node: Node, values: Sequence[Value]) -> Function:
    beta, threshold = node.attrs.get("beta", 1.0), node.attrs.get("threshold", 20.0)
    return lambda x: F.softplus(x, beta, threshold)


@eager("clip")
def clip(node: Node, values: Sequence[Value]) -> Function:
    def run(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
        return x.clone() if low is None and high is None else torch.clamp(x, low, high)

    return run


@eager("cast")
def cast(node: Node, values: Sequence[Value]) -> Function | None:
    target = node.attrs["to"].name
    if target not in TO_TORCH or len(node.attrs) > 1:
        return None
    dtype = TO_TORCH[target]
    return lambda x: x.to(dtype)
