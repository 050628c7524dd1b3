"""Guards over sizes: the class of shapes that one captured graph serves.

A `ShapeClass` gives every tensor of a call its shape as dims over symbols, the range of each symbol, and relations that the
capture relied on (`s0 % 2 == 0`, `s1 != 5`). `check` returns why given shapes are outside the class, or "" when they are in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, Expr, Symbol, evaluate
from hotfuse.ir.types import Shape

COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Relation:
    """`left <compare> right`, which held when the graph was captured."""

    left: Dim
    compare: str
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.compare} {self.right}"


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes a symbol may take; `most` is None when nothing bounds it."""

    symbol: str
    least: int
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.least} <= {self.symbol}" + ("" if self.most is None else f" <= {self.most}")


@dataclass(frozen=True)
class ShapeClass:
    """`shapes` has one entry per tensor of the call, in order."""

    shapes: tuple[Shape, ...]
    ranges: tuple[SizeRange, ...] = ()
    relations: tuple[Relation, ...] = ()

    def check(self, actual: Sequence[Sequence[int]]) -> str:
        if len(actual) != len(self.shapes):
            return f"{len(actual)} tensors instead of {len(self.shapes)}"
        sizes: dict[str, int] = {}
        for place, (shape, found) in enumerate(zip(self.shapes, actual, strict=True)):
            if len(shape) != len(found):
                return f"tensor {place} has rank {len(found)}, not {len(shape)}"
            for dim, size in zip(shape, found, strict=True):
                name = _name(dim)
                if name and sizes.setdefault(name, size) != size:
                    return f"size {name} is both {sizes[name]} and {size}"
        try:
            return self._check_sizes(actual, sizes)
        except DimError as error:
            return str(error)

    def _check_sizes(self, actual: Sequence[Sequence[int]], sizes: Mapping[str, int]) -> str:
        for place, (shape, found) in enumerate(zip(self.shapes, actual, strict=True)):
            for axis, (dim, size) in enumerate(zip(shape, found, strict=True)):
                if evaluate(dim, sizes) != size:
                    return f"tensor {place} has size {size} at axis {axis}, not {dim}"
        for bound in self.ranges:
            size = sizes.get(bound.symbol, bound.least)
            if size < bound.least or (bound.most is not None and size > bound.most):
                return f"size {bound.symbol}={size} is outside {bound}"
        for relation in self.relations:
            if not COMPARE[relation.compare](evaluate(relation.left, sizes), evaluate(relation.right, sizes)):
                return f"{relation} does not hold for {', '.join(f'{k}={v}' for k, v in sizes.items())}"
        return ""

    def __str__(self) -> str:
        shapes = ", ".join(f"[{', '.join(map(str, s))}]" for s in self.shapes)
        conditions = [str(r) for r in self.ranges] + [str(r) for r in self.relations]
        return shapes + (f" where {' and '.join(conditions)}" if conditions else "")


def exact_class(shapes: Sequence[Sequence[int]]) -> ShapeClass:
    """The class of exactly these shapes."""
    return ShapeClass(tuple(tuple(s) for s in shapes))


def _name(dim: Dim) -> str:
    """The symbol that a dim is, if it is nothing but one."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Symbol):
            return monomial[0][0].name
    return ""
