"""Torch's symbolic sizes become dims.

Torch writes sizes as sympy expressions over symbols with ranges. Sums, products, whole powers, floor and ceiling division,
remainders, min and max have an exact counterpart; anything else is refused, and the node that needs it stays opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, minimum, symbol


def dim_from_torch(size: Any) -> Dim:
    """The dim of an int or a torch.SymInt."""
    if isinstance(size, int):
        return int(size)
    node = size.node
    return from_sympy(node.expr, lambda s: _least(node.shape_env, s))


def is_unbacked(size: Any) -> bool:
    """Whether a torch.SymInt depends on data that only running the model reveals."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return not isinstance(size, int) and bool(free_unbacked_symbols(size))


def _least(shape_env: Any, name: Any) -> int:
    bounds = getattr(shape_env, "var_to_range", {}).get(name)
    lower = getattr(bounds, "lower", None)
    return int(lower) if lower is not None and getattr(lower, "is_Integer", False) else -(1 << 62)


def from_sympy(expr: Any, least: Callable[[Any], int]) -> Dim:
    """The dim that a sympy expression of sizes stands for."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return symbol(str(expr), least(expr))
    kind = type(expr).__name__
    if kind == "Mul":
        top, bottom = expr.as_numer_denom()
        if bottom != 1:
            return floordiv(from_sympy(top, least), from_sympy(bottom, least))
    if kind == "Pow" and not (expr.exp.is_Integer and expr.exp >= 0):
        raise DimError(f"the size {expr} has no exact form over whole numbers")
    if kind == "Pow" or kind == "PowByNatural":
        base, exponent = expr.args
        if not exponent.is_Integer:
            raise DimError(f"the size {expr} has no exact form over whole numbers")
        return _fold([from_sympy(base, least)] * int(exponent), lambda a, b: a * b, 1)
    operands = [from_sympy(a, least) for a in expr.args]
    match kind:
        case "Add":
            return _fold(operands, lambda a, b: a + b, 0)
        case "Mul":
            return _fold(operands, lambda a, b: a * b, 1)
        case "FloorDiv" | "CleanDiv":
            return floordiv(*operands)
        case "CeilDiv" | "CeilToInt" if len(operands) == 2:
            return ceildiv(*operands)
        case "Mod" | "PythonMod":
            return operands[0] % operands[1]
        case "Min":
            return _fold(operands[1:], minimum, operands[0])
        case "Max":
            return _fold(operands[1:], maximum, operands[0])
        case "Identity":
            return operands[0]
    raise DimError(f"the size {expr} ({kind}) has no exact form over whole numbers")


def _fold(items: list[Dim], combine: Callable[[Dim, Dim], Dim], start: Dim) -> Dim:
    for item in items:
        start = combine(start, item)
    return start
