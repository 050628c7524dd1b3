"""Types of values: element types, tensor shapes, and the sequence, optional and map types that flow between opaque nodes.

`TensorType.shape` is a tuple of dims; it is None when not even the rank is known. There are no unknown dims: a size nobody
knows yet is a symbol of its own.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import numpy as np

from hotfuse.errors import DimError, InvalidModel
from hotfuse.ir.dim import Dim
from hotfuse.records import dataclass

Shape: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `kind` is one of float, int, uint, bool, complex, string."""

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type that holds it (from ml_dtypes where numpy itself has none)."""
        return _numpy_dtype(self.name)

    @property
    def bytes(self) -> int:
        """Bytes of one element as tier 0 stores it; 2- and 4-bit types take a whole byte there."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or one that came over a pipe, is the same object: element types are compared by identity."""
        return _named, (self.name,)


def _named(name: str) -> DType:
    return DTYPES[name]


def _make(kind: str, *specs: tuple[str, int]) -> list[DType]:
    return [DType(name, kind, bits) for name, bits in specs]


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        *_make("float", ("f64", 64), ("f32", 32), ("f16", 16), ("bf16", 16)),
        *_make("float", ("f8e4m3fn", 8), ("f8e4m3fnuz", 8), ("f8e5m2", 8), ("f8e5m2fnuz", 8), ("f8e8m0", 8), ("f4e2m1", 4)),
        *_make("int", ("i64", 64), ("i32", 32), ("i16", 16), ("i8", 8), ("i4", 4), ("i2", 2)),
        *_make("uint", ("u64", 64), ("u32", 32), ("u16", 16), ("u8", 8), ("u4", 4), ("u2", 2)),
        *_make("complex", ("c64", 64), ("c128", 128)),
        DType("bool", "bool", 8),
        DType("string", "string", 64),
    )
}

F64, F32, F16, BF16 = (DTYPES[n] for n in ("f64", "f32", "f16", "bf16"))
I64, I32, I16, I8 = (DTYPES[n] for n in ("i64", "i32", "i16", "i8"))
U64, U32, U16, U8 = (DTYPES[n] for n in ("u64", "u32", "u16", "u8"))
BOOL, STRING, C64, C128 = (DTYPES[n] for n in ("bool", "string", "c64", "c128"))

_NUMPY_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool", "c64": "complex64",
    "c128": "complex128", "string": "object",
}  # fmt: skip
_ML_NAMES = {
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
    "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}  # fmt: skip


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[name])
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_NAMES[name]))
    return found


@functools.cache
def _names_by_numpy() -> dict[np.dtype[Any], DType]:
    return {d.numpy: d for d in DTYPES.values()}


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The element type of a numpy array (str and bytes arrays are strings)."""
    if array.dtype.kind in "US":
        return STRING
    found = _names_by_numpy().get(array.dtype.newbyteorder("="))
    if found is None:
        raise InvalidModel(f"numpy type {array.dtype} has no counterpart here; convert the array first")
    return found


@dataclass(frozen=True, slots=True)
class TensorType:
    dtype: DType
    shape: Shape | None

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join(str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as plain numbers."""
        if self.shape is None:
            raise DimError(f"the sizes of {self} are not known")
        for dim in self.shape:
            if not isinstance(dim, int):
                raise DimError(f"the sizes of {self} are not all known")
        return self.shape  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class SequenceType:
    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    element: Type

    def __str__(self) -> str:
        return f"opt<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class AnyType:
    """Nothing is known: what some opaque nodes return until they have run."""

    def __str__(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class SizeType:
    """A whole number that a call passes as a plain integer. Plans are bound to its value as they are to a shape."""

    value: int

    def __str__(self) -> str:
        return f"size {self.value}"


ANY = AnyType()
Type: TypeAlias = TensorType | SequenceType | OptionalType | MapType | AnyType | SizeType


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, shape)


def numel(shape: Shape) -> Dim:
    total: Dim = 1
    for dim in shape:
        total = total * dim
    return total


def type_of(array: np.ndarray[Any, Any]) -> TensorType:
    return TensorType(dtype_of(array), tuple(int(d) for d in array.shape))
