"""Every invariant of a graph has a graph that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hotfuse.errors import VerifyError
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Attrs, Constant, Graph, Node, Value
from hotfuse.ir.types import BOOL, F32, F64, I64, tensor
from hotfuse.ir.verify import verify


def small() -> Graph:
    builder = GraphBuilder("small")
    x = builder.input("x", tensor(F32, symbol("B"), 3))
    w = builder.weight("w", tensor(F32, 3))
    c = builder.constant(np.ones(3, np.float32), "c")
    (a,) = builder.add_node("add", [x, w], names=["a"])
    (y,) = builder.add_node("mul", [a, c], names=["y"])
    return builder.build([y])


def branch(inputs: int = 1) -> Graph:
    builder = GraphBuilder("branch")
    values = [builder.input(f"i{k}", tensor(F32, 3)) for k in range(inputs)]
    return builder.build([builder.add("neg", values[0])])


def with_if(then: Graph, other: Graph) -> Graph:
    builder = GraphBuilder("outer")
    condition = builder.input("condition", tensor(BOOL))
    x = builder.input("x", tensor(F32, 3))
    return builder.build(builder.add_node("if", [condition, x], graphs=[then, other]))


def test_good_graphs_pass() -> None:
    verify(small())
    verify(with_if(branch(), branch()))


def value(graph: Graph, which: str, **changes: object) -> Graph:
    return replace(graph, values={**graph.values, which: replace(graph.values[which], **changes)})  # type: ignore[arg-type]


BREAKS: list[tuple[Callable[[Graph], Graph], str]] = [
    (lambda g: replace(g, inputs=("x", "x")), "input 'x' is defined twice"),
    (lambda g: replace(g, weights=("x",)), "weight 'x' is defined twice"),
    (lambda g: replace(g, nodes=(*g.nodes, g.nodes[0])), "'a' is defined twice"),
    (lambda g: replace(g, outputs=("nothing",)), "output 'nothing' is defined by nothing"),
    (lambda g: replace(g, values={**g.values, "z": Value("z", tensor(F32))}), "'z' is in the table"),
    (lambda g: replace(g, values={k: v for k, v in g.values.items() if k != "a"}), "'a' has no entry"),
    (lambda g: value(g, "a", name="b"), "is named 'b'"),
    (lambda g: replace(g, nodes=g.nodes[::-1]), "reads 'a' before it is defined"),
    (lambda g: replace(g, nodes=(replace(g.nodes[0], op="nonsense"), g.nodes[1])), "'nonsense' is not defined"),
    (lambda g: replace(g, nodes=(Node("add", ("x", "w"), ()), *g.nodes)), "has no output"),
    (lambda g: value(g, "a", type=tensor(F64, symbol("B"), 3)), "is declared f64"),
    (lambda g: value(g, "a", type=tensor(F32, symbol("B"), 4)), "is declared f32"),
    (lambda g: value(g, "a", type=tensor(F32, 3)), "is declared f32"),
    (lambda g: value(g, "x", type=tensor(F32, symbol("B"), 5)), "does not fit its inputs"),
    (lambda g: replace(g, constants={"c": Constant.of(np.ones(4, np.float32))}), "holds f32\\[4\\]"),
    (lambda g: value(g, "a", contents=(1, 2)), "cannot have known contents"),
    (lambda g: value(g, "a", type=tensor(I64, 3), contents=(1, 2)), "2 elements are known"),
    (lambda g: value(g, "x", device="sim:0"), "put a transfer between them"),
    (lambda g: replace(g, nodes=(replace(g.nodes[0], graphs=(branch(),)), g.nodes[1])), "does not run any"),
]


@pytest.mark.parametrize(("breaking", "message"), BREAKS, ids=[m for _, m in BREAKS])
def test_each_invariant(breaking: Callable[[Graph], Graph], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(breaking(small()))


def test_transfers_go_where_they_say() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32))
    graph = builder.build([builder.add("transfer", x, to="sim:0")])
    verify(graph)
    node = replace(graph.nodes[0], attrs=Attrs(to="sim:1"))
    with pytest.raises(VerifyError, match="moves to sim:1"):
        verify(replace(graph, nodes=(node,)))


def test_results_share_a_device() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 4))
    parts = builder.add_node("split", [x], {"axis": 0, "sizes": (1, 3)}, outputs=2)
    graph = builder.build(parts)
    with pytest.raises(VerifyError, match="on two devices"):
        verify(value(graph, parts[1].name, device="sim:0"))


def test_nested_graphs() -> None:
    good = with_if(branch(), branch())
    node = good.nodes[0]
    for graphs, message in (
        ((branch(),), "needs 2 nested graphs"),
        ((branch(), branch(2)), "passes 1 values"),
        ((branch(), replace(branch(), outputs=("missing",))), "'missing' is defined by nothing"),
        ((branch(), replace(branch(), inputs=(), weights=("i0",))), "has weights"),
    ):
        with pytest.raises(VerifyError, match=message):
            verify(replace(good, nodes=(replace(node, graphs=graphs),)))
