"""ONNX tensors as constants, by reference where the format allows.

The data of a TensorProto is in one of three places: `raw_data`, typed fields (`float_data`, ...), or external, in a file.
External data becomes a `MappedArray`: nothing of it is read before it is used.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from hotfuse.errors import InvalidModel, LimitExceeded
from hotfuse.file_map import FilePart, part_of
from hotfuse.frontends.onnx_external import DataFiles
from hotfuse.frontends.onnx_node import ONNX_DTYPES
from hotfuse.ir.graph import Constant
from hotfuse.ir.types import STRING, DType, TensorType

Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 1 << 62  # products of sizes stay below this, so that no size in bytes overflows 64 bits
NOWHERE = DataFiles()


class MappedArray:
    """A tensor that lies in a mapped file. State: a copy, from the first use on, where the bytes cannot serve as they are."""

    __slots__ = ("_array", "_data", "_type", "_where")

    def __init__(self, data: memoryview, type: TensorType, where: str) -> None:
        self._data = data
        self._type = type
        self._where = where
        self._array: Array | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._array is None:  # two threads may both get here; both make the same array
            array = _decode(self._data, self._type, self._where)
            self._array = array if array.flags.aligned else array.copy()  # BLAS would copy an unaligned one on every call
        wanted = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return wanted.copy() if copy else wanted

    def glance(self) -> Array:
        """The array without a copy that stays, maybe not aligned."""
        return _decode(self._data, self._type, self._where) if self._array is None else self._array

    def part(self) -> FilePart | None:
        """Where its bytes lie, if they are those of the array."""
        plain = self._type.dtype.bits >= 8 and sys.byteorder == "little"
        return part_of(self._data) if plain else None

    def release(self) -> None:
        """Give the pages of the mapped file back to the system; they come again when somebody looks."""
        mapping = self._data.obj
        if not isinstance(mapping, mmap.mmap) or not hasattr(mapping, "madvise"):
            return
        whole = np.frombuffer(mapping, np.uint8).ctypes.data
        first = np.frombuffer(self._data, np.uint8).ctypes.data - whole
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (first + len(self._data)) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            mapping.madvise(mmap.MADV_DONTNEED, start, length)


def tensor_constant(tensor: onnx.TensorProto, files: DataFiles = NOWHERE) -> Constant:
    """The constant a TensorProto holds; `files` has the data that is external."""
    where = f"tensor {tensor.name!r}"
    type = tensor_type(tensor, where)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if type.dtype is STRING:
            raise InvalidModel(f"{where} keeps strings in external data, which ONNX does not allow")
        data = files.bytes_of(tensor, stored_bytes(type))
        if len(data) == 0:
            return Constant(_decode(data, type, where), type)
        return Constant(MappedArray(data, type, where), type)
    if type.dtype is STRING:
        return Constant(_strings(tensor, type, where), type)
    if tensor.HasField("raw_data"):
        return Constant(_decode(tensor.raw_data, type, where), type)
    try:
        return Constant(numpy_helper.to_array(tensor), type)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidModel(f"{where} of type {type} does not have the data its shape asks for: {error}") from None


def tensor_type(tensor: onnx.TensorProto, where: str) -> TensorType:
    """The type of a TensorProto, once its sizes are known to make sense."""
    if tensor.data_type not in ONNX_DTYPES:
        raise InvalidModel(f"{where} has the unknown element type {tensor.data_type}")
    return TensorType(ONNX_DTYPES[tensor.data_type], _checked_shape(tensor.dims, where))


def _checked_shape(dims: Any, where: str) -> tuple[int, ...]:
    shape = tuple(int(d) for d in dims)
    if len(shape) > 64:
        raise InvalidModel(f"{where} has {len(shape)} dimensions; arrays have at most 64")
    if any(d < 0 for d in shape):
        raise InvalidModel(f"{where} has a negative size in its shape {list(shape)}")
    if math.prod(d for d in shape if d) > MAX_ELEMENTS:
        raise InvalidModel(f"{where} of shape {list(shape)} has more elements than can be counted")
    return shape


def stored_bytes(type: TensorType) -> int:
    """Bytes the format takes for a tensor; 2- and 4-bit elements are packed."""
    return -(-math.prod(type.sizes) * type.dtype.bits // 8)


def _decode(data: bytes | memoryview, type: TensorType, where: str) -> Array:
    """An array over the bytes (a new one for packed elements). The format is little-endian."""
    if len(data) != stored_bytes(type):
        raise InvalidModel(f"{where} of type {type} takes {stored_bytes(type):,} bytes, its data has {len(data):,}")
    if type.dtype.bits < 8:
        return _unpack(np.frombuffer(data, dtype=np.uint8), type.dtype, math.prod(type.sizes)).reshape(type.sizes)
    array: Array = np.frombuffer(data, dtype=type.dtype.numpy)
    return (array.byteswap() if sys.byteorder == "big" else array).reshape(type.sizes)


def _unpack(packed: Array, dtype: DType, count: int) -> Array:
    """Elements of 2 or 4 bits, the first in the lowest bits of each byte."""
    per_byte = 8 // dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(dtype.bits)
    codes: Array = ((packed[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)).reshape(-1)[:count]
    if dtype.kind == "int":
        sign = np.uint8(1 << dtype.bits - 1)
        signed: Array = (codes ^ sign).astype(np.int8) - np.int8(sign)
        return signed.astype(dtype.numpy)
    return codes.view(dtype.numpy) if dtype.kind == "float" else codes.astype(dtype.numpy)


def _strings(tensor: onnx.TensorProto, type: TensorType, where: str) -> Array:
    expected = math.prod(type.sizes)
    if len(tensor.string_data) != expected:
        raise InvalidModel(f"{where} of type {type} has {len(tensor.string_data):,} strings instead of {expected:,}")
    array: Array = np.array([s.decode("utf-8", "surrogateescape") for s in tensor.string_data], dtype=object)
    return array.reshape(type.sizes)


def sparse_constant(sparse: onnx.SparseTensorProto, files: DataFiles, limit: int) -> Constant:
    """A sparse tensor written out, if it is not larger than `limit` bytes."""
    where = f"sparse tensor {sparse.values.name!r}"
    values = tensor_constant(sparse.values, files).numpy()
    indices = tensor_constant(sparse.indices, files).numpy()
    shape = _checked_shape(sparse.dims, where)
    size = math.prod(shape) * values.dtype.itemsize
    if size > limit:
        raise LimitExceeded(
            f"{where} would take {size:,} bytes; the limit is {limit:,} (raise max_value_bytes if the model is right)"
        )
    dense = np.zeros(shape, dtype=values.dtype)
    places = indices.reshape(-1, 1) if indices.ndim == 1 else indices
    bounds = np.array([dense.size] if indices.ndim == 1 else shape)
    if indices.dtype.kind != "i" or places.shape != (values.size, len(bounds)) or ((places < 0) | (places >= bounds)).any():
        raise InvalidModel(f"{where} of shape {list(shape)} has indices that do not fit it")
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(places.T)] = values
    return Constant.of(dense)


def embed_external(tensor: onnx.TensorProto, files: DataFiles) -> None:
    """Put external data into the tensor itself, for readers other than ours."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        where = f"tensor {tensor.name!r}"
        data = bytes(files.bytes_of(tensor, stored_bytes(tensor_type(tensor, where))))
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        tensor.raw_data = data
