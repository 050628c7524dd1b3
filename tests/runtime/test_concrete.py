"""Values at exact sizes: each kind of node is inferred once for the same inputs, and sizes that are not known stay apart."""

from __future__ import annotations

import pytest

from hotfuse.errors import LimitExceeded
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import BOOL, F32, TensorType, tensor
from hotfuse.runtime import concrete
from hotfuse.runtime.concrete import check_size, concrete_values

LIMIT = 1 << 30
N = symbol("n")


def layers(count: int) -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, N, 8))
    w = b.weight("w", tensor(F32, 8, 8))
    for _ in range(count):
        x = b.add("tanh", b.add("transpose", b.add("transpose", b.add("matmul", x, w), perm=(1, 0)), perm=(1, 0)))
    return b.build([x])


def test_layers_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = layers(5), []
    infer = concrete.infer_node
    monkeypatch.setattr(concrete, "infer_node", lambda op, *rest: asked.append(op) or infer(op, *rest))
    values = concrete_values(graph, {"x": tensor(F32, 3, 8), "w": tensor(F32, 8, 8)}, check_size(LIMIT))
    assert asked == ["matmul", "transpose", "transpose", "tanh"]  # the other way round is another type
    assert all(value.name == name for name, value in values.items())
    assert [values[node.id].type for node in graph.nodes[-2:]] == [tensor(F32, 3, 8)] * 2


def test_sizes_that_data_decide_are_each_nodes_own() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(BOOL, N))
    graph = b.build([b.add("nonzero", x), b.add("nonzero", x)])
    values = concrete_values(graph, {"x": tensor(BOOL, 4)}, check_size(LIMIT))
    one, other = (values[name].type for name in graph.outputs)
    assert isinstance(one, TensorType)
    assert one != other


def test_attributes_of_other_types_make_another_kind() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, 4))
    results = [b.add("transpose", x, perm=perm) for perm in ((0, 1), (0, True), (1, 0), (0, 1))]
    kinds = b.build(results).kinds
    assert kinds[0] == kinds[3]
    assert len(set(kinds)) == 3


def test_the_limit_holds_for_every_kind() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, N, 8))
    y = b.add("tanh", b.add("tanh", x))
    graph = b.build([b.add("matmul", y, b.add("transpose", y, perm=(1, 0)))])
    assert concrete_values(graph, {"x": tensor(F32, 80, 8)}, check_size(30_000))
    with pytest.raises(LimitExceeded, match="matmul would make"):
        concrete_values(graph, {"x": tensor(F32, 100, 8)}, check_size(30_000))
