"""Activations in the spellings of several exporters, and near misses that must stay as they are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotfuse.ir.graph import Value
from hotfuse.passes import optimize
from tests.passes.graphs import Body, Spell, keeps_values, ops, randoms, spell

ROOT = math.sqrt(2 / math.pi)
X = randoms((5, 16))


def erf_part(s: Spell, x: Value) -> Value:
    return s.add(s.erf(s.div(x, s(math.sqrt(2)))), s(1))


def tanh_part(s: Spell, inner: Value) -> Value:
    return s.add(s(1), s.tanh(inner))


def cubic(s: Spell, x: Value) -> Value:
    return s.mul(s(ROOT), s.add(x, s.mul(s(0.044715), s.pow(x, s(3)))))


GELU: dict[str, Body] = {
    "torchscript": lambda s, x: s.mul(s.mul(x, erf_part(s, x)), s(0.5)),
    "half first": lambda s, x: s.mul(s.mul(s(0.5), x), erf_part(s, x)),
    "half on the sum": lambda s, x: s.mul(x, s.mul(s(0.5), erf_part(s, x))),
    "divided by two": lambda s, x: s.div(s.mul(x, erf_part(s, x)), s(2)),
    "times the root": lambda s, x: s.mul(s.mul(x, s(0.5)), s.add(s(1), s.erf(s.mul(x, s(0.70710678))))),
    "scalars of rank 1": lambda s, x: s.mul(s.mul(x, erf_part(s, x)), s([0.5])),
}
GELU_TANH: dict[str, Body] = {
    "gpt2": lambda s, x: s.mul(s.mul(s(0.5), x), tanh_part(s, cubic(s, x))),
    "power of three as products": lambda s, x: s.mul(
        s.mul(x, s(0.5)), tanh_part(s, s.mul(s.add(x, s.mul(s.mul(s.mul(x, x), x), s(0.044715))), s(ROOT)))
    ),
    "factored": lambda s, x: s.mul(
        s.mul(x, s(0.5)), tanh_part(s, s.mul(s.mul(x, s(ROOT)), s.add(s.mul(s.mul(s(0.044715), x), x), s(1))))
    ),
    "distributed": lambda s, x: s.mul(
        x, s.mul(s(0.5), tanh_part(s, s.add(s.mul(x, s(ROOT)), s.mul(s(ROOT * 0.044715), s.pow(x, s(3))))))
    ),
    "tensorflow": lambda s, x: s.mul(x, s.mul(tanh_part(s, cubic(s, x)), s(0.5))),
}
SILU: dict[str, Body] = {
    "product": lambda s, x: s.mul(x, s.sigmoid(x)),
    "other order": lambda s, x: s.mul(s.sigmoid(x), x),
    "quotient": lambda s, x: s.div(x, s.add(s(1), s.exp(s.neg(x)))),
    "sigmoid spelled out": lambda s, x: s.mul(x, s.div(s(1), s.add(s.exp(s.neg(x)), s(1)))),
}


NDTR: dict[str, Body] = {
    "half of the sum": lambda s, x: s.mul(erf_part(s, x), s(0.5)),
    "divided by two": lambda s, x: s.div(erf_part(s, x), s(2)),
}


@pytest.mark.parametrize("name", NDTR)
def test_ndtr(name: str) -> None:
    assert ops(keeps_values(NDTR[name], *X)) == {"ndtr": 1}


@pytest.mark.parametrize("name", GELU)
def test_gelu(name: str) -> None:
    graph = keeps_values(GELU[name], *X)
    assert ops(graph) == {"gelu": 1}
    assert graph.nodes[0].attrs["approximate"] == "none"
    assert graph.nodes[0].origin.layer == "layer"


@pytest.mark.parametrize("name", GELU_TANH)
def test_gelu_tanh(name: str) -> None:
    graph = keeps_values(GELU_TANH[name], *X)
    assert ops(graph) == {"gelu": 1}
    assert graph.nodes[0].attrs["approximate"] == "tanh"


@pytest.mark.parametrize("name", SILU)
def test_silu(name: str) -> None:
    assert ops(keeps_values(SILU[name], *X)) == {"silu": 1}


def test_sigmoid() -> None:
    assert ops(keeps_values(lambda s, x: s.reciprocal(s.add(s(1), s.exp(s.neg(x)))), *X)) == {"sigmoid": 1}


MISSES: dict[str, Body] = {
    "wrong root": lambda s, x: s.mul(s.mul(x, s.add(s.erf(s.div(x, s(1.4))), s(1))), s(0.5)),
    "wrong half": lambda s, x: s.mul(s.mul(x, erf_part(s, x)), s(0.5001)),
    "wrong one": lambda s, x: s.mul(s.mul(x, s.add(s.erf(s.div(x, s(math.sqrt(2)))), s(1.0001))), s(0.5)),
    "wrong cubic": lambda s, x: s.mul(
        s.mul(s(0.5), x), tanh_part(s, s.mul(s(ROOT), s.add(x, s.mul(s(0.0447), s.pow(x, s(3))))))
    ),
    "square for cube": lambda s, x: s.mul(
        s.mul(s(0.5), x), tanh_part(s, s.mul(s(ROOT), s.add(x, s.mul(s(0.044715), s.pow(x, s(2))))))
    ),
    "two different values": lambda s, x: s.mul(s.mul(s.exp(x), erf_part(s, x)), s(0.5)),
    "inner value is a result": lambda s, x: [e := erf_part(s, x), s.mul(s.mul(x, e), s(0.5))],
    "inner value is read again": lambda s, x: s.add(s.mul(s.mul(x, e := erf_part(s, x)), s(0.5)), e),
    "silu of two values": lambda s, x: s.mul(s.exp(x), s.sigmoid(x)),
    "silu with its sigmoid read again": lambda s, x: s.sub(s.mul(x, y := s.sigmoid(x)), y),
    "swish of another slope": lambda s, x: s.mul(x, s.sigmoid(s.mul(x, s(1.702)))),
}


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_stay(name: str) -> None:
    found = ops(keeps_values(MISSES[name], *X))
    assert not found["gelu"]
    assert not found["silu"]


def test_broadcasting_that_changes_the_shape_stays() -> None:
    graph = spell(lambda s, x: s.mul(s.mul(x, erf_part(s, x)), s([[[0.5]]])), (5, 16))
    after = optimize(graph)
    assert not ops(after)["gelu"]
    assert after.type(after.outputs[0]) == graph.type(graph.outputs[0])


def test_half_precision_constants() -> None:
    graph = spell(GELU["torchscript"], (5, 16), dtype="f16")
    assert ops(optimize(graph)) == {"gelu": 1}


def test_uniform_arrays_are_numbers() -> None:
    assert ops(keeps_values(lambda s, x: s.mul(s.mul(x, erf_part(s, x)), s(np.full(16, 0.5))), *X)) == {"gelu": 1}
