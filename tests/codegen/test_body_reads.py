"""Reads with access maps of their own, places, windows and copies as kernels; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.ir.builder import int64
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, F16, F32, F64, I32, I64, U8, DType, TensorType
from tests.codegen.lowering import check_all_ways, graph_of, recipes

B, S = (symbol(name, 1) for name in ("batch", "seq"))
Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: DType = F32) -> Array:
    return (3 * np.random.default_rng(7).standard_normal(shape)).astype(dtype.numpy)


def check(make: Any, x: Array, dtype: DType = F32, **more: tuple[DType, Array]) -> None:
    """With sizes that are known, and with the first and last of x as run-time sizes."""
    others = {name: TensorType(kind, array.shape) for name, (kind, array) in more.items()}
    feeds = {"x": x, **{name: array for name, (_, array) in more.items()}}
    for shape in (x.shape, (B, *x.shape[1:-1], S)):
        check_all_ways(make, {"x": TensorType(dtype, shape), **others}, feeds, {"batch": x.shape[0], "seq": x.shape[-1]})


@pytest.mark.parametrize("axes", [(0,), (2,), (0, -1), (1,)])
def test_flipped_reads(axes: tuple[int, ...]) -> None:
    check(lambda b, x: b.add("add", b.add("exp", x), b.add("flip", x, axes=axes)), normal(3, 5, 70))


@pytest.mark.parametrize("step", [-1, -3])
def test_slices_that_run_backward(step: int) -> None:
    def make(b: Any, x: Any) -> Any:
        ends = b.constant(int64(-1)), b.constant(int64(-(1 << 40)))
        return b.add("exp", b.add("slice", x, *ends, axes=(2,), steps=(step,)))

    check(make, normal(3, 5, 70))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("k", [None, 0, 2, -3, 99])
def test_triangles(upper: bool, k: int | None) -> None:
    def make(b: Any, x: Any) -> Any:
        more = () if k is None else (b.constant(np.array(k)),)
        return b.add("softmax", b.add("trilu", b.add("exp", x), *more, upper=upper), axis=-1)

    check(make, normal(2, 9, 40))


def test_a_diagonal_may_be_data() -> None:
    check(lambda b, x, k: b.add("trilu", x, k, upper=False), normal(2, 9, 40), k=(I64, np.array(3)))


def test_triangles_of_products_and_of_parts() -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        product = b.add("trilu", b.add("matmul", x, y), upper=True)
        return b.add("exp", b.add("concat", b.add("trilu", x, upper=False), b.add("neg", product), axis=-1))

    check(make, normal(2, 9, 40), y=(F32, normal(40, 33)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot_in_sizes_of_all_kinds(axis: int) -> None:
    def make(b: Any, x: Any, i: Any, v: Any) -> Any:
        hot = b.add("one_hot", i, b.constant(np.array(7)), v, axis=axis)
        return [b.add("mul", hot, hot), b.add("exp", x)]

    i = np.random.default_rng(2).integers(-9, 9, (4, 6))
    check(make, normal(2, 3), i=(I64, i), v=(F32, np.array([0.5, 2.0], np.float32)))
    check(make, normal(2, 3), i=(I32, i.astype(np.int32)), v=(I64, np.array([3, -2])))


@pytest.mark.parametrize(("batch", "many"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
def test_slices_at_places_of_several_numbers(batch: int, many: int) -> None:
    rng = np.random.default_rng(4)
    rows = (2, 5) if batch else (4, 3)
    i = np.stack([rng.integers(-s, s, rows) for s in (2, 9, 40)[batch : batch + many]], -1)
    check(lambda b, x, i: b.add("exp", b.add("gather_nd", x, i, batch_dims=batch)), normal(2, 9, 40), i=(I64, i))


def test_two_tables_under_one_index() -> None:
    """What counts from the end does so in each table by itself."""

    def make(b: Any, x: Any, y: Any, i: Any) -> Any:
        return b.add("add", b.add("gather", x, i, axis=0), b.add("gather", y, i, axis=0))

    check(make, normal(9, 40), y=(F32, normal(3, 40)), i=(I64, np.array([0, -1, 2, -3])))


WINDOWED = [
    ((2, 3, 7, 8), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    ((1, 2, 6, 37), (2, 3), (2, 1), (0, 0, 0, 0), (1, 2), True),
    ((1, 2, 39), (3,), (2,), (0, 1), (1,), True),
    ((1, 2, 40), (3,), (1,), (1, 1), (1,), False),
    ((1, 1, 4, 5, 40), (2, 2, 1), (1, 2, 1), (0, 1, 0, 0, 0, 0), (1, 1, 1), False),
]


@pytest.mark.parametrize(("shape", "kernel", "strides", "pads", "dilations", "ceil"), WINDOWED)
@pytest.mark.parametrize("op", ["max_pool", "average_pool", "with pads", "divided", "lp_pool"])
def test_windows(op: str, shape: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> None:
    more = {"with pads": {"count_include_pad": True}, "divided": {"divisor": 3}, "lp_pool": {"p": 3.0}}.get(op, {})
    attrs = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "ceil": ceil, **more}

    def make(b: Any, x: Any) -> Any:
        return b.add("neg", b.add(op if op.endswith("pool") else "average_pool", b.add("exp", x), **attrs))

    check(make, normal(*shape) / 3)


@pytest.mark.parametrize("dtype", [F16, BF16, F64, I32, U8])
def test_windows_of_other_types(dtype: DType) -> None:
    attrs = {"kernel": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,)}
    x = normal(2, 3, 40, dtype=dtype)
    check(lambda b, x: b.add("max_pool", x, **attrs), x, dtype)
    if dtype.is_float:
        check(lambda b, x: b.add("average_pool", x, **attrs), x, dtype)


def test_nan_wins_every_window_that_it_is_in() -> None:
    x = normal(1, 1, 40)
    x[0, 0, 5], x[0, 0, 20:30] = np.nan, -np.inf
    check(lambda b, x: b.add("max_pool", x, kernel=(3,), strides=(1,), pads=(1, 1), dilations=(1,)), x)


@pytest.mark.parametrize("stride", [1, 2])
def test_vectors_run_along_windows_not_along_their_taps(stride: int) -> None:
    attrs = {"kernel": (3, 3), "strides": (stride, stride), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    graph = graph_of(lambda b, x: b.add("max_pool", x, **attrs), {"x": TensorType(F32, (1, 8, 56, 56))})
    (recipe,) = recipes(graph)
    assert "vectors along axis 2 of" in recipe.program.notes[0]
