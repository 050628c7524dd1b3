"""Costs and metadata: symbolic, right for known shapes, versioned."""

from __future__ import annotations

import pytest

from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.device import Link, place, transfer_cost_s
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Origin
from hotfuse.ir.metadata import Cost, MetaTable, cost_of, describe, total_cost
from hotfuse.ir.types import F32, tensor


def test_costs_are_symbolic_and_numbers_once_shapes_are() -> None:
    builder = GraphBuilder()
    builder.origin = Origin("fc", "Gemm", "model.py:3")
    s = symbol("S")
    x = builder.input("x", tensor(F32, s, 64))
    w = builder.weight("w", tensor(F32, 64, 32))
    y = builder.add("matmul", x, w)
    z = builder.add("relu", y)
    graph = builder.build([z])
    matmul = cost_of(graph, graph.nodes[0])
    assert matmul.flops == 2 * 64 * 32 * s
    assert matmul.at({"S": 10}) == Cost(2 * 64 * 32 * 10, 4 * (640 + 64 * 32), 4 * 320)
    assert matmul.bytes_moved == matmul.bytes_read + matmul.bytes_written
    assert total_cost(graph).flops == matmul.flops + 32 * s
    meta = describe(graph, graph.nodes[0])
    assert (meta.operator, meta.device, str(meta.origin)) == ("matmul", "cpu", "fc Gemm model.py:3")
    assert str(meta.outputs[0]) == "f32[S, 32]"


def test_views_move_nothing() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 4, 8))
    graph = builder.build([builder.add("transpose", x, perm=(1, 0))])
    assert cost_of(graph, graph.nodes[0]) == Cost()


def test_a_transfer_costs_latency_and_bytes() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("N")))
    graph = place(builder.build([builder.add("neg", x)]), lambda node: "sim:0")
    move = graph.nodes[0]
    assert move.op == "transfer"
    seconds = transfer_cost_s(graph, move, {"N": 1000}, {("cpu", "sim:0"): Link(1e6, 0.5)})
    assert seconds == pytest.approx(0.5 + 4000 / 1e6)


def test_tables_are_versioned_and_immutable() -> None:
    empty = MetaTable()
    one = empty.with_facts("a", count=1)
    two = one.with_facts("a", sparsity=0.5)
    assert (empty.version, one.version, two.version) == (0, 1, 2)
    assert empty.of("a") == {}
    assert two.of("a") == {"count": 1, "sparsity": 0.5}
    assert list(two.without("a")) == []
