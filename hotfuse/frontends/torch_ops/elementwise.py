"""Elementwise ATen operators: torch's type promotion made explicit, then one IR node each.

A half-precision tensor times or over a Python number is computed in float32 and rounded once: there torch does not round
the number itself to half precision. Everywhere else it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotfuse.frontends.torch_node import (
    IMPORTERS,
    Decline,
    Imported,
    Number,
    Scalar,
    TorchNode,
    aten,
    dtype_of_value,
    opmath,
    promoted,
)
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, DType

_COMPLEX = Decline("complex arithmetic is run by torch")
_KEEPS_NUMBERS = ("mul", "div")
Operand = Value | Scalar


def _is_complex(*arguments: Any) -> bool:
    return any(isinstance(a, complex) or (isinstance(a, Value) and dtype_of_value(a).kind == "complex") for a in arguments)


def _exact(number: Any, dtype: DType) -> bool:
    """Whether a number survives rounding to `dtype`."""
    if isinstance(number, (Value, Number, Expr)):
        return isinstance(number, Value)
    return float(np.asarray(number).astype(dtype.numpy)) == float(number)


def apply(n: TorchNode, op: str, operands: tuple[Operand, ...], dtype: DType, **attrs: Any) -> Value:
    """One elementwise node computed in `dtype` (wider where torch keeps a number as it is)."""
    wide = opmath(dtype)
    if op in _KEEPS_NUMBERS and wide != dtype and not all(_exact(a, dtype) for a in operands):
        return n.cast(n.add(op, *(n.operand(a, wide) for a in operands), **attrs), dtype)
    return n.add(op, *(n.operand(a, dtype) for a in operands), **attrs)


# unary


def _unary(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Value, *rest: Any) -> Imported:
        if _is_complex(x) or n.dtype.kind == "complex":
            return _COMPLEX
        return n.add(op, n.cast(x, n.dtype))

    return run


for _name in (
    "abs", "neg", "sign", "ceil", "floor", "trunc", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "log2",
    "log10", "exp2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "lgamma", "digamma", "sigmoid", "silu", "relu", "round", "bitwise_not",
):  # fmt: skip
    IMPORTERS[f"aten.{_name}.default"] = _unary(_name)
IMPORTERS["aten.sgn.default"] = _unary("sign")


def _predicate(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Value) -> Imported:
        if _is_complex(x):
            return _COMPLEX
        if not dtype_of_value(x).is_float:
            return Decline("of integers")
        return n.add(op, x)

    return run


for _name in ("isnan", "isinf"):
    IMPORTERS[f"aten.{_name}.default"] = _predicate(_name)


@aten("aten.logical_not.default")
def logical_not(n: TorchNode, x: Value) -> Imported:
    return _COMPLEX if _is_complex(x) else n.add("logical_not", n.cast(x, BOOL))


@aten("aten.gelu.default")
def gelu(n: TorchNode, x: Value, approximate: str) -> Imported:
    return n.add("gelu", x, approximate=approximate)


@aten("aten.leaky_relu.default")
def leaky_relu(n: TorchNode, x: Value, slope: Scalar) -> Imported:
    return (
        n.add("leaky_relu", x, alpha=float(slope))
        if isinstance(slope, (int, float))
        else Decline("the slope is not a constant")
    )


@aten("aten.elu.default")
def elu(n: TorchNode, x: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Imported:
    if not all(isinstance(v, (int, float)) for v in (alpha, scale, input_scale)):
        return Decline("its parameters are not constants")
    return n.add("elu", x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))  # type: ignore[arg-type]


@aten("aten.softplus.default")
def softplus(n: TorchNode, x: Value, beta: Scalar, threshold: Scalar) -> Imported:
    if not isinstance(beta, (int, float)) or not isinstance(threshold, (int, float)):
        return Decline("its parameters are not constants")
    return n.add("softplus", x, beta=float(beta), threshold=float(threshold))


# binary arithmetic


def _arithmetic(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Operand, y: Operand) -> Imported:
        return _COMPLEX if _is_complex(x, y) else apply(n, op, (x, y), n.dtype)

    return run


for _op, _names in {
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar"),
    "atan2": ("atan2.default",),
    "maximum": ("maximum.default",),
    "minimum": ("minimum.default",),
    "mod": ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"),
    "fmod": ("fmod.Tensor", "fmod.Scalar"),
    "floor_div": ("floor_divide.default", "floor_divide.Scalar"),
    "bitwise_and": ("bitwise_and.Tensor", "bitwise_and.Scalar"),
    "bitwise_or": ("bitwise_or.Tensor", "bitwise_or.Scalar"),
    "bitwise_xor": ("bitwise_xor.Tensor", "bitwise_xor.Scalar"),
}.items():
    for _name in _names:
        IMPORTERS[f"aten.{_name}"] = _arithmetic(_op)


def _sum(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Operand, y: Operand, alpha: Scalar = 1) -> Imported:
        if _is_complex(x, y, alpha):
            return _COMPLEX
        if n.dtype is BOOL:
            return Decline("of booleans")
        if alpha == 1:
            return apply(n, op, (x, y), n.dtype)
        wide = opmath(n.dtype)
        scaled = n.add("mul", n.operand(y, wide), n.operand(alpha, wide))
        return n.cast(n.add(op, n.operand(x, wide), scaled), n.dtype)

    return run


for _name in ("aten.add.Tensor", "aten.add.Scalar"):
    IMPORTERS[_name] = _sum("add")
for _name in ("aten.sub.Tensor", "aten.sub.Scalar"):
    IMPORTERS[_name] = _sum("sub")


def _reversed_sub(n: TorchNode, x: Operand, y: Operand, alpha: Scalar = 1) -> Imported:
    if _is_complex(x, y) or alpha != 1:
        return Decline("with a factor, or of complex numbers")
    return apply(n, "sub", (y, x), n.dtype)


for _name in ("aten.rsub.Tensor", "aten.rsub.Scalar"):
    IMPORTERS[_name] = _reversed_sub


@aten("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(n: TorchNode, x: Operand, y: Operand, rounding_mode: str | None) -> Imported:
    if _is_complex(x, y):
        return _COMPLEX
    if rounding_mode == "floor":
        return apply(n, "floor_div", (x, y), n.dtype)
    if rounding_mode == "trunc" and not n.dtype.is_float:
        return apply(n, "div", (x, y), n.dtype)
    if rounding_mode == "trunc":
        wide = opmath(n.dtype)
        return n.cast(n.add("trunc", n.add("div", n.operand(x, wide), n.operand(y, wide))), n.dtype)
    return apply(n, "div", (x, y), n.dtype)


@aten("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(n: TorchNode, x: Operand, y: Operand) -> Imported:
    if _is_complex(x, y):
        return _COMPLEX
    if isinstance(x, Value) and isinstance(y, (int, float)) and y == 2:
        base = n.cast(x, n.dtype)
        return n.add("mul", base, base)
    if not n.dtype.is_float:
        return Decline("integer powers are run by torch")
    return apply(n, "pow", (x, y), n.dtype)


@aten("aten.addcmul.default", "aten.addcdiv.default")
def addc(n: TorchNode, x: Value, a: Value, b: Value, value: Scalar) -> Imported:
    if _is_complex(x, a, b, value) or not n.dtype.is_float:
        return Decline("of integers or complex numbers")
    wide = opmath(n.dtype)
    product = n.add("mul" if "mul" in n.name else "div", n.operand(a, wide), n.operand(b, wide))
    if value != 1:
        product = n.add("mul", product, n.operand(value, wide))
    return n.cast(n.add("add", n.operand(x, wide), product), n.dtype)


# comparison, logic, choice


def _comparison(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Operand, y: Operand) -> Imported:
        if _is_complex(x, y):
            return _COMPLEX
        dtype = promoted(x, y)
        return apply(n, op, (x, y), dtype)

    return run


for _theirs, _ours in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    for _overload in ("Tensor", "Scalar"):
        IMPORTERS[f"aten.{_theirs}.{_overload}"] = _comparison(_ours)


def _logic(op: str) -> Callable[..., Imported]:
    def run(n: TorchNode, x: Value, y: Value) -> Imported:
        return _COMPLEX if _is_complex(x, y) else n.add(op, n.cast(x, BOOL), n.cast(y, BOOL))

    return run


for _name in ("logical_and", "logical_or", "logical_xor"):
    IMPORTERS[f"aten.{_name}.default"] = _logic(_name)


@aten("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def where(n: TorchNode, condition: Value, x: Operand, y: Operand) -> Imported:
    return n.add("where", n.cast(condition, BOOL), n.operand(x, n.dtype), n.operand(y, n.dtype))


@aten("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(n: TorchNode, x: Value, mask: Value, fill: Operand) -> Imported:
    return n.add("where", n.cast(mask, BOOL), n.operand(fill, n.dtype), n.cast(x, n.dtype))


@aten("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def clamp(n: TorchNode, x: Value, low: Operand | None, high: Operand | None) -> Imported:
    if _is_complex(x, low, high):
        return _COMPLEX
    result: Value = x
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            result = apply(n, op, (result, bound), n.dtype)
    return n.cast(result, n.dtype)


@aten("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(n: TorchNode, x: Value, low: Operand) -> Imported:
    return apply(n, "maximum", (x, low), n.dtype)


@aten("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(n: TorchNode, x: Value, high: Operand) -> Imported:
    return apply(n, "minimum", (x, high), n.dtype)
