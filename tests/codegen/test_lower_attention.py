"""Attention as a tile program: head sizes, lengths, types and layouts, judged by torch and by the same graph in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.codegen.tile import Dot, TileProgram, walk
from hotfuse.codegen.tile_types import types as block_types
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, DType, TensorType
from hotfuse.numerics import close_to_exact
from tests.codegen.lowering import check_all_ways, graph_of, recipes, run_interpreted, run_native

B, S, T = symbol("batch", 1), symbol("seq", 1), symbol("keys")
Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0, dtype: DType = F32) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def attend(b: Any, q: Any, k: Any, v: Any, m: Any = None, **attrs: Any) -> Any:
    """Of values with heads side by side, as projections leave them."""
    turned = [b.add("transpose", x, perm=(0, 2, 1, 3)) for x in (q, k, v)]
    return b.add("attention", *turned, *(() if m is None else (m,)), **{"causal": False, **attrs})


def heads(dtype: DType, count: int, size: int, value_size: int | None = None) -> dict[str, TensorType]:
    sides = {"q": (S, size), "k": (T, size), "v": (T, value_size or size)}
    return {name: TensorType(dtype, (B, length, count, each)) for name, (length, each) in sides.items()}


def feeds_of(
    count: int, queries: int, keys: int, size: int, value_size: int | None = None, dtype: DType = F32
) -> dict[str, Array]:
    sides = {"q": (queries, size), "k": (keys, size), "v": (keys, value_size or size)}
    return {n: normal(1, length, count, each, seed=ord(n), dtype=dtype) for n, (length, each) in sides.items()}


def sizes(queries: int, keys: int) -> dict[str, int]:
    return {"batch": 1, "seq": queries, "keys": keys}


@pytest.mark.parametrize(
    ("queries", "keys", "size", "value_size"),
    [
        (1, 19, 32, 32),
        (16, 16, 64, 64),
        (17, 33, 80, 80),
        (33, 7, 96, 96),
        (5, 5, 128, 128),
        (3, 12, 7, 5),
        (40, 1, 40, 72),
        (2, 257, 16, 3),
        (130, 9, 8, 8),
        (3, 0, 8, 8),
    ],
)
def test_sizes(queries: int, keys: int, size: int, value_size: int) -> None:
    feeds = feeds_of(1, queries, keys, size, value_size)
    check_all_ways(attend, heads(F32, 1, size, value_size), feeds, sizes(queries, keys))


@pytest.mark.parametrize(("queries", "keys"), [(5, 13), (33, 20)])
def test_doubles(queries: int, keys: int) -> None:
    check_all_ways(attend, heads(F64, 2, 20), feeds_of(2, queries, keys, 20, dtype=F64), sizes(queries, keys))


def test_sizes_that_are_known() -> None:
    """Without run-time sizes the program is another one: no loop over blocks of keys, no narrow tile or only that."""
    for queries, keys in ((32, 24), (9, 11), (33, 257)):
        given = feeds_of(2, queries, keys, 16)
        types = {name: TensorType(F32, x.shape) for name, x in given.items()}
        check_all_ways(attend, types, given, {})


@pytest.mark.parametrize("mask", [None, "bool", "own"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_types_compute_in_single(dtype: DType, mask: str | None) -> None:
    queries, keys, size = 21, 270, 24
    types, feeds = heads(dtype, 2, size), feeds_of(2, queries, keys, size, dtype=dtype)
    held: Any = None
    if mask is not None:
        kind = {"bool": BOOL, "own": dtype}[mask]
        held = normal(queries, keys)
        held = held > -1 if kind == BOOL else held.astype(kind.numpy)
        types["m"], feeds["m"] = TensorType(kind, (S, T)), held
    graph = graph_of(attend, types)
    want, exact = (torch_attention(feeds, held, wide) for wide in (False, True))
    ways = run_interpreted(graph, feeds, sizes(queries, keys)), run_native(graph, feeds), run_native(graph, feeds, "avx2", 1)
    for (got,) in ways:
        verdict = close_to_exact(got, want.astype(dtype.numpy), exact)
        assert verdict, verdict.reason
    found = block_types(attention_program(types))
    dots = [found[i.acc][0] for i in walk(attention_program(types).body) if isinstance(i, Dot)]
    assert dots
    assert set(dots) == {F32}


def torch_attention(feeds: dict[str, Array], mask: Array | None, wide: bool) -> Array:
    q, k, v = (torch.from_numpy(feeds[n].astype(np.float64)).transpose(1, 2) for n in "qkv")
    kind = torch.float64 if wide else {"float16": torch.float16}.get(feeds["q"].dtype.name, torch.bfloat16)
    held = None if mask is None else torch.from_numpy(mask if mask.dtype == np.bool_ else mask.astype(np.float64))
    if held is not None and held.dtype != torch.bool:
        held = held.to(kind)
    found = torch.nn.functional.scaled_dot_product_attention(q.to(kind), k.to(kind), v.to(kind), attn_mask=held)
    result: Array = found.to(torch.float64).numpy()
    return result


def attention_program(types: dict[str, TensorType]) -> TileProgram:
    (recipe,) = recipes(graph_of(attend, types))
    return recipe.program


@pytest.mark.parametrize("causal", [False, True])
def test_any_axis_may_be_the_one_whose_elements_are_neighbours(causal: bool) -> None:
    """Positions side by side in memory: queries need no transposing then, keys and values do."""

    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        return b.add("attention", *(b.add("transpose", x, perm=(0, 1, 3, 2)) for x in (q, k, v)), causal=causal)

    types = {n: TensorType(F32, (B, 2, 20, S)) for n in "qkv"}
    check_all_ways(make, types, {n: normal(1, 2, 20, 37, seed=ord(n)) for n in "qkv"}, {"batch": 1, "seq": 37})


def test_scores_far_below_zero_do_not_vanish() -> None:
    """A mask of -10000 everywhere changes nothing, whatever stands in for the keys that a tile lacks."""

    for queries, keys in ((3, 9), (18, 17)):
        feeds = feeds_of(1, queries, keys, 8) | {"m": np.full((queries, keys), -10000, np.float32)}
        check_all_ways(attend, {**heads(F32, 1, 8), "m": TensorType(F32, (S, T))}, feeds, sizes(queries, keys))


def test_the_lowest_number_as_a_mask_is_not_minus_infinity() -> None:
    """Where every key has it, all count alike."""
    feeds = feeds_of(1, 5, 11, 8) | {"m": np.full((5, 11), np.finfo(np.float32).min)}
    check_all_ways(attend, {**heads(F32, 1, 8), "m": TensorType(F32, (S, T))}, feeds, sizes(5, 11))


def test_a_query_that_sees_nothing_is_zero_whatever_the_values_are() -> None:
    feeds = feeds_of(1, 3, 5, 8)
    feeds["v"][:, 2] = np.inf
    feeds["m"] = np.ones((3, 5), np.bool_)
    feeds["m"][1] = False
    graph = graph_of(attend, {**heads(F32, 1, 8), "m": TensorType(BOOL, (S, T))})
    for (got,) in (run_interpreted(graph, feeds, sizes(3, 5)), run_native(graph, feeds), run_native(graph, feeds, "avx2", 1)):
        assert np.all(got[0, 0, 1] == 0)
        assert not np.isfinite(got[0, 0, 0]).any()


def test_nan_comes_through() -> None:
    """A key with NaN makes every query NaN that sees it; of values it makes that column."""
    feeds = feeds_of(1, 18, 12, 8)
    feeds["k"][0, 4] = np.nan
    graph = graph_of(lambda b, q, k, v: attend(b, q, k, v, causal=True), heads(F32, 1, 8))
    for (got,) in (run_interpreted(graph, feeds, sizes(18, 12)), run_native(graph, feeds), run_native(graph, feeds, "avx2", 1)):
        assert np.isfinite(got[0, 0, :4]).all()
        assert np.isnan(got[0, 0, 4:]).all()
