"""Copies, rolls and parts side by side as native code, and convolutions that are products; three ways against tier 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.native_form import native_graph
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import int64
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F32, I64, tensor
from tests.codegen.lowering import check_all_ways, graph_of

B, S = (symbol(name, 1) for name in ("batch", "seq"))
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def ops(make: Any, *shape: Any) -> list[str]:
    return [n.op for n in native_graph(graph_of(make, {"x": tensor(F32, *shape)}), host_spec()).nodes]


def check(make: Any, x: Array) -> None:
    """With sizes that are known, and with the first and last of x as run-time sizes."""
    for shape in (x.shape, (B, *x.shape[1:-1], S)):
        check_all_ways(make, {"x": tensor(F32, *shape)}, {"x": x}, {"batch": x.shape[0], "seq": x.shape[-1]})


@pytest.mark.parametrize("repeats", [(1, 2, 3), (2, 1, 1), (3, 1, 2, 1), (1, 1, 1)])
def test_copies_side_by_side(repeats: tuple[int, ...]) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("exp", b.add("tile", b.add("neg", x), b.constant(int64(*repeats))))

    assert "tile" not in ops(make, 2, 1, S)
    check(make, normal(2, 1, 17))
    check(make, normal(2, 3, 1))


@pytest.mark.parametrize(("shifts", "axes"), [((1,), (2,)), ((-1, 1), (2, 0)), ((20, -7), (1, 1)), ((5,), (1,))])
def test_elements_round_the_end(shifts: tuple[int, ...], axes: tuple[int, ...]) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("exp", b.add("roll", b.add("neg", x), shifts=shifts, axes=axes))

    assert "roll" not in ops(make, 2, 5, S)
    check(make, normal(2, 5, 17))


def test_a_roll_of_all_axes_and_one_that_may_go_round_twice() -> None:
    def make(b: Any, x: Any) -> Any:
        return b.add("exp", b.add("roll", x, shifts=(4,), axes=None))

    x = normal(3, 5, 17)
    check_all_ways(make, {"x": tensor(F32, *x.shape)}, {"x": x}, {})
    assert "roll" in ops(make, B, S)  # there may be fewer elements than places to go
    assert "roll" not in ops(make, B, S, 4)


@pytest.mark.parametrize("parts", [((0, 17),), ((0, 0), (0, 17), (4, 9))])
def test_inputs_without_elements_are_left_out(parts: tuple[tuple[int, int], ...]) -> None:
    def make(b: Any, x: Any) -> Any:
        cut = [b.add("slice", x, b.constant(int64(s)), b.constant(int64(e)), axes=(2,), steps=(1,)) for s, e in parts]
        nothing = b.add("slice", x, b.constant(int64(3)), b.constant(int64(3)), axes=(2,), steps=(1,))
        return b.add("exp", b.add("concat", nothing, *cut, axis=2))

    assert ops(make, B, 3, 17).count("concat") == (len(parts) > 1)
    check_all_ways(make, {"x": tensor(F32, B, 3, 17)}, {"x": normal(2, 3, 17)}, {"batch": 2})


@pytest.mark.parametrize(
    ("window", "strides", "sizes"),
    [((2, 2), (2, 2), (7, 9)), ((1, 1), (2, 3), (7, 9)), ((1, 3), (2, 3), (6, 10)), ((1, 1), (1, 1), (5, 6))],
)
def test_windows_that_leave_elements_out_are_products(window: Any, strides: Any, sizes: Any) -> None:
    def make(b: Any, x: Any, w: Any, c: Any) -> Any:
        return b.add("relu", b.add("conv", x, w, c, strides=strides, pads=(0,) * 4, dilations=(1, 1), groups=1))

    feeds = {"x": normal(2, 3, *sizes), "w": normal(20, 3, *window), "c": normal(20)}
    for shape in (sizes, (symbol("h", max(window)), symbol("w", max(window)))):
        types = {"x": tensor(F32, B, 3, *shape), "w": tensor(F32, 20, 3, *window), "c": tensor(F32, 20)}
        assert "conv" not in [n.op for n in native_graph(graph_of(make, types), host_spec()).nodes]
        check_all_ways(make, types, feeds, {"batch": 2, "h": sizes[0], "w": sizes[1]})


def test_sizes_that_depend_on_data_are_not_written_into_a_graph() -> None:
    def make(b: Any, x: Any, i: Any) -> Any:
        chosen = b.add("gather", x, b.add("squeeze", b.add("nonzero", i), axes=(0,)), axis=0)
        product = b.add("matmul", x, b.add("transpose", chosen, perm=(1, 0)))
        return [product, b.add("tile", chosen, b.constant(int64(2, 2)))]

    graph = graph_of(make, {"x": tensor(F32, S, 4), "i": tensor(I64, S)})
    assert native_graph(graph, host_spec()) is graph


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "ij,kj->ki", "bij,bjk->bik", "bhqd,bhkd->bqhk", "bclhn,bcshn->bclsh", "ij,ik->ijk", "ij,ij->ij", "bij,jb->i"],
)
def test_sums_over_shared_axes_are_products(equation: str) -> None:
    terms = equation.split("->")[0]
    lengths = dict(zip("bchijklnqsd", (2, 3, 4, 9, 17, 18, 5, 6, 7, 8, 10), strict=True))

    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("exp", b.add("einsum", x, y, equation=equation))

    shapes = [tuple(lengths[a] for a in term) for term in terms.split(",")]
    feeds = {"x": normal(*shapes[0]) / 4, "y": normal(*shapes[1]) / 4}
    types = {"x": tensor(F32, *shapes[0]), "y": tensor(F32, *shapes[1])}
    made = [n.op for n in native_graph(graph_of(make, types), host_spec()).nodes]
    assert "einsum" not in made
    check_all_ways(make, types, feeds, {})


@pytest.mark.parametrize("equation", ["ii,ij->j", "ij,jk->k", "...j,jk->...k"])
def test_other_sums_stay_as_they_are(equation: str) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("einsum", x, y, equation=equation)

    graph = graph_of(make, {"x": tensor(F32, 3, 3), "y": tensor(F32, 3, 4)})
    assert native_graph(graph, host_spec()) is graph
