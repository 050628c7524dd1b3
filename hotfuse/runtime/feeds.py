"""Feeds and results of a call: what users give and take, checked against what the model declares.

Arrays of any layout and byte order, numbers, nested lists, and CPU tensors of torch are read without a copy where that is
possible. Nothing here changes what it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InputError, UnsupportedModel
from hotfuse.ir.dim import Expr
from hotfuse.ir.types import STRING, OptionalType, SequenceType, TensorType, Type
from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Signature:
    """One input or output: its name and its type (symbols where sizes are free)."""

    name: str
    type: Type

    @property
    def shape(self) -> tuple[Any, ...] | None:
        if not isinstance(self.type, TensorType) or self.type.shape is None:
            return None
        return tuple(d if isinstance(d, int) else str(d) for d in self.type.shape)

    @property
    def dtype(self) -> Any:
        return self.type.dtype.numpy if isinstance(self.type, TensorType) else str(self.type)


def read_feeds(inputs: Sequence[Signature], feeds: Any) -> list[Any]:
    """What is fed for each input, if all of it fits what the model declares."""
    given = check_names([s.name for s in inputs], feeds)
    missing = next((s for s in inputs if s.name not in given), None)
    if missing is not None:
        raise InputError(f"input {missing.name!r} ({missing.type}) is missing; given are {list(given)}")
    values = [fitted(f"input {s.name!r}", s.type, given[s.name]) for s in inputs]
    check_shared_sizes(inputs, values)
    return values


def check_names(names: Sequence[str], feeds: Any) -> Mapping[str, Any]:
    """The feeds, if they are given by name and every name is known."""
    if not isinstance(feeds, Mapping):
        raise InputError(f"feeds must be a dict from the names of inputs to arrays, not {type(feeds).__name__}; names: {names}")
    unknown = [name for name in feeds if name not in names]
    if unknown:
        raise InputError(f"the model has no input {unknown[0]!r}; its inputs are {list(names)}")
    return feeds


def as_array(name: str, value: Any) -> Array:
    """An array of what is fed, in the byte order of this machine; a CPU tensor's own memory."""
    torch = sys.modules.get("torch")  # whoever feeds a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        return np.asarray(_from_tensor(name, value), order="C")  # products of other layouts are slower and round otherwise
    try:
        array = np.asarray(value, order="C")
    except Exception as error:  # ragged lists, and whatever an object's own __array__ raises
        raise InputError(f"{name} cannot be read as an array: {error}") from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _from_tensor(name: str, tensor: Any) -> Array:
    import torch

    from hotfuse.frontends.torch_tensor import to_numpy

    if tensor.device.type != "cpu":
        raise InputError(f"{name} is on {tensor.device}; sessions run on the CPU, so move it there with .cpu()")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InputError(f"{name} is not a dense tensor; convert it with .to_dense() or .dequantize()")
    try:
        return to_numpy(tensor)
    except (UnsupportedModel, RuntimeError, TypeError) as error:
        raise InputError(f"{name} cannot be read as an array: {error}") from error


def fitted(name: str, expected: Type, value: Any) -> Any:
    """`value` as a value of the expected type: an array, a list of them for a sequence, None for an empty optional."""
    if isinstance(expected, OptionalType):
        return None if value is None else fitted(name, expected.element, value)
    if isinstance(expected, SequenceType):
        if not isinstance(value, list | tuple):
            raise InputError(f"{name} must be a list of {expected.element}, not {type(value).__name__}")
        return [fitted(f"element {i} of {name}", expected.element, v) for i, v in enumerate(value)]
    if not isinstance(expected, TensorType):
        return value
    array = as_array(name, value)
    if expected.dtype is STRING:
        array = _strings(name, array)
    elif array.dtype != expected.dtype.numpy:
        raise InputError(f"{name} must be {expected.dtype.numpy}, not {_converted(value, array, expected.dtype.numpy)}")
    if expected.shape is not None:
        fits = len(expected.shape) == array.ndim and all(
            not isinstance(d, int) or d == s for d, s in zip(expected.shape, array.shape, strict=True)
        )
        if not fits:
            raise InputError(f"{name} must have shape {Signature('', expected).shape}, not {array.shape}")
    return array


def _converted(value: Any, array: Array, wanted: np.dtype[Any]) -> str:
    """What was given instead of an array of the wanted dtype, and how to make it one."""
    if hasattr(value, "dtype"):
        return f"{array.dtype}; convert it with .astype first"
    given = f"a list of {array.dtype}" if isinstance(value, list | tuple) else "None" if value is None else type(value).__name__
    return f"{given}; give an array: np.asarray(..., dtype={str(wanted)!r})"


def _strings(name: str, array: Array) -> Array:
    """An array of Python's strings, from any kind of text. Numbers and other objects are not taken for their names."""
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name} has bytes that are not text (UTF-8): {error}") from None
    if array.dtype.kind not in "OUT":
        raise InputError(f"{name} must be strings, not {array.dtype}; give an array of str")
    array = array.astype(object)
    for item in array.flat:
        if not isinstance(item, str):
            raise InputError(f"{name} must be strings, but one of its elements is {item!r}, a {type(item).__name__}")
    return array


def fed_shapes(inputs: Sequence[Signature], given: Sequence[Any]) -> str:
    """The shapes that are fed, in a message."""
    return ", ".join(f"{s.name}: {v.shape}" for s, v in zip(inputs, given, strict=True) if isinstance(v, np.ndarray))


def check_shared_sizes(inputs: Sequence[Signature], given: Sequence[Any]) -> None:
    """Refuse inputs that give one named size two values."""
    seen: dict[Expr, tuple[int, str]] = {}
    for signature, value in zip(inputs, given, strict=True):
        shape = signature.type.shape if isinstance(signature.type, TensorType) else None
        for dim, size in zip(shape or (), np.shape(value) if shape else (), strict=True):
            if isinstance(dim, Expr):
                known, where = seen.setdefault(dim, (size, signature.name))
                if known != size:
                    raise InputError(
                        f"inputs {where!r} and {signature.name!r} share the size {dim}, "
                        f"but it is {known} in one and {size} in the other"
                    )


def wanted_places(outputs: Sequence[Signature], names: Sequence[str] | None) -> list[int]:
    """The places of the named outputs; of all for None."""
    if names is None:
        return list(range(len(outputs)))
    places = {s.name: i for i, s in enumerate(outputs)}
    if isinstance(names, str):
        raise InputError(f"output_names must be a list of names or None, not a string; write [{names!r}]")
    missing = [name for name in names if name not in places]
    if missing:
        raise InputError(f"the model has no output {missing[0]!r}; its outputs are {list(places)}")
    return [places[name] for name in names]


def written(names: Sequence[str], results: Sequence[Any], out: Sequence[Any]) -> list[Any]:
    """`out` with the results in it. Nothing is written unless everything fits."""
    if len(out) != len(results):
        raise InputError(f"out has {len(out)} arrays for {len(results)} outputs; give one for each of {list(names)}")
    for name, value, target in zip(names, results, out, strict=True):
        if not isinstance(target, np.ndarray) or not isinstance(value, np.ndarray):
            raise InputError(
                f"output {name!r} cannot be written into {type(target).__name__}; out takes numpy arrays, for tensors"
            )
        if target.shape != value.shape or target.dtype != value.dtype:
            raise InputError(f"output {name!r} is {value.dtype}{value.shape}, its array in out is {target.dtype}{target.shape}")
        if not target.flags.writeable:
            raise InputError(f"the array in out for output {name!r} is read-only")
    for value, target in zip(results, out, strict=True):
        np.copyto(target, value)
    return list(out)
