"""Scalar bodies of operator records, written as tile instructions.

A body such as "where(x >= 0, x, alpha * x)" is our own text (`OpDef.scalar`), read with Python's grammar and never run.
Numbers, attributes among them, become blocks of one element in the dtype of what they meet; arithmetic between numbers is
carried out here, in float64. Equal parts are computed once. Half types are computed in float32 throughout and rounded once, at
the end, as the records' references do.

Some records need another body than their own, by attributes or for the sake of integers and accuracy: `BODIES` is the list.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from hotfuse.codegen.scalar_ops import SCALAR_OPS, result_dtype
from hotfuse.codegen.tile import Cast, Fill, Instruction, Map
from hotfuse.errors import TileError
from hotfuse.ir.op import OpDef
from hotfuse.ir.types import BOOL, F32, DType
from hotfuse.records import dataclass

_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_RENAMED = {"and_": "and", "or_": "or", "not_": "not"}  # Python's grammar keeps the plain words for itself
_FOLDED: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
}  # fmt: skip

# Operator -> its body, where that is not the record's own. Logic is of truth values, whatever the type of the inputs.
BODIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "gelu": lambda attrs: "gelu_tanh(x)" if attrs.get("approximate") == "tanh" else "gelu_erf(x)",
    "sigmoid": lambda attrs: "sigmoid(x)",
    "silu": lambda attrs: "x * sigmoid(alpha * x)",
    "reciprocal": lambda attrs: "reciprocal(x)",
    "exp2": lambda attrs: "exp2(x)",
    "log2": lambda attrs: "log2(x)",
    "log10": lambda attrs: "log10(x)",
    "floor_div": lambda attrs: "floor_div(x, y)",
    "mod": lambda attrs: "mod(x, y)",
    "logical_and": lambda attrs: "and_(x != 0, y != 0)",
    "logical_or": lambda attrs: "or_(x != 0, y != 0)",
    "logical_xor": lambda attrs: "xor(x != 0, y != 0)",
    "logical_not": lambda attrs: "x == 0",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A block by name, with its dtype."""

    name: str
    dtype: DType


@dataclass(slots=True)
class _Expansion:
    """State: the instructions written so far, and the block that holds each part already computed."""

    inputs: Mapping[str, _Part]
    attrs: Mapping[str, Any]
    fresh: Callable[[], str]
    written: list[Instruction] = field(default_factory=list)
    known: dict[tuple[Any, ...], _Part] = field(default_factory=dict)

    def part(self, node: ast.expr) -> _Part | float:
        """The block of an expression, or the number it stands for."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name) if name in self.inputs:
                return self.inputs[name]
            case ast.Name(id=name) if isinstance(self.attrs.get(name), int | float):
                return self.attrs[name]  # type: ignore[no-any-return]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.part(operand)
                return self.map("neg", inner) if isinstance(inner, _Part) else -inner
            case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
                return self.arithmetic(_OPERATORS[type(kind)], self.part(left), self.part(right))
            case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _COMPARISONS:
                return self.map(_COMPARISONS[type(kind)], self.part(left), self.part(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _RENAMED.get(name, name) in SCALAR_OPS:
                return self.map(_RENAMED.get(name, name), *(self.part(a) for a in args))
        raise TileError(f"a scalar body may not contain {ast.unparse(node)!r}: there is no operation or attribute of this name")

    def arithmetic(self, op: str, x: _Part | float, y: _Part | float) -> _Part | float:
        if not isinstance(x, _Part) and not isinstance(y, _Part):
            return _FOLDED[op](x, y)
        if op in ("mul", "div") and y == 1 and isinstance(x, _Part):
            return x
        if op == "mul" and x == 1:
            return y
        return self.map(op, x, y)

    def map(self, op: str, *args: _Part | float) -> _Part:
        first = 1 if op == "where" else 0  # the condition has a type of its own
        typed = [a.dtype for a in args[first:] if isinstance(a, _Part)]
        dtype = typed[0] if typed else self.main
        blocks = [a if isinstance(a, _Part) else self.number(BOOL if i < first else dtype, a) for i, a in enumerate(args)]
        if op == "pow":  # the exponent may be of another type
            blocks[1] = self.cast(blocks[1], blocks[0].dtype)
        key = (op, *blocks)
        if key not in self.known:
            result = _Part(self.fresh(), result_dtype(op, [b.dtype for b in blocks]))
            self.written.append(Map(result.name, op, tuple(b.name for b in blocks)))
            self.known[key] = result
        return self.known[key]

    def number(self, dtype: DType, value: float) -> _Part:
        if not dtype.is_float and value != int(value):
            raise TileError(f"the number {value} of a scalar body is not a whole one, and the operands are {dtype}")
        key = (dtype, type(value), value, str(value))  # -0.0 equals 0.0 and is another number
        if key not in self.known:
            self.known[key] = _Part(self.fresh(), dtype)
            self.written.append(Fill(self.known[key].name, dtype, (1, 1), value if dtype.is_float else int(value)))
        return self.known[key]

    def cast(self, part: _Part, dtype: DType) -> _Part:
        if part.dtype == dtype:
            return part
        key = ("cast", dtype, part)
        if key not in self.known:
            self.known[key] = _Part(self.fresh(), dtype)
            self.written.append(Cast(self.known[key].name, dtype, part.name))
        return self.known[key]

    @property
    def main(self) -> DType:
        """The dtype of numbers that meet only numbers: the first input's that is not bool."""
        return next((p.dtype for p in self.inputs.values() if p.dtype != BOOL), F32)


def expand(
    body: str, names: Mapping[str, str], dtypes: Mapping[str, DType], attrs: Mapping[str, Any], fresh: Callable[[], str]
) -> tuple[tuple[Instruction, ...], str]:
    """The instructions that compute `body`, and the name of the result. `names` are the blocks that x, y and z stand for,
    `dtypes` their types; `fresh` hands out names for new blocks."""
    inputs = {variable: _Part(name, dtypes[variable]) for variable, name in names.items()}
    expression = ast.parse(body, mode="eval").body
    if isinstance(expression, ast.Name) and expression.id in inputs:
        return (), inputs[expression.id].name
    expansion = _Expansion(inputs, attrs, fresh)
    half = next((p.dtype for p in inputs.values() if p.dtype.is_float and p.dtype.bits < 32), None)
    if half is not None:
        expansion.inputs = {v: expansion.cast(p, F32) if p.dtype == half else p for v, p in inputs.items()}
    result = expansion.part(expression)
    if not isinstance(result, _Part):
        result = expansion.number(expansion.main, result)
    if half is not None and result.dtype == F32:
        result = expansion.cast(result, half)
    return tuple(expansion.written), result.name


def expand_op(
    op: OpDef, names: Mapping[str, str], dtypes: Mapping[str, DType], attrs: Mapping[str, Any], fresh: Callable[[], str]
) -> tuple[tuple[Instruction, ...], str]:
    """`expand` for an operator record: with the body of `BODIES` where there is one; absent inputs of `clip` bound nothing."""
    if op.name == "cast":
        to = attrs["to"]
        if dtypes["x"] == to:
            return (), names["x"]
        name = fresh()
        return (Cast(name, to, names["x"]),), name
    attrs = {**_defaults(op), **attrs}
    body = BODIES[op.name](attrs) if op.name in BODIES else op.scalar
    if op.name == "clip":
        body = "x" if "y" not in names else _bounded("x", "<", "y", dtypes["x"])
        body = body if "z" not in names else _bounded(body, ">", "z", dtypes["x"])
    if body is None:
        raise TileError(f"{op.name} has no scalar body; lower it by its loop structure")
    return expand(body, names, dtypes, attrs, fresh)


def _bounded(value: str, beyond: str, end: str, dtype: DType) -> str:
    """What equals a bound stays as it is, the sign of a zero included; what is bounded by NaN is NaN."""
    if not dtype.is_float:
        return f"where({value} {beyond} {end}, {end}, {value})"
    return f"where(or_({value} {beyond} {end}, {end} != {end}), {end}, {value})"


@functools.cache
def _defaults(op: OpDef) -> Mapping[str, Any]:
    """Attributes that a node need not have, as the reference has them."""
    if op.reference is None or isinstance(op.reference, np.ufunc):
        return {}
    parameters = inspect.signature(op.reference).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
