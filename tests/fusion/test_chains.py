"""Which groups become chains, and which do not."""

from __future__ import annotations

from typing import Any

from hotfuse.codegen.native_form import native_graph
from hotfuse.fusion.chains import make_chains
from hotfuse.fusion.rules import fuse
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, tensor

B = symbol("batch", 1)
CACHE = 1 << 20


def kinds(make: Any, cache: int = CACHE, **shapes: Any) -> list[tuple[str, int]]:
    """Kind and number of links of every group that is no packing."""
    b = GraphBuilder()
    graph = native_graph(b.build(make(b, *(b.input(n, tensor(F32, *s)) for n, s in shapes.items()))), host_spec())
    places = layouts(graph, graph.values)
    groups = make_chains(fuse(graph, graph.values, places), graph, graph.values, places, cache)
    return [(g.kind, len(g.links)) for g in groups if g.kind != "pack"]


def pair(b: Any, x: Any, w: Any, v: Any) -> list[Any]:
    return [b.add("matmul", b.add("relu", b.add("matmul", x, w)), v)]


def test_products_that_read_each_other() -> None:
    assert kinds(pair, x=(B, 64), w=(64, 128), v=(128, 10)) == [("chain", 2)]


def test_weights_must_fit_the_cache() -> None:
    assert kinds(pair, x=(B, 64), w=(64, 1024), v=(1024, 128)) == [("product", 0), ("product", 0)]
    assert kinds(pair, cache=CACHE * 4, x=(B, 64), w=(64, 1024), v=(1024, 128)) == [("chain", 2)]


def test_a_result_that_others_read_is_no_link() -> None:
    def make(b: Any, x: Any, w: Any, v: Any) -> list[Any]:
        hidden = b.add("matmul", x, w)
        return [b.add("matmul", hidden, v), b.add("exp", b.add("transpose", hidden, perm=(1, 0)))]

    assert ("chain", 2) not in kinds(make, x=(B, 64), w=(64, 128), v=(128, 10))

    def answers(b: Any, x: Any, w: Any, v: Any) -> list[Any]:
        hidden = b.add("matmul", x, w)
        return [hidden, b.add("matmul", hidden, v)]

    assert kinds(answers, x=(B, 64), w=(64, 128), v=(128, 10)) == [("product", 0), ("product", 0)]


def test_rows_that_move_are_no_link() -> None:
    def make(b: Any, x: Any, w: Any, v: Any) -> list[Any]:
        return [b.add("matmul", b.add("transpose", b.add("matmul", x, w), perm=(1, 0, 2)), v)]

    assert kinds(make, x=(2, B, 64), w=(64, 128), v=(128, 10)) == [("product", 0), ("product", 0)]


def test_matrices_of_a_batch_are_no_weights() -> None:
    assert kinds(pair, x=(3, B, 64), w=(3, 64, 128), v=(3, 128, 10)) == [("product", 0), ("product", 0)]


def test_norms_between_products_are_links_and_norms_alone_are_not() -> None:
    def make(b: Any, x: Any, w: Any, v: Any) -> list[Any]:
        return [b.add("matmul", b.add("layer_norm", b.add("matmul", x, w), axis=-1), v)]

    assert kinds(make, x=(B, 64), w=(64, 128), v=(128, 10)) == [("chain", 3)]

    def norms(b: Any, x: Any) -> list[Any]:
        return [b.add("softmax", b.add("transpose", b.add("softmax", x, axis=-1), perm=(1, 0)), axis=-1)]

    assert kinds(norms, x=(B, 64)) == [("rows", 0), ("rows", 0)]
