"""Dims: exact integer expressions over named sizes, so that one graph serves all shapes.

A `Dim` is an `int` or an `Expr`. An `Expr` is a polynomial with integer coefficients over atoms:

    atom     = Symbol | Div(a, b)  (floor division) | Min(a, b) | Max(a, b)
    monomial = product of powers of atoms
    Expr     = sum of coefficient * monomial

The polynomial form is canonical: two expressions that are equal by ring laws are the same object tree, so `==`
and `hash` are structural and exact. `a % b` is written `a - b * (a // b)`. A symbol stands for a whole number not below its
`minimum` (0 for sizes). What is known of sizes beyond that is in `ir/facts`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TypeAlias, Union

from hotfuse.errors import DimError
from hotfuse.records import dataclass

MAX_TERMS = 4096  # of a product
MAX_SIZE = 256  # of an expression that a graph keeps; exported models stay below 40
MAX_COEFFICIENT = 1 << 64
MAX_DEGREE = 4  # sizes whose product an integer tensor is taken to hold (four of 50,000 each); more could wrap around

Dim: TypeAlias = Union[int, "Expr"]
Atom: TypeAlias = Union["Symbol", "Div", "Min", "Max"]
Monomial: TypeAlias = tuple[tuple["Atom", int], ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named size that a call fixes. `minimum` is the least value it can take; symbols of one name are one symbol."""

    name: str
    minimum: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Div:
    """Floor division that the polynomial form could not carry out."""

    top: Dim
    bottom: Dim

    def __str__(self) -> str:
        return f"{_wrapped(self.top)}//{_wrapped(self.bottom)}"


@dataclass(frozen=True, slots=True)
class Min:
    a: Dim
    b: Dim

    def __str__(self) -> str:
        return f"min({self.a}, {self.b})"


@dataclass(frozen=True, slots=True)
class Max:
    a: Dim
    b: Dim

    def __str__(self) -> str:
        return f"max({self.a}, {self.b})"


class Expr:
    """A canonical polynomial over atoms. Immutable; build it with arithmetic, `symbol`, `floordiv`, `minimum`, `maximum`."""

    __slots__ = ("_hash", "_text", "size", "terms")
    terms: tuple[tuple[Monomial, int], ...]
    size: int  # symbols and operations in its text; see `is_simple`

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "_hash", hash(terms))
        object.__setattr__(self, "_text", None)
        object.__setattr__(self, "size", sum(1 + sum(_atom_size(a) * p for a, p in m) for m, _ in terms))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Expr is immutable")

    def __reduce__(self) -> tuple[object, ...]:
        return (Expr, (self.terms,))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[no-any-return, attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Expr)):
            return NotImplemented
        merged = dict(self.terms)
        for monomial, coefficient in _terms(other):
            merged[monomial] = merged.get(monomial, 0) + coefficient
        return _canonical(merged)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Expr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Expr)):
            return NotImplemented
        product: dict[Monomial, int] = {}
        if isinstance(other, Expr) and len(self.terms) * len(other.terms) > MAX_TERMS:
            raise DimError(f"a product of sizes has more than {MAX_TERMS} terms; fix some of the model's free sizes")
        for m1, c1 in self.terms:
            for m2, c2 in _terms(other):
                m = _times(m1, m2)
                product[m] = product.get(m, 0) + c1 * c2
        return _canonical(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - other * floordiv(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return other - self * floordiv(other, self)

    def __bool__(self) -> bool:
        raise DimError(f"the truth of the symbolic size {self} is not known before a call; use Facts.decide")

    def __str__(self) -> str:
        if self._text is None:  # type: ignore[attr-defined]
            object.__setattr__(self, "_text", self._written())
        return self._text  # type: ignore[no-any-return, attr-defined]

    def _written(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            body = "*".join(_factor(atom) for atom, power in monomial for _ in range(power))
            size = abs(coefficient)
            text = body if size == 1 and body else f"{size}*{body}" if body else str(size)
            sign = "-" if coefficient < 0 else "+"
            parts.append(f" {sign} {text}" if parts else (f"-{text}" if coefficient < 0 else text))
        return "".join(parts)

    def __repr__(self) -> str:
        return f"<{self}>"


def is_simple(dim: Dim) -> bool:
    """Whether a dim is worth keeping. Arithmetic on sizes can square an expression with every step, so what grows beyond any
    use is better given a name of its own."""
    if isinstance(dim, int):
        return abs(dim) < MAX_COEFFICIENT
    return dim.size <= MAX_SIZE and all(abs(c) < MAX_COEFFICIENT for _, c in dim.terms)


def degree(dim: Dim) -> int:
    """How many sizes its longest product has."""
    return 0 if isinstance(dim, int) else max(sum(power for _, power in monomial) for monomial, _ in dim.terms)


def _atom_size(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return 1
    parts = (atom.top, atom.bottom) if isinstance(atom, Div) else (atom.a, atom.b)
    return 1 + sum(1 if isinstance(d, int) else d.size for d in parts)


def _factor(atom: Atom) -> str:
    return f"({atom})" if isinstance(atom, Div) else str(atom)


def _wrapped(dim: Dim) -> str:
    text = str(dim)
    return text if re.fullmatch(r"\w[\w.?]*|-?\d+", text) and not text.startswith("-") else f"({text})"


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), dim),) if dim else ()


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=_atom_key))


def _atom_key(item: tuple[Atom, int]) -> tuple[int, str]:
    return (0 if isinstance(item[0], Symbol) else 1, str(item[0]))


def _monomial_key(item: tuple[Monomial, int]) -> tuple[int, tuple[tuple[int, str], ...]]:
    monomial = item[0]
    return (-sum(p for _, p in monomial), tuple(_atom_key(pair) for pair in monomial))


def _canonical(terms: Mapping[Monomial, int]) -> Dim:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=_monomial_key)
    return Expr(tuple(kept))


def _of_atom(atom: Atom) -> Expr:
    return Expr(((((atom, 1),), 1),))


@functools.lru_cache(maxsize=4096)
def symbol(name: str, minimum: int = 0) -> Expr:
    """The dim named `name`."""
    return _of_atom(Symbol(name, minimum))


def floordiv(top: Dim, bottom: Dim) -> Dim:
    """`top // bottom`, carried out exactly as far as the polynomial form allows. `bottom` is taken not to be zero."""
    if isinstance(bottom, int):
        if bottom == 0:
            raise DimError(f"size {top} is divided by zero")
        if isinstance(top, int):
            return top // bottom
        whole = {m: c // bottom for m, c in top.terms if c % bottom == 0}
        rest = _canonical({m: c for m, c in top.terms if c % bottom})
        if isinstance(rest, int):
            return _canonical(whole) + rest // bottom
        extra = {m: c // bottom for m, c in _terms(rest) if not m and (c >= bottom or c < 0) and bottom > 0}
        if extra:
            rest = rest - _canonical(extra) * bottom
        flat = _merge_div(rest, bottom)
        return _canonical(whole) + _canonical(extra) + flat
    if top == bottom:
        return 1
    exact = _divide_exactly(top, bottom)
    return exact if exact is not None else _of_atom(Div(top, bottom))


def _merge_div(top: Dim, bottom: int) -> Dim:
    """`(a // b) // c` is `a // (b * c)` for positive b and c."""
    if isinstance(top, Expr) and len(top.terms) == 1:
        monomial, coefficient = top.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            atom = monomial[0][0]
            if isinstance(atom, Div) and isinstance(atom.bottom, int) and atom.bottom > 0 and bottom > 0:
                return floordiv(atom.top, atom.bottom * bottom)
    return _of_atom(Div(top, bottom))


def _divide_exactly(top: Dim, bottom: Expr) -> Dim | None:
    """Polynomial quotient when `bottom` is one monomial that divides every term."""
    if len(bottom.terms) != 1:
        return None
    (by, scale) = bottom.terms[0]
    quotient: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(top):
        powers = dict(monomial)
        for atom, power in by:
            if powers.get(atom, 0) < power:
                return None
            powers[atom] -= power
        if coefficient % scale:
            return None
        rest = tuple(sorted(((a, p) for a, p in powers.items() if p), key=_atom_key))
        quotient[rest] = quotient.get(rest, 0) + coefficient // scale
    return _canonical(quotient)


def ceildiv(top: Dim, bottom: Dim) -> Dim:
    return -floordiv(-top, bottom)


def minimum(a: Dim, b: Dim) -> Dim:
    return _choose(a, b, Min)


def maximum(a: Dim, b: Dim) -> Dim:
    return _choose(a, b, Max)


def _choose(a: Dim, b: Dim, atom: type[Min] | type[Max]) -> Dim:
    first_if_ge = atom is Max
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if first_if_ge else min(a, b)
    difference = a - b
    low, high = lower_bound(difference), upper_bound(difference)
    if low is not None and low >= 0:
        return a if first_if_ge else b
    if high is not None and high <= 0:
        return b if first_if_ge else a
    first, second = sorted((a, b), key=str)
    return _of_atom(atom(first, second))


def lower_bound(dim: Dim) -> int | None:
    """A number that `dim` is never below, or None when there is no such number to be had."""
    return _bound(dim, low=True)


def upper_bound(dim: Dim) -> int | None:
    return _bound(dim, low=False)


def _bound(dim: Dim, low: bool) -> int | None:
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        limit = _monomial_bound(monomial, low=low if coefficient > 0 else not low)
        if limit is None:
            return None
        total += coefficient * limit
    return total


def _monomial_bound(monomial: Monomial, low: bool) -> int | None:
    product = 1
    for atom, power in monomial:
        floor = _atom_bound(atom, low=True)
        if floor is None or floor < 0:
            if len(monomial) == 1 and power == 1:
                return _atom_bound(atom, low)
            return None
        limit = floor if low else _atom_bound(atom, low=False)
        if limit is None:
            return None
        product *= limit**power
    return product


def _atom_bound(atom: Atom, low: bool) -> int | None:
    if isinstance(atom, Symbol):
        return atom.minimum if low else None
    if isinstance(atom, Div):
        if isinstance(atom.bottom, int) and atom.bottom > 0:
            limit = _bound(atom.top, low)
            return None if limit is None else limit // atom.bottom
        least_top, least_bottom = lower_bound(atom.top), lower_bound(atom.bottom)
        if low and least_top is not None and least_top >= 0 and least_bottom is not None and least_bottom >= 0:
            return 0
        return None
    a, b = _bound(atom.a, low), _bound(atom.b, low)
    if isinstance(atom, Min) != low:  # the upper bound of a min, the lower bound of a max: either side will do
        known = [x for x in (a, b) if x is not None]
        if not known:
            return None
        return min(known) if isinstance(atom, Min) else max(known)
    if a is None or b is None:
        return None
    return min(a, b) if isinstance(atom, Min) else max(a, b)


def symbols_of(dims: Iterable[Dim]) -> Iterator[Symbol]:
    """Every symbol that occurs in `dims`, with repeats."""
    for dim in dims:
        if isinstance(dim, Expr):
            for monomial, _ in dim.terms:
                for atom, _ in monomial:
                    if isinstance(atom, Symbol):
                        yield atom
                    elif isinstance(atom, Div):
                        yield from symbols_of((atom.top, atom.bottom))
                    else:
                        yield from symbols_of((atom.a, atom.b))


def substitute(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """`dim` with the named symbols replaced; with every symbol given a number the result is a number."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for atom, power in monomial:
            value = _substitute_atom(atom, sizes)
            for _ in range(power):
                product = product * value
        total = total + product
    return total


def _substitute_atom(atom: Atom, sizes: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return sizes[atom.name] if atom.name in sizes else _of_atom(atom)
    a, b = (atom.top, atom.bottom) if isinstance(atom, Div) else (atom.a, atom.b)
    x, y = substitute(a, sizes), substitute(b, sizes)
    if not (_fits(x) and _fits(y)):
        raise DimError(f"the size {atom} cannot be computed: {b if _fits(x) else a} is more than 64 bits hold")
    if isinstance(atom, Div):
        return floordiv(x, y)
    return minimum(x, y) if isinstance(atom, Min) else maximum(x, y)


def _fits(dim: Dim) -> bool:
    """Whether arithmetic in 64 bits comes to the same number."""
    return not isinstance(dim, int) or -(1 << 63) <= dim < 1 << 63


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The number `dim` stands for, or DimError naming the symbol that has no size yet."""
    result = substitute(dim, sizes)
    if isinstance(result, int):
        return result
    missing = ", ".join(sorted({s.name for s in symbols_of([result])}))
    raise DimError(f"the size {dim} cannot be computed: {missing} is not known yet")


def solve(dim: Dim, size: int) -> tuple[str, int, int] | None:
    """The symbol, its value (rounded down) and the remainder that make `dim` be `size`, where it is a multiple of just one
    symbol plus a number."""
    if isinstance(dim, int):
        return None
    offset = sum(c for monomial, c in dim.terms if not monomial)
    terms = [(monomial, c) for monomial, c in dim.terms if monomial]
    if len(terms) != 1 or len(terms[0][0]) != 1:
        return None
    ((atom, power),), coefficient = terms[0]
    if power != 1 or not isinstance(atom, Symbol):
        return None
    return atom.name, *divmod(size - offset, coefficient)
