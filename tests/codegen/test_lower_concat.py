"""Concats that are read where their inputs are, rotary embeddings among them; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.native_form import native_graph
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import int64
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, F32, I64, DType, tensor
from tests.codegen.lowering import check_all_ways, graph_of, recipes

B, S = (symbol(name, 1) for name in ("batch", "seq"))


def normal(*shape: int, dtype: DType = F32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype.numpy)


def rotary(size: int) -> Any:
    def make(b: Any, q: Any, cos: Any, sin: Any) -> Any:
        first = b.add("slice", q, b.constant(int64(0)), b.constant(int64(size // 2)), axes=(3,), steps=(1,))
        second = b.add("slice", q, b.constant(int64(size // 2)), b.constant(int64(size)), axes=(3,), steps=(1,))
        turned = b.add("concat", b.add("neg", second), first, axis=-1)
        return b.add("add", b.add("mul", q, cos), b.add("mul", turned, sin))

    return make


@pytest.mark.parametrize("size", [8, 64, 80])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rotary_embeddings_are_one_kernel(size: int, dtype: DType) -> None:
    types = {"q": tensor(dtype, B, 3, S, size), "cos": tensor(dtype, S, size), "sin": tensor(dtype, S, size)}
    feeds = {"q": normal(2, 3, 7, size, dtype=dtype)} | {n: normal(7, size, dtype=dtype) for n in ("cos", "sin")}
    (recipe,) = recipes(native_graph(graph_of(rotary(size), types), host_spec()))
    assert len(recipe.program.arguments) == 4
    check_all_ways(rotary(size), types, feeds, {"batch": 2, "seq": 7})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concats_along_any_axis(axis: int) -> None:
    def make(b: Any, x: Any, y: Any, z: Any) -> Any:
        return b.add("relu", b.add("concat", b.add("exp", x), y, b.add("mul", z, z), axis=axis))

    sizes = {"x": 3, "y": 20, "z": 1}
    shapes = {n: tuple(size if a == axis else 5 + a for a in range(3)) for n, size in sizes.items()}
    types = {n: tensor(F32, *shape) for n, shape in shapes.items()}
    check_all_ways(make, types, {n: normal(*shape) for n, shape in shapes.items()}, {})


def test_parts_of_sizes_that_calls_fix() -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        both = b.add("concat", b.add("neg", x), y, axis=1)
        return b.add("softmax", b.add("mul", both, both), axis=-1)

    types = {"x": tensor(F32, 4, B), "y": tensor(F32, 4, S)}
    for n, m in ((1, 1), (70, 3), (5, 130)):
        check_all_ways(make, types, {"x": normal(4, n), "y": normal(4, m)}, {"batch": n, "seq": m})


def test_a_concat_that_others_read_is_copied() -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        both = b.add("concat", x, y, axis=1)
        return [b.add("neg", both), both]

    types = {"x": tensor(I64, 4, 3), "y": tensor(I64, 4, 5)}
    feeds = {"x": np.arange(12).reshape(4, 3), "y": np.arange(20).reshape(4, 5)}
    assert [r.program.name for r in recipes(graph_of(make, types))] == ["copy", "copy", "rows"]
    check_all_ways(make, types, feeds, {})
