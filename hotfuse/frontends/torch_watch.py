"""ModuleWatch: notices that the Python side of a module is no longer what a capture saw.

State: references to the dictionaries and containers of a module tree, with shallow copies taken when the watch began. Nothing
is hooked and nothing on the module changes; `changed` compares, mostly inside C loops (55-60 us for BERT-base's 228 modules).

Watched: the classes of all submodules and which they are, training flags, every plain attribute (numbers of the user's own
classes by value and type), the objects and containers reachable from attributes (configurations), hooks of any kind, and the
globals and closures that the model's code names.
Tensors are not: parameters and buffers are read anew by each call.
"""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from hotfuse.frontends.torch_code import Owned, forward_functions, is_followed, is_library, read_code

LIMIT = 20_000  # objects followed from one module; more than that is data, not configuration
_DERIVED = {"_flat_weights", "_flat_weight_refs"}  # what recurrent modules make of their parameters, anew where needed
_OWN = (frozenset(torch.nn.Module().__dict__) | _DERIVED) - {"training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_LEAVES = (
    type(None), str, bytes, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, enum.Enum,
    torch.Tensor, torch.dtype, torch.device, torch.nn.Module,
)  # fmt: skip
_CONTENTS = operator.attrgetter("cell_contents")
_NUMBERS = (bool, int, float, complex)


Table = tuple[str, dict[str, Any], tuple[str, ...]]  # whose it is, the dictionary, the keys that count


class Exact:
    """A number that equals only a number of the same type and bits: 1 is neither True nor 1.0, and 0.0 is not -0.0."""

    __slots__ = ("number", "type")

    def __init__(self, number: Any) -> None:
        self.number = number
        self.type = type(number)

    def __eq__(self, other: object) -> bool:
        return type(other) is self.type and other == self.number and (other != 0 or repr(other) == repr(self.number))

    __hash__ = None  # type: ignore[assignment]


class Same:
    """Equals nothing but one object."""

    __slots__ = ("object",)

    def __init__(self, value: Any) -> None:
        self.object = value

    def __eq__(self, other: object) -> bool:
        return other is self.object

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Group:
    """Dictionaries with the same keys, and the values that were under these keys."""

    read: Callable[[Mapping[str, Any]], Any]
    keys: tuple[str, ...]
    live: tuple[dict[str, Any], ...]
    saved: list[Any]
    names: tuple[str, ...]


class ModuleWatch:
    """Watches one module tree from now on."""

    def __init__(self, module: torch.nn.Module) -> None:
        named = list(module.named_modules(remove_duplicate=True))
        self._names = [name or type(module).__name__ for name, _ in named]
        self._modules = [m for _, m in named]
        self._classes = list(map(type, self._modules))
        self._dicts = [m.__dict__ for m in self._modules]
        self._hooks = [d[k] for d in self._dicts for k in _HOOKS if k in d]
        self._hooks += [getattr(nn_module, name) for name in _GLOBAL_HOOKS]
        self._children = [d["_modules"] for d in self._dicts]
        self._saved_children = [dict(c) for c in self._children]
        self.tensors: list[torch.Tensor] = []  # tensors in containers: their values are part of a capture
        self.complete = True  # whether everything reachable is watched
        self._containers: list[Any] = []
        self._saved_containers: list[Any] = []
        self._seen: set[int] = set()
        self._functions: list[Owned] = list(forward_functions(self._classes))
        named_dicts = list(zip(self._names, self._dicts, self._classes, strict=True))
        exact = [(n, d, tuple(k for k in d if k not in _OWN)) for n, d, c in named_dicts if not is_library(c.__module__)]
        loose = [(n, d, tuple(k for k in d if k not in _OWN)) for n, d, c in named_dicts if is_library(c.__module__)]
        exact += self._follow([(f"{n}.{k}", v, c) for n, d, c in named_dicts for k, v in d.items() if k not in _OWN], False)
        reads = read_code(self._functions)
        exact += self._follow([(name, value, object) for name, value in reads.values()], True)
        self._tables = [d for _, d, _ in (*exact, *loose)]
        self._sizes = list(map(len, self._tables))
        exact += [(str(table.get("__name__")), table, tuple(sorted(names))) for table, names in reads.tables.values()]
        self._groups = [*_grouped(exact, _exact), *_grouped(loose, lambda value: value)]
        self._cells = reads.cells
        self._saved_cells = [_exact(value) for value in map(_CONTENTS, self._cells)]

    def hooked(self) -> bool:
        """Whether anybody listens in on the module's calls."""
        return any(self._hooks)

    def changed(self) -> str:
        """What is different from when the watch began; "" if nothing is."""
        try:
            if any(self._hooks):
                return "a hook is registered"
            if list(map(type, self._modules)) != self._classes:
                return "a submodule changed its class"
            if not all(map(operator.eq, self._children, self._saved_children)):
                return "a submodule was added, removed or replaced"
            if list(map(len, self._tables)) != self._sizes:
                return "an attribute was added or removed"
            for group in self._groups:
                if list(map(group.read, group.live)) != group.saved:
                    return _difference(group)
            if not all(map(operator.eq, self._containers, self._saved_containers)):
                return "a container among the attributes or globals changed"
            if list(map(_CONTENTS, self._cells)) != self._saved_cells:
                return "a variable of a closure changed"
        except Exception as error:  # attributes may compare as they like; one that cannot be compared has changed
            return f"an attribute changed ({type(error).__name__})"
        return ""

    def _follow(self, pending: list[tuple[str, Any, type]], tensors: bool) -> list[Table]:
        """The dictionaries of objects reachable from the given ones, each once; containers, tensors and functions are noted on
        the way. Tensors at the start count only if `tensors` (a module's own are read live)."""
        tables: list[Table] = []
        for _ in range(LIMIT):
            if not pending:
                return tables
            name, value, owner = pending.pop()
            if isinstance(value, torch.Tensor) and (tensors or "[" in name):
                self.tensors.append(value)
            if isinstance(value, types.MethodType):
                value = value.__func__
            if is_followed(value):
                self._functions.append((value, owner))
            if isinstance(value, (*_LEAVES, *_NUMBERS)) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if isinstance(value, (list, dict, set, tuple, frozenset)):
                if not isinstance(value, (tuple, frozenset)):
                    self._containers.append(value)
                    self._saved_containers.append(_copy(value))
                items = value.items() if isinstance(value, dict) else enumerate(value)
                pending += [(f"{name}[{key!r}]", item, owner) for key, item in items]
            elif isinstance(getattr(value, "__dict__", None), dict):
                tables.append((name, value.__dict__, tuple(value.__dict__)))
                pending += [(f"{name}[.{key}]", item, type(value)) for key, item in value.__dict__.items()]
        self.complete = False
        return tables


def _copy(container: Any) -> Any:
    """A shallow copy that equals the original until that changes, numbers exactly."""
    if isinstance(container, dict):
        return {k: _exact(v) for k, v in container.items()}
    if isinstance(container, list):
        return [_exact(v) for v in container]
    return set(container)


def _exact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Same(value)
    return Exact(value) if type(value) in (int, float, complex) else value


def _grouped(tables: Iterable[Table], save: Callable[[Any], Any]) -> list[Group]:
    by_keys: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for name, table, keys in tables:
        if keys:
            by_keys.setdefault(keys, []).append((name, table))
    groups = []
    for keys, members in by_keys.items():
        read = operator.itemgetter(*keys)
        live = tuple(table for _, table in members)
        values = [save(read(t)) if len(keys) == 1 else tuple(map(save, read(t))) for t in live]
        groups.append(Group(read, keys, live, values, tuple(name for name, _ in members)))
    return groups


def _difference(group: Group) -> str:
    """The first attribute of a group that differs, for people to read."""
    for name, live, saved in zip(group.names, group.live, group.saved, strict=True):
        now = group.read(live)
        pairs = zip(
            group.keys, (now,) if len(group.keys) == 1 else now, (saved,) if len(group.keys) == 1 else saved, strict=True
        )
        for key, value, before in pairs:
            if value is not before and before != value:
                what = "the training flag" if key == "training" else f"attribute {key!r}"
                return f"{what} of {name} changed"
    return "an attribute changed"
