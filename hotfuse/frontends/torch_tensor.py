"""Torch tensors and ours: element types both ways, and arrays that share memory with a tensor.

`to_numpy` and `to_torch` copy nothing on the CPU. Types that numpy lacks (bfloat16, the 8-bit floats) travel as integers of
their width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hotfuse.errors import UnsupportedModel
from hotfuse.ir.types import DTYPES, DType, dtype_of

Array = np.ndarray[Any, Any]

_PAIRS = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e4m3fnuz: "f8e4m3fnuz", torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz", torch.float8_e8m0fnu: "f8e8m0",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint64: "u64", torch.uint32: "u32", torch.uint16: "u16", torch.uint8: "u8",
    torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
FROM_TORCH: dict[torch.dtype, DType] = {theirs: DTYPES[ours] for theirs, ours in _PAIRS.items()}
TO_TORCH: dict[str, torch.dtype] = {ours: theirs for theirs, ours in _PAIRS.items()}
_CARRIERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_NEED_CARRIER = {"bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0"}


def dtype_from_torch(dtype: torch.dtype) -> DType:
    found = FROM_TORCH.get(dtype)
    if found is None:
        raise UnsupportedModel(f"torch element type {dtype} has no counterpart here")
    return found


def to_numpy(tensor: torch.Tensor) -> Array:
    """An array over the memory of a CPU tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = dtype_from_torch(tensor.dtype)
    if dtype.name not in _NEED_CARRIER:
        return np.asarray(tensor.numpy())
    carrier, _ = _CARRIERS[dtype.bytes]
    return np.asarray(tensor.view(carrier).numpy().view(dtype.numpy))


def to_torch(array: Any) -> torch.Tensor:
    """A tensor over the memory of an array; a copy where torch cannot hold that memory (read-only, negative strides)."""
    array = np.asarray(array)
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = array.copy()
    dtype = dtype_of(array)
    if dtype.name not in TO_TORCH:
        raise UnsupportedModel(f"element type {dtype} has no counterpart in torch")
    if dtype.name in _NEED_CARRIER:
        _, carrier = _CARRIERS[dtype.bytes]
        return torch.from_numpy(array.view(carrier)).view(TO_TORCH[dtype.name])
    return torch.from_numpy(array)
