"""The text form round-trips: graphs, nested graphs, every attribute kind, constants, facts, plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import hotfuse
from hotfuse.errors import ParseError
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.facts import Facts
from hotfuse.ir.graph import Attrs, Graph, Node
from hotfuse.ir.plan import Plan, fuse, split, trivial_plan
from hotfuse.ir.text import parse_graph, parse_plan, print_graph, print_plan, show_attr
from hotfuse.ir.types import BF16, F32, I64, STRING, MapType, SequenceType, TensorType, tensor


def same(a: Graph, b: Graph) -> None:
    assert (a.name, a.inputs, a.outputs, a.weights) == (b.name, b.inputs, b.outputs, b.weights)
    assert dict(a.values) == dict(b.values)
    assert a.facts == b.facts
    assert list(a.constants) == list(b.constants)
    for name, constant in a.constants.items():
        assert constant.type == b.constants[name].type
        np.testing.assert_array_equal(constant.numpy(), b.constants[name].numpy())
    assert len(a.nodes) == len(b.nodes)
    for x, y in zip(a.nodes, b.nodes, strict=True):
        assert (x.op, x.inputs, x.outputs, x.origin) == (y.op, y.inputs, y.outputs, y.origin)
        assert show_attr(dict(x.attrs)) == show_attr(dict(y.attrs))
        for m, n in zip(x.graphs, y.graphs, strict=True):
            same(m, n)


def round_trip(graph: Graph) -> Graph:
    text = print_graph(graph)
    back = parse_graph(text, graph.constants)
    same(graph, back)
    assert print_graph(back) == text
    return back


def test_symbols_facts_contents_devices_and_weights() -> None:
    b, s = symbol("B", 1), symbol("S")
    builder = GraphBuilder('odd name "quoted"', facts=Facts().assume(s, 2 * b))
    x = builder.input("x", tensor(F32, b, s * 2 + 1, (s + 3) // 2))
    w = builder.weight("layer.0/weight:0", tensor(F32, (s + 3) // 2))
    y = builder.add("add", x, w)
    shape = builder.add("shape_of", y)
    moved = builder.add("transfer", shape, to="sim:0")
    back = round_trip(builder.build([y, moved]))
    assert next(iter(back.values["x"].type.shape[0].terms))[0][0][0].minimum == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -0.0, 1e-45], np.float32),
        np.array([np.nan, np.inf, -np.inf], np.float32),
        np.array(1e300),
        np.array([[True, False]]),
        np.array([-(2**63), 2**63 - 1]),
        np.array([1.5, 2.5]).astype(BF16.numpy),
        np.array(["a", 'b"\n'], dtype=object),
        np.zeros((0, 3), np.int8),
        np.arange(1000.0),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_constants(array: np.ndarray[Any, Any]) -> None:
    builder = GraphBuilder()
    builder.constant(array, "c")
    round_trip(builder.build([builder.values["c"]]))


def test_large_constant_must_be_supplied() -> None:
    builder = GraphBuilder()
    text = print_graph(builder.build([builder.constant(np.arange(100.0), "big")]))
    with pytest.raises(ParseError, match="'big' is not written out"):
        parse_graph(text)


def test_every_attribute_kind() -> None:
    attrs = {
        "a": 1, "b": -2.5, "c": "text \\ \"x\"", "d": None, "e": True, "f": (1, (2, 3), ()), "g": symbol("S") * 2 - 1, "h": F32,
        "i": b"\x00\xff", "j": float("inf"), "k": float("nan"), "l": {"key": (1, "two")}, "m": np.array([1, 2], np.int32),
        "n": 2j, "o": TensorType(F32, None), "p": SequenceType(MapType(STRING, tensor(I64, 3))),
    }  # fmt: skip
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32))
    node = Node("torch_op", ("x", None), ("y",), Attrs(attrs))
    graph = builder.build([x])
    graph = Graph("g", ("x",), ("y",), (node,), {**graph.values, "y": graph.values["x"].__class__("y", tensor(F32))})
    round_trip(graph)


def test_nested_graphs() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["":21]>
        g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <then_branch = t () => (float[N] a) { a = Exp(x) }, else_branch = e () => (float[N] b) { b = Neg(x) }>
        }"""
    )
    graph = hotfuse.load(model).graph
    assert sum(len(n.graphs) for n in graph.nodes) == 2
    round_trip(graph)


def test_plan_round_trips_with_its_history() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 4))
    a = builder.add("exp", x)
    b = builder.add("neg", a)
    c = builder.add("abs", b)
    plan = fuse(trivial_plan(builder.build([c])), [a.name, b.name], "they touch")
    plan = split(plan, plan.groups[0].id, [[a.name], [b.name]])
    text = print_plan(plan)
    back = parse_plan(text)
    assert isinstance(back, Plan)
    assert back.groups == plan.groups
    assert back.history == plan.history
    assert print_plan(back) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'graph'"),
        ('graph "g" { input %x: f99[2] return %x }', "no element type"),
        ('graph "g" { input %x: f32[2 return %x }', "line 1"),
        ('graph "g" { input %x: f32[2]\n input %x: f32[2] return %x }', "line 2.*not yet taken"),
        ('graph "g" { input %x: f32[2] return %x } more', "expected the end"),
        ('graph "g" { %y: f32[2] = exp(%x return %y }', "expected"),
        ('graph "g" { const %c: f32[2] = [1.0] return %c }', "do not fill"),
        ('graph "g" { const %c: f32[B] = @ return %c }', "was not supplied"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_graph(text)


def test_nesting_is_bounded() -> None:
    text = 'graph "g" { %y: f32[] = if() ' * 100
    with pytest.raises(ParseError, match="nested deeper"):
        parse_graph(text)
