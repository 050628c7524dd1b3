"""Records: objects with fields that torch.export does not know.

In a result these are dataclasses, named tuples, torch's own (`torch.return_types`) and transformers' caches. It is taken apart
into leaves and a `Form`, which is plain data; whoever answers builds it again, of the same classes, without running their
constructors. Among arguments these are dataclasses. torch's table of classes is left as it is.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from hotfuse.errors import CaptureError
from hotfuse.records import dataclass

_BY_VALUE = (type(None), bool, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
_CACHES = "transformers.cache_utils"


class ClassName(NamedTuple):
    module: str
    name: str


@dataclass(frozen=True)
class Form:
    """How a value is made of leaves: its `tree` as torch's pytree writes it down. `parts` are those leaves of the tree that are
    something else: a record, a class, or (in a tuple of one) a plain value."""

    tree: str
    parts: tuple[tuple[int, Record | ClassName | tuple[Any]], ...] = ()


@dataclass(frozen=True)
class Record:
    """An object of a class with the `values` of its attributes `names`; of a tuple's class where there are no names."""

    kind: ClassName
    names: tuple[str, ...] | None
    values: Form


def is_record(value: Any) -> bool:
    """Whether we take a value apart ourselves."""
    kind = type(value)
    if isinstance(value, tuple):
        return bool(pytree.is_namedtuple_class(kind) or pytree.is_structseq_class(kind))
    if kind in pytree.SUPPORTED_NODES or isinstance(value, (type, dict, list, torch.Tensor, torch.nn.Module)):
        return False
    return dataclasses.is_dataclass(kind) or any(base.__module__ == _CACHES for base in kind.__mro__)


def is_argument(value: Any) -> bool:
    """Whether we take an argument apart ourselves. (Caches are changed by the call, which a graph would not do.)"""
    return not isinstance(value, tuple) and dataclasses.is_dataclass(type(value)) and is_record(value)


def flatten_call(value: Any) -> tuple[list[Any], Hashable]:
    """The leaves of a call's arguments, and all else that tells two calls apart. A record that is there twice is a leaf."""
    return _flatten_call(value, set())


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A structure of arguments with other leaves, in new records."""

    def mapped(item: Any) -> Any:
        if not is_argument(item):
            return function(item)
        names, values = _state(item)
        return _with_attributes(type(item), names or (), map_leaves(function, values))

    return pytree.tree_map(mapped, value, is_leaf=is_argument)


def take_apart(value: Any) -> tuple[list[Any], Form]:
    """The leaves of a value, and what to make of them."""
    return _take_apart(value, set())


def records_in(value: Any) -> Iterator[Any]:
    """All records, however deep."""
    for item in pytree.tree_leaves(value, is_leaf=is_record):
        if is_record(item):
            yield item
            yield from records_in(_state(item)[1])


def make_builder(form: Form) -> Callable[[Sequence[Any]], Any]:
    """A function that builds the value of a form from its leaves; CaptureError where a class cannot be found by its name."""
    build = _make_builder(form)
    return lambda leaves: build(iter(leaves))


def tree_text(tree: Any) -> str:
    """A structure of torch's pytree as text."""
    try:
        return str(pytree.treespec_dumps(tree))
    except Exception as error:
        raise CaptureError(
            f"the model's output structure cannot be written down: {error}; register it with torch's pytree"
        ) from error


def _flatten_call(value: Any, seen: set[int]) -> tuple[list[Any], Hashable]:
    held, tree = pytree.tree_flatten(value, is_leaf=is_argument)
    leaves: list[Any] = []
    records: list[Hashable] = []
    for place, item in enumerate(held):
        if not is_argument(item) or id(item) in seen:
            leaves.append(item)
            continue
        seen.add(id(item))
        names, values = _state(item)
        inner, structure = _flatten_call(values, seen)
        leaves += inner
        records.append((place, type(item), names, structure))
    return leaves, (tree, *records) if records else tree


def _take_apart(value: Any, above: set[int]) -> tuple[list[Any], Form]:
    held, tree = pytree.tree_flatten(value, is_leaf=is_record)
    leaves: list[Any] = []
    parts: list[tuple[int, Record | ClassName | tuple[Any]]] = []
    for place, item in enumerate(held):
        if is_record(item):
            if id(item) in above:
                raise CaptureError(f"the {type(item).__name__} that it returns holds itself")
            names, values = _state(item)
            inner, content = _take_apart(values, above | {id(item)})
            leaves += inner
            parts.append((place, Record(_name(type(item)), names, content)))
        elif isinstance(item, type):
            parts.append((place, _name(item)))
        elif isinstance(item, _BY_VALUE):
            parts.append((place, (item,)))
        else:
            leaves.append(item)
    return leaves, Form(tree_text(tree), tuple(parts))


def _state(record: Any) -> tuple[tuple[str, ...] | None, tuple[Any, ...]]:
    """The names of a record's attributes (None for a tuple) and their values."""
    if isinstance(record, tuple):
        return None, tuple(record)
    slots = (s for base in type(record).__mro__ for s in _slots(base) if s not in ("__dict__", "__weakref__"))
    state = {name: getattr(record, name) for name in slots if hasattr(record, name)} | getattr(record, "__dict__", {})
    return tuple(state), tuple(state.values())


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _name(kind: type) -> ClassName:
    return ClassName(kind.__module__, kind.__qualname__)


def _make_builder(form: Form) -> Callable[[Iterator[Any]], Any]:
    tree = pytree.treespec_loads(form.tree)
    parts = dict(form.parts)
    makers = [_maker(parts[place]) if place in parts else next for place in range(tree.num_leaves)]
    return lambda leaves: pytree.tree_unflatten([make(leaves) for make in makers], tree)


def _maker(part: Record | ClassName | tuple[Any]) -> Callable[[Iterator[Any]], Any]:
    if isinstance(part, ClassName):
        found = _find_class(part)
        return lambda leaves: found
    if isinstance(part, tuple):
        return lambda leaves: part[0]
    kind, names, values = _find_class(part.kind), part.names, _make_builder(part.values)
    if names is None:
        make = kind if pytree.is_structseq_class(kind) else kind._make
        return lambda leaves: make(values(leaves))
    return lambda leaves: _with_attributes(kind, names, values(leaves))


def _with_attributes(kind: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # a frozen dataclass refuses its own
    return made


def _find_class(name: ClassName) -> Any:
    """The class of this process that has a name; the capture process may have rebuilt one of its own."""
    found: Any = sys.modules.get(name.module)
    for part in name.name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise CaptureError(
            f"the model returns a {name.name}, which {name.module} does not have under that name; "
            "define the class at the top level of a module"
        )
    return found
