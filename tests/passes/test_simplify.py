"""Algebraic identities: each keeps every bit, also of NaN, infinities and -0.0; and those that would not must not fire."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotfuse.ir.graph import Value
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, STRING, U8, DType
from hotfuse.passes import optimize
from hotfuse.passes.simplify import simplify
from tests.passes.graphs import Body, Spell, keeps_bits, ops, run, spell

SPECIALS = np.array(
    [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3e38, -3e38, 1.1754944e-38], np.float32
)  # fmt: skip
X = SPECIALS.reshape(3, 4)

NOTHING: dict[str, Body] = {
    "x + -0.0": lambda s, x: s.add(x, s(-0.0)),
    "-0.0 + x": lambda s, x: s.add(s(-0.0), x),
    "x - 0.0": lambda s, x: s.sub(x, s(0.0)),
    "x * 1": lambda s, x: s.mul(x, s(1)),
    "1 * x": lambda s, x: s.mul(s([1]), x),
    "x / 1": lambda s, x: s.div(x, s(1)),
    "x ** 1": lambda s, x: s.pow(x, s(1)),
    "x + a full array of -0.0": lambda s, x: s.add(x, s(np.full((3, 4), -0.0))),
    "- - x": lambda s, x: s.neg(s.neg(x)),
    "transpose of transpose": lambda s, x: s.transpose(s.transpose(x, perm=(1, 0)), perm=(1, 0)),
    "transpose in order": lambda s, x: s.transpose(x, perm=(0, 1)),
    "reshape there and back": lambda s, x: s.reshape(s.reshape(x, s.ints(2, 6)), s.ints(3, 4)),
    "reshape to itself": lambda s, x: s.reshape(x, s.ints(3, -1)),
    "expand to itself": lambda s, x: s.expand(x, s.ints(3, 1)),
    "slice of everything": lambda s, x: s.slice(x, s.ints(0, -9), s.ints(99, 4), axes=(0, 1), steps=(1, 1)),
    "concat of one": lambda s, x: s.concat(x, axis=0),
    "cast to itself": lambda s, x: s.cast(x, to=F32),
    "cast to wider and back": lambda s, x: s.cast(s.cast(x, to=F64), to=F32),
    "clip without bounds": lambda s, x: s.clip(x, None, None),
    "where true": lambda s, x: s.where(s(True, "bool"), x, s(0)),
    "where false": lambda s, x: s.where(s([False], "bool"), s(0), x),
    "where both are x": lambda s, x: s.where(s.isnan(x), x, x),
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_left(name: str) -> None:
    graph = keeps_bits(spell(NOTHING[name], (3, 4)), X)
    assert not graph.nodes


FEWER: dict[str, tuple[Body, dict[str, int]]] = {
    "x / 4": (lambda s, x: s.div(x, s(4)), {"mul": 1}),
    "x / -0.5": (lambda s, x: s.div(x, s(-0.5)), {"mul": 1}),
    "x / 2**126": (lambda s, x: s.div(x, s(2.0**126)), {"mul": 1}),
    "x ** 2": (lambda s, x: s.pow(x, s(2)), {"mul": 1}),
    "x ** -1": (lambda s, x: s.pow(x, s(-1)), {"reciprocal": 1}),
    "1 / sqrt x": (lambda s, x: s.div(s(1), s.sqrt(x)), {"rsqrt": 1}),
    "reciprocal of sqrt": (lambda s, x: s.reciprocal(s.sqrt(x)), {"rsqrt": 1}),
    "|x| ** 0.5": (lambda s, x: s.pow(s.abs(x), s(0.5)), {"abs": 1, "sqrt": 1}),
    "transposes compose": (lambda s, x: s.transpose(s.unsqueeze(s.transpose(x, perm=(1, 0)), axes=(0,)), perm=(2, 0, 1)),
                           {"transpose": 2, "unsqueeze": 1}),
    "reshapes compose": (lambda s, x: s.reshape(s.reshape(x, s.ints(2, 6)), s.ints(4, 3)), {"reshape": 1}),
    "not not": (lambda s, x: s.logical_not(s.logical_not(s.isnan(x))), {"isnan": 1}),
    "and true": (lambda s, x: s.logical_and(s(True, "bool"), s.isnan(x)), {"isnan": 1}),
    "or false": (lambda s, x: s.logical_or(s.isnan(x), s(False, "bool")), {"isnan": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", FEWER)
def test_something_simpler(name: str) -> None:
    body, left = FEWER[name]
    assert ops(keeps_bits(spell(body, (3, 4)), X)) == left


STAYS: dict[str, Body] = {
    "x + 0.0 turns -0.0 into 0.0": lambda s, x: s.add(x, s(0.0)),
    "x - -0.0 as well": lambda s, x: s.sub(x, s(-0.0)),
    "0 - x is not -x": lambda s, x: s.sub(s(0.0), x),
    "x * 0 is NaN for infinities": lambda s, x: s.mul(x, s(0)),
    "x - x is NaN for infinities": lambda s, x: s.sub(x, x),
    "x / 3 rounds otherwise": lambda s, x: s.div(x, s(3)),
    "x / 2**127 has a subnormal inverse": lambda s, x: s.div(x, s(2.0**127)),
    "x / 0": lambda s, x: s.div(x, s(0)),
    "x ** 0.5 of -0.0 and -inf": lambda s, x: s.pow(x, s(0.5)),
    "x ** 3": lambda s, x: s.pow(x, s(3)),
    "cast to narrower and back": lambda s, x: s.cast(s.cast(x, to=F16), to=F32),
    "cast through bfloat16": lambda s, x: s.cast(s.cast(x, to=BF16), to=F16),
    "cast to bool and back": lambda s, x: s.cast(s.cast(x, to=BOOL), to=F32),
    "slice backward": lambda s, x: s.slice(x, s.ints(-1), s.ints(-99), axes=(0,), steps=(-1,)),
    "another transpose": lambda s, x: s.transpose(x, perm=(1, 0)),
    "the zero has a higher rank": lambda s, x: s.add(x, s([[[-0.0]]])),
    "the one is broadcast against": lambda s, x: s.mul(
        s.slice(x, s.ints(0), s.ints(1), axes=(0,), steps=(1,)), s(np.ones((3, 4)))
    ),
    "where chooses a smaller value": lambda s, x: s.where(s(True, "bool"), s(1), x),
    "zeros of both signs": lambda s, x: s.add(x, s([0.0, -0.0, 0.0, -0.0])),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_would_change_a_bit_stays(name: str) -> None:
    graph = spell(STAYS[name], (3, 4))
    assert len(keeps_bits(graph, X, passes=(simplify,)).nodes) == len(graph.nodes)


@pytest.mark.parametrize(
    ("source", "middle", "target", "casts"),
    [
        (I8, I32, I64, 1), (I8, F32, F64, 1), (U8, I32, U8, 0), (F16, F32, F16, 0), (BF16, F32, BF16, 0), (F16, F64, F32, 1),
        (I64, F64, I64, 2), (I32, F32, I32, 2), (I64, I32, I64, 2), (I8, U8, I8, 2), (F32, F64, I32, 2), (BOOL, I64, F32, 1),
    ],
)  # fmt: skip
def test_casts(source: DType, middle: DType, target: DType, casts: int) -> None:
    s = Spell()
    x = s.input("x", (6,), source.name)
    graph = s.builder.build([s.cast(s.cast(x, to=middle), to=target)])
    after = keeps_bits(graph, np.array([0, 1, -1, 100, -7, 127]).astype(source.numpy))
    assert ops(after)["cast"] == casts


@pytest.mark.parametrize(("source", "middle"), [(F32, F64), (F16, F32), (BOOL, I64)])
def test_text_shows_the_type_it_is_made_from(source: DType, middle: DType) -> None:
    s = Spell()
    x = s.input("x", (2,), source.name)
    graph = s.builder.build([s.cast(s.cast(x, to=middle), to=STRING)])
    data = np.array([0.1, 1]).astype(source.numpy)
    (ours,), (original,) = run(optimize(graph), data), run(graph, data)
    assert ours.tolist() == original.tolist()
    assert original.tolist() != run(s.builder.build([s.cast(x, to=STRING)]), data)[0].tolist()


def test_integers() -> None:
    s = Spell("i64")
    x = s.input("x", (4,))
    graph = s.builder.build([s.mul(s.add(s.sub(x, s(0)), s(0)), s(1)), s.pow(x, s(2)), s.div(x, s(2))])
    after = keeps_bits(graph, np.array([3, -3, 0, 1 << 40]))
    assert ops(after) == {"mul": 1, "div": 1}  # integer division is not a product


def test_integers_to_a_float_power_stay() -> None:
    """pow goes through floats there: 2**53 + 1 does not come back from them."""
    s = Spell("i64")
    x = s.input("x", (2,))
    graph = s.builder.build([s.pow(x, s(1.0, "f64")), s.pow(x, s(2.0, "f64"))])
    assert ops(keeps_bits(graph, np.array([(1 << 53) + 1, 3]))) == {"pow": 2}


def test_split_into_one() -> None:
    s = Spell()
    x = s.input("x", (4,))
    (part,) = s.builder.add_node("split", (x,), {"axis": 0, "sizes": (4,)})
    assert not keeps_bits(s.builder.build([part]), SPECIALS[:4]).nodes


def test_long_chains_collapse() -> None:
    def body(s: Spell, x: Value) -> Value:
        for _ in range(50):
            x = s.transpose(s.reshape(s.neg(s.neg(s.mul(x, s(1)))), s.ints(3, 4)), perm=(0, 1))
        return x

    assert not keeps_bits(spell(body, (3, 4)), X).nodes


def test_zero_copies_the_size_of_what_stood_there() -> None:
    """0 in a reshape means the input's size: of (2, 6) here, so it must not be read off (3, 4)."""
    graph = spell(lambda s, x: s.reshape(s.reshape(x, s.ints(2, 6)), s.ints(0, 2, 3)), (3, 4))
    after = keeps_bits(graph, X)
    assert after.type(after.outputs[0]) == graph.type(graph.outputs[0])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_reshapes_of_symbolic_sizes(n: int) -> None:
    def body(s: Spell, x: Value) -> Value:
        first = s.shape_of(x, start=0, end=1)
        split = s.reshape(x, s.concat(first, s.ints(2, 2), axis=0), allow_zero=True)
        return s.reshape(split, s.concat(first, s.ints(4), axis=0), allow_zero=True)

    after = keeps_bits(spell(body, ("n", 4)), np.ones((n, 4), np.float32))
    assert not after.nodes


def test_swapped_axes_through_a_flat_batch() -> None:
    def body(s: Spell, x: Value) -> Value:
        flat = s.transpose(s.reshape(x, s.ints(-1, 4, 5)), perm=(0, 2, 1))
        return s.reshape(flat, s.ints(2, 3, 5, 4))

    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    assert ops(keeps_bits(spell(body, x.shape), x)) == {"transpose": 1}


def test_other_reshapes_of_a_transpose_stay() -> None:
    def body(s: Spell, x: Value) -> Value:
        flat = s.transpose(s.reshape(x, s.ints(-1, 4, 5)), perm=(0, 2, 1))
        return s.reshape(flat, s.ints(3, 2, 5, 4))

    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    assert ops(keeps_bits(spell(body, x.shape), x)) == {"reshape": 2, "transpose": 1}


def test_nothing_to_do_returns_the_graph_itself() -> None:
    graph = spell(lambda s, x: s.exp(x), (3, 4))
    assert optimize(graph) is graph
    assert run(graph, X)[0].shape == (3, 4)
