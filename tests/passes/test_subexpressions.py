"""Equal computations become one; what only looks equal stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.ir.graph import CPU, Constant, Value
from hotfuse.ir.types import F32, TensorType
from hotfuse.passes.subexpressions import merge_subexpressions
from tests.passes.graphs import Body, Spell, keeps_bits, ops, randoms, run, spell

X = randoms((3, 4))


def test_equal_chains_merge_at_once() -> None:
    def body(s: Spell, x: Value) -> list[Value]:
        return [s.add(s.exp(s.mul(x, s(2))), s.exp(s.mul(x, s(2)))), s.exp(s.mul(x, s(2)))]

    assert ops(keeps_bits(spell(body, (3, 4)), *X)) == {"mul": 1, "exp": 1, "add": 1}


def test_constants_of_equal_bytes_are_equal() -> None:
    def body(s: Spell, x: Value) -> Value:
        return s.sub(s.mul(x, s.builder.constant(np.float32(3), "a")), s.mul(x, s.builder.constant(np.float32(3), "b")))

    assert ops(keeps_bits(spell(body, (3, 4)), *X)) == {"mul": 1, "sub": 1}


DIFFERENT: dict[str, Body] = {
    "order of inputs": lambda s, x: [s.sub(x, s(1)), s.sub(s(1), x)],
    "attributes": lambda s, x: [s.reduce_sum(x, axes=(0,), keepdims=True), s.reduce_sum(x, axes=(0,), keepdims=False)],
    "zeros of another sign": lambda s, x: [s.div(x, s(0.0)), s.div(x, s(-0.0))],
    "an attribute of another sign": lambda s, x: [s.leaky_relu(x, alpha=0.0), s.leaky_relu(x, alpha=-0.0)],
    "types of constants": lambda s, x: [s.pow(x, s(3)), s.pow(x, s(3, "i64"))],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_stays(name: str) -> None:
    graph = spell(DIFFERENT[name], (3, 4))
    assert len(keeps_bits(graph, *X, passes=(merge_subexpressions,)).nodes) == 2


def opaque(s: Spell, x: Value, **attrs: Any) -> Value:
    (y,) = s.builder.add_node("torch_op", (x,), {"target": "noise", **attrs}, types=[TensorType(F32, (3, 4))])
    return y


def test_random_nodes_stay_apart() -> None:
    graph = spell(lambda s, x: [opaque(s, x), opaque(s, x)], (3, 4))
    assert merge_subexpressions(graph) is graph


def test_large_constants_are_compared_by_identity() -> None:
    data = np.ones((3, 100), np.float32)

    def body(s: Spell, x: Value) -> list[Value]:
        same = [s.builder.constant(data, name) for name in "ab"]
        other = s.builder.constant(data.copy(), "c")
        return [s.add(x, v) for v in (*same, other)]

    graph = spell(body, (3, 1))
    after = merge_subexpressions(graph)
    assert ops(after)["add"] == 2


def test_one_array_as_two_types_or_on_two_devices_stays_apart() -> None:
    data = np.ones((3, 100), np.float32)
    types = (TensorType(F32, (3, 100)), TensorType(F32, (100, 3)))

    def body(s: Spell, x: Value) -> list[Value]:
        constants = [s.builder.constant(Constant(data, t), f"c{i}") for i, t in enumerate(types)]
        constants.append(s.builder.constant(data, "there", device="sim:0"))
        return [s.builder.add("shape_of", c) for c in constants]

    s = Spell()
    graph = s.builder.build(body(s, s.input("x", (3, 1))))
    assert ops(merge_subexpressions(graph))["shape_of"] == 3


def test_arrays_in_attributes_are_not_compared() -> None:
    def body(s: Spell, x: Value) -> list[Value]:
        return [s.transpose(x, perm=[1, 0]), s.transpose(x, perm=[1, 0])]

    assert ops(keeps_bits(spell(body, (3, 4)), *X, passes=(merge_subexpressions,)))["transpose"] == 2


def test_devices_stay_apart() -> None:
    s = Spell()
    x = s.input("x", (3, 4))
    there = s.builder.add("transfer", x, to="sim:0")
    again = s.builder.add("transfer", x, to="sim:1")
    graph = s.builder.build([there, again])
    assert merge_subexpressions(graph) is graph
    assert x.device == CPU


def test_a_result_asked_for_twice_is_two_arrays() -> None:
    after = keeps_bits(spell(lambda s, x: [s.exp(x), s.exp(x)], (3, 4)), *X)
    a, b = run(after, *X)
    assert not np.shares_memory(a, b)
