"""Twins: objects that share all state with a module of the user's, but are of a class of ours.

A twin is an object of a subclass of the module's class whose `__dict__` is the module's own dictionary, so whatever either
does to itself, both see; the module is left as it is.

State: the classes made so far, as long as somebody uses them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch


def subclass(first: type, original: type, slot: str, extra: Mapping[str, Any] | None = None) -> type:
    """A class that is `original` in all but what `first` does differently, with one slot of its own; the same for the same
    bases and names in `extra`, so that copies of a twin are of its class."""
    key = (id(first), id(original), slot, *(extra or ()))  # a class keeps its bases alive, and so their ids
    known = _CLASSES.get(key)
    if known is not None:
        return known
    names = {
        "__slots__": (slot,),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    return _CLASSES.setdefault(key, type(original)(original.__name__, (first, original), {**names, **(extra or {})}))


def make_plain(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling a class made by `subclass` gives: an object of the original class."""
    original = kind.__mro__[2]
    return original(*args, **kwargs)


def share_state(kind: type, module: torch.nn.Module, slot: str, content: Any) -> Any:
    """An object of class `kind` over the state of `module`."""
    twin: Any = object.__new__(kind)
    object.__setattr__(twin, "__dict__", module.__dict__)
    object.__setattr__(twin, slot, content)
    return twin


_CLASSES: weakref.WeakValueDictionary[tuple[int | str, ...], type] = weakref.WeakValueDictionary()
