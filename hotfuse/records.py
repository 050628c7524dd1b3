"""`dataclass` as the standard library has it, made in a quarter of the time.

Every process that works for a model makes some 250 of these classes before it can begin: the one that serves while it loads,
each worker while it starts. The standard library compiles six functions for each of them (0.6 ms a class). Here only `__init__`
is compiled; the others are shared by all classes, and read the fields by one `attrgetter`. Fields, `replace`, `asdict` and
pattern matching are the standard library's own.

A frozen class is one whose `__setattr__` refuses; its own code may go past that with `object.__setattr__`, as usual.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False):
        def process(kind):
            return _process(kind, frozen, eq, slots)

        return process if cls is None else process(cls)


def _process(cls: type, frozen: bool, eq: bool, slots: bool) -> type:
    own = cls.__dict__
    hashes = own.get("__hash__") is not None  # a class that has __eq__ alone has None there
    if cls.__doc__ is None:  # the standard library would look for a signature, which takes longer than all else
        cls.__doc__ = f"{cls.__name__}({', '.join(own.get('__annotations__', ()))})"
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(cls)
    if any(field.kw_only for field in fields):
        raise TypeError(f"{cls.__name__}: fields that are keywords only are not made here")
    made: dict[str, Any] = {"__init__": _init_of(cls, fields, frozen), "__repr__": _repr_of(fields)}
    if eq:
        values = _values_of([field.name for field in fields if field.compare])
        made["__eq__"] = _eq_of(values)
        if not hashes:
            made["__hash__"] = _hash_of(values) if frozen else None
    if frozen:
        made |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        if slots:
            made |= _state_of([field.name for field in fields])
    for name, value in made.items():
        if name not in own or name == "__hash__":
            setattr(cls, name, value)
    return cls


def _init_of(cls: type, fields: Sequence[Field[Any]], frozen: bool) -> Callable[..., None]:
    """The one function that is compiled: arguments and their defaults are what Python itself is best at."""
    known: dict[str, Any] = {"MISSING": MISSING, "assign": object.__setattr__}
    heads, lines = ["self"], []
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            known[f"make_{name}"] = field.default_factory
            value = f"make_{name}() if {name} is MISSING else {name}" if field.init else f"make_{name}()"
        if field.init:
            has_default = field.default is not MISSING
            if has_default:
                known[f"default_{name}"] = field.default
            heads.append(f"{name}=default_{name}" if has_default else f"{name}=MISSING" if value != name else name)
        elif value == name:  # what the class has, or what __post_init__ will give it
            continue
        lines.append(f"assign(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    code = f"def __init__({', '.join(heads)}):\n " + "\n ".join(lines or ["pass"])
    exec(code, known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


Values = Callable[[Any], tuple[Any, ...]]


def _values_of(names: Sequence[str]) -> Values:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda record: ()
    (name,) = names
    return lambda record: (getattr(record, name),)


def _eq_of(values: Values) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash_of(values: Values) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr_of(fields: Sequence[Field[Any]]) -> Callable[[Any], str]:
    shown = [field.name for field in fields if field.repr]

    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return __repr__


def _refuse_to_assign(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state_of(names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """What pickle and copy take and bring where they cannot assign."""
    values, assign = _values_of(names), object.__setattr__

    def __getstate__(self: Any) -> tuple[Any, ...]:
        return values(self)

    def __setstate__(self: Any, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            assign(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}
