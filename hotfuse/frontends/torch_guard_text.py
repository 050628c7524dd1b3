"""Guards of saved programs, which torch writes as Python text: `L['x'].size()[1] % 2 == 0`.

Read, never run: comparisons of whole-number arithmetic over sizes of arguments and whole-number arguments; the rest is refused.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, floordiv, maximum, minimum, symbol
from hotfuse.ir.guard import Relation

Path = tuple[str | int, ...]
DimOf = Callable[[Path, int | None], Dim]  # the size of an argument at an axis; the argument itself where the axis is None

_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_BINARY: Mapping[type, Callable[[Any, Any], Dim]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: floordiv,
}
_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {"max": maximum, "min": minimum}


def read_guard(text: str, dim_of: DimOf) -> Relation:
    """The relation that the text of a guard stands for."""
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Compare(left=left, ops=[compare], comparators=[right]) if type(compare) in _COMPARE:
                return Relation(_dim(left, dim_of), _COMPARE[type(compare)], _dim(right, dim_of))
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise DimError(f"the guard {text[:200]!r} cannot be read: {error}") from None
    raise DimError(f"the guard {text[:200]!r} is not a comparison of sizes")


def is_guard(text: str) -> bool:
    """Whether the text is nothing but a comparison of sizes."""
    try:
        read_guard(text, lambda path, axis: symbol("size", 1))
    except DimError:
        return False
    return True


def _dim(node: ast.expr, dim_of: DimOf) -> Dim:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_dim(inner, dim_of)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_dim(left, dim_of), _dim(right, dim_of))
        case ast.Call(func=ast.Name(id=name), args=[first, *others], keywords=[]) if name in _FUNCTIONS:
            found = _dim(first, dim_of)
            for other in others:
                found = _FUNCTIONS[name](found, _dim(other, dim_of))
            return found
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            return dim_of(_path(owner), axis)
        case ast.Subscript():
            return dim_of(_path(node), None)
    raise DimError(f"the guard {ast.unparse(node)[:200]!r} is not arithmetic over sizes")


def _path(node: ast.expr) -> Path:
    """The keys that lead to an argument, from its name on."""
    match node:
        case ast.Name(id="L"):
            return ()
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))) if key.isidentifier():
            return (*_path(owner), key)
        case ast.Subscript(value=owner, slice=ast.Constant(value=int(key))):
            return (*_path(owner), key)
    raise DimError(f"{ast.unparse(node)[:200]!r} is not an argument")
