"""The shapes a traced program holds for, read off torch's shape environment.

Torch collects what tracing relied on: which sizes are equal or fixed (the inputs' own shapes say so), ranges, and guards such
as `Eq(Mod(s0, 2), 0)`. All of it becomes one `ShapeClass`. A guard that has no exact counterpart is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hotfuse.errors import DimError
from hotfuse.frontends.torch_dim import dim_from_torch, from_sympy
from hotfuse.ir.guard import Relation, ShapeClass, SizeRange
from hotfuse.ir.types import Shape

_COMPARISONS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}
_ABOUT_SIZES = (
    "sym_size",
    "sym_stride",
    "sym_numel",
    "sym_constrain",
    "sym_max",
    "sym_min",
    "_assert_",
    "built-in function",
    "math.",
)
_LOOKS = ("aten.view.", "aten.reshape.", "aten.expand.")  # their result's shape says it all
_MAY_DO_NOTHING = (*_LOOKS, "aten.slice.")


def shape_class(exported: Any) -> ShapeClass:
    """The class of input shapes that a traced program holds for: its guards, ranges and fixed sizes."""
    shapes: list[Shape] = []
    env = None
    for value in _user_tensors(exported):
        shapes.append(tuple(dim_from_torch(size) for size in value.shape))
        env = next((s.node.shape_env for s in value.shape if not isinstance(s, int)), env)
    if env is None:
        return ShapeClass(tuple(shapes))
    symbols = {
        s for value in _user_tensors(exported) for d in value.shape if not isinstance(d, int) for s in d.node.expr.free_symbols
    }
    ranges = []
    for name in sorted(symbols, key=str):
        bound = env.var_to_range[name]
        most = int(bound.upper) if bound.upper.is_Integer else None
        ranges.append(SizeRange(str(name), max(1, int(bound.lower)), most))
    return ShapeClass(tuple(shapes), tuple(ranges), tuple(_relations(env, symbols)))


def _relations(env: Any, symbols: set[Any]) -> Iterator[Relation]:
    for guard in env.guards:
        expression = guard.expr.xreplace(env.replacements)
        if expression.is_Boolean and expression.is_Atom:  # plain truth
            continue
        compare = _COMPARISONS.get(type(expression).__name__)
        if compare is None or not expression.free_symbols <= symbols:
            raise DimError(f"the guard {guard.expr} has no counterpart here")
        left, right = (from_sympy(side, lambda s: 0) for side in expression.args)
        yield Relation(left, compare, right)


def _user_tensors(exported: Any) -> Iterator[Any]:
    """The example values of the program's tensor inputs, in the order of the call's leaves."""
    kind = torch.export.graph_signature.InputKind.USER_INPUT
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is kind and isinstance(values.get(spec.arg.name), torch.Tensor):
            yield values[spec.arg.name]


def widened_symbols(shapes: ShapeClass, exact: Sequence[tuple[int, ...]]) -> frozenset[str]:
    """The symbols that stand for sizes of 1 in the call."""
    return frozenset(
        str(dim)
        for shape, sizes in zip(shapes.shapes, exact, strict=True)
        for dim, size in zip(shape, sizes, strict=True)
        if size == 1 and not isinstance(dim, int)
    )


def admit_one(exported: Any, ones: frozenset[str]) -> None:
    """Tell the program's size arithmetic that widened sizes may be 1, before dims are made of it."""
    from torch.utils._sympy.value_ranges import ValueRanges

    for value in _user_tensors(exported):
        for size in value.shape:
            if not isinstance(size, int) and str(size.node.expr) in ones:
                ranges = size.node.shape_env.var_to_range
                ranges[size.node.expr] = ValueRanges(1, ranges[size.node.expr].upper)


def same_program(dynamic: Any, static: Any, ones: frozenset[str]) -> bool:
    """Whether both traces do the same, step by step, where the symbols `ones` are 1."""
    return _steps(dynamic, ones) == _steps(static, ones)


def _steps(exported: Any, ones: frozenset[str]) -> list[Any]:
    """Every node with its operator, operands and result types, sizes as numbers: those of the example, or 1. Slices and the
    like that change nothing are left out: torch does so itself where it knows a size."""
    numbers: dict[Any, int] = {}
    count = itertools.count()
    steps: list[Any] = []

    def plain(item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return ("value", numbers[item]) if item in numbers else plain(item.meta.get("val"))
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return str(_at_example(item.node, ones))
        if isinstance(item, (list, tuple)):
            return tuple(plain(i) for i in item)
        if isinstance(item, dict):
            return tuple((k, plain(v)) for k, v in item.items())
        if isinstance(item, torch.Tensor):
            return tuple(plain(s) for s in item.shape), str(item.dtype)
        return str(item)

    for node in exported.graph.nodes:
        target, result = str(node.target), plain(node.meta.get("val"))
        if node.op == "call_function" and any(part in target for part in _ABOUT_SIZES):
            continue
        if target.startswith(_MAY_DO_NOTHING) and result == plain(node.args[0].meta.get("val")) and node.args[0] in numbers:
            numbers[node] = numbers[node.args[0]]
            continue
        if node.op != "placeholder":
            operands = plain(node.args[:1] if target.startswith(_LOOKS) else node.args)
            if target.startswith("aten.slice."):  # a start of None is 0
                operands = tuple("0" if operand == "None" else operand for operand in operands)
            steps.append((node.op, target, operands, plain(node.kwargs), result))
        numbers[node] = next(count)
    return steps


def _at_example(node: Any, ones: frozenset[str]) -> Any:
    import sympy  # type: ignore[import-untyped]

    hints = node.shape_env.backed_var_to_val
    return node.expr.xreplace({s: sympy.Integer(1) if str(s) in ones else hints.get(s, s) for s in node.expr.free_symbols})
