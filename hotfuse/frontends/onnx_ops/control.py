"""ONNX control flow: If, Loop, Scan.

A body is imported with the types its inputs have in every round, so that nothing in it rests on a size that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.types import ANY, BOOL, I64, OptionalType, SequenceType, TensorType, Type, tensor

DEEP = 3  # bodies nested deeper are imported once: guesses that each level may refine would multiply


def graph_attr(n: OnnxNode, name: str) -> onnx.GraphProto:
    found = n.attr(name)
    if not isinstance(found, onnx.GraphProto):
        raise InvalidModel(f"{n.op_type}: the graph {name!r} is missing")
    return found


@onnx_op("If")
def if_(n: OnnxNode) -> Imported:
    graphs, shared = n.import_graph([graph_attr(n, "then_branch"), graph_attr(n, "else_branch")], [[], []])
    return n.builder.add_node("if", [n.input(0), *shared], graphs=graphs, outputs=n.num_outputs)


@onnx_op("Loop")
def loop(n: OnnxNode) -> Imported:
    carried = [n.input(i) for i in range(2, len(n.inputs))]
    body = graph_attr(n, "body")
    types: list[Type] = [v.type if n.depth < DEEP else shapeless(v.type) for v in carried]
    loose: set[Dim] = set()
    while True:  # each round loosens a size or a shape that the body changes, so there are few
        graphs, shared = n.import_graph([body], [[tensor(I64), tensor(BOOL), *types]])
        after = [graphs[0].type(name) for name in graphs[0].outputs[1 : 1 + len(types)]]
        if len(after) != len(types):
            raise InvalidModel(f"Loop: {len(types)} values are carried, the body returns {len(after)}")
        looser = [_loosened(a, b, loose, n) for a, b in zip(types, after, strict=True)]
        if looser == types:
            break
        types = looser
    given = [n.optional(0), n.optional(1), *carried, *shared]
    return n.builder.add_node("loop", given, {"carried": len(types)}, graphs=graphs, outputs=n.num_outputs)


def shapeless(type: Type) -> Type:
    """The type of all values that differ from this one in shape only."""
    if isinstance(type, TensorType):
        return TensorType(type.dtype, None)
    return replace(type, element=shapeless(type.element)) if isinstance(type, OptionalType | SequenceType) else type


def _loosened(before: Type, after: Type, loose: set[Dim], n: OnnxNode) -> Type:
    """The type of a carried value that holds before and after one round. Sizes that change become symbols, kept in `loose`."""
    if before == after:
        return before
    if isinstance(before, OptionalType):
        return OptionalType(_loosened(before.element, after.element if isinstance(after, OptionalType) else after, loose, n))
    if isinstance(before, SequenceType) and isinstance(after, SequenceType):
        return SequenceType(_loosened(before.element, after.element, loose, n))
    if ANY in (before, after):
        return ANY
    if not (isinstance(before, TensorType) and isinstance(after, TensorType)) or before.dtype != after.dtype:
        raise InvalidModel(f"Loop: a carried value is {before} before a round of the body and {after} after it")
    if before.shape is None or after.shape is None or len(after.shape) != len(before.shape):
        return TensorType(before.dtype, None)
    shape = []
    for old, new in zip(before.shape, after.shape, strict=True):
        if old != new and old not in loose:
            old = n.builder.fresh()
            loose.add(old)
        shape.append(old)
    return TensorType(before.dtype, tuple(shape))


@onnx_op("Scan")
def scan(n: OnnxNode) -> Imported:
    if n.version < 9:
        return _batched_scan(n)
    values = [n.input(i) for i in range(len(n.inputs))]
    carried, attrs = _scan_attrs(n, len(values))
    types = [v.type for v in values[:carried]]
    types += [_without(v.type, axis) for v, axis in zip(values[carried:], attrs["input_axes"], strict=True)]
    graphs, shared = n.import_graph([graph_attr(n, "body")], [types])
    return n.builder.add_node("scan", [*values, *shared], attrs, graphs=graphs, outputs=n.num_outputs)


def _scan_attrs(n: OnnxNode, count: int) -> tuple[int, dict[str, Any]]:
    scanned = n.attr("num_scan_inputs")
    if not isinstance(scanned, int) or not 0 < scanned <= count:
        raise InvalidModel(f"Scan: of {count} inputs {scanned} are to be scanned; that must be at least one, and not more")
    carried = count - scanned
    outputs = n.num_outputs - carried
    return carried, {
        "carried": carried,
        "scanned": scanned,
        "input_axes": tuple(n.attr("scan_input_axes") or [0] * scanned),
        "output_axes": tuple(n.attr("scan_output_axes") or [0] * outputs),
        "input_reversed": tuple(bool(d) for d in n.attr("scan_input_directions", n.attr("directions")) or [0] * scanned),
        "output_reversed": tuple(bool(d) for d in n.attr("scan_output_directions") or [0] * outputs),
    }


def _without(type: Type, axis: int) -> Type:
    if isinstance(type, TensorType) and type.shape:
        axis %= len(type.shape)
        return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])
    return type


def _batched_scan(n: OnnxNode) -> Imported:
    """Scan of opset 8: a scan over the batch, whose body is the scan over time."""
    if n.has(0):
        return Decline("Scan of opset 8 with sequence lengths has results of undefined value")
    values = [n.input(i) for i in range(1, len(n.inputs))]
    carried, attrs = _scan_attrs(n, len(values))
    one_batch = [_without(v.type, 0) for v in values]
    types = [*one_batch[:carried], *(_without(t, 0) for t in one_batch[carried:])]
    graphs, shared = n.import_graph([graph_attr(n, "body")], [types])
    outer = _over_time(n, graphs, one_batch, shared, attrs)
    every = {"carried": 0, "scanned": len(values), "input_axes": (0,) * len(values), "output_axes": (0,) * n.num_outputs}
    every |= {"input_reversed": (False,) * len(values), "output_reversed": (False,) * n.num_outputs}
    return n.builder.add_node("scan", [*values, *shared], every, graphs=[outer], outputs=n.num_outputs)


def _over_time(
    n: OnnxNode, body: Sequence[Graph], types: Sequence[Type], shared: Sequence[Value], attrs: dict[str, Any]
) -> Graph:
    """The graph that scans one batch."""
    builder = GraphBuilder(f"{body[0].name}.batch", n.builder.fresh)
    builder.origin = n.builder.origin
    inputs = [builder.input(f"batch_{i}", type) for i, type in enumerate(types)]
    inputs += [replace(builder.input(builder.unique(v.name), v.type), device=v.device) for v in shared]
    return builder.build(builder.add_node("scan", inputs, attrs, graphs=body, outputs=n.num_outputs))
