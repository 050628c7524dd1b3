"""What records are made of: hints as checks of values, and classes as forms.

A form says how a class is taken apart and made again. Dataclasses, named tuples and enums have one by themselves, others are in
the table at the end. A class that needs one of its own is added there.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from hotfuse.errors import ParseError
from hotfuse.ir.dim import Div, Expr, Max, Min, Symbol
from hotfuse.ir.graph import Attrs, Constant
from hotfuse.ir.types import DTYPES, STRING, DType, TensorType, Type, dtype_of, type_of
from hotfuse.records import dataclass

SCALARS = (types.NoneType, bool, int, float, str)
CONTAINERS = (tuple, list, dict, set, frozenset, bytes)

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Form:
    """How a class is taken apart, the hints of its parts, and how it is made of them."""

    parts: Callable[[Any], tuple[Any, ...]]
    hints: tuple[Any, ...]
    make: Callable[..., Any]


# ---- hints


def classes_in(hint: Any) -> list[Any]:
    """The classes with a form that a hint names."""
    if get_origin(hint) in (Literal, np.ndarray) or hint in (Any, object, Ellipsis, *SCALARS, *CONTAINERS):
        return []
    parts = get_args(hint)
    return [hint] if not parts else [found for part in parts for found in classes_in(part)]


@functools.cache
def check_of(hint: Any) -> Check:
    """Whether a value is what a hint says. Containers are looked through; what is in a record was checked when it was made."""
    if hint is Any or hint is object:
        return lambda value: True
    kinds, deep = _alternatives(hint)
    if not deep:
        return lambda value: type(value) in kinds

    def check(value: Any) -> bool:
        kind = type(value)
        return kind in kinds or (kind in deep and any(found(value) for found in deep[kind]))

    return check


def _alternatives(hint: Any) -> tuple[frozenset[type], Mapping[type, list[Check]]]:
    """The types that a hint takes whatever they hold, and others with checks, one of which must hold."""
    kinds: set[type] = set()
    deep: dict[type, list[Check]] = {}
    for part in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        origin, inner = get_origin(part), get_args(part)
        if part is None:
            kinds.add(types.NoneType)
        elif part is float:
            kinds |= {float, int}
        elif origin is Literal:
            for option in inner:
                deep.setdefault(type(option), []).append(functools.partial(_is_same, option))
        elif origin is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
            deep.setdefault(tuple, []).append(functools.partial(_is_row, [check_of(h) for h in inner]))
        elif origin in (tuple, list, set, frozenset):
            deep.setdefault(origin, []).append(_all_are(inner[0]))
        elif isinstance(origin, type) and issubclass(dict, origin):  # a Mapping too
            deep.setdefault(dict, []).append(_all_items_are(*inner))
        elif isinstance(part, type):
            kinds.add(part)
        else:
            kinds.add(cast(type, origin))  # np.ndarray[...]: what is in it, its class knows
    return frozenset(kinds), deep


def _is_same(option: Any, value: Any) -> bool:
    return bool(option == value)


def _is_row(checks: list[Check], value: tuple[Any, ...]) -> bool:
    return len(checks) == len(value) and all(check(part) for check, part in zip(checks, value, strict=True))


def _all_are(hint: Any) -> Check:
    check = check_of(hint)
    if hint is Any:
        return check
    kinds, deep = _alternatives(hint)
    # The types of all at once: most tuples are long and of one type.
    return lambda values: kinds.issuperset(map(type, values)) or (bool(deep) and all(map(check, values)))


def _all_items_are(key: Any, value: Any) -> Check:
    keys, values = _all_are(key), _all_are(value)
    return lambda found: keys(found) and values(found.values())


def said_of(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


# ---- forms


@functools.cache
def form_of(kind: Any) -> Form:
    """The form of a class: its own in the table below, or that of its fields."""
    kind = get_origin(kind) or kind
    if kind in _FORMS:
        return _FORMS[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Form(lambda value: (value.name,), (str,), kind.__getitem__)
    if dataclasses.is_dataclass(kind) and all(field.init and not field.kw_only for field in dataclasses.fields(kind)):
        names = [field.name for field in dataclasses.fields(kind)]
    elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        raise TypeError(f"{said_of(kind)} has no record form; give it one in ir/record_kinds")
    hints = get_type_hints(kind, localns=_NAMES)
    return Form(lambda value: tuple([getattr(value, name) for name in names]), tuple(hints[name] for name in names), kind)


def _array_parts(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    dtype = dtype_of(array)
    return dtype, array.shape, tuple(array.reshape(-1).tolist()) if dtype is STRING else array.tobytes()


def _make_array(dtype: DType, shape: tuple[int, ...], data: bytes | tuple[str | bytes, ...]) -> np.ndarray[Any, Any]:
    """An array that nobody can write to."""
    if isinstance(data, bytes) is (dtype is STRING):
        raise ParseError(f"damaged record: an array of {dtype} that is none; delete it")
    if isinstance(data, bytes):
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    made = np.empty(len(data), object)
    made[:] = data
    made.flags.writeable = False
    return made.reshape(shape)


def _make_constant(array: np.ndarray[Any, Any], type: TensorType) -> Constant:
    if type != type_of(array):
        raise ParseError(f"damaged record: a constant of type {type} that is {type_of(array)}; delete it")
    return Constant(array, type)


_Monomial = tuple[tuple[Symbol | Div | Min | Max, int], ...]
_FORMS: dict[Any, Form] = {
    Expr: Form(lambda dim: (dim.terms,), (tuple[tuple[_Monomial, int], ...],), Expr),
    DType: Form(lambda dtype: (dtype.name,), (str,), DTYPES.__getitem__),
    Attrs: Form(lambda attrs: (dict(attrs),), (dict[str, Any],), Attrs),
    Constant: Form(lambda constant: (constant.numpy(), constant.type), (np.ndarray, TensorType), _make_constant),
    np.ndarray: Form(_array_parts, (DType, tuple[int, ...], bytes | tuple[str | bytes, ...]), _make_array),
    np.generic: Form(lambda scalar: (np.asarray(scalar),), (np.ndarray,), lambda array: array[()]),
    complex: Form(lambda value: (value.real, value.imag), (float, float), complex),
    slice: Form(lambda value: (value.start, value.stop, value.step), (int | None, int | None, int | None), slice),
}
ANYWHERE = (*_FORMS, Type)  # what a field of any type may hold, besides what other fields do
_NAMES = {kind.__name__: kind for kind in (Expr, Symbol, Div, Min, Max)}  # names in the hint of a Dim, wherever that is used
