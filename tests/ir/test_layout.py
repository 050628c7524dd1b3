"""Layouts: every view, checked by reading the root's memory through the strides that the layout gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.ir.builder import GraphBuilder, int64
from hotfuse.ir.dim import minimum, symbol
from hotfuse.ir.layout import Layout, broadcast_strides, collapse, contiguous_strides, layouts, plain, reshaped
from hotfuse.ir.op import OPS
from hotfuse.ir.types import F32, tensor

S = symbol("s")


def read_through(layout: Layout, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    step = memory.itemsize
    shape = [int(d) for d in layout.shape]  # type: ignore[arg-type]
    strides = [int(d) * step for d in layout.strides]  # type: ignore[arg-type]
    return np.lib.stride_tricks.as_strided(memory[layout.offset :], shape, strides)  # type: ignore[misc]


def test_a_chain_of_views_is_one_map() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 2, 6, 20))
    heads = b.add("transpose", b.add("reshape", x, b.constant(int64(2, 6, 4, 5))), perm=(0, 2, 1, 3))
    part = b.add("slice", heads, b.constant(int64(1, -4)), b.constant(int64(3, 6)), axes=(1, 2), steps=(1, 2))
    wide = b.add("expand", b.add("unsqueeze", part, axes=(1,)), b.constant(int64(2, 3, 2, 2, 5)))
    graph = b.build([wide])
    layout = layouts(graph, graph.values)[wide.name]
    assert layout.root == "x"
    memory = np.arange(240.0, dtype=np.float32)
    array = memory.reshape(2, 6, 4, 5).transpose(0, 2, 1, 3)[:, 1:3, -4:6:2][:, None]
    np.testing.assert_array_equal(read_through(layout, memory), np.broadcast_to(array, (2, 3, 2, 2, 5)))


def test_parts_of_a_split_lie_one_after_the_other() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 9))
    parts = b.add_node("split", (x,), {"axis": 1, "sizes": (2, 3, 4)}, outputs=3)
    graph = b.build(parts)
    found = layouts(graph, graph.values)
    memory = np.arange(36.0, dtype=np.float32)
    for part, want in zip(parts, np.split(memory.reshape(4, 9), [2, 5], axis=1), strict=True):
        np.testing.assert_array_equal(read_through(found[part.name], memory), want)


def test_what_no_strides_express_has_memory_of_its_own() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 6))
    copied = b.add("reshape", b.add("transpose", x, perm=(1, 0)), b.constant(int64(24)))
    graph = b.build([copied])
    assert layouts(graph, graph.values)[copied.name] == plain(copied.name, (24,))


@pytest.mark.parametrize("start", [-1, -2, -9, 0, 2, 3, 99, 1 << 40])
@pytest.mark.parametrize("step", [-1, -2, 2])
def test_slices_from_anywhere_are_views(start: int, step: int) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 6))
    part = b.add("slice", x, b.constant(int64(start)), b.constant(int64(-99 if step < 0 else 99)), axes=(0,), steps=(step,))
    graph = b.build([part])
    layout, memory = layouts(graph, graph.values)[part.name], np.arange(24.0, dtype=np.float32)
    assert layout.root == "x"
    want = OPS["slice"].reference(
        memory.reshape(4, 6), np.array([start]), np.array([-99 if step < 0 else 99]), axes=(0,), steps=(step,)
    )
    if want.size:
        np.testing.assert_array_equal(read_through(layout, memory), want)


def test_a_flip_is_a_view_of_any_size() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, S, 6))
    graph = b.build([b.add("flip", b.add("transpose", x, perm=(1, 0)), axes=(0, -1))])
    layout = layouts(graph, graph.values)[graph.outputs[0]]
    assert layout == Layout("x", (S - 1) * 6 + 5, (6, S), (-1, -6))


def test_where_a_slice_begins_may_follow_from_sizes() -> None:
    b = GraphBuilder()
    x, y = b.input("x", tensor(F32, S, 6)), b.input("y", tensor(F32, symbol("t")))
    part = b.add("slice", x, b.add("shape_of", y), b.constant(int64(99)), axes=(1,), steps=(1,))
    backward = b.add("slice", x, b.add("shape_of", y), b.constant(int64(-99)), axes=(1,), steps=(-1,))
    graph = b.build([part, backward])
    found = layouts(graph, graph.values)
    assert (found[part.name].root, found[part.name].offset) == ("x", minimum(symbol("t"), 6))
    assert found[backward.name].root == backward.name  # its first place depends on which is larger


def test_sizes_may_be_symbols() -> None:
    heads = reshaped(plain("x", (S, 12 * S, 8)), (S, 12, S, 8))
    assert heads is None or heads == (96 * S, 8 * S, 8, 1)
    assert reshaped(plain("x", (2, S, 384)), (2, S, 12, 32)) == (384 * S, 384, 32, 1)
    assert reshaped(plain("x", (2, S, 12, 32)), (2 * S, 384)) == (384, 1)
    assert reshaped(Layout("x", 0, (2, S, 12, 32), (384 * S, 32, 32 * S, 1)), (2, S, 384)) is None


def test_a_size_that_may_be_1_decides_when_it_is_known() -> None:
    (stride,) = broadcast_strides(Layout("x", 0, (S,), (1,)), (128,))
    from hotfuse.ir.dim import evaluate

    assert evaluate(stride, {"s": 1}) == 0
    assert evaluate(stride, {"s": 128}) == 1


def test_axes_that_all_walk_evenly_are_joined() -> None:
    shape = (2, 3, 4, 5)
    whole = contiguous_strides(shape)
    assert collapse(shape, [whole, whole]) == [[0, 1, 2, 3]]
    assert collapse(shape, [whole, (0, 0, 5, 1)]) == [[0, 1], [2, 3]]
    assert collapse(shape, [whole], [0, 0, 1, 1]) == [[0, 1], [2, 3]]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_reshaping_a_strided_view_agrees_with_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    memory = np.arange(int(np.prod(shape)), dtype=np.float32)
    array = memory.reshape(shape).transpose(perm)
    strides = contiguous_strides(shape)
    source = Layout("x", 0, array.shape, tuple(strides[p] for p in perm))
    total, wanted = array.size, []
    while total > 1 and len(wanted) < 4:
        factor = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        wanted.append(factor)
        total //= factor
    wanted.append(total)
    found = reshaped(source, tuple(wanted))
    if found is not None:
        layout = Layout("x", 0, tuple(wanted), found)
        np.testing.assert_array_equal(read_through(layout, memory), array.reshape(wanted))
    elif array.flags.c_contiguous:
        pytest.fail(f"contiguous memory of shape {array.shape} was not seen as {wanted}")
