"""Torch tensors and ours: element types both ways, arrays that share memory with a tensor, and the order of axes in memory.

`to_numpy` and `to_torch` copy nothing on the CPU. Types that numpy lacks (bfloat16, the 8-bit floats) travel as integers of
their width.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def axis_order(val: Any) -> tuple[int, ...] | None:
    """The order of a dense tensor's axes in memory, slowest first; None for tensors with gaps or overlaps."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return None
    sizes, strides = [_hint(s) for s in val.shape], [_hint(s) for s in val.stride()]
    if any(s is None for s in (*sizes, *strides)):
        return tuple(range(val.dim()))
    axes = sorted(range(val.dim()), key=lambda a: (-strides[a], a))  # type: ignore[operator]
    return tuple(axes) if _dense(sizes, strides, axes) else None


def _dense(sizes: Sequence[Any], strides: Sequence[Any], axes: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= sizes[axis]
    return True


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return None if hint is None else int(hint)


def in_order(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """The tensor with its axes laid out in memory in the given order, as the original returns it."""
    if order is None or len(order) != tensor.dim():
        return tensor
    if order == tuple(range(len(order))):
        return tensor.contiguous()
    laid = tensor.permute(order)
    if laid.is_contiguous():
        return tensor
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return laid.contiguous().permute(inverse)


def alone_in_order(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """The same, with the tensor alone at the start of its memory: what operators that reach around strides must see."""
    laid = in_order(tensor, order)
    if order is None or (laid.storage_offset() == 0 and laid.untyped_storage().nbytes() == laid.numel() * laid.element_size()):
        return laid
    return laid.clone(memory_format=torch.preserve_format)
