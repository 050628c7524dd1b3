"""Softmax, layer norm and RMS norm as exporters spell them, and near misses."""

from __future__ import annotations

import numpy as np
import pytest

from hotfuse.ir.graph import Value
from hotfuse.passes import optimize
from tests.passes.graphs import Body, Spell, keeps_values, ops, randoms, run, spell

X = randoms((2, 3, 16))
SCALE, BIAS = np.linspace(0.5, 2, 16), np.linspace(-1, 1, 16)


def mean(s: Spell, x: Value, *axes: int) -> Value:
    return s.reduce_mean(x, axes=axes or (-1,), keepdims=True)


def centered(s: Spell, x: Value, *axes: int) -> Value:
    return s.sub(x, mean(s, x, *axes))


def deviation(s: Spell, d: Value, *axes: int, epsilon: float = 1e-5) -> Value:
    return s.sqrt(s.add(mean(s, s.pow(d, s(2)), *axes), s(epsilon)))


def normal(s: Spell, x: Value) -> Value:
    d = centered(s, x)
    return s.div(d, deviation(s, d))


LAYER_NORM: dict[str, Body] = {
    "torchscript": lambda s, x: s.add(s.mul(normal(s, x), s(SCALE)), s(BIAS)),
    "product for square": lambda s, x: s.add(
        s.mul(s.div(d := centered(s, x), s.sqrt(s.add(mean(s, s.mul(d, d)), s(1e-5)))), s(SCALE)), s(BIAS)
    ),
    "rsqrt": lambda s, x: s.add(
        s.mul(s.mul(d := centered(s, x), s.rsqrt(s.add(mean(s, s.mul(d, d)), s(1e-5)))), s(SCALE)), s(BIAS)
    ),
    "reciprocal of sqrt": lambda s, x: s.add(
        s.mul(s(SCALE), s.mul(d := centered(s, x), s.reciprocal(deviation(s, d)))), s(BIAS)
    ),
    "one over sqrt": lambda s, x: s.add(s.mul(s(SCALE), s.mul(d := centered(s, x), s.div(s(1), deviation(s, d)))), s(BIAS)),
    "power of one half": lambda s, x: s.add(
        s.mul(s.div(d := centered(s, x), s.pow(s.add(mean(s, s.mul(d, d)), s(1e-5)), s(0.5))), s(SCALE)), s(BIAS)
    ),
    "power of minus one half": lambda s, x: s.add(
        s.mul(s.mul(d := centered(s, x), s.pow(s.add(s(1e-5), mean(s, s.mul(d, d))), s(-0.5))), s(SCALE)), s(BIAS)
    ),
    "the difference computed twice": lambda s, x: s.add(
        s.mul(s.div(centered(s, x), deviation(s, centered(s, x))), s(SCALE)), s(BIAS)
    ),
}


@pytest.mark.parametrize("name", LAYER_NORM)
def test_layer_norm(name: str) -> None:
    graph = keeps_values(LAYER_NORM[name], *X)
    assert ops(graph) == {"layer_norm": 1}
    node = graph.nodes[0]
    assert node.attrs["axis"] == -1
    assert node.attrs["epsilon"] == pytest.approx(1e-5)
    assert len([n for n in node.inputs if n is not None]) == 3


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (normal, 1),
        (lambda s, x: s.mul(normal(s, x), s(SCALE)), 2),
        (lambda s, x: s.add(normal(s, x), s(BIAS)), 2),
    ],
)
def test_layer_norm_without_all_parameters(body: Body, inputs: int) -> None:
    graph = keeps_values(body, *X)
    assert ops(graph) == {"layer_norm": 1}
    assert len(list(graph.nodes[0].uses)) == inputs


def test_layer_norm_over_two_axes() -> None:
    graph = keeps_values(lambda s, x: s.div(d := centered(s, x, 1, 2), deviation(s, d, -1, -2)), *X)
    assert ops(graph) == {"layer_norm": 1}
    assert graph.nodes[0].attrs["axis"] == -2


LAYER_NORM_MISSES: dict[str, Body] = {
    "another axis": lambda s, x: s.div(d := centered(s, x, 1), deviation(s, d, 1)),
    "two axes that differ": lambda s, x: s.div(d := centered(s, x, -1), deviation(s, d, 1)),
    "a gap between the axes": lambda s, x: s.div(d := centered(s, x, 0, 2), deviation(s, d, 0, 2)),
    "cube for square": lambda s, x: s.div(d := centered(s, x), s.sqrt(s.add(s.abs(mean(s, s.pow(d, s(3)))), s(1e-5)))),
    "the difference is read again": lambda s, x: s.add(s.div(d := centered(s, x), deviation(s, d)), d),
    "the deviation is a result": lambda s, x: [v := deviation(s, d := centered(s, x)), s.div(d, v)],
}


@pytest.mark.parametrize("name", LAYER_NORM_MISSES)
def test_layer_norm_near_misses_stay(name: str) -> None:
    assert not ops(keeps_values(LAYER_NORM_MISSES[name], *X))["layer_norm"]


def test_scale_of_another_shape_stays_outside() -> None:
    graph = keeps_values(lambda s, x: s.mul(normal(s, x), s(np.arange(3.0).reshape(3, 1))), *X)
    assert ops(graph) == {"layer_norm": 1, "mul": 1}


RMS_NORM: dict[str, Body] = {
    "llama": lambda s, x: s.mul(s(SCALE), s.mul(x, s.rsqrt(s.add(mean(s, s.pow(x, s(2))), s(1e-6))))),
    "dynamo": lambda s, x: s.mul(s(SCALE), s.mul(x, s.reciprocal(s.sqrt(s.add(mean(s, s.pow(x, s(2))), s(1e-6)))))),
    "torchscript": lambda s, x: s.mul(s.mul(x, s.div(s(1), s.sqrt(s.add(mean(s, s.mul(x, x)), s(1e-6))))), s(SCALE)),
    "quotient": lambda s, x: s.mul(s.div(x, s.sqrt(s.add(s(1e-6), mean(s, s.mul(x, x))))), s(SCALE)),
}


@pytest.mark.parametrize("name", RMS_NORM)
def test_rms_norm(name: str) -> None:
    graph = keeps_values(RMS_NORM[name], *X)
    assert ops(graph) == {"rms_norm": 1}
    assert graph.nodes[0].attrs["epsilon"] == pytest.approx(1e-6)
    assert len(list(graph.nodes[0].uses)) == 2


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rms_norm_of_half_types_in_float32(dtype: str) -> None:
    def body(s: Spell, x: Value) -> Value:
        wide = s.cast(x, to=X32)
        normed = s.mul(wide, s.rsqrt(s.add(mean(s, s.pow(wide, s(2, "f32"))), s(1e-6, "f32"))))
        return s.mul(s(SCALE), s.cast(normed, to=s.dtype))

    from hotfuse.ir.types import F32 as X32

    graph = spell(body, (2, 3, 16), dtype=dtype)
    after = optimize(graph)
    assert ops(after) == {"rms_norm": 1}
    x = X[0].astype(graph.type("x0").dtype.numpy)  # type: ignore[union-attr]
    ours, original = (run(g, x)[0].astype(np.float64) for g in (after, graph))
    np.testing.assert_allclose(ours, original, rtol=2e-2 if dtype == "bf16" else 3e-3, atol=1e-3)


def softmax(s: Spell, x: Value, top: int = -1, total: int = -1) -> Value:
    e = s.exp(s.sub(x, s.reduce_max(x, axes=(top,), keepdims=True)))
    return s.div(e, s.reduce_sum(e, axes=(total,), keepdims=True))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(axis: int) -> None:
    graph = keeps_values(lambda s, x: softmax(s, x, axis, axis), *X)
    assert ops(graph) == {"softmax": 1}
    assert graph.nodes[0].attrs["axis"] == (axis if axis < 0 else axis - 3)


def test_softmax_near_misses_stay() -> None:
    assert not ops(keeps_values(lambda s, x: softmax(s, x, -1, 1), *X))["softmax"]
    unsafe = keeps_values(lambda s, x: s.div(e := s.exp(x), s.reduce_sum(e, axes=(-1,), keepdims=True)), *X)
    assert not ops(unsafe)["softmax"]  # it overflows where softmax does not
