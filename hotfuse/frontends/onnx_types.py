"""ONNX types and ours, both ways. A dimension that ONNX leaves open becomes a symbol of its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import onnx
from onnx import helper

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import ONNX_DTYPES
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.types import ANY, MapType, OptionalType, SequenceType, TensorType, Type


def type_from_proto(proto: onnx.TypeProto, fresh: Callable[[], Dim], name: str = "") -> Type:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        if tensor.elem_type == onnx.TensorProto.UNDEFINED:
            return ANY
        if tensor.elem_type not in ONNX_DTYPES:
            raise InvalidModel(f"value {name!r} has the unknown element type {tensor.elem_type}")
        shape = tuple(_dim(d, fresh, name) for d in tensor.shape.dim) if tensor.HasField("shape") else None
        return TensorType(ONNX_DTYPES[tensor.elem_type], shape)
    if kind == "sequence_type":
        return SequenceType(type_from_proto(proto.sequence_type.elem_type, fresh, name))
    if kind == "optional_type":
        return OptionalType(type_from_proto(proto.optional_type.elem_type, fresh, name))
    if kind == "map_type":
        return MapType(ONNX_DTYPES[proto.map_type.key_type], type_from_proto(proto.map_type.value_type, fresh, name))
    return ANY


def check_declared(what: str, declared: Type, found: Type) -> None:
    """Refuse a declaration that contradicts what the graph computes; where either says nothing, there is no contradiction."""
    if not _agree(declared, found):
        raise InvalidModel(f"{what} is declared as {declared}, but the graph computes {found}; correct the declaration")


def _agree(declared: Type, found: Type) -> bool:
    if isinstance(declared, OptionalType):
        return _agree(declared.element, found)
    if isinstance(found, OptionalType):  # which may hold what is declared
        return _agree(declared, found.element)
    if declared is ANY or found is ANY:
        return True
    if isinstance(declared, TensorType) and isinstance(found, TensorType):
        return declared.dtype == found.dtype and _shapes_agree(declared.shape, found.shape)
    if isinstance(declared, SequenceType) and isinstance(found, SequenceType):
        return _agree(declared.element, found.element)
    return type(declared) is type(found)


def _shapes_agree(one: tuple[Dim, ...] | None, other: tuple[Dim, ...] | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if isinstance(a, int) and isinstance(b, int)
    )


def _dim(dim: onnx.TensorShapeProto.Dimension, fresh: Callable[[], Dim], name: str) -> Dim:
    if dim.HasField("dim_value"):
        if dim.dim_value < 0:
            if not name:  # onnx's own inference says -1 for what it does not know; only the model's declarations have names
                return fresh()
            raise InvalidModel(f"value {name!r} has the negative size {dim.dim_value}")
        return int(dim.dim_value)
    if dim.dim_param:
        if not isinstance(dim.dim_param, str):
            raise InvalidModel(f"value {name!r} has a size whose name is not text (UTF-8)")
        return symbol(_symbol_name(dim.dim_param))
    return fresh()


def _symbol_name(text: str) -> str:
    """A dim_param as a symbol. What the text form of dims cannot hold is replaced, and a checksum keeps such names apart."""
    name = "".join(c if c.isalnum() or c in "_." else "_" for c in text)
    name = name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
    return name if name == text and name.isascii() else f"{name}_{zlib.crc32(text.encode()):x}"


def type_to_proto(type: Type) -> onnx.TypeProto:
    if isinstance(type, TensorType):
        number = next(k for k, v in ONNX_DTYPES.items() if v == type.dtype)
        shape = None if type.shape is None else [d if isinstance(d, int) else None for d in type.shape]
        return helper.make_tensor_type_proto(number, shape)
    if isinstance(type, SequenceType):
        return helper.make_sequence_type_proto(type_to_proto(type.element))
    if isinstance(type, OptionalType):
        return helper.make_optional_type_proto(type_to_proto(type.element))
    if isinstance(type, MapType):
        key = next(k for k, v in ONNX_DTYPES.items() if v == type.key)
        return helper.make_map_type_proto(key, type_to_proto(type.value))
    return onnx.TypeProto()
