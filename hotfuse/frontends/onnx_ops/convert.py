"""ONNX constants, casts and quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import ONNX_DTYPES, Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, U8, DType, TensorType


def cast_to(n: OnnxNode, value: Value, to: DType) -> Value:
    """`value` as `to`; nothing is added where it has that type already."""
    assert isinstance(value.type, TensorType)
    return value if value.type.dtype == to else n.add("cast", value, to=to)


def dtype_attr(n: OnnxNode, name: str, default: DType | None = None) -> DType | None:
    """An attribute that names an element type (0 stands for none; the first opset wrote its name)."""
    number = n.attr(name)
    if not number:
        return default
    if isinstance(number, str):
        number = dict(onnx.TensorProto.DataType.items()).get(number, number)
    if number not in ONNX_DTYPES:
        raise InvalidModel(f"{n.op_type}: attribute {name!r} is the unknown element type {number!r}")
    return ONNX_DTYPES[number]


def _target(n: OnnxNode) -> DType:
    found = dtype_attr(n, "to")
    if found is None:
        raise InvalidModel(f"{n.op_type}: the attribute 'to' is missing")
    return found


@onnx_op("Constant")
def constant(n: OnnxNode) -> Imported:
    if len(n.attributes) != 1:
        raise InvalidModel(f"Constant must have exactly one value, it has {sorted(n.attributes) or 'none'}")
    ((kind, value),) = n.attributes.items()
    if kind in ("value", "sparse_value"):
        return n.builder.constant(value)
    dtypes: dict[str, Any] = {
        "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
        "value_string": object, "value_strings": object,
    }  # fmt: skip
    return n.builder.constant(np.array(value, dtype=dtypes[kind]))


@onnx_op("Identity")
def identity(n: OnnxNode) -> Imported:
    return n.input(0)


@onnx_op("Cast")
def cast(n: OnnxNode) -> Imported:
    to = _target(n)
    return _cast(n, to)


@onnx_op("CastLike")
def cast_like(n: OnnxNode) -> Imported:
    return _cast(n, n.dtype(1))


def _cast(n: OnnxNode, to: DType) -> Imported:
    x = n.input(0)
    if n.dtype(0) == to:
        return x
    attrs: dict[str, Any] = {} if n.attr("saturate", 1) else {"saturate": False}
    if to.name == "f8e8m0":
        attrs["rounding"] = n.attr("round_mode", "up")
    return n.add("cast", x, to=to, **attrs)


@onnx_op("BitCast")
def bitcast(n: OnnxNode) -> Imported:
    to = _target(n)
    return n.add("bitcast", n.input(0), to=to)


@onnx_op("QuantizeLinear")
def quantize_linear(n: OnnxNode) -> Imported:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    to = n.dtype(2) if zero is not None else dtype_attr(n, "output_dtype", U8)
    precision = dtype_attr(n, "precision")
    if precision is not None:
        scale = cast_to(n, scale, precision)
    attrs = {"axis": n.attr("axis", 1), "block": n.attr("block_size", 0), "saturate": bool(n.attr("saturate", 1))}
    return n.add("quantize", x, scale, zero, to=to, **attrs)


@onnx_op("DequantizeLinear")
def dequantize_linear(n: OnnxNode) -> Imported:
    to = dtype_attr(n, "output_dtype", n.dtype(1))
    attrs = {"axis": n.attr("axis", 1), "block": n.attr("block_size", 0)}
    return n.add("dequantize", n.input(0), n.input(1), n.optional(2), to=to, **attrs)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: OnnxNode) -> Imported:
    """Scale and zero point from the range of the data, which always includes 0."""
    x = n.input(0)
    if n.dtype(0) is not F32:
        return Decline("DynamicQuantizeLinear is defined for float32")
    zero, top = n.scalar(0.0, x), n.scalar(255.0, x)
    low = n.add("minimum", n.add("reduce_min", x, axes=None, keepdims=False), zero)
    high = n.add("maximum", n.add("reduce_max", x, axes=None, keepdims=False), zero)
    scale = n.add("div", n.add("sub", high, low), top)
    place = n.add("div", n.add("sub", zero, low), scale)
    zero_point = n.add("cast", n.add("round", n.add("clip", place, zero, top)), to=U8)
    return n.add("quantize", x, scale, zero_point, to=U8), scale, zero_point
