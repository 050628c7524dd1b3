"""Twins: modules that share all state with the user's, but whose calls go through a function of ours.

A twin is an object of a subclass of the module's class whose `__dict__` is the module's own dictionary, so whatever either
does to itself, both see; the module is left as it is. A twin's submodules are twins too, found when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Route = Callable[[torch.nn.Module, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Household:
    """The twins made so far, and their classes. Grows as submodules are asked for."""

    route: Route
    twins: dict[int, Any] = field(default_factory=dict)
    classes: dict[type, type] = field(default_factory=dict)

    def twin_of(self, module: Any) -> Any:
        if module is None or isinstance(module, torch.jit.ScriptModule):
            return module
        twin = self.twins.get(id(module))
        if twin is None:
            original = type(module)
            kind = self.classes.get(original)
            if kind is None:
                kind = self.classes[original] = subclass(_Twin, original, "_hotfuse_twin")
            twin = self.twins[id(module)] = share_state(kind, module, "_hotfuse_twin", (module, self))
        return twin


class _Twin:
    """What twins do differently; first among the bases. Classes made from it do not announce themselves as subclasses."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return make_plain(cls, args, kwargs)

    @property
    def _modules(self) -> dict[str, Any]:
        original, household = self._hotfuse_twin  # type: ignore[attr-defined]
        return {name: household.twin_of(module) for name, module in original.__dict__["_modules"].items()}

    def __getattr__(self, name: str) -> Any:
        original, household = object.__getattribute__(self, "_hotfuse_twin")
        child = original.__dict__["_modules"].get(name)
        return super().__getattr__(name) if child is None else household.twin_of(child)  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original, household = self._hotfuse_twin  # type: ignore[attr-defined]
        return household.route(original, super().__call__, args, kwargs)  # type: ignore[misc]


def make_twin(module: torch.nn.Module, route: Route) -> torch.nn.Module:
    """A twin of `module`; calls of it and of its submodules' twins go through `route(module, eager, args, kwargs)`."""
    return Household(route).twin_of(module)  # type: ignore[no-any-return]


def subclass(first: type, original: type, slot: str, extra: Mapping[str, Any] | None = None) -> type:
    """A class that is `original` in all but what `first` does differently, with one slot of its own."""
    names = {
        "__slots__": (slot,),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    return type(original)(original.__name__, (first, original), {**names, **(extra or {})})


def make_plain(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling a class made by `subclass` gives: an object of the original class (`layers[:2]` makes a new ModuleList so)."""
    original = kind.__mro__[2]
    return original(*args, **kwargs)


def share_state(kind: type, module: torch.nn.Module, slot: str, content: Any) -> Any:
    """An object of class `kind` over the state of `module`."""
    twin: Any = object.__new__(kind)
    object.__setattr__(twin, "__dict__", module.__dict__)
    object.__setattr__(twin, slot, content)
    return twin
