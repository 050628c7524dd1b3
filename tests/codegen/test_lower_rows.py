"""Kernels of folds, running folds and reads along any axis, with what comes before and after; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.llvm_cpu import emit
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import int64
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, F16, F32, F64, I32, I64, DType, tensor
from tests.codegen.lowering import check_all_ways, graph_of, recipes

B, S = (symbol(name, 1) for name in ("batch", "seq"))
Array = np.ndarray[Any, Any]
SHAPE = (3, 17, 70)


def normal(*shape: int, dtype: DType = F32) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype.numpy)


def check(make: Any, **feeds: Array) -> None:
    """With sizes that are known, and with the first two of x as run-time sizes."""
    from hotfuse.ir.types import DTYPES, TensorType

    names = {np.dtype(d.numpy): d for d in DTYPES.values() if d.numpy is not None}
    for general in (False, True):
        types = {}
        for name, array in feeds.items():
            shape: list[Any] = list(array.shape)
            if general and array.ndim == 3:
                shape[:2] = [B, S]
            types[name] = TensorType(names[array.dtype], tuple(shape))
        first = next(iter(feeds.values()))
        sizes = {"batch": first.shape[0], "seq": first.shape[1]} if general else {}
        check_all_ways(make, types, feeds, sizes)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_over_any_axes(axes: tuple[int, ...], keepdims: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("reduce_sum", b.add("exp", x), axes=axes, keepdims=keepdims)

    check(make, x=normal(*SHAPE))


@pytest.mark.parametrize("op", ["reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "logsumexp"])
@pytest.mark.parametrize("axes", [(1,), (0, 2)])
def test_other_reductions(op: str, axes: tuple[int, ...]) -> None:
    check(lambda b, x: b.add(op, x, axes=axes, keepdims=True), x=normal(*SHAPE))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_along_any_axis_with_neighbours(op: str, axis: int) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("mul", b.add(op, b.add("add", x, y), axis=axis), y)

    check(make, x=normal(*SHAPE), y=normal(*SHAPE))


def test_logsumexp_of_infinities() -> None:
    x = normal(4, 3, 40)
    x[0, 0], x[0, 1], x[0, 2, 3] = -np.inf, np.inf, np.inf
    check(lambda b, x: b.add("logsumexp", x, axes=(2,), keepdims=False), x=x)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_places_of_extremes(op: str, axis: int | None, last: bool) -> None:
    x = np.random.default_rng(2).integers(-3, 3, SHAPE).astype(np.float32)  # many are equal
    x[0, 2, 5] = x[1, 2, 9] = np.nan
    check(lambda b, x: b.add(op, x, axis=axis, keepdims=False, last=last), x=x)


@pytest.mark.parametrize("dtype", [I32, I64, F16, BF16, F64])
def test_places_in_other_types(dtype: DType) -> None:
    x = np.random.default_rng(2).integers(-50, 50, SHAPE).astype(dtype.numpy)
    check(lambda b, x: b.add("argmax", x, axis=1, keepdims=True), x=x)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(axis: int, exclusive: bool, reverse: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        total = b.add("cumsum", b.add("mul", x, x), axis=axis, exclusive=exclusive, reverse=reverse)
        return b.add("sqrt", total)

    check(make, x=normal(*SHAPE))


@pytest.mark.parametrize("dtype", [I32, I64, F16, F64])
def test_running_folds_of_other_types(dtype: DType) -> None:
    x = np.random.default_rng(2).integers(-2, 3, SHAPE).astype(dtype.numpy)
    check(lambda b, x: [b.add("cumsum", x, axis=1), b.add("cumprod", x, axis=2)], x=x)


def test_truth_values_over_an_inner_axis() -> None:
    x = np.random.default_rng(2).random(SHAPE) < 0.9
    check(lambda b, x: [b.add("reduce_all", x, axes=(1,)), b.add("reduce_any", x, axes=(0,))], x=x)


@pytest.mark.parametrize("pads", [[0, 1, 2, 3, 0, 4], [0, -1, 0, 0, 2, -3]])
def test_padding_is_an_access_map(pads: list[int]) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("exp", b.add("pad", x, b.constant(int64(*pads))))

    check(make, x=normal(*SHAPE))
    check(lambda b, x, v: b.add("pad", x, b.constant(int64(*pads)), v), x=normal(*SHAPE), v=normal().reshape(()))
    types = {"x": tensor(F32, *SHAPE)}
    (recipe,) = recipes(graph_of(make, types))
    assert len(recipe.program.arguments) == 2  # read where it is, written once


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_gathered_along_an_axis(axis: int) -> None:
    index = np.random.default_rng(3).integers(-3, 3, SHAPE)
    check(lambda b, x, i: b.add("relu", b.add("gather_elements", x, i, axis=axis)), x=normal(*SHAPE), i=index)


def test_vectors_run_along_neighbours() -> None:
    types = {"x": tensor(F32, 64, 196, 768)}
    (recipe,) = recipes(graph_of(lambda b, x: b.add("reduce_sum", x, axes=(1,), keepdims=False), types))
    assert any("vectors along axis 1 of 64x768x196" in note for note in recipe.program.notes)


@pytest.mark.parametrize("dtype", [F32, F64, F16, I64])
@pytest.mark.parametrize("shape", [(2, 48, 64), (3, 17, 70), (2, 5, 3)])
def test_what_is_turned_moves_in_squares(dtype: DType, shape: tuple[int, ...]) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("add", b.add("transpose", x, perm=(0, 2, 1)), y)

    x = (10 * normal(*shape)).astype(dtype.numpy)
    y = (10 * normal(shape[0], shape[2], shape[1])).astype(dtype.numpy)
    types = {"x": tensor(dtype, *shape), "y": tensor(dtype, *y.shape)}
    check_all_ways(make, types, {"x": x, "y": y}, {})
    free = {"x": tensor(dtype, B, S, shape[2]), "y": tensor(dtype, B, shape[2], S)}
    check_all_ways(make, free, {"x": x, "y": y}, {"batch": shape[0], "seq": shape[1]})
    (recipe,) = recipes(graph_of(make, types))
    assert any("squares of axes" in note for note in recipe.program.notes)


def test_large_results_are_streamed_by_whole_vectors() -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("relu", x)

    rows = 2 * host_spec().l3_bytes // 4 // 1024
    (large,), (small,) = (recipes(graph_of(make, {"x": tensor(F32, n, 1024)})) for n in (rows, 8))
    assert "nontemporal" in emit(large.program, 16)
    assert "nontemporal" not in emit(small.program, 16)
