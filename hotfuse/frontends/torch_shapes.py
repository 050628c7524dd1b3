"""The shapes a traced program holds for, read off torch's shape environment.

Torch collects what tracing relied on: which sizes are equal or fixed (the inputs' own shapes say so), ranges, and guards such
as `Eq(Mod(s0, 2), 0)`. All of it becomes one `ShapeClass`. A guard that has no exact counterpart is refused.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hotfuse.errors import DimError
from hotfuse.frontends.torch_dim import dim_from_torch, from_sympy
from hotfuse.ir.guard import Relation, ShapeClass, SizeRange

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


def shape_class(exported: Any, declared: Mapping[Any, Any] | None = None) -> ShapeClass:
    """The class of input shapes that a program holds for: its guards, fixed sizes, and ranges. These are the `declared` ones,
    or else those that tracing found, sizes of 0 left out."""
    sizes = [size for shape in _user_shapes(exported) for size in shape if not isinstance(size, int)]
    shapes = tuple(tuple(dim_from_torch(size) for size in shape) for shape in _user_shapes(exported))
    if not sizes:
        return ShapeClass(shapes)
    env = sizes[0].node.shape_env
    symbols = {s for size in sizes for s in size.node.expr.free_symbols}
    ranges = []
    for name in sorted(symbols, key=str):
        bound = (declared or {}).get(name, env.var_to_range[name])
        least = int(bound.lower) if bound.lower.is_Integer else None
        most = int(bound.upper) if bound.upper.is_Integer else None
        if declared is None:
            least = max(1, least or 0)
        if least is not None or most is not None:
            ranges.append(SizeRange(str(name), least, most))
    relations = [*_bounds(declared or {}, symbols), *_relations(env, symbols)]
    return ShapeClass(shapes, tuple(ranges), tuple(relations))


def _bounds(declared: Mapping[Any, Any], symbols: set[Any]) -> Iterator[Relation]:
    """Declared ranges of sizes that are computed from others."""
    for expression, bound in declared.items():
        if expression.is_Symbol or not expression.free_symbols <= symbols:
            continue
        dim = from_sympy(expression, lambda s: 0)
        if bound.lower.is_Integer and bound.lower > 0:
            yield Relation(dim, ">=", int(bound.lower))
        if bound.upper.is_Integer:
            yield Relation(dim, "<=", int(bound.upper))


def _relations(env: Any, symbols: set[Any]) -> Iterator[Relation]:
    for guard in env.guards:
        expression = guard.expr
        for _ in env.replacements:  # a replacement may need another
            expression = expression.xreplace(env.replacements)
        if expression.is_Boolean and expression.is_Atom:  # plain truth
            continue
        compare = _COMPARISONS.get(type(expression).__name__)
        if compare is None or not expression.free_symbols <= symbols:
            raise DimError(f"the guard {guard.expr} has no counterpart here")
        left, right = (from_sympy(side, lambda s: 0) for side in expression.args)
        yield Relation(left, compare, right)


@contextlib.contextmanager
def declared_ranges(exported: Any) -> Iterator[None]:
    """Within, the program's size arithmetic knows no more of a size than the user declared: tracing takes sizes of at least 2
    for granted, a declared range may include 0 and 1."""
    saved: list[tuple[Any, dict[Any, Any]]] = []
    sizes = [size for shape in _user_shapes(exported) for size in shape if not isinstance(size, int)]
    if sizes:
        ranges = sizes[0].node.shape_env.var_to_range
        saved.append((ranges, dict(ranges)))
        for name, bound in saved[0][1].items():
            if name.is_Symbol:
                ranges[name] = exported.range_constraints.get(name, bound)
            else:  # loading a file leaves computed sizes here, on which torch itself stumbles
                del ranges[name]
    try:
        yield
    finally:
        for ranges, before in saved:
            ranges.update(before)


def _user_shapes(exported: Any) -> Iterator[tuple[Any, ...]]:
    """The example shapes of the program's tensor inputs, and numbers that vary as shapes of one axis, in the order of the
    call's leaves."""
    for value in _user_values(exported):
        if isinstance(value, torch.Tensor):
            yield tuple(value.shape)
        elif isinstance(value, torch.SymInt):
            yield (value,)


def _user_values(exported: Any) -> Iterator[Any]:
    kind = torch.export.graph_signature.InputKind.USER_INPUT
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is kind:
            yield values.get(spec.arg.name)


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

    for shape in _user_shapes(exported):
        for size in shape:
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
            return str(at_example(item.node, ones))
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


def at_example(node: Any, ones: frozenset[str]) -> Any:
    import sympy  # type: ignore[import-untyped]

    hints = node.shape_env.backed_var_to_val
    return node.expr.xreplace({s: sympy.Integer(1) if str(s) in ones else hints.get(s, s) for s in node.expr.free_symbols})
