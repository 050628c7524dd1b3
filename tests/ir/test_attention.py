"""Attention against torch's, by the float64 rule; what it refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hotfuse.errors import InvalidModel
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.op import OPS
from hotfuse.ir.ops import attention
from hotfuse.ir.types import F32, F64, I64, tensor
from hotfuse.numerics import close_to_exact

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True, params=["whole", "head by head"])
def _form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large calls are computed one kv head at a time: all of these are, too."""
    if request.param == "head by head":
        monkeypatch.setattr(attention, "CACHED", 0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    ("mask", "attrs"), [*product([None, "bool", "added"], [{}, {"scale": 0.2}]), (None, {"causal": True})], ids=str
)
def test_against_torch(heads: tuple[int, int], mask: str | None, attrs: dict[str, Any]) -> None:
    q, k, v = normal(2, heads[0], 7, 16), normal(2, heads[1], 9, 16), normal(2, heads[1], 9, 12)
    chosen = {None: None, "bool": RNG.random((2, 1, 7, 9)) > 0.3, "added": normal(7, 9)}[mask]
    if mask == "bool":
        chosen[:, :, 3] = False  # a query that sees nothing

    def theirs(dtype: Any) -> Any:
        m = None if chosen is None else torch.from_numpy(chosen)
        m = m.to(dtype) if mask == "added" else m
        args = [torch.from_numpy(x).to(dtype) for x in (q, k, v)]
        return F.scaled_dot_product_attention(
            *args, attn_mask=m, is_causal=attrs.get("causal", False), scale=attrs.get("scale"), enable_gqa=True
        ).numpy()

    verdict = close_to_exact(OPS["attention"].reference(q, k, v, chosen, **attrs), theirs(torch.float32), theirs(torch.float64))
    assert verdict, verdict.reason


def test_the_last_query_sees_the_last_key() -> None:
    q, k, v = normal(1, 2, 3, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8)
    masked = OPS["attention"].reference(q, k, v, np.tri(3, 7, 4, dtype=bool))
    np.testing.assert_array_equal(OPS["attention"].reference(q, k, v, causal=True, align="end"), masked)


def test_keys_of_one_batch_serve_all() -> None:
    q, k, v = normal(3, 2, 3, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8)
    each = [OPS["attention"].reference(q[i : i + 1], k, v) for i in range(3)]
    np.testing.assert_allclose(OPS["attention"].reference(q, k, v), np.concatenate(each), rtol=1e-6)


def test_nan_behind_a_mask_stays_hidden() -> None:
    q, k, v = normal(1, 1, 2, 4), normal(1, 1, 3, 4), normal(1, 1, 3, 4)
    q[0, 0, 0] = np.nan
    mask = np.zeros((2, 3), np.float32)
    mask[0] = -np.inf
    result = OPS["attention"].reference(q, k, v, mask)
    assert (result[0, 0, 0] == 0).all()
    assert np.isfinite(result).all()


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (((1, 3, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)), "3 query heads cannot share 2"),
        (((1, 2, 5, 8), (1, 2, 5, 4), (1, 2, 5, 8)), "sizes of axis size differ"),
        (((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 6, 8)), "sizes of axis keys differ"),
        (((1, 2, 5, 8), (1, 2, 5, 8), (1, 1, 5, 8)), "sizes of axis kv heads differ"),
        (((2, 5, 8), (2, 5, 8), (2, 5, 8)), "four axes"),
    ],
)
def test_refusals(shapes: Any, why: str) -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidModel, match=why):
        b.add("attention", *(b.input(f"x{i}", tensor(F32, *s)) for i, s in enumerate(shapes)))


def test_mixed_types_are_refused() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(n, tensor(F32, 1, 2, 5, 8)) for n in "qkv")
    with pytest.raises(InvalidModel, match="different types"):
        b.add("attention", q, k, b.input("w", tensor(F64, 1, 2, 5, 8)))
    with pytest.raises(InvalidModel, match="mask must be bool"):
        b.add("attention", q, k, v, b.input("m", tensor(I64, 5, 5)))


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 0, 8)], ids=["no batch", "no heads", "no queries"])
def test_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder()
    q, k, v = (builder.input(name, tensor(F32, *shape)) for name in "qkv")
    assert builder.add("attention", q, k, v, causal=False).type == tensor(F32, *shape)
    reference = OPS["attention"].reference
    assert reference is not None
    assert reference(*(np.zeros(shape, np.float32) for _ in range(3)), causal=False).shape == shape


def test_query_heads_without_key_heads_are_refused() -> None:
    builder = GraphBuilder()
    q, k = builder.input("q", tensor(F32, 2, 4, 3, 8)), builder.input("k", tensor(F32, 2, 0, 3, 8))
    with pytest.raises(InvalidModel, match="4 query heads cannot share 0 key heads"):
        builder.add("attention", q, k, k, causal=False)


@pytest.mark.parametrize("kind", ["bool", "added"])
def test_a_query_that_sees_nothing_may_be_nan(kind: str) -> None:
    q, k, v = normal(1, 2, 3, 8), normal(1, 2, 4, 8), normal(1, 2, 4, 8)
    seen = np.array([[True, False, True, True], [False] * 4, [True] * 4])
    mask = seen if kind == "bool" else np.where(seen, 0, -np.inf).astype(np.float32)
    reference = OPS["attention"].reference
    assert reference is not None
    with np.errstate(all="ignore"):
        zero, nan = reference(q, k, v, mask), reference(q, k, v, mask, unseen="nan")
    scores = torch.from_numpy(q * np.float32(8**-0.5)) @ torch.from_numpy(k).mT
    theirs = torch.softmax(scores.masked_fill(torch.from_numpy(~seen), -torch.inf), -1) @ torch.from_numpy(v)
    np.testing.assert_allclose(nan, theirs.numpy(), rtol=1e-5, atol=1e-6)
    assert np.isnan(nan[:, :, 1]).all()
    assert not zero[:, :, 1].any()
    np.testing.assert_array_equal(np.delete(nan, 1, 2), np.delete(zero, 1, 2))


def test_another_answer_for_a_query_that_sees_nothing_is_refused() -> None:
    builder = GraphBuilder()
    q = builder.input("q", tensor(F32, 1, 2, 3, 8))
    with pytest.raises(InvalidModel, match="unseen"):
        builder.add("attention", q, q, q, unseen="one")
