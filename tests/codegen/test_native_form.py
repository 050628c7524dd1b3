"""The form that native code is made from: products of all float types, norms of channels; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.codegen.native_form import native_graph
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, F16, F32, F64, DType, tensor
from tests.codegen.lowering import check_all_ways, graph_of, run_native

B, S = (symbol(name, 1) for name in ("batch", "seq"))
Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: DType = F32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16])
@pytest.mark.parametrize(("k", "n"), [(7, 5), (70, 100), (600, 48)])
def test_products_of_every_float_type(dtype: DType, k: int, n: int) -> None:
    def make(b: Any, x: Any, w: Any, c: Any) -> Any:
        return b.add("relu", b.add("add", b.add("matmul", x, w), c))

    types = {"x": tensor(dtype, B, S, k), "w": tensor(dtype, k, n), "c": tensor(dtype, n)}
    feeds = {"x": normal(2, 9, k, dtype=dtype), "w": normal(k, n, dtype=dtype), "c": normal(n, dtype=dtype)}
    check_all_ways(make, types, feeds, {"batch": 2, "seq": 9})


def test_weights_of_half_types_stay_half() -> None:
    graph = graph_of(lambda b, x, w: b.add("matmul", x, w), {"x": tensor(BF16, 4, 64), "w": tensor(BF16, 64, 96)})
    (pack,) = (n for n in native_graph(graph, host_spec()).nodes if n.op == "pack")
    assert native_graph(graph, host_spec()).values[pack.id].type.dtype == BF16  # type: ignore[union-attr]


def test_rows_that_are_columns_elsewhere() -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("matmul", b.add("transpose", x, perm=(1, 0)), w)

    check_all_ways(make, {"x": tensor(F32, 40, 13), "w": tensor(F32, 40, 50)}, {"x": normal(40, 13), "w": normal(40, 50)}, {})


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_with_neighbours(dtype: DType, groups: int) -> None:
    def make(b: Any, x: Any, w: Any, c: Any) -> Any:
        return b.add("silu", b.add("group_norm", b.add("exp", x), w, c, groups=groups))

    types = {"x": tensor(dtype, B, 6, 5, S), "w": tensor(dtype, 6), "c": tensor(dtype, 6)}
    feeds = {"x": normal(2, 6, 5, 7, dtype=dtype), "w": normal(6, dtype=dtype), "c": normal(6, dtype=dtype)}
    check_all_ways(make, types, feeds, {"batch": 2, "seq": 7})


@pytest.mark.parametrize("op", ["group_norm", "instance_norm"])
def test_norms_without_scale(op: str) -> None:
    attrs = {"groups": 3} if op == "group_norm" else {}
    check_all_ways(lambda b, x: b.add("relu", b.add(op, x, **attrs)), {"x": tensor(F32, 2, 6, 31)}, {"x": normal(2, 6, 31)}, {})


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_instance_norm(dtype: DType) -> None:
    types = {"x": tensor(dtype, B, 3, 5, S), "w": tensor(dtype, 3), "c": tensor(dtype, 3)}
    feeds = {"x": normal(2, 3, 5, 7, dtype=dtype), "w": normal(3, dtype=dtype), "c": normal(3, dtype=dtype)}
    check_all_ways(lambda b, x, w, c: b.add("instance_norm", x, w, c), types, feeds, {"batch": 2, "seq": 7})


@pytest.mark.parametrize("dtype", [F32, F16])
def test_batch_norm_is_elementwise(dtype: DType) -> None:
    def make(b: Any, x: Any, w: Any, c: Any, m: Any, v: Any) -> Any:
        return b.add("relu", b.add("batch_norm", x, w, c, m, b.add("abs", v)))

    types = {"x": tensor(dtype, B, 3, S), **{n: tensor(dtype, 3) for n in "wcmv"}}
    feeds = {"x": normal(2, 3, 19, dtype=dtype), **{n: normal(3, dtype=dtype) + i for i, n in enumerate("wcmv")}}
    check_all_ways(make, types, {n: a.astype(dtype.numpy) for n, a in feeds.items()}, {"batch": 2, "seq": 19})


@pytest.mark.parametrize("value", [1e4, 3.3e-3, 123456.7])
def test_a_row_of_equal_elements_has_no_spread(value: float) -> None:
    """What is left of it is the rounding of its mean, which must not be made large."""
    x = np.full((3, 768), value, np.float32)
    x[1] += np.float32(value) * np.float32(1e-6) * np.arange(768, dtype=np.float32)
    check_all_ways(lambda b, x: b.add("layer_norm", x, axis=-1), {"x": tensor(F32, B, 768)}, {"x": x}, {"batch": 3})


@pytest.mark.parametrize("large", [1e20, 1e30, 1e38])
def test_a_row_whose_spread_is_beyond_all_numbers(large: float) -> None:
    x = normal(3, 64)
    x[1, 7] = large
    graph = graph_of(lambda b, x: b.add("layer_norm", x, axis=-1), {"x": tensor(F32, B, 64)})
    ours, eager = run_native(graph, {"x": x})[0], torch.nn.functional.layer_norm(torch.from_numpy(x), (64,)).numpy()
    np.testing.assert_allclose(ours, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("op", ["silu", "leaky_relu", "elu", "hard_sigmoid", "softplus"])
def test_attributes_that_a_node_need_not_have(op: str) -> None:
    check_all_ways(lambda b, x: b.add(op, x), {"x": tensor(F32, B, 33)}, {"x": normal(2, 33)}, {"batch": 2})
