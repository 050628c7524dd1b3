"""Dims: the algebra against plain integers, canonical forms, bounds, facts, text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.errors import DimError
from hotfuse.ir.dim import (
    Dim,
    ceildiv,
    evaluate,
    floordiv,
    lower_bound,
    maximum,
    minimum,
    substitute,
    symbol,
    symbols_of,
    upper_bound,
)
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.facts import NO_FACTS, Facts

B, S, T = symbol("B"), symbol("S"), symbol("T")
NAMES = ("B", "S", "T")

leaves = st.one_of(st.integers(-6, 6), st.sampled_from(NAMES))
trees = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner), max_leaves=8
)
sizes = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})


def build(tree: Any) -> Dim:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return symbol(tree)
    op, a, b = tree[0], build(tree[1]), build(tree[2])
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: floordiv(a, b),
        "%": lambda: a - b * floordiv(a, b), "min": lambda: minimum(a, b), "max": lambda: maximum(a, b),
    }[op]()  # fmt: skip


def number(tree: Any, at: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return at[tree]
    op, a, b = tree[0], number(tree[1], at), number(tree[2], at)
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
        "min": lambda: min(a, b), "max": lambda: max(a, b),
    }[op]()  # fmt: skip


@settings(max_examples=800, deadline=None)
@given(trees, sizes)
def test_algebra_agrees_with_integers(tree: Any, at: dict[str, int]) -> None:
    try:
        expected = number(tree, at)
    except ZeroDivisionError:
        return
    try:
        dim = build(tree)
        found = evaluate(dim, at)
    except DimError:  # a divisor that is zero for every size
        return
    assert found == expected
    low, high = lower_bound(dim), upper_bound(dim)
    assert low is None or low <= expected
    assert high is None or high >= expected
    again = parse(str(dim))
    assert again == dim
    assert hash(again) == hash(dim)


@settings(max_examples=300, deadline=None)
@given(trees, trees, sizes)
def test_decisions_hold_at_every_size(a: Any, b: Any, at: dict[str, int]) -> None:
    try:
        x, y = build(a), build(b)
        verdict = NO_FACTS.decide(x, y)
        if verdict is not None:
            assert (evaluate(x, at) == evaluate(y, at)) is verdict
    except DimError:
        return


def test_ring_laws_give_one_form() -> None:
    assert (B + S) * (B - S) == B * B - S * S
    assert (B + 1) * 2 - 2 * B == 2
    assert B - B == 0
    assert str(B * S * 2 + 1) == "2*B*S + 1"


def test_division_is_carried_out_where_exact() -> None:
    assert (B * S * 768) // (B * 12) == 64 * S
    assert (4 * B + 6) // 2 == 2 * B + 3
    assert (4 * B + 7) // 2 == 2 * B + 3
    assert (B // 2) // 3 == B // 6
    assert ceildiv(B, 1) == B
    assert (B * S) // (B * S) == 1
    assert str((B + 1) // 2) == "((B + 1)//2)"


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(DimError, match="divided by zero"):
        floordiv(B, 0)


def test_min_and_max_use_bounds() -> None:
    assert maximum(B, 0) == B
    assert minimum(B + 1, B) == B
    assert maximum(symbol("K", 4), 2) == symbol("K", 4)
    assert str(maximum(B, S)) == "max(B, S)"
    assert minimum(B, S) == minimum(S, B)


def test_truth_of_a_symbolic_size_is_not_guessed() -> None:
    with pytest.raises(DimError, match="not known before a call"):
        bool(B)


def test_facts_rewrite_and_decide() -> None:
    facts = Facts().assume(S, 2 * T).assume(T, 8)
    assert facts.simplify(S) == 16
    assert facts.decide(S, 16) is True
    assert facts.decide(S, 15) is False
    assert facts.decide(B, S) is None


def test_facts_that_contradict_are_refused() -> None:
    facts = Facts().assume(S, 4)
    with pytest.raises(DimError, match="cannot equal"):
        facts.assume(S, 5)
    with pytest.raises(DimError, match="cannot equal"):
        Facts().assume(2 * B, 2 * S + 1)


def test_facts_without_a_solution_are_kept_as_they_are() -> None:
    facts = Facts().assume(B * S, T * T)
    assert facts.decide(B * S, T * T) is True
    assert facts.decide(T * T, B * S) is True


def test_parity_decides() -> None:
    assert NO_FACTS.decide(2 * B, 2 * S + 1) is False
    assert NO_FACTS.decide(2 * B, 4 * S) is None


def test_substitution_may_be_partial() -> None:
    assert substitute(B * S + 1, {"B": 3}) == 3 * S + 1
    assert {s.name for s in symbols_of([maximum(B, S) // T])} == {"B", "S", "T"}


def test_evaluation_names_what_is_missing() -> None:
    with pytest.raises(DimError, match="S is not known yet"):
        evaluate(B + S, {"B": 1})


@pytest.mark.parametrize("text", ["", "B +", "(B", "B C", "3 $ 4", "min(B)", "+", "B//0"])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(DimError):
        parse(text)


def test_expressions_are_immutable() -> None:
    with pytest.raises(AttributeError):
        B.terms = ()
