"""What an ATen operator's importer sees: one call with its arguments in schema order, and the builder to write to.

An importer is a function `(TorchNode, *arguments) -> Value | sequence of Values | Decline`, registered with
`@aten("aten.mm.default")`. Its arguments are all of the operator's schema, defaults filled in. Tensors come as `Value`,
sizes as dims, numbers that only running the model reveals as `Number`. Answering `Decline`, or raising an error of ours,
leaves the node opaque with that reason.

Torch promotes element types implicitly, the IR never does: importers cast to the type the computation has. The result's type is
known from tracing (`meta["val"]`), and what an importer built is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
import torch

from hotfuse.errors import DimError, UnsupportedModel
from hotfuse.frontends.torch_dim import dim_from_torch
from hotfuse.frontends.torch_tensor import TO_TORCH, dtype_from_torch
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim, Expr, symbols_of
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, F32, F64, I64, DType, Shape, TensorType, Type
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Decline:
    """An importer's answer for a case it does not cover; `reason` appears in the report."""

    reason: str


@dataclass(frozen=True)
class Number:
    """A Python number that only running the model reveals; `value` is a 0-d tensor that holds it."""

    value: Value


Imported: TypeAlias = Value | Sequence[Any] | Decline
Importer: TypeAlias = Callable[..., Imported]
Scalar: TypeAlias = bool | int | float | complex | Expr | Number
IMPORTERS: dict[str, Importer] = {}
COMPOSITES: dict[str, Importer] = {}  # of operators that torch takes apart where these decline


def aten(*names: str) -> Callable[[Importer], Importer]:
    """Register an importer for ATen operators of these names (`aten.add.Tensor`)."""

    def register(importer: Importer) -> Importer:
        for name in names:
            if name in IMPORTERS:
                raise ValueError(f"{name} has two importers")
            IMPORTERS[name] = importer
        return importer

    return register


def composite(*names: str) -> Callable[[Importer], Importer]:
    """Register an importer for operators that torch makes of others."""

    def register(importer: Importer) -> Importer:
        COMPOSITES.update(dict.fromkeys(names, importer))
        return importer

    return register


@dataclass
class TorchNode:
    """One call of an ATen operator as its importer sees it."""

    name: str  # aten.add.Tensor
    builder: GraphBuilder
    expected: tuple[Type | None, ...]  # the types tracing found, one per result; None where a result is not a tensor
    unbacked: frozenset[str] = field(default_factory=frozenset)  # symbols that are not known when a plan is bound
    used: frozenset[int] | None = None  # which results are read; None when all may be

    def uses(self, i: int) -> bool:
        """Whether anything reads result i."""
        return self.used is None or i in self.used

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        found = self.expected[0] if self.expected else None
        if not isinstance(found, TensorType):
            raise UnsupportedModel(f"{self.name}: its first result is not a tensor")
        return found

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return known_shape(self.type)

    def add(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        return self.builder.add(op, *inputs, **attrs)

    def add_many(self, op: str, inputs: Sequence[Value | None], outputs: int, **attrs: Any) -> tuple[Value, ...]:
        return self.builder.add_node(op, inputs, attrs, outputs=outputs)

    def cast(self, value: Value, to: DType) -> Value:
        """`value` with elements of type `to`."""
        return value if dtype_of_value(value) == to else self.add("cast", value, to=to)

    def constant(self, data: Any, dtype: DType) -> Value:
        return self.builder.constant(np.asarray(data, dtype=dtype.numpy))

    def dims(self, dims: Sequence[Dim], scalar: bool = False) -> Value:
        """An int64 tensor of sizes. Sizes that depend on data cannot be written down before a call."""
        if any(s.name in self.unbacked for s in symbols_of(dims)):
            raise DimError(f"{self.name}: a size depends on data")
        return self.builder.dims(dims, scalar)

    def number(self, number: Scalar, dtype: DType) -> Value:
        """A Python number as a 0-d tensor."""
        if isinstance(number, Number):
            return self.cast(number.value, dtype)
        if isinstance(number, Expr):
            return self.cast(self.dims((number,), scalar=True), dtype)
        if not _fits(number, dtype):
            raise UnsupportedModel(f"{self.name}: the number {number} does not fit {dtype}")
        with np.errstate(over="ignore"):
            return self.constant(number, dtype)

    def operand(self, argument: Value | Scalar, dtype: DType) -> Value:
        """A tensor or number as a tensor of type `dtype`."""
        return self.cast(argument, dtype) if isinstance(argument, Value) else self.number(argument, dtype)


def _fits(number: int | float | complex, dtype: DType) -> bool:
    """Whether a number can be an element of this type at all (rounding a fraction is fine, dropping one is not)."""
    if isinstance(number, complex):
        return dtype.kind == "complex"
    if not dtype.is_integer:
        return True
    if isinstance(number, float) and not number.is_integer():
        return False
    info = np.iinfo(dtype.numpy)
    return bool(info.min <= int(number) <= info.max)


def tensor_type(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise UnsupportedModel(f"value {value.name} must be a tensor, not {value.type}")
    return value.type


def dtype_of_value(value: Value) -> DType:
    return tensor_type(value).dtype


def known_shape(type: TensorType) -> Shape:
    if type.shape is None:
        raise UnsupportedModel("the rank of a value is not known")
    return type.shape


def shape_of_value(value: Value) -> Shape:
    return known_shape(tensor_type(value))


def rank_of(value: Value) -> int:
    return len(shape_of_value(value))


def axis_of(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def promoted(*arguments: Value | Scalar) -> DType:
    """The element type torch computes a binary operator in: its own promotion rules, asked on empty tensors."""
    return (
        dtype_from_torch(torch.result_type(*(_example(a) for a in arguments)))
        if len(arguments) == 2
        else _promote_all(arguments)
    )


def _promote_all(arguments: Sequence[Value | Scalar]) -> DType:
    state = torch.result_type(_example(arguments[0]), _example(arguments[0]))
    for argument in arguments[1:]:
        state = torch.result_type(torch.empty((1,), dtype=state), _example(argument))
    return dtype_from_torch(state)


def _example(argument: Value | Scalar) -> Any:
    """Something that takes part in promotion as the argument does: the rank decides whether a tensor counts as a scalar."""
    if isinstance(argument, Value):
        shape = (0,) if rank_of(argument) else ()
        return torch.empty(shape, dtype=TO_TORCH[dtype_of_value(argument).name])
    if isinstance(argument, Number):
        dtype = dtype_of_value(argument.value)
        return True if dtype is BOOL else 1.0 if dtype.is_float else 1
    return 1 if isinstance(argument, Expr) else argument


def opmath(dtype: DType) -> DType:
    """The type torch computes an operator in: half and 8-bit floats are widened to float32."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def type_from_meta(val: Any) -> Type | None:
    """The type of one traced result; None for what is not a tensor."""
    if isinstance(val, torch.Tensor):
        if val.layout is not torch.strided:
            raise UnsupportedModel(f"tensors of layout {val.layout} are not covered")
        if val.device.type != "cpu" or val.is_quantized:
            raise UnsupportedModel(f"tensors on {val.device} of type {val.dtype} are not covered")
        return TensorType(dtype_from_torch(val.dtype), tuple(dim_from_torch(d) for d in val.shape))
    if isinstance(val, (bool, torch.SymBool)):
        return TensorType(BOOL, ())
    if isinstance(val, (int, torch.SymInt)):
        return TensorType(I64, ())
    if isinstance(val, (float, torch.SymFloat)):
        return TensorType(F64, ())
    return None
