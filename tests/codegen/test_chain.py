"""Chains: programs over the same rows as one; what is refused, and whole chains three ways against tier 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.chain import Inside, chain, keep_inside
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.config import Config
from hotfuse.errors import TileError
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F16, F32, F64, DType, tensor
from tests.codegen.lowering import check_all_ways, graph_of, native_executor_of, native_graph, recipes

B, S = (symbol(name, 1) for name in ("batch", "seq"))
INSIDE = Inside(8, {"h": 16})
WRITER = """program first {
  size m
  input x f32[16*m]
  output h f32[16*m]
  grid i.t (m + 7)//8
  for i in [8*i.t : min(m, 8*i.t + 8) : 1] free {
    for c in [0 : 16 : 1] free {
      v = load x[16*i + c; 0, 0] 1x1
      store v to h[16*i + c; 0, 0] 1x1
    }
  }
}
"""
READER = """program second {
  size m
  input h f32[16*m]
  output y f32[m]
  grid i.t (m + 7)//8
  for i in [8*i.t : min(m, 8*i.t + 8) : 1] free {
    w = load h[16*i; 0, 1] 1x16
    t = reduce sum 1 w
    store t to y[i; 0, 0] 1x1
  }
}
"""


def normal(*shape: int, dtype: DType = F32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype.numpy)


def changed(text: str, old: str, new: str) -> Any:
    assert old in text
    return parse_program(text.replace(old, new))


def test_what_is_handed_on_becomes_scratch() -> None:
    made = chain("both", [keep_inside(parse_program(t), "i", INSIDE) for t in (WRITER, READER)])
    check(made)
    assert [(b.name, b.kind, b.size) for b in made.scratch] == [("h", "scratch", 128)]
    assert [b.name for b in made.arguments] == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "old", "new", "why"),
    [
        (WRITER, "8*i.t + 8) : 1", "8*i.t + 9) : 1", "not a task's 8 rows"),
        (WRITER, "store v to h[16*i + c", "store v to h[8*i + c", "does not move by a row of 16"),
        (WRITER, "for c in [0 : 16", "for c in [0 : 17", "may leave its row"),
        (READER, "load h[16*i; 0, 1] 1x16", "load h[16*i + 1; 0, 1] 1x16", "may leave its row"),
        (READER, "load h[16*i; 0, 1] 1x16", "load h[16*i - 1; 0, 1] 1x16", "may leave its row"),
        (READER, "load h[16*i; 0, 1] 1x16", "load h[16*i; 1, 1] 2x16", "does not move by a row of 16"),
        (READER, "load h[16*i; 0, 1] 1x16", "load h[0; 0, 1] 1x16", "does not move by a row of 16"),
    ],
)
def test_what_a_task_does_not_own_is_refused(text: str, old: str, new: str, why: str) -> None:
    with pytest.raises(TileError, match=why):
        keep_inside(changed(text, old, new), "i", INSIDE)


def test_an_index_may_not_stay_inside() -> None:
    text = READER.replace("input h f32", "input h i64").replace(
        "w = load h[16*i; 0, 1] 1x16\n    t = reduce sum 1 w", "j = index h[16*i; 0, 0] 1x1 limit m\n    t = fill f32 1x1 0.0"
    )
    with pytest.raises(TileError, match="an index is read"):
        keep_inside(parse_program(text), "i", INSIDE)


def test_programs_that_do_not_fit_together_are_refused() -> None:
    first, second = (keep_inside(parse_program(t), "i", INSIDE) for t in (WRITER, READER))
    with pytest.raises(TileError, match="not over the same tasks"):
        chain("both", [first, replace(second, grid=())])
    with pytest.raises(TileError, match="scratch of one program of a chain and input of another"):
        chain("both", [first, parse_program(READER)])
    with pytest.raises(TileError, match="read before a program of the chain writes it"):
        chain("both", [second, first])


def feed_forward(b: Any, x: Any, w1: Any, c1: Any, w2: Any, g: Any, e: Any) -> Any:
    """Up, an activation, down, the residual, a norm."""
    hidden = b.add("gelu", b.add("add", b.add("matmul", x, w1), c1))
    return b.add("layer_norm", b.add("add", b.add("matmul", hidden, w2), x), g, e, axis=-1)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize(("n", "h"), [(64, 130), (33, 20)])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_feed_forward_pairs_and_their_norm(rows: int, n: int, h: int, dtype: DType) -> None:
    shapes = {"x": (2, rows, n), "w1": (n, h), "c1": (h,), "w2": (h, n), "g": (n,), "e": (n,)}
    types = {name: tensor(dtype, *shape) for name, shape in shapes.items()} | {"x": tensor(dtype, B, S, n)}
    feeds = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    graph = native_graph(graph_of(feed_forward, types), host_spec())
    assert [r.program.name for r in recipes(graph)].count("chain") == 1
    check_all_ways(feed_forward, types, feeds, {"batch": 2, "seq": rows})


def test_a_norm_before_a_product() -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        return b.add("relu", b.add("matmul", b.add("softmax", x, axis=-1), w))

    types = {"x": tensor(F32, S, 50), "w": tensor(F32, 50, 70)}
    assert "chain" in [r.program.name for r in recipes(native_graph(graph_of(make, types), host_spec()))]
    check_all_ways(make, types, {"x": normal(19, 50), "w": normal(50, 70)}, {"seq": 19})


def test_a_chain_that_cannot_be_made_is_made_link_by_link() -> None:
    """Half types are rounded between the links, and rows of two matrices make no chain."""

    def make(b: Any, x: Any, w: Any, v: Any) -> Any:
        return b.add("matmul", b.add("transpose", b.add("matmul", x, w), perm=(1, 0, 2)), v)

    types = {"x": tensor(F16, B, S, 40), "w": tensor(F16, 40, 24), "v": tensor(F16, 24, 8)}
    _, reasons = native_executor_of(native_graph(graph_of(make, types), host_spec()), Config())
    assert not reasons
    feeds = {"x": normal(2, 5, 40, dtype=F16), "w": normal(40, 24, dtype=F16), "v": normal(24, 8, dtype=F16)}
    check_all_ways(make, types, feeds, {"batch": 2, "seq": 5})
