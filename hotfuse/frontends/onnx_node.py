"""What an ONNX operator's importer sees: one node with its attributes, its opset version, and the builder to write to.

An importer is a function `OnnxNode -> Value | sequence of Values`, registered with `@onnx_op("Gemm")`. It writes IR nodes with
`n.add(...)` and answers `DECLINE` where it does not cover a case; the node then goes to onnx's function body, or stays opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from hotfuse.errors import InvalidModel
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Constant, Graph, Value
from hotfuse.ir.types import DTYPES, DType, TensorType
from hotfuse.records import dataclass


class Decline:
    """An importer's answer for a case it does not cover; `reason` appears in the report."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


Imported = Value | None | Sequence[Value | None] | Decline
Importer = Callable[["OnnxNode"], Imported]
IMPORTERS: dict[tuple[str, str], Importer] = {}

P = onnx.TensorProto
ONNX_DTYPES: dict[int, DType] = {
    number: DTYPES[name]
    for number, name in {
        P.FLOAT: "f32", P.DOUBLE: "f64", P.FLOAT16: "f16", P.BFLOAT16: "bf16",
        P.FLOAT8E4M3FN: "f8e4m3fn", P.FLOAT8E4M3FNUZ: "f8e4m3fnuz", P.FLOAT8E5M2: "f8e5m2", P.FLOAT8E5M2FNUZ: "f8e5m2fnuz",
        P.FLOAT8E8M0: "f8e8m0", P.FLOAT4E2M1: "f4e2m1",
        P.INT64: "i64", P.INT32: "i32", P.INT16: "i16", P.INT8: "i8", P.INT4: "i4", P.INT2: "i2",
        P.UINT64: "u64", P.UINT32: "u32", P.UINT16: "u16", P.UINT8: "u8", P.UINT4: "u4", P.UINT2: "u2",
        P.BOOL: "bool", P.STRING: "string", P.COMPLEX64: "c64", P.COMPLEX128: "c128",
    }.items()
}  # fmt: skip


def onnx_op(*names: str, domain: str = "") -> Callable[[Importer], Importer]:
    """Register an importer for ONNX operators of these names."""

    def register(importer: Importer) -> Importer:
        for name in names:
            if (domain, name) in IMPORTERS:
                raise ValueError(f"ONNX operator {name} has two importers")
            IMPORTERS[domain, name] = importer
        return importer

    return register


@dataclass
class OnnxNode:
    """One ONNX node as its importer sees it."""

    proto: onnx.NodeProto
    version: int  # opset version of its domain
    builder: GraphBuilder
    inputs: list[Value | None]  # absent optional inputs are None, also at the end
    attributes: dict[str, Any]  # decoded: numbers, strings, lists, numpy arrays, GraphProtos
    import_graph: Callable[..., tuple[list[Graph], list[Value]]]  # for control flow; see onnx_graph
    depth: int = 0  # graphs and function bodies around the node

    @property
    def op_type(self) -> str:
        return str(self.proto.op_type)

    @property
    def num_outputs(self) -> int:
        return len(self.proto.output)

    def wants(self, i: int) -> bool:
        """Whether output i is used (it has a name)."""
        return i < len(self.proto.output) and bool(self.proto.output[i])

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> Value:
        """Input i, which must be there."""
        if not self.has(i):
            raise InvalidModel(f"{self.op_type}: input {i} is missing")
        found = self.inputs[i]
        assert found is not None
        return found

    def optional(self, i: int) -> Value | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def type(self, i: int) -> TensorType:
        found = self.input(i).type
        if not isinstance(found, TensorType):
            raise InvalidModel(f"{self.op_type}: input {i} must be a tensor, not {found}")
        return found

    def dtype(self, i: int = 0) -> DType:
        return self.type(i).dtype

    def rank(self, i: int = 0) -> int | None:
        return self.type(i).rank

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute. ONNX has numbers as float32, so a default is rounded as one that is written out would be."""
        if name not in self.attributes and isinstance(default, float):
            return float(np.float32(default))
        return self.attributes.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise InvalidModel(f"{self.op_type}: the attribute {name!r} is missing")
        return self.attributes[name]

    def ints(self, i: int) -> tuple[int, ...] | None:
        """The elements of input i where they are known now (constants and shape arithmetic with plain numbers)."""
        value = self.optional(i)
        if value is None or value.contents is None or not all(isinstance(d, int) for d in value.contents):
            return None
        return value.contents  # type: ignore[return-value]

    def constant_of(self, i: int) -> np.ndarray[Any, Any] | None:
        """Input i as an array if it is a constant of the model."""
        value = self.optional(i)
        if value is None or value.name not in self.builder.constants:
            return None
        return self.builder.constants[value.name].numpy()

    def add(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        return self.builder.add(op, *inputs, **attrs)

    def add_many(self, op: str, inputs: Sequence[Value | None], outputs: int, **attrs: Any) -> tuple[Value, ...]:
        return self.builder.add_node(op, inputs, attrs, outputs=outputs)

    def constant(self, data: Any, dtype: DType | None = None) -> Value:
        return self.builder.constant(np.asarray(data, dtype=None if dtype is None else dtype.numpy))

    def scalar(self, number: float, like: Value) -> Value:
        """A scalar constant of the same element type as `like`."""
        assert isinstance(like.type, TensorType)
        return self.builder.constant(Constant.of(np.array(number, dtype=like.type.dtype.numpy)))
