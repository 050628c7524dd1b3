"""Which nodes become one kernel: chains around an anchor, and what must stay apart."""

from __future__ import annotations

from typing import Any

from hotfuse.codegen.native_form import native_graph
from hotfuse.fusion.rules import fuse
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder, int64
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, I64, STRING, tensor


def groups(graph: Graph) -> list[tuple[str, list[str]]]:
    graph = native_graph(graph, host_spec())
    found = fuse(graph, graph.values, layouts(graph, graph.values))
    return [(g.kind, [n.op for n in g.nodes]) for g in found]


def linear(b: GraphBuilder, x: Any, width: int = 8) -> Any:
    w, c = (b.weight(b.unique("w"), tensor(F32, *shape)) for shape in ((8, width), (width,)))
    return b.add("add", b.add("matmul", x, w), c)


def test_a_product_takes_bias_activation_and_residual() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 8))
    graph = b.build([b.add("add", b.add("relu", linear(b, x)), x)])
    assert groups(graph) == [("pack", ["pack"]), ("product", ["panel_matmul", "add", "relu", "add"])]


def test_a_result_with_two_readers_ends_its_group() -> None:
    b = GraphBuilder()
    hidden = linear(b, b.input("x", tensor(F32, 4, 8)))
    graph = b.build([b.add("relu", hidden), b.add("neg", hidden)])
    assert [ops for _, ops in groups(graph)][1:] == [["panel_matmul", "add"], ["relu"], ["neg"]]


def test_a_result_of_the_model_ends_its_group() -> None:
    b = GraphBuilder()
    hidden = linear(b, b.input("x", tensor(F32, 4, 8)))
    assert ("rows", ["relu"]) in groups(b.build([hidden, b.add("relu", hidden)]))


def test_two_products_do_not_share_a_group() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 8))
    kinds = [kind for kind, _ in groups(b.build([b.add("add", linear(b, x), linear(b, x))]))]
    assert kinds.count("product") == 2


def test_a_norm_takes_what_is_before_and_after_it() -> None:
    b = GraphBuilder()
    x, table, ids = b.input("x", tensor(F32, 4, 8)), b.input("t", tensor(F32, 9, 8)), b.input("i", tensor(I64, 4))
    found = b.add("layer_norm", b.add("add", b.add("gather", table, ids, axis=0), x), axis=-1)
    assert groups(b.build([b.add("tanh", found)])) == [("rows", ["gather", "add", "layer_norm", "tanh"])]


def test_a_fold_does_not_join_a_product() -> None:
    b = GraphBuilder()
    graph = b.build([b.add("softmax", linear(b, b.input("x", tensor(F32, 4, 8))), axis=-1)])
    assert [kind for kind, _ in groups(graph)] == ["pack", "product", "rows"]


def test_another_domain_is_another_group() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 8))
    total = b.add("reduce_sum", x, axes=(1,), keepdims=False)
    assert groups(b.build([b.add("exp", total)])) == [("rows", ["reduce_sum"]), ("rows", ["exp"])]


def test_views_and_what_has_no_native_code_are_in_no_group() -> None:
    b = GraphBuilder()
    x, text = b.input("x", tensor(F32, 4, 8)), b.input("s", tensor(STRING, 4))
    turned = b.add("transpose", x, perm=(1, 0))
    copied = b.add("reshape", turned, b.constant(int64(32)))
    graph = b.build([b.add("sort", turned, axis=0, descending=False), copied, b.add("equal", text, text)])
    assert groups(graph) == [("copy", ["reshape"])]


def test_reductions_over_any_axes_are_rows() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 8))
    made = [b.add("reduce_sum", x, axes=(0,), keepdims=False), b.add("softmax", x, axis=0)]
    assert groups(b.build(made)) == [("rows", ["reduce_sum"]), ("rows", ["softmax"])]


def test_folds_over_different_axes_or_ways_stay_apart() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 8))
    across = b.add("softmax", b.add("softmax", x, axis=0), axis=1)
    back = b.add("cumsum", b.add("cumsum", x, axis=1), axis=1, reverse=True)
    assert groups(b.build([across, back])) == [("rows", [op]) for op in ("softmax", "softmax", "cumsum", "cumsum")]


def test_what_reads_through_an_index_begins_a_group() -> None:
    b = GraphBuilder()
    x, i = b.input("x", tensor(F32, 4, 8)), b.input("i", tensor(I64, 4, 8))
    made = b.add("relu", b.add("gather_elements", b.add("exp", x), b.add("neg", i), axis=1))
    assert groups(b.build([made])) == [("rows", ["exp"]), ("rows", ["neg"]), ("rows", ["gather_elements", "relu"])]
