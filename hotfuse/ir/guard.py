"""Guards over sizes: the class of shapes that one captured graph serves.

A `ShapeClass` gives every tensor of a call its shape as dims over symbols, the range of each symbol, and relations that the
capture relied on (`s0 % 2 == 0`, `s1 != 5`). `check` returns why given shapes are outside the class, or "" when they are in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, evaluate, solve
from hotfuse.ir.types import Shape
from hotfuse.records import dataclass

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
    """The sizes a symbol may take; an end is None when nothing bounds it there."""

    symbol: str
    least: int | None
    most: int | None = None

    def __contains__(self, size: int) -> bool:
        return (self.least is None or size >= self.least) and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        least = "" if self.least is None else f"{self.least} <= "
        return least + self.symbol + ("" if self.most is None else f" <= {self.most}")


@dataclass(frozen=True)
class ShapeClass:
    """`shapes` has one entry per tensor of the call, in order; a whole number that varies counts as a shape of one axis."""

    shapes: tuple[Shape, ...]
    ranges: tuple[SizeRange, ...] = ()
    relations: tuple[Relation, ...] = ()

    def check(self, actual: Sequence[Sequence[int]]) -> str:
        if len(actual) != len(self.shapes):
            return f"{len(actual)} tensors instead of {len(self.shapes)}"
        sizes: dict[str, int] = {}
        others: list[tuple[str, int, int]] = []
        for place, (shape, found) in enumerate(zip(self.shapes, actual, strict=True)):
            if len(shape) != len(found):
                return f"tensor {place} has rank {len(found)}, not {len(shape)}"
            for dim, size in zip(shape, found, strict=True):
                name = str(dim)
                solved = solve(dim, size)
                if solved == (name, size, 0) and sizes.setdefault(name, size) != size:
                    return f"size {name} is both {sizes[name]} and {size}"
                if solved is not None:
                    others.append(solved)
        for name, value, _ in others:  # sizes that no axis shows by themselves; `_check_sizes` sees to remainders
            sizes.setdefault(name, value)
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
            if bound.symbol in sizes and sizes[bound.symbol] not in bound:
                return f"size {bound.symbol}={sizes[bound.symbol]} is outside {bound}"
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
