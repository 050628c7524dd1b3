"""Groups as kernels: every family, sizes with and without tails, views as access maps; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.native_form import native_graph
from hotfuse.errors import DimError, TileError
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import int64
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, I32, I64, DType, tensor
from tests.codegen.lowering import check_all_ways, graph_of, recipes, run_native

B, S, T = (symbol(name, 1) for name in ("batch", "seq", "keys"))
LENGTHS = (1, 5, 37)


def normal(*shape: int, dtype: DType = F32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype.numpy)


def whole(*shape: int, low: int = 0, high: int = 50) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(low, high, shape)


# pointwise


@pytest.mark.parametrize("n", LENGTHS)
def test_pointwise_chains_with_any_broadcast(n: int) -> None:
    def make(b: Any, x: Any, y: Any, w: Any, s: Any) -> Any:
        return b.add("relu", b.add("mul", b.add("add", b.add("sub", x, y), w), s))

    check_all_ways(
        make,
        {"x": tensor(F32, B, S, 7), "y": tensor(F32, S, 1), "w": tensor(F32, 7), "s": tensor(F32)},
        {"x": normal(2, n, 7), "y": normal(n, 1), "w": normal(7), "s": normal().reshape(())},
        {"batch": 2, "seq": n},
    )


@pytest.mark.parametrize("dtype", [F16, BF16, F64, F32])
def test_float_types(dtype: DType) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("gelu", b.add("add", b.add("tanh", x), y), approximate="none")

    feeds = {"x": normal(3, 41, dtype=dtype), "y": normal(3, 41, dtype=dtype)}
    check_all_ways(make, {"x": tensor(dtype, B, S), "y": tensor(dtype, B, S)}, feeds, {"batch": 3, "seq": 41})


def test_whole_numbers_and_truth_values() -> None:
    def make(b: Any, x: Any, y: Any, m: Any) -> Any:
        both = b.add("logical_and", b.add("less", x, y), m)
        return [b.add("where", both, b.add("add", x, y), b.add("maximum", x, y)), both]

    check_all_ways(
        make,
        {"x": tensor(I32, S), "y": tensor(I32, S), "m": tensor(BOOL, S)},
        {"x": whole(77).astype(np.int32), "y": whole(77)[::-1].astype(np.int32), "m": whole(77) > 20},
        {"seq": 77},
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_views_are_read_through(n: int) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        turned = b.add("transpose", x, perm=(0, 2, 1))
        part = b.add("slice", turned, b.constant(int64(2)), b.constant(int64(6)), axes=(1,), steps=(2,))
        return b.add("add", part, b.add("expand", y, b.dims((B, 2, S))))

    graph = graph_of(make, {"x": tensor(F32, B, S, 8), "y": tensor(F32, 1, S)})
    assert len(recipes(graph)) == 1
    feeds = {"x": normal(2, n, 8), "y": normal(1, n)}
    check_all_ways(make, {"x": tensor(F32, B, S, 8), "y": tensor(F32, 1, S)}, feeds, {"batch": 2, "seq": n})


def test_a_reshape_that_no_strides_express_is_a_copy() -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("reshape", b.add("transpose", x, perm=(0, 2, 1)), b.dims((B, S * 6)))

    check_all_ways(make, {"x": tensor(F32, B, S, 6)}, {"x": normal(2, 9, 6)}, {"batch": 2, "seq": 9})


def test_splits_are_offsets() -> None:
    def make(b: Any, x: Any) -> Any:
        first, second, third = b.add_node("split", (x,), {"axis": 2, "sizes": (4, 4, 8)}, outputs=3)
        return [b.add("mul", first, second), b.add("neg", third)]

    check_all_ways(make, {"x": tensor(F32, B, S, 16)}, {"x": normal(2, 5, 16)}, {"batch": 2, "seq": 5})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_inputs_side_by_side(axis: int) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        half = b.add("slice", y, b.constant(int64(0)), b.constant(int64(1)), axes=(axis,), steps=(1,))
        return b.add("relu", b.add("concat", b.add("neg", x), half, y, axis=axis))

    types = {"x": tensor(F32, B, S, 6), "y": tensor(F32, B, S, 6)}
    check_all_ways(make, types, {"x": normal(2, 5, 6), "y": normal(2, 5, 6)}, {"batch": 2, "seq": 5})


# rows


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_over_any_length(op: str, n: int) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add(op, b.add("add", x, x), axis=-1)

    check_all_ways(make, {"x": tensor(F32, B, S)}, {"x": normal(3, n)}, {"batch": 3, "seq": n})


@pytest.mark.parametrize("width", [32, 384, 768, 770])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norms_with_what_is_before_and_after(norm: str, width: int) -> None:
    def make(b: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
        parameters = (w, c) if norm == "layer_norm" else (w,)
        found = b.add(norm, b.add("add", x, y), *parameters, axis=2, epsilon=1e-5)
        return b.add("silu", found if norm == "layer_norm" else b.add("add", found, c), alpha=1.0)

    shapes = {"x": (2, 3, width), "y": (2, 3, width), "w": (width,), "c": (width,)}
    types = {"x": tensor(F32, B, S, width), "y": tensor(F32, B, S, width), "w": tensor(F32, width), "c": tensor(F32, width)}
    assert len(recipes(graph_of(make, types))) == 1
    check_all_ways(make, types, {n: normal(*s) for n, s in shapes.items()}, {"batch": 2, "seq": 3})


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_the_last_axes(op: str, keepdims: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add(f"reduce_{op}", b.add("abs", x), axes=(1, 2), keepdims=keepdims)

    check_all_ways(make, {"x": tensor(F32, B, S, 10)}, {"x": normal(3, 13, 10)}, {"batch": 3, "seq": 13})


def test_nan_and_infinity_go_through_folds() -> None:
    x = normal(4, 50)
    x[0, 3], x[1, 7], x[2, 9] = np.nan, np.inf, -np.inf

    def make(b: Any, x: Any) -> Any:
        return [b.add("softmax", x, axis=1), b.add("reduce_max", x, axes=(1,), keepdims=False)]

    check_all_ways(make, {"x": tensor(F32, B, S)}, {"x": x}, {"batch": 4, "seq": 50})


@pytest.mark.parametrize("n", LENGTHS)
def test_embedding_and_norm_are_one_kernel(n: int) -> None:
    def make(b: Any, table: Any, ids: Any, y: Any) -> Any:
        return b.add("layer_norm", b.add("add", b.add("gather", table, ids, axis=0), y), axis=-1)

    types = {"table": tensor(F32, 50, 32), "ids": tensor(I64, B, S), "y": tensor(F32, S, 32)}
    assert len(recipes(graph_of(make, types))) == 1
    feeds = {"table": normal(50, 32), "ids": whole(2, n, low=-50), "y": normal(n, 32)}
    check_all_ways(make, types, feeds, {"batch": 2, "seq": n})


# products


@pytest.mark.parametrize("n", [*LENGTHS, 130])
@pytest.mark.parametrize("width", [16, 48, 100])
def test_a_linear_layer_is_one_kernel(n: int, width: int) -> None:
    def make(b: Any, x: Any, w: Any, c: Any, r: Any) -> Any:
        product = b.add("matmul", x, b.add("transpose", w, perm=(1, 0)))
        return b.add("add", b.add("gelu", b.add("add", product, c), approximate="tanh"), r)

    types = {
        "x": tensor(F32, B, S, 40), "w": tensor(F32, width, 40), "c": tensor(F32, width), "r": tensor(F32, B, S, width),
    }  # fmt: skip
    feeds = {"x": normal(2, n, 40), "w": normal(width, 40), "c": normal(width), "r": normal(2, n, width)}
    check_all_ways(make, types, feeds, {"batch": 2, "seq": n})


@pytest.mark.parametrize("n", LENGTHS)
def test_products_of_batches(n: int) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("relu", b.add("matmul", x, b.add("transpose", y, perm=(0, 2, 1))))

    types = {"x": tensor(F32, B, S, 16), "y": tensor(F32, B, T, 16)}
    feeds = {"x": normal(3, n, 16), "y": normal(3, n + 30, 16)}
    check_all_ways(make, types, feeds, {"batch": 3, "seq": n, "keys": n + 30})


def test_products_of_float64() -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("matmul", x, w)

    types = {"x": tensor(F64, S, 33), "w": tensor(F64, 33, 21)}
    check_all_ways(make, types, {"x": normal(9, 33, dtype=F64), "w": normal(33, 21, dtype=F64)}, {"seq": 9})


def test_an_empty_product_is_zero() -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("matmul", x, w)

    nothing = symbol("nothing")
    graph = graph_of(make, {"x": tensor(F32, S, nothing), "w": tensor(F32, nothing, 5)})
    (result,) = run_native(graph, {"x": normal(3, 0), "w": normal(0, 5)})
    assert not result.any()


def test_a_size_below_what_was_promised_is_refused() -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("softmax", x, axis=-1)

    graph = graph_of(make, {"x": tensor(F32, B, S)})
    with pytest.raises(DimError, match="seq is 0"):
        run_native(graph, {"x": normal(3, 0)})


def test_sums_of_narrow_products_are_made_of_short_parts() -> None:
    def error(columns: int) -> float:
        x, w = normal(64, 500), normal(500, columns)
        graph = graph_of(lambda b, x, w: b.add("matmul", x, w), {"x": tensor(F32, B, 500), "w": tensor(F32, 500, columns)})
        (found,) = run_native(graph, {"x": x, "w": w})
        exact = x.astype(np.float64) @ w.astype(np.float64)
        return float(np.sqrt(np.mean((found - exact) ** 2)))

    assert error(11) < 0.7 * error(400)  # heads of models, whose differences softmax enlarges


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_of_patches_is_a_product(rank: int) -> None:
    window = (2, 3, 2)[:rank]

    def make(b: Any, x: Any, w: Any, c: Any) -> Any:
        attrs = {"strides": window, "pads": (0,) * (2 * rank), "dilations": (1,) * rank, "groups": 1}
        return b.add("relu", b.add("conv", x, w, c, **attrs))

    sizes = [4 * d for d in window]
    types = {"x": tensor(F32, B, 3, *sizes), "w": tensor(F32, 20, 3, *window), "c": tensor(F32, 20)}
    names = [r.program.name for r in recipes(native_graph(graph_of(make, types), host_spec()))]
    assert set(names) == {"copy", "pack", "product", "rows"}  # one product for each width of panels
    check_all_ways(make, types, {"x": normal(2, 3, *sizes), "w": normal(20, 3, *window), "c": normal(20)}, {"batch": 2})


def test_a_convolution_whose_windows_overlap_is_none() -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("conv", x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)

    graph = native_graph(graph_of(make, {"x": tensor(F32, 1, 3, 4, 4), "w": tensor(F32, 5, 3, 2, 2)}), host_spec())
    assert [n.op for n in graph.nodes] == ["conv"]


# attention


@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "size", "attrs"),
    [
        (2, 2, 5, 7, 8, {}),
        (4, 2, 9, 300, 16, {"scale": 0.3}),
        (2, 1, 3, 300, 8, {"causal": True, "align": "end"}),
        (2, 1, 140, 140, 8, {"causal": True}),
        (2, 2, 20, 5, 8, {"causal": True, "align": "end", "unseen": "nan"}),
        (1, 1, 4, 9, 40, {"softcap": 2.0}),
    ],
)
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention(
    heads: int, kv_heads: int, queries: int, keys: int, size: int, attrs: dict[str, Any], mask: str | None
) -> None:
    def make(b: Any, q: Any, k: Any, v: Any, m: Any = None) -> Any:
        turned = [b.add("transpose", x, perm=(0, 2, 1, 3)) for x in (q, k, v)]
        return b.add("attention", *turned, *(() if m is None else (m,)), **{"causal": False, **attrs})

    types = {
        "q": tensor(F32, B, S, heads, size), "k": tensor(F32, B, T, kv_heads, size), "v": tensor(F32, B, T, kv_heads, size),
    }  # fmt: skip
    feeds = {
        "q": normal(2, queries, heads, size), "k": normal(2, keys, kv_heads, size), "v": normal(2, keys, kv_heads, size),
    }  # fmt: skip
    if mask == "bool":
        types["m"], feeds["m"] = tensor(BOOL, B, 1, S, T), whole(2, 1, queries, keys) > 15
    elif mask == "float":
        types["m"], feeds["m"] = tensor(F32, heads, 1, T), normal(heads, 1, keys)
    check_all_ways(make, types, feeds, {"batch": 2, "seq": queries, "keys": keys})


def test_attention_puts_its_heads_side_by_side_itself() -> None:
    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        turned = [b.add("transpose", x, perm=(0, 2, 1, 3)) for x in (q, k, v)]
        found = b.add("transpose", b.add("attention", *turned, causal=False), perm=(0, 2, 1, 3))
        return b.add("reshape", found, b.dims((B, S, 32)))

    types = {n: tensor(F32, B, S, 4, 8) for n in "qkv"}
    assert [r.program.name for r in recipes(graph_of(make, types))] == ["attention"]
    check_all_ways(make, types, {n: normal(2, 21, 4, 8) for n in "qkv"}, {"batch": 2, "seq": 21})


# names


def test_equal_layers_give_equal_programs() -> None:
    def make(b: Any, x: Any, v: Any, w: Any) -> Any:
        return b.add("matmul", b.add("relu", b.add("matmul", x, v)), w)

    graph = graph_of(make, {"x": tensor(F32, S, 16), "v": tensor(F32, 16, 16), "w": tensor(F32, 16, 16)})
    made = [r.program for r in recipes(native_graph(graph, host_spec())) if r.program.name == "pack"]
    assert len(made) == 2
    assert made[0] == made[1]
    assert hash(made[0]) == hash(made[1])


def test_sizes_may_have_the_names_of_loop_variables() -> None:
    c, r, k = (symbol(name, 1) for name in "crk")

    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("softmax", b.add("matmul", x, w), axis=-1)

    types = {"x": tensor(F32, r, k), "w": tensor(F32, k, c)}
    check_all_ways(make, types, {"x": normal(5, 4), "w": normal(4, 3)}, {"r": 5, "k": 4, "c": 3})


def test_casts_to_half_types_are_numpys() -> None:
    """Numbers next to the middle of two halves: to f16 they are rounded once, to bf16 by way of f32, as numpy does."""

    def make(b: Any, x: Any) -> Any:
        return [b.add("cast", x, to=F16), b.add("cast", x, to=BF16)]

    middle = 1 + np.array([2**-11, 3 * 2**-11, 2**-8, 3 * 2**-8])
    edges = [65519.999, 65520, 1e300, np.nan, -np.inf, 0]
    x = np.concatenate([middle, middle + 2**-40, middle - 2**-40, -middle - 2**-40, edges])
    halves, brains = run_native(graph_of(make, {"x": tensor(F64, S)}), {"x": x})
    with np.errstate(over="ignore"):
        assert halves.tobytes() == x.astype(np.float16).tobytes()
        assert brains.tobytes() == x.astype(BF16.numpy).tobytes()


def test_rows_without_columns_are_tier_0s() -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("reduce_sum", x, axes=(1,), keepdims=False)

    with pytest.raises(TileError, match="without points"):
        recipes(graph_of(make, {"x": tensor(F32, B, 0)}))
