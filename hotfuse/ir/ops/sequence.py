"""Operators over sequences and optional values. A sequence is a Python list, an empty optional is None.

Lists are never changed: an operator that changes one makes a new list, which shares the elements of its first input.
What enters a list is copied, since the memory of a plain value may be used again while the list lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define
from hotfuse.ir.types import ANY, BOOL, I64, OptionalType, SequenceType, TensorType, Type, tensor

Array = np.ndarray[Any, Any]

# operators whose results hold all elements of their inputs anew: however a loop goes on, this is how a sequence grows
GATHERING = ("sequence", "sequence_insert", "split_to_sequence", "concat_from_sequence")


def _element(call: Call, i: int = 0) -> Type:
    """The type of the elements of input i, a sequence."""
    value = call.inputs[i]
    type = ANY if value is None else value.type
    if isinstance(type, SequenceType):
        return type.element
    if type is ANY:
        return ANY
    raise call.fail(f"input {i} must be a sequence, not {type}")


def joined(types: Sequence[Type]) -> Type:
    """The least type that covers all of `types`; sizes that differ leave the shape unknown."""
    if not types:
        return ANY
    first = types[0]
    for other in types[1:]:
        if other == first:
            continue
        if not (isinstance(first, TensorType) and isinstance(other, TensorType) and first.dtype == other.dtype):
            return ANY
        first = TensorType(first.dtype, None)
    return first


def _place(position: Array | None, length: int, default: int) -> int:
    place = default if position is None else int(position.item())
    return place + length if place < 0 else place


def _define(name: str, infer: Any, reference: Any, doc: str, samples: Any, view: bool = False) -> None:
    flops = lambda call, types: 0  # noqa: E731
    define(OpDef(name, infer, reference, Pattern.OTHER, doc, flops=flops, view=view, samples=samples))


def sequence(*inputs: Array) -> list[Array]:
    return [np.array(x) for x in inputs]


def _sequence_infer(call: Call) -> Sequence[Type]:
    if "element" in call.attrs:
        return (SequenceType(TensorType(call.attrs["element"], None)),)
    element = joined([call.tensor(i) for i in range(len(call.inputs))])
    if element is ANY:
        raise call.fail("the elements of a sequence must have one type")
    return (SequenceType(element),)


_define(
    "sequence", _sequence_infer, lambda *inputs, element=None: sequence(*inputs),
    "a sequence of the inputs (of none, but of type `element`)", lambda: [Sample((np.zeros(2), np.ones(3)))],
)  # fmt: skip


def sequence_insert(items: list[Array], x: Array, position: Array | None = None) -> list[Array]:
    place = _place(position, len(items), len(items))
    if not 0 <= place <= len(items):
        raise IndexError(f"place {place} is outside of a sequence of {len(items)}")
    return [*items[:place], np.array(x), *items[place:]]


def _insert_infer(call: Call) -> Sequence[Type]:
    element, x = _element(call), call.tensor(1)
    if isinstance(element, TensorType) and element.dtype != x.dtype:
        raise call.fail(f"a sequence of {element.dtype} takes no {x.dtype}")
    return (SequenceType(x if element is ANY else joined([element, x])),)


_define(
    "sequence_insert", _insert_infer, sequence_insert, "a sequence with one more element, at the end or before a place",
    lambda: [Sample(([np.zeros(2)], np.ones(2), np.array(-1)))], view=True,
)  # fmt: skip


def sequence_erase(items: list[Array], position: Array | None = None) -> list[Array]:
    place = _place(position, len(items), len(items) - 1)
    if not 0 <= place < len(items):
        raise IndexError(f"place {place} is outside of a sequence of {len(items)}")
    return [*items[:place], *items[place + 1 :]]


_define(
    "sequence_erase", lambda call: (SequenceType(_element(call)),), sequence_erase,
    "a sequence without its last element, or that at a place", lambda: [Sample(([np.zeros(2), np.ones(2)], np.array(0)))],
    view=True,
)  # fmt: skip


def sequence_at(items: list[Array], position: Array) -> Array:
    place = _place(position, len(items), 0)
    if not 0 <= place < len(items):
        raise IndexError(f"place {place} is outside of a sequence of {len(items)}")
    return items[place]


def _at_infer(call: Call) -> Sequence[Type]:
    """An open size in the type of the elements may be another for each of them."""
    element = _element(call)
    if isinstance(element, TensorType) and element.shape is not None:
        return (TensorType(element.dtype, tuple(d if isinstance(d, int) else call.fresh() for d in element.shape)),)
    return (element,)


_define(
    "sequence_at", _at_infer, sequence_at, "one element of a sequence",
    lambda: [Sample(([np.zeros(2), np.ones(2)], np.array(-1)))], view=True,
)  # fmt: skip


def _length_infer(call: Call) -> Sequence[Type]:
    _element(call)
    return (tensor(I64),)


_define(
    "sequence_length", _length_infer, lambda items: np.array(len(items), dtype=np.int64), "how many elements a sequence has",
    lambda: [Sample(([np.zeros(2), np.ones(2)],))],
)  # fmt: skip


def split_to_sequence(x: Array, sizes: Array | None = None, *, axis: int = 0, keepdims: bool = True) -> list[Array]:
    """Parts of the given sizes; of one size for a scalar (the last may be smaller); single slices for None."""
    length = x.shape[axis]
    if sizes is None:
        parts = np.split(x, length, axis) if length else []
        return [np.array(p if keepdims else np.squeeze(p, axis)) for p in parts]
    if sizes.ndim:
        if int(sizes.sum()) != length or (sizes < 0).any():
            raise ValueError(f"parts of sizes {sizes.tolist()} do not make up {length} elements")
        return [np.array(p) for p in np.split(x, np.cumsum(sizes)[:-1], axis)]
    if int(sizes) <= 0:
        raise ValueError(f"{int(sizes)} is not a size of parts")
    return [np.array(p) for p in np.split(x, range(int(sizes), length, int(sizes)), axis)]


def _split_infer(call: Call) -> Sequence[Type]:
    x, axis = call.tensor(0), call.attrs.get("axis", 0)
    if x.shape is None:
        return (SequenceType(x),)
    if not -len(x.shape) <= axis < len(x.shape):
        raise call.fail(f"axis {axis} is out of range for a tensor of rank {len(x.shape)}")
    axis %= len(x.shape)
    if call.has(1):
        return (SequenceType(TensorType(x.dtype, (*x.shape[:axis], call.fresh(), *x.shape[axis + 1 :]))),)
    kept = (1,) if call.attrs.get("keepdims", True) else ()
    return (SequenceType(TensorType(x.dtype, (*x.shape[:axis], *kept, *x.shape[axis + 1 :]))),)


_define(
    "split_to_sequence", _split_infer, split_to_sequence, "a sequence of the parts of a tensor along an axis",
    lambda: [
        Sample((np.arange(10.0).reshape(2, 5), np.array(2)), {"axis": 1}),
        Sample((np.arange(10.0).reshape(2, 5), np.array([1, 4])), {"axis": -1}),
        Sample((np.arange(10.0).reshape(2, 5),), {"axis": 0, "keepdims": False}),
    ],
)  # fmt: skip


def concat_from_sequence(items: list[Array], *, axis: int, new_axis: bool = False) -> Array:
    return np.stack(items, axis) if new_axis else np.concatenate(items, axis)


def _concat_infer(call: Call) -> Sequence[Type]:
    element = _element(call)
    if not isinstance(element, TensorType) or element.shape is None:
        return (element,)
    rank = len(element.shape) + bool(call.attrs.get("new_axis"))
    if not -rank <= call.attrs["axis"] < rank:
        raise call.fail(f"axis {call.attrs['axis']} is out of range for a result of rank {rank}")
    return (TensorType(element.dtype, call.unknown(rank)),)


_define(
    "concat_from_sequence", _concat_infer, concat_from_sequence, "the elements joined along an axis, or along a new one",
    lambda: [
        Sample(([np.zeros((2, 3)), np.ones((2, 3))],), {"axis": 0}),
        Sample(([np.zeros((2, 3)), np.ones((2, 3))],), {"axis": -1, "new_axis": True}),
    ],
)  # fmt: skip


def optional(x: Any = None, *, element: Type | None = None) -> Any:
    return x


def _optional_infer(call: Call) -> Sequence[Type]:
    value = call.inputs[0] if call.inputs else None
    if value is None:
        return (OptionalType(call.attrs.get("element") or ANY),)
    return (OptionalType(value.type),)


_define(
    "optional", _optional_infer, optional, "an optional value: the input, or empty without one",
    lambda: [Sample((np.zeros(2),))], view=True,
)  # fmt: skip


def optional_get(x: Any) -> Any:
    if x is None:
        raise InvalidModel("the element of an empty optional value is asked for; test it with OptionalHasElement first")
    return x


def _get_infer(call: Call) -> Sequence[Type]:
    value = call.inputs[0]
    type = ANY if value is None else value.type
    return (type.element if isinstance(type, OptionalType) else type,)


_define("optional_get", _get_infer, optional_get, "what an optional value holds", lambda: [Sample((np.zeros(2),))], view=True)
_define(
    "optional_has", lambda call: (tensor(BOOL),), lambda x=None: np.array(x is not None), "whether an optional holds a value",
    lambda: [Sample((np.zeros(2),)), Sample((None,))],
)  # fmt: skip
