"""ONNX control flow: If, Loop, Scan."""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.frontends.onnx_node import Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.types import BOOL, I64, TensorType, Type, tensor


@onnx_op("If")
def if_(n: OnnxNode) -> Imported:
    graphs, shared = n.import_graph([n.attr("then_branch"), n.attr("else_branch")], [[], []])
    return n.builder.add_node("if", [n.input(0), *shared], graphs=graphs, outputs=n.num_outputs)


@onnx_op("Loop")
def loop(n: OnnxNode) -> Imported:
    carried = list(n.inputs[2:])
    types = [v.type for v in carried if v is not None]
    for _ in range(8):  # each round loosens a type that the body changes; ranks are small
        graphs, shared = n.import_graph([n.attr("body")], [[tensor(I64), tensor(BOOL), *types]])
        after = [graphs[0].type(name) for name in graphs[0].outputs[1 : 1 + len(types)]]
        looser = [_loosened(a, b, n) for a, b in zip(types, after, strict=True)]
        if looser == types:
            break
        types = looser
    return n.builder.add_node(
        "loop", [n.optional(0), n.optional(1), *carried, *shared], {"carried": len(types)}, graphs=graphs, outputs=n.num_outputs
    )


def _loosened(before: Type, after: Type, n: OnnxNode) -> Type:
    """The type of a carried value that holds before and after one round: sizes that change become symbols of their own."""
    if not (isinstance(before, TensorType) and isinstance(after, TensorType)) or before.shape is None:
        return before
    if after.shape is None or len(after.shape) != len(before.shape):
        return TensorType(before.dtype, None)
    if all(a == b or _is_own(a) for a, b in zip(before.shape, after.shape, strict=True)):
        return before
    return TensorType(
        before.dtype,
        tuple(a if a == b or _is_own(a) else n.builder.fresh() for a, b in zip(before.shape, after.shape, strict=True)),
    )


def _is_own(dim: object) -> bool:
    return str(dim).startswith("?")


@onnx_op("Scan")
def scan(n: OnnxNode) -> Imported:
    if n.version < 9:
        return _batched_scan(n)
    return _add_scan(n, list(n.inputs), n.attr("body"))


def _add_scan(n: OnnxNode, values: Sequence[Value | None], body: object) -> Sequence[Value]:
    scanned = n.attr("num_scan_inputs")
    carried = len(values) - scanned
    outputs = n.num_outputs - carried
    axes = tuple(n.attr("scan_input_axes") or [0] * scanned)
    sources = [v for v in values[carried:] if v is not None]
    types: list[Type] = [v.type for v in values[:carried] if v is not None]
    types += [_without(v.type, axis) for v, axis in zip(sources, axes, strict=True)]
    graphs: Sequence[Graph]
    graphs, shared = n.import_graph([body], [types])
    attrs = {
        "carried": carried,
        "scanned": scanned,
        "input_axes": axes,
        "output_axes": tuple(n.attr("scan_output_axes") or [0] * outputs),
        "input_reversed": tuple(bool(d) for d in n.attr("scan_input_directions") or [0] * scanned),
        "output_reversed": tuple(bool(d) for d in n.attr("scan_output_directions") or [0] * outputs),
    }
    return n.builder.add_node("scan", [*values, *shared], attrs, graphs=graphs, outputs=n.num_outputs)


def _without(type: Type, axis: int) -> Type:
    if isinstance(type, TensorType) and type.shape is not None:
        axis %= len(type.shape)
        return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])
    return type


def _batched_scan(n: OnnxNode) -> Imported:
    from hotfuse.frontends.onnx_node import Decline

    return Decline("Scan of opset 8 has a batch axis of its own")
