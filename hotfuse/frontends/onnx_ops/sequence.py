"""ONNX operators over sequences and optional values."""

from __future__ import annotations

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import ONNX_DTYPES, Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.control import shapeless
from hotfuse.frontends.onnx_types import type_from_proto
from hotfuse.ir.op import FreshSymbols
from hotfuse.ir.types import F32, Type


@onnx_op("SequenceConstruct")
def sequence_construct(n: OnnxNode) -> Imported:
    return n.add("sequence", *n.inputs)


@onnx_op("SequenceEmpty")
def sequence_empty(n: OnnxNode) -> Imported:
    number = n.attr("dtype")
    if number is not None and number not in ONNX_DTYPES:
        raise InvalidModel(f"SequenceEmpty: {number} is no element type")
    return n.add("sequence", element=F32 if number is None else ONNX_DTYPES[number])


@onnx_op("SequenceInsert")
def sequence_insert(n: OnnxNode) -> Imported:
    return n.add("sequence_insert", n.input(0), n.input(1), n.optional(2))


@onnx_op("SequenceErase")
def sequence_erase(n: OnnxNode) -> Imported:
    return n.add("sequence_erase", n.input(0), n.optional(1))


@onnx_op("SequenceAt")
def sequence_at(n: OnnxNode) -> Imported:
    return n.add("sequence_at", n.input(0), n.input(1))


@onnx_op("SequenceLength")
def sequence_length(n: OnnxNode) -> Imported:
    return n.add("sequence_length", n.input(0))


@onnx_op("SplitToSequence")
def split_to_sequence(n: OnnxNode) -> Imported:
    attrs = {"axis": n.attr("axis", 0), "keepdims": bool(n.attr("keepdims", 1))}
    return n.add("split_to_sequence", n.input(0), n.optional(1), **attrs)


@onnx_op("ConcatFromSequence")
def concat_from_sequence(n: OnnxNode) -> Imported:
    return n.add("concat_from_sequence", n.input(0), axis=n.attr("axis"), new_axis=bool(n.attr("new_axis", 0)))


@onnx_op("Optional")
def optional(n: OnnxNode) -> Imported:
    if n.has(0):
        return n.add("optional", n.input(0))
    if n.attr("type") is None:
        raise InvalidModel("Optional: without an input the type of the value must be given")
    return n.add("optional", None, element=_element(n.attr("type")))


def _element(proto: object) -> Type:
    """The type an empty optional may hold; it has no sizes."""
    return shapeless(type_from_proto(proto, FreshSymbols()))  # type: ignore[arg-type]


@onnx_op("OptionalGetElement")
def optional_get(n: OnnxNode) -> Imported:
    return n.add("optional_get", n.input(0))


@onnx_op("OptionalHasElement")
def optional_has(n: OnnxNode) -> Imported:
    return n.add("optional_has", n.optional(0))
