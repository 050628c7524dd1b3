"""The text form of graphs and plans. `print_graph` and `parse_graph` round-trip, as do `print_plan` and `parse_plan`.

graph "main" {
  where B >= 1                                       a symbol's least value, when it is not 0
  fact S == 2*T                                      a known equality of sizes
  input %x: f32[B, 4]
  weight %fc.weight: f32[3, 4]
  const %eps: f32[] = 1e-05                          small constants are written out
  const %table: f32[30522, 768] = @                  large ones are taken from `constants` when read back
  %y: f32[B, 3] @sim:0 = softmax(%x) {axis = -1} at "layer" "Softmax" "model.py:7"
  %n: i64[2] <B, 4> = shape_of(%x)                   known contents
  return %y, %n
}

plan {
  group "y" @cpu [%y, %z] from ["a", "b"]
  edit fuse ["a", "b"] -> ["y"] "because"
}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim, Expr, Symbol, symbols_of
from hotfuse.ir.graph import CPU, Constant, Graph, Node, Origin, Value
from hotfuse.ir.plan import Plan
from hotfuse.ir.types import DType, TensorType, Type

INLINE_ELEMENTS = 16  # constants of more elements are not written out
_PLAIN = re.compile(r"[A-Za-z0-9_./$+~?@-]+(?::[A-Za-z0-9_./$+~?@-]+)*")


def print_graph(graph: Graph, indent: str = "") -> str:
    return "\n".join(_graph_lines(graph, indent))


def print_plan(plan: Plan) -> str:
    lines = [print_graph(plan.graph), "plan {"]
    for group in plan.groups:
        nodes = ", ".join(show_name(n) for n in group.nodes)
        lineage = f" from {json.dumps(list(group.lineage))}" if group.lineage else ""
        lines.append(f"  group {json.dumps(group.id)} @{group.device} [{nodes}]{lineage}")
    for edit in plan.history:
        ids = f"{json.dumps(list(edit.groups))} -> {json.dumps(list(edit.result))}"
        lines.append(f"  edit {edit.kind} {ids} {json.dumps(edit.reason)}")
    return "\n".join([*lines, "}"])


def show_name(name: str) -> str:
    return f"%{name}" if _PLAIN.fullmatch(name) else f"%{json.dumps(name)}"


def show_type(type: Type) -> str:
    return str(type)


def show_attr(value: Any) -> str:
    """An attribute's value in the text form."""
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return _show_float(float(value))
    if isinstance(value, complex):
        return f"complex({_show_float(value.real)}, {_show_float(value.imag)})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bytes):
        return f'hex"{value.hex()}"'
    if isinstance(value, Expr):
        return f"<{value}>"
    if isinstance(value, DType):
        return f":{value.name}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(show_attr(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {show_attr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return f"array {TensorType(Constant.of(value).type.dtype, value.shape)} {_show_data(value)}"
    if isinstance(value, Type):
        return f"type {value}"
    raise TypeError(f"an attribute of type {type(value).__name__} has no text form")


def _show_float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _show_data(array: np.ndarray[Any, Any]) -> str:
    """Elements in order, exactly: numbers where they read back to the same bits, else the bytes."""
    flat = array.reshape(-1)
    if array.dtype == object:
        return "[" + ", ".join(json.dumps(str(s)) for s in flat) + "]"
    plain_float = array.dtype.name in ("float16", "float32", "float64")
    if array.dtype.kind in "iub" or (plain_float and np.isfinite(flat).all()):
        return "[" + ", ".join(show_attr(x) for x in flat.tolist()) + "]"
    return f'hex"{np.ascontiguousarray(flat).tobytes().hex()}"'


def _graph_lines(graph: Graph, indent: str) -> Iterator[str]:
    inner = indent + "  "
    yield f"{indent}graph {json.dumps(graph.name)} {{"
    for symbol in sorted(set(_minimums(graph)), key=lambda s: s.name):
        yield f"{inner}where {symbol.name} >= {symbol.minimum}"
    for name, dim in graph.facts.known.items():
        yield f"{inner}fact {name} == {dim}"
    for a, b in graph.facts.others:
        yield f"{inner}fact {a} == {b}"
    for kind, names in (("input", graph.inputs), ("weight", graph.weights)):
        for name in names:
            yield f"{inner}{kind} {_show_value(graph.values[name])}"
    for name, constant in graph.constants.items():
        yield f"{inner}const {_show_value(graph.values[name])} = {_show_constant(constant)}"
    for node in graph.nodes:
        yield from _node_lines(graph, node, inner)
    yield f"{inner}return {', '.join(show_name(n) for n in graph.outputs)}".rstrip()
    yield f"{indent}}}"


def _minimums(graph: Graph) -> Iterator[Symbol]:
    for value in graph.values.values():
        dims: tuple[Dim, ...] = value.contents or ()
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            dims = (*dims, *value.type.shape)
        yield from (s for s in symbols_of(dims) if s.minimum != 0)


def _show_value(value: Value) -> str:
    contents = "" if value.contents is None else " <" + ", ".join(str(d) for d in value.contents) + ">"
    device = "" if value.device == CPU else f" @{value.device}"
    return f"{show_name(value.name)}: {value.type}{contents}{device}"


def _show_constant(constant: Constant) -> str:
    return _show_data(constant.numpy()) if math.prod(constant.type.sizes) <= INLINE_ELEMENTS else "@"


def _node_lines(graph: Graph, node: Node, indent: str) -> Iterator[str]:
    results = ", ".join(_show_value(graph.values[n]) for n in node.outputs)
    inputs = ", ".join("none" if n is None else show_name(n) for n in node.inputs)
    attrs = ""
    if node.attrs:
        attrs = " {" + ", ".join(f"{k} = {show_attr(v)}" for k, v in node.attrs.items()) + "}"
    yield f"{indent}{results} = {node.op}({inputs}){attrs}{_show_origin(node.origin)}"
    for nested in node.graphs:
        yield from _graph_lines(nested, indent + "  ")


def _show_origin(origin: Origin) -> str:
    parts = (origin.layer, origin.operator, origin.source)
    return " at " + " ".join(json.dumps(p) for p in parts) if any(parts) else ""


def parse_graph(text: str, constants: Mapping[str, Constant] | None = None) -> Graph:
    """Read a graph back. `constants` supplies the large ones by name."""
    from hotfuse.ir.text_reader import Reader

    reader = Reader(text, constants or {})
    graph = reader.graph()
    reader.end()
    return graph


def parse_plan(text: str, constants: Mapping[str, Constant] | None = None) -> Plan:
    from hotfuse.ir.text_reader import Reader

    reader = Reader(text, constants or {})
    plan = reader.plan()
    reader.end()
    return plan
