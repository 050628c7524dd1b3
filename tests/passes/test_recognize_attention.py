"""Attention as exporters spell it: scales, transposes, masks, guards, repeated heads; and what must stay as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.types import DTYPES, F32
from hotfuse.passes import optimize
from tests.passes.graphs import Body, Spell, keeps_values, ops, randoms, run, spell

B, H, S, T, D = 2, 4, 5, 5, 8
QKV = randoms((B, H, S, D), (B, H, T, D), (B, H, T, D))
SCALE = 1 / math.sqrt(D)
LOWEST = float(np.finfo(np.float32).min)
HIDDEN = np.triu(np.full((S, T), LOWEST), 1)
PADDING = np.where(np.arange(T) < 3, 0.0, LOWEST).reshape(1, 1, 1, T)


def turned(s: Spell, k: Value) -> Value:
    return s.transpose(k, perm=(0, 1, 3, 2))


def weighted(s: Spell, scores: Value, v: Value) -> Value:
    return s.matmul(s.softmax(scores, axis=-1), v)


def guarded(s: Spell, scores: Value, v: Value) -> Value:
    p = s.softmax(scores, axis=-1)
    return s.matmul(s.where(s.isnan(p), s(0), p), v)


def plain(s: Spell, q: Value, k: Value) -> Value:
    return s.mul(s.matmul(q, turned(s, k)), s(SCALE))


def attention_of(graph: Graph) -> dict[str, object]:
    (node,) = (n for n in graph.nodes if n.op == "attention")
    return {**node.attrs, "mask": len(node.inputs) > 3 and node.inputs[3] is not None}


SPELLINGS: dict[str, Body] = {
    "scaled scores": lambda s, q, k, v: weighted(s, plain(s, q, k), v),
    "divided scores": lambda s, q, k, v: weighted(s, s.div(s.matmul(q, turned(s, k)), s(math.sqrt(D))), v),
    "scaled query": lambda s, q, k, v: weighted(s, s.matmul(s.mul(q, s(SCALE)), turned(s, k)), v),
    "root of the scale on both": lambda s, q, k, v: weighted(
        s, s.matmul(s.mul(q, s(math.sqrt(SCALE))), s.mul(turned(s, k), s(math.sqrt(SCALE)))), v
    ),
    "key scaled before it is turned": lambda s, q, k, v: weighted(s, s.matmul(q, turned(s, s.mul(k, s(SCALE)))), v),
    "guarded": lambda s, q, k, v: guarded(s, plain(s, q, k), v),
    "key turned through a flat batch": lambda s, q, k, v: weighted(
        s,
        s.mul(
            s.matmul(
                q,
                s.reshape(s.transpose(s.reshape(k, s.ints(-1, T, D)), perm=(0, 2, 1)), s.ints(B, H, D, T)),
            ),
            s(SCALE),
        ),
        v,
    ),
    "softmax spelled out": lambda s, q, k, v: s.matmul(
        s.div(
            e := s.exp(s.sub(x := plain(s, q, k), s.reduce_max(x, axes=(-1,), keepdims=True))),
            s.reduce_sum(e, axes=(-1,), keepdims=True),
        ),
        v,
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_scale(name: str) -> None:
    graph = keeps_values(SPELLINGS[name], *QKV)
    assert ops(graph) == {"attention": 1}
    assert graph.nodes[0].attrs["scale"] == pytest.approx(SCALE, rel=1e-6)
    assert graph.nodes[0].origin.layer == "layer"


def test_key_that_is_born_transposed() -> None:
    q, _, v = QKV
    (k,) = randoms((B, T, H, D))
    body: Body = lambda s, q, k, v: weighted(s, s.mul(s.matmul(q, s.transpose(k, perm=(0, 2, 3, 1))), s(SCALE)), v)  # noqa: E731
    graph = keeps_values(body, q, k, v)
    assert ops(graph) == {"attention": 1, "transpose": 1}


def test_three_axes() -> None:
    inputs = randoms((6, S, D), (6, T, D), (6, T, D))
    body: Body = lambda s, q, k, v: weighted(s, s.matmul(q, s.transpose(k, perm=(0, 2, 1))), v)  # noqa: E731
    assert ops(keeps_values(body, *inputs))["attention"] == 1


def test_softcap() -> None:
    def body(s: Spell, q: Value, k: Value, v: Value) -> Value:
        return weighted(s, s.mul(s.tanh(s.div(plain(s, q, k), s(30))), s(30)), v)

    graph = keeps_values(body, *QKV)
    assert attention_of(graph)["softcap"] == 30
    assert attention_of(graph)["scale"] == pytest.approx(SCALE, rel=1e-6)


def repeated(s: Spell, x: Value) -> Value:
    return s.reshape(s.expand(s.unsqueeze(x, axes=(2,)), s.ints(B, 2, 2, T, D)), s.ints(B, H, T, D))


def test_grouped_queries() -> None:
    inputs = randoms((B, H, S, D), (B, 2, T, D), (B, 2, T, D))
    graph = keeps_values(lambda s, q, k, v: weighted(s, plain(s, q, repeated(s, k)), repeated(s, v)), *inputs)
    assert ops(graph) == {"attention": 1}


def test_one_head_of_keys_for_all_queries() -> None:
    inputs = randoms((B, H, S, D), (B, 1, T, D), (B, 1, T, D))
    graph = keeps_values(lambda s, q, k, v: weighted(s, plain(s, q, k), v), *inputs)
    assert ops(graph) == {"attention": 1}


def test_one_head_of_keys_and_many_of_values_stays() -> None:
    inputs = randoms((B, H, S, D), (B, 1, T, D), (B, H, T, D))
    graph = keeps_values(lambda s, q, k, v: weighted(s, plain(s, q, k), v), *inputs)
    assert ops(graph)["attention"] == 0


def test_heads_repeated_in_turn_are_not_grouped_queries() -> None:
    def tiled(s: Spell, x: Value) -> Value:  # heads 0 1 0 1, where grouped queries have 0 0 1 1
        return s.reshape(s.expand(s.unsqueeze(x, axes=(1,)), s.ints(B, 2, 2, T, D)), s.ints(B, H, T, D))

    inputs = randoms((B, H, S, D), (B, 2, T, D), (B, 2, T, D))
    graph = keeps_values(lambda s, q, k, v: weighted(s, plain(s, q, tiled(s, k)), tiled(s, v)), *inputs)
    assert ops(graph)["expand"] == 2


def test_half_precision_with_softmax_in_float32() -> None:
    def body(s: Spell, q: Value, k: Value, v: Value) -> Value:
        return s.matmul(s.cast(s.softmax(s.cast(plain(s, q, k), to=F32), axis=-1), to=s.dtype), v)

    graph = spell(body, *(x.shape for x in QKV), dtype="f16")
    after = optimize(graph)
    assert ops(after) == {"attention": 1}
    inputs = [x.astype(np.float16) for x in QKV]
    np.testing.assert_allclose(run(after, *inputs)[0], run(graph, *inputs)[0], rtol=1e-2, atol=2e-3)


# masks

MASKS: dict[str, Body] = {
    "added": lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(PADDING)), v),
    "added on the left": lambda s, q, k, v: weighted(s, s.add(s(PADDING), plain(s, q, k)), v),
    "chosen": lambda s, q, k, v: weighted(s, s.where(s(PADDING == 0, "bool"), plain(s, q, k), s(LOWEST)), v),
    "filled": lambda s, q, k, v: weighted(s, s.where(s(PADDING != 0, "bool"), s(LOWEST), plain(s, q, k)), v),
    "filled with -inf": lambda s, q, k, v: weighted(s, s.where(s(PADDING != 0, "bool"), s(-math.inf), plain(s, q, k)), v),
    "of one number": lambda s, q, k, v: weighted(
        s, s.add(plain(s, q, k), s.full(s.shape_of(s.matmul(q, turned(s, k))), value=0.0, dtype=s.dtype)), v
    ),
    "two": lambda s, q, k, v: weighted(
        s, s.add(s.where(s(HIDDEN == 0, "bool"), plain(s, q, k), s(LOWEST)), s(np.where(PADDING == 0, 0.0, -1e4))), v
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    graph = keeps_values(MASKS[name], *QKV)
    found = attention_of(graph)
    assert found["mask"]
    assert not found["causal"]
    assert not ops(graph)["softmax"]


def counted(s: Spell, axis: int, x: Value) -> Value:
    """0, 1, 2, ... along the axis of the scores that has the queries (2) or the keys (3)."""
    count = s.squeeze(s.shape_of(x, start=2, end=3), axes=(0,))
    numbers = s.arange(s(0, "i64"), count, s(1, "i64"))
    return s.unsqueeze(numbers, axes=tuple(a for a in range(4) if a != axis))


CAUSAL: dict[str, Body] = {
    "constant": lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(HIDDEN)), v),
    "constant of rank 4": lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(HIDDEN[None, None])), v),
    "constant condition": lambda s, q, k, v: weighted(s, s.where(s(HIDDEN == 0, "bool"), plain(s, q, k), s(-math.inf)), v),
    "compared positions": lambda s, q, k, v: weighted(
        s, s.where(s.less_equal(counted(s, 3, k), counted(s, 2, q)), plain(s, q, k), s(LOWEST)), v
    ),
    "compared the other way": lambda s, q, k, v: weighted(
        s, s.where(s.greater(counted(s, 3, k), counted(s, 2, q)), s(-math.inf), plain(s, q, k)), v
    ),
    "added from compared positions": lambda s, q, k, v: weighted(
        s, s.add(plain(s, q, k), s.where(s.greater_equal(counted(s, 2, q), counted(s, 3, k)), s(0), s(LOWEST))), v
    ),
    "triangle of ones": lambda s, q, k, v: weighted(
        s,
        s.add(
            plain(s, q, k),
            s.where(s.equal(s.trilu(s.expand(s(1), s.ints(S, T)), None, upper=False), s(0)), s(-math.inf), s(0)),
        ),
        v,
    ),
    "a larger triangle cut down": lambda s, q, k, v: weighted(
        s,
        s.where(
            s.slice(s(np.tri(9)[None, None] > 0, "bool"), s.ints(0, 0), s.ints(S, T), axes=(2, 3), steps=(1, 1)),
            plain(s, q, k),
            s(LOWEST),
        ),
        v,
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name: str) -> None:
    graph = keeps_values(CAUSAL[name], *QKV)
    assert ops(graph) == {"attention": 1}
    assert attention_of(graph)["causal"] is True
    assert not attention_of(graph)["mask"]


@pytest.mark.parametrize("name", ["compared positions", "added from compared positions"])
def test_causal_of_any_length(name: str) -> None:
    shape = (B, H, "s", D)
    graph = spell(CAUSAL[name], shape, shape, shape)
    after = optimize(graph)
    assert ops(after) == {"attention": 1}
    for length in (1, 3, 7):
        inputs = randoms(*[(B, H, length, D)] * 3, seed=length)
        np.testing.assert_allclose(run(after, *inputs)[0], run(graph, *inputs)[0], rtol=1e-5, atol=1e-6)


def test_causal_to_the_end() -> None:
    inputs = randoms((B, H, 2, D), (B, H, T, D), (B, H, T, D))
    hidden = np.where(np.tri(2, T, T - 2), 0.0, LOWEST)
    graph = keeps_values(lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(hidden)), v), *inputs)
    assert attention_of(graph)["align"] == "end"


NOT_CAUSAL: dict[str, np.ndarray] = {  # type: ignore[type-arg]
    "upper": HIDDEN.T,
    "shifted": np.triu(np.full((S, T), LOWEST), 2),
    "weak": np.triu(np.full((S, T), -1e4), 1),
    "with a bias": HIDDEN + np.tri(S, T) * 0.5,
    "one row for all": np.zeros((1, 1)),
}


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_masks_that_are_not_causal(name: str) -> None:
    graph = keeps_values(lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(NOT_CAUSAL[name])), v), *QKV)
    assert attention_of(graph)["causal"] is False


# rows that see no key

ALL_HIDDEN = np.where(np.arange(S)[:, None] == 2, -math.inf, 0.0) + np.zeros((S, T))


def test_a_guarded_row_without_keys_is_zero() -> None:
    graph = keeps_values(lambda s, q, k, v: guarded(s, s.add(plain(s, q, k), s(ALL_HIDDEN)), v), *QKV)
    assert attention_of(graph)["mask"]
    assert not run(graph, *QKV)[0][:, :, 2].any()


NOTHING_SEEN: dict[str, Body] = {
    "a constant row of -inf": lambda s, q, k, v: weighted(s, s.add(plain(s, q, k), s(ALL_HIDDEN)), v),
    "a condition that hides a row": lambda s, q, k, v: weighted(
        s, s.where(s(ALL_HIDDEN == 0, "bool"), plain(s, q, k), s(-math.inf)), v
    ),
    "two masks that together may": lambda s, q, k, v: weighted(
        s,
        s.add(
            s.add(plain(s, q, k), s(np.where(np.arange(T) < 2, -math.inf, 0.0))), s(np.where(np.arange(T) < 2, 0.0, -math.inf))
        ),
        v,
    ),
    "two lowest numbers that overflow": lambda s, q, k, v: weighted(s, s.add(s.add(plain(s, q, k), s(HIDDEN)), s(PADDING)), v),
}


def same_values(after: Graph, before: Graph, *inputs: np.ndarray, tolerance: float = 1e-5) -> None:  # type: ignore[type-arg]
    """NaN for NaN, else close: for rows of NaN, which no rule about float64 judges."""
    (ours,), (original,) = run(after, *inputs), run(before, *inputs)
    np.testing.assert_allclose(ours.astype(np.float64), original.astype(np.float64), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("name", NOTHING_SEEN)
def test_a_row_without_keys_is_nan_as_it_was(name: str) -> None:
    graph = spell(NOTHING_SEEN[name], *(x.shape for x in QKV))
    after = optimize(graph)
    assert attention_of(after)["unseen"] == "nan"
    same_values(after, graph, *QKV)


WHERE_ROWS = np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]) > 0
STAYS: dict[str, Body] = {
    "too weak to hide": lambda s, q, k, v: weighted(s, s.where(s(ALL_HIDDEN == 0, "bool"), plain(s, q, k), s(-10)), v),
    "a finite number over -inf": lambda s, q, k, v: weighted(
        s,
        s.where(s(WHERE_ROWS, "bool"), s.where(s(HIDDEN == 0, "bool"), plain(s, q, k), s(-math.inf)), s(LOWEST)),
        v,
    ),
    "two finite numbers that overflow": lambda s, q, k, v: weighted(
        s, s.where(s(WHERE_ROWS, "bool"), s.where(s(PADDING == 0, "bool"), plain(s, q, k), s(LOWEST)), s(LOWEST)), v
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_scores_that_are_chosen_rather_than_hidden_stay(name: str) -> None:
    assert not ops(keeps_values(STAYS[name], *QKV))["attention"]


@pytest.mark.parametrize(("dtype", "hidden"), [("f16", -65504.0), ("f16", -60000.0), ("bf16", -3.3895e38), ("f32", LOWEST)])
def test_a_row_that_a_finite_number_hides_has_equal_weights(dtype: str, hidden: float) -> None:
    """In float16 scores do not vanish beside such a number, so `where` is not the sum that the operator makes of it."""
    mask = np.broadcast_to(WHERE_ROWS, (B, 1, S, T))

    def graph_of(s: Spell) -> Graph:
        q, k, v = (s.input(n, x.shape) for n, x in zip("qkv", QKV, strict=True))
        chosen = s.where(s.input("mask", mask.shape, "bool"), plain(s, q, k), s(hidden))
        return s.builder.build([weighted(s, chosen, v)])

    graph = graph_of(Spell(dtype))
    after = optimize(graph)
    assert ops(after)["attention"] == (dtype != "f16")
    inputs = [(4 * x).astype(DTYPES[dtype].numpy) for x in QKV]
    same_values(after, graph, *inputs, mask, tolerance=0.1 if dtype == "bf16" else 1e-2)
    mean = inputs[2].astype(np.float64).mean(axis=-2)
    np.testing.assert_allclose(run(after, *inputs, mask)[0][:, :, 1].astype(np.float64), mean, rtol=0.05, atol=0.05)


def test_float16_whose_every_row_sees_a_key_is_attention() -> None:
    body: Body = lambda s, q, k, v: weighted(s, s.where(s(PADDING == 0, "bool"), plain(s, q, k), s(-65504)), v)  # noqa: E731
    graph = spell(body, *(x.shape for x in QKV), dtype="f16")
    after = optimize(graph)
    assert attention_of(after)["mask"]
    same_values(after, graph, *(x.astype(np.float16) for x in QKV), tolerance=1e-2)


def test_two_masks_of_float16_stay() -> None:
    body: Body = lambda s, q, k, v: weighted(  # noqa: E731
        s, s.add(s.where(s(HIDDEN == 0, "bool"), plain(s, q, k), s(-65504)), s(np.where(PADDING == 0, -65504.0, 0.0))), v
    )
    graph = spell(body, *(x.shape for x in QKV), dtype="f16")
    assert not ops(optimize(graph))["attention"]


def test_of_a_mask_that_the_user_gives_nothing_is_assumed() -> None:
    q, k, v = QKV
    (mask,) = randoms((B, 1, S, T))
    added: Body = lambda s, q, k, v, m: weighted(s, s.add(plain(s, q, k), m), v)  # noqa: E731
    assert attention_of(keeps_values(added, q, k, v, mask))["unseen"] == "nan"
    guard: Body = lambda s, q, k, v, m: guarded(s, s.add(plain(s, q, k), m), v)  # noqa: E731
    assert "unseen" not in attention_of(keeps_values(guard, q, k, v, mask))

    def counted_mask(s: Spell) -> Graph:
        q, k, v = (s.input(n, x.shape) for n, x in zip("qkv", QKV, strict=True))
        seen = s.cast(s.unsqueeze(s.input("mask", (B, T), "i64"), axes=(1, 2)), to=F32)
        low = s.mul(s.sub(s(1), seen), s(LOWEST))
        return s.builder.build([weighted(s, s.add(plain(s, q, k), low), v)])

    graph = counted_mask(Spell())
    after = optimize(graph)
    assert ops(after)["attention"] == 1
    for seen in ([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], [[-5] * T, [1, -5, 1, 0, 2]]):  # -5 makes the mask overflow
        same_values(after, graph, *QKV, np.array(seen))


# what is not attention

MISSES: dict[str, Body] = {
    "softmax over queries": lambda s, q, k, v: s.matmul(s.softmax(plain(s, q, k), axis=2), v),
    "weights are a result": lambda s, q, k, v: [p := s.softmax(plain(s, q, k), axis=-1), s.matmul(p, v)],
    "scores are read again": lambda s, q, k, v: s.add(
        weighted(s, x := plain(s, q, k), v), s.reduce_sum(x, axes=(-1,), keepdims=True)
    ),
    "weights changed": lambda s, q, k, v: s.matmul(s.mul(s.softmax(plain(s, q, k), axis=-1), s(0.9)), v),
    "guard with another number": lambda s, q, k, v: s.matmul(
        s.where(s.isnan(p := s.softmax(plain(s, q, k), axis=-1)), s(0.5), p), v
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_stay(name: str) -> None:
    assert not ops(keeps_values(MISSES[name], *QKV))["attention"]


def test_batches_that_broadcast_stay() -> None:
    inputs = randoms((B, H, S, D), (1, H, T, D), (1, H, T, D))
    graph = keeps_values(lambda s, q, k, v: weighted(s, plain(s, q, k), v), *inputs)
    assert not ops(graph)["attention"]
