"""The pattern language: what each form accepts and refuses."""

from __future__ import annotations

import pytest

from hotfuse.ir.graph import Node, Value
from hotfuse.passes.match import Either, Match, Number, Pattern, Product, Var, is_close, match
from hotfuse.passes.rewrite import Draft, rewrite
from tests.passes.graphs import Body, Spell, spell

x, y = Var("x"), Var("y")


def found(pattern: Pattern, body: Body) -> Match | None:
    """How the pattern fits the last node of the body's graph."""
    graph = spell(body, (2, 3), (2, 3))
    seen: list[Match | None] = []

    def look(draft: Draft, node: Node) -> None:
        seen.append(match(draft, pattern, node))

    rewrite(graph, look)
    return seen[-1]


FITS: dict[str, tuple[Pattern, Body]] = {
    "an operator": (("exp", x), lambda s, a, b: s.exp(a)),
    "either order": (("add", ("exp", x), y), lambda s, a, b: s.add(b, s.exp(a))),
    "either order, deeper": (("mul", ("add", ("exp", x), y), y), lambda s, a, b: s.mul(b, s.add(b, s.exp(a)))),
    "a number": (("add", x, 2.0), lambda s, a, b: s.add(a, s(2))),
    "an alternative": (Either(("exp", x), ("neg", x)), lambda s, a, b: s.neg(a)),
    "a shared inner value": (("mul", ("exp", x), ("exp", x)), lambda s, a, b: s.mul(e := s.exp(a), e)),
    "an absent input": (("clip", x, None, y), lambda s, a, b: s.clip(a, None, s(1))),
    "a product in any grouping": (Product(6.0, x, x, y), lambda s, a, b: s.mul(s.mul(s.mul(a, s(3)), b), s.mul(s(2), a))),
    "a product with a quotient": (Product(0.5, x, y), lambda s, a, b: s.div(s.mul(a, b), s(2))),
    "a product with a sign": (Product(-1.0, x, y), lambda s, a, b: s.mul(s.neg(a), b)),
    "a power": (Product(1.0, x, x, x), lambda s, a, b: s.pow(a, s(3))),
    "a product of one": (("exp", Product(3.0, x)), lambda s, a, b: s.exp(s.mul(a, s(3)))),
    "no product at all": (("exp", Product(1.0, x)), lambda s, a, b: s.exp(a)),
}


@pytest.mark.parametrize("name", FITS)
def test_fits(name: str) -> None:
    assert found(*FITS[name]) is not None


REFUSED: dict[str, tuple[Pattern, Body]] = {
    "another operator": (("exp", x), lambda s, a, b: s.neg(a)),
    "the order of a difference": (("sub", ("exp", x), y), lambda s, a, b: s.sub(b, s.exp(a))),
    "two values for one name": (("add", x, x), lambda s, a, b: s.add(a, b)),
    "another number": (("add", x, 2.0), lambda s, a, b: s.add(a, s(2.0001))),
    "a value that is no constant": (("add", x, Number("n")), lambda s, a, b: s.add(a, b)),
    "a constant that is not uniform": (("add", x, Number("n")), lambda s, a, b: s.add(a, s([1, 2, 3]))),
    "an input too many": (("clip", x), lambda s, a, b: s.clip(a, s(0), s(1))),
    "an inner value that is read outside": (("exp", ("neg", x)), lambda s, a, b: [n := s.neg(a), s.exp(n)]),
    "a product with a factor missing": (Product(1.0, x, x), lambda s, a, b: s.mul(a, b)),
    "a product with a factor too many": (Product(1.0, ("exp", x)), lambda s, a, b: s.mul(s.exp(a), b)),
    "another coefficient": (Product(6.0, x, y), lambda s, a, b: s.mul(s.mul(a, s(3)), b)),
    "another power": (Product(1.0, x, x), lambda s, a, b: s.pow(a, s(3))),
    "division by zero": (Product(Number("n"), x), lambda s, a, b: s.div(a, s(0))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert found(*REFUSED[name]) is None


def test_captures() -> None:
    pattern: Pattern = ("mul:root", Product(Number("n"), ("exp:inner", x)), y)
    got = found(pattern, lambda s, a, b: s.mul(s.div(s.exp(a), s(4)), b))
    assert got is not None
    assert (got["x"].name, got["y"].name) == ("x0", "x1")
    assert got.numbers == {"n": 0.25}
    assert {label: node.op for label, node in got.nodes.items()} == {"root": "mul", "inner": "exp"}


def test_one_number_under_one_name() -> None:
    pattern: Pattern = ("mul", ("add", x, Number("n")), Number("n"))
    assert found(pattern, lambda s, a, b: s.mul(s.add(a, s(3)), s([3]))) is not None
    assert found(pattern, lambda s, a, b: s.mul(s.add(a, s(3)), s(4))) is None


def test_products_take_every_number() -> None:
    """A scale on q, on k and on the scores is found in one place each, not hidden in a variable."""
    got = found(("matmul", Product(Number("n"), x), y), lambda s, a, b: s.matmul(s.mul(s.mul(a, s(2)), s(3)), turned(s, b)))
    assert got is not None
    assert got.numbers == {"n": 6.0}
    assert got["x"].name == "x0"


def turned(s: Spell, value: Value) -> Value:
    return s.transpose(value, perm=(1, 0))


@pytest.mark.parametrize(
    ("number", "wanted", "dtype", "close"),
    [
        (0.5, 0.5, "f32", True), (0.50000006, 0.5, "f32", False), (1.4142135, 2**0.5, "f32", True),
        (1.4142, 2**0.5, "f32", False),
        (1.4140625, 2**0.5, "f16", True), (0.044715, 0.044715, "f64", True), (0.04471, 0.044715, "f64", False),
        (3.0, 3, "i64", True),
    ],
)  # fmt: skip
def test_numbers(number: float, wanted: float, dtype: str, close: bool) -> None:
    assert is_close(number, wanted, dtype) is close
