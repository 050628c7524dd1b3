"""Batch norm goes into the product before it, if nobody else reads that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.verify import verify
from hotfuse.numerics import close_to_exact
from hotfuse.passes import optimize
from tests.passes.graphs import Body, Spell, keeps_values, ops, randoms, run, spell

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
TURNED = {**CONV, "output_padding": (0, 0)}
W, WT, WD, BIAS = randoms((6, 4, 3, 3), (4, 6, 3, 3), (4, 1, 3, 3), (6,), seed=1)
STATISTICS = [*randoms((6,), (6,), (6,), seed=2), np.linspace(0.5, 2, 6)]


def norm(s: Spell, x: Value, channels: int = 6) -> Value:
    return s.batch_norm(x, *(s(p[:channels]) for p in STATISTICS), epsilon=1e-3)


def mean(s: Spell, x: Value) -> Value:
    return s.reduce_mean(x, axes=None, keepdims=False)


IMAGE = randoms((2, 4, 5, 5))
FOLDS: dict[str, Body] = {
    "convolution": lambda s, x: norm(s, s.conv(x, s(W), s(BIAS), **CONV)),
    "convolution without bias": lambda s, x: norm(s, s.conv(x, s(W), None, **CONV)),
    "depthwise": lambda s, x: norm(s, s.conv(x, s(WD), None, **{**CONV, "groups": 4}), 4),
    "transposed": lambda s, x: norm(s, s.conv_transpose(x, s(WT), s(BIAS), **TURNED)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_convolutions(name: str) -> None:
    graph = keeps_values(FOLDS[name], *IMAGE)
    assert sum(ops(graph).values()) == 1
    assert not ops(graph)["batch_norm"]
    assert graph.nodes[0].origin.layer == "layer"


MATRIX = randoms((5, 4))
V = randoms((4, 6), seed=3)[0]


@pytest.mark.parametrize(
    "product",
    [
        lambda s, x: s.matmul(x, s(V)),
        lambda s, x: s.add(s.matmul(x, s(V)), s(BIAS)),
        lambda s, x: s.add(s(BIAS), s.matmul(x, s(V))),
    ],
)
def test_matrix_products(product: Callable[[Spell, Value], Value]) -> None:
    graph = keeps_values(lambda s, x: norm(s, product(s, x)), *MATRIX)
    assert ops(graph) == {"matmul": 1, "add": 1}


def test_weights_get_their_arithmetic_as_nodes() -> None:
    def build(dtype: str) -> Graph:
        s = Spell(dtype)
        x, w = s.input("x", (2, 4, 5, 5)), s.weight("w", W.shape)
        parameters = [s.weight(f"p{i}", (6,)) for i in range(4)]
        return s.builder.build([s.batch_norm(s.conv(x, w, None, **CONV), *parameters, epsilon=1e-3)])

    graph, exact = build("f32"), build("f64")
    after = verify(optimize(graph))
    assert not ops(after)["batch_norm"]
    inputs = [*IMAGE, W, *(p.astype(np.float32) for p in STATISTICS)]
    best = run(exact, *(x.astype(np.float64) for x in inputs))
    verdict = close_to_exact(run(after, *inputs)[0], run(graph, *inputs)[0], best[0])
    assert verdict, verdict.reason
    data = {"x"}  # only the convolution reads the call's data, so the rest can be computed ahead
    readers = [n for n in after.nodes if data & set(n.uses)]
    assert [n.op for n in readers] == ["conv"]


STAYS: dict[str, Body] = {
    "read by another": lambda s, x: s.add(norm(s, y := s.conv(x, s(W), None, **CONV)), y),
    "a result itself": lambda s, x: [y := s.conv(x, s(W), None, **CONV), norm(s, y)],
    "something between": lambda s, x: norm(s, s.relu(s.conv(x, s(W), None, **CONV))),
    "a weight that is data": lambda s, x: norm(s, s.conv(x, s.mul(s(W), mean(s, x)), None, **CONV)),
    "transposed in groups": lambda s, x: norm(
        s, s.conv_transpose(x, s(WT[:, :3]), None, **{**TURNED, "groups": 2})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_cannot_fold_stays(name: str) -> None:
    assert ops(keeps_values(STAYS[name], *IMAGE))["batch_norm"] == 1


def test_statistics_that_are_data_stay() -> None:
    def body(s: Spell, x: Value) -> Value:
        parameters = [s(p) for p in STATISTICS[:3]]
        variance = s.add(s.abs(mean(s, x)), s(np.ones(6)))
        return s.batch_norm(s.conv(x, s(W), None, **CONV), *parameters, variance, epsilon=1e-3)

    assert ops(keeps_values(body, *IMAGE))["batch_norm"] == 1


def test_half_precision_stays() -> None:
    graph = spell(FOLDS["convolution"], (2, 4, 5, 5), dtype="f16")
    assert ops(optimize(graph))["batch_norm"] == 1


def test_rows_of_three_axes_are_not_channels() -> None:
    """matmul's last axis is the channel only for two axes: (5, 6, 6) has its channels in the middle."""
    graph = keeps_values(lambda s, x: norm(s, s.matmul(x, s(V))), *randoms((5, 6, 4)))
    assert ops(graph)["batch_norm"] == 1
