"""ModuleWatch: notices that the Python side of a module is no longer what a capture saw.

State: references to the dictionaries and containers that a module's answer may depend on, with what was in them when the watch
began. Nothing is hooked and nothing on the module changes; `changed` compares identities inside C loops, and only looks closer
where one differs, since a number may have been replaced by the same number. What dictionaries hold is looked at only where the
version of one has moved (`torch_versions`): between two calls of a large model all of it has left the processor's caches, and
to read each attribute of each submodule takes longer than many a kernel.

Watched: the classes of all submodules and which they are, training flags, every plain attribute, hooks of any kind, and all
that `Reach` finds: objects and containers, classes, globals, closures and default arguments that the model's code mentions.
Parameters, buffers and other tensors of the modules are not: they are read anew by each call. Code that looks at more of them
than their values is watched for that (`requires_grad`, `grad`) or refused (attributes set on them, `_version`).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import CodeKey, is_library
from hotfuse.frontends.torch_facts import Facts, conflict, make_facts
from hotfuse.frontends.torch_reach import OWN, PLAIN, Reach, cell_content, reach_from
from hotfuse.frontends.torch_request import own_attributes
from hotfuse.frontends.torch_versions import Versions, has_version
from hotfuse.pace import Pace, hurry
from hotfuse.records import dataclass

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_DEFAULTS = operator.attrgetter("__defaults__", "__kwdefaults__")
_UNSET = object()


@dataclass(frozen=True)
class Tables:
    """Dictionaries, and what was under some of their keys: a row of values for each. Those with the same keys are read by one
    getter, and all of them in one loop of C: it runs in every call."""

    names: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...]
    live: tuple[tuple[Mapping[str, Any], ...], ...]
    reads: tuple[Callable[[Mapping[str, Any]], tuple[Any, ...]], ...]
    saved: list[tuple[Any, ...]]
    values: list[Any]  # of the saved rows, one after another

    def rows(self) -> Iterable[tuple[Any, ...]]:
        return chain.from_iterable(map(map, self.reads, self.live))

    def is_equal(self) -> bool:
        """Whether all values are equal to what they were (which True and 1 are)."""
        return list(self.rows()) == self.saved

    def is_identical(self) -> bool:
        return all(map(operator.is_, chain.from_iterable(self.rows()), self.values))

    def is_settled(self) -> bool:
        """Whether no value was replaced by an equal one that may change by itself."""
        return self.is_identical() or not self.difference()

    def difference(self) -> str:
        """The first attribute that differs, for people to read; "" if none does."""
        places = ((n, k) for names, keys in zip(self.names, self.keys, strict=True) for n in names for k in keys)
        for (name, key), value, before in zip(places, chain.from_iterable(self.rows()), self.values, strict=True):
            if not _same(value, before):
                what = "the training flag" if key == "training" else f"attribute {key!r}"
                return f"{what} of {name} changed"
        return ""


class Sized:
    """Tables in which no name may come or go."""

    def __init__(self, tables: Iterable[Mapping[str, Any]]) -> None:
        self.tables = list(tables)
        self._sizes, self._counts = list(map(len, self.tables)), self.counts()

    def counts(self) -> list[int]:
        return list(map(_count, self.tables))

    def changed(self) -> bool:
        return list(map(len, self.tables)) != self._sizes and self.counts() != self._counts


class Containers:
    """Lists, sets and dictionaries, and what was in them."""

    def __init__(self, containers: Iterable[Any]) -> None:
        self.all = list(containers)
        self._mappings = [c for c in self.all if isinstance(c, dict)]
        self._proxies = [c for c in self.all if isinstance(c, types.MappingProxyType)]
        self._sizes, self._items = list(map(len, self.all)), list(self._contents())

    def changed(self) -> bool:
        return bool(self.all) and (list(map(len, self.all)) != self._sizes or _differ(self._contents(), self._items))

    def state(self) -> Iterable[Any]:
        return chain(map(len, self.all), self._contents())

    def _contents(self) -> Iterable[Any]:
        """The items of lists and sets, the keys of dictionaries, and their values."""
        values = chain(map(dict.values, self._mappings), map(types.MappingProxyType.values, self._proxies))
        return chain(chain.from_iterable(self.all), chain.from_iterable(values))


class ModuleWatch:
    """Watches one module tree from now on, with all that its code might read or, if it is known which code `ran`, what that
    might have read, as `reach` has it where that was found before. CaptureError if there is something among this that cannot
    be watched."""

    def __init__(
        self, module: torch.nn.Module, ran: frozenset[CodeKey] | None = None, pace: Pace = hurry, reach: Reach | None = None
    ) -> None:
        self.module = module
        self._ran = ran
        named: list[tuple[str, torch.nn.Module]] = []
        for name, part in module.named_modules(remove_duplicate=True):
            named.append((name or type(module).__name__, part))
            pace()
        reach = reach or reach_from(named, ran, pace)
        refusal = reach.refusal()
        if ran is not None and refusal:
            raise CaptureError(refusal)
        if ran is not None:
            _check_weights(named, reach.names)
        gradients = bool(reach.names & {"requires_grad", "grad"}) and ran is not None
        self._parameters = [m._parameters for _, m in named if m._parameters] if gradients else []
        self._wanted = list(_wanted(self._parameters))
        self.tensors = reach.tensors  # outside of the modules: their values are part of a capture
        self.facts = make_facts(reach.tables.values(), pace) if ran is not None else {}
        self._modules = [m for _, m in named]
        self._classes = list(map(type, self._modules))
        pace()
        dicts = [m.__dict__ for m in self._modules]
        self._hooks = [d[k] for d in dicts for k in _HOOKS if k in d]
        self._hooks += [getattr(nn_module, name) for name in _GLOBAL_HOOKS]
        children = [d["_modules"] for d in dicts]
        self._childless = [c for c in children if not c]
        self._children = [c for c in children if c]
        self._saved_children = list(map(dict, self._children))
        pace()
        self._sized = Sized(t for t in (*dicts, *reach.sized) if has_version(t))
        self._sized_views = Sized(t for t in (*dicts, *reach.sized) if not has_version(t))
        pace()
        own = [(name, m.__dict__, tuple(k for k in m.__dict__ if k not in OWN), m) for name, m in named]
        loose = [entry[:3] for entry in own if is_library(type(entry[3]).__module__)]
        exact = [entry[:3] for entry in own if not is_library(type(entry[3]).__module__)]
        reached = [(t.where, t.mapping, tuple(t.keys)) for t in reach.tables.values()]
        self._loose = _grouped(loose, pace)
        self._exact = _grouped(exact, pace)
        self._reached = _grouped((entry for entry in reached if has_version(entry[1])), pace)
        self._views = _grouped((entry for entry in reached if not has_version(entry[1])), pace)
        pace()
        self._mappings = Containers(c for c in reach.containers if has_version(c))
        self._containers = Containers(c for c in reach.containers if not has_version(c))
        self._functions = [f for f in reach.functions if f.__defaults__ or f.__kwdefaults__]
        self._code = list(chain.from_iterable(map(_DEFAULTS, self._functions)))
        self._cells = reach.cells
        self._variables = list(map(cell_content, self._cells))
        self._slots = ([o for o, _ in reach.slots], [n for _, n in reach.slots])
        self._slot_values = list(map(getattr, *self._slots, repeat(_UNSET)))
        self._context = reach.variables
        self._context_values = [v.get(_UNSET) for v in self._context]
        self._arrays = reach.arrays
        self._array_bytes = list(map(_snapshot, self._arrays))
        self._own = Versions(chain(dicts, self._children, self._sized.tables))
        self._others = Versions(chain(*self._reached.live, self._mappings.all))  # globals: a script sets some now and then

    def narrowed(self, ran: frozenset[CodeKey], facts: Facts, pace: Pace = hurry) -> ModuleWatch:
        """A watch over what a capture really depended on; `facts` is how things stood where it was made."""
        if self.changed():
            return self  # and serve nothing: the state that was captured is gone
        watch = self if self._ran == ran else ModuleWatch(self.module, ran, pace)
        differs = conflict(watch.facts, facts)
        if differs:
            raise CaptureError(f"{differs} is not what the model's source says, and the capture process only has the source")
        return self if self.changed() else watch

    def hooked(self) -> bool:
        """Whether anybody listens in on the module's calls."""
        return any(self._hooks)

    def changed(self) -> str:
        """What is different from when the watch began; "" if nothing is."""
        try:
            return self._changed()
        except Exception as error:  # attributes may compare as they like; one that cannot be compared has changed
            return f"an attribute changed ({type(error).__name__})"

    def _changed(self) -> str:
        if any(self._hooks):
            return "a hook is registered"
        if list(map(type, self._modules)) != self._classes:
            return "a submodule changed its class"
        if any(self._childless):
            return "a submodule was added"
        now = self._own.now()
        if not self._own.are(now):
            if found := self._changed_inside():
                return found
            if self._loose.is_settled():
                self._own.keep(now)
        now = self._others.now()
        if not self._others.are(now):
            if found := self._changed_beyond():
                return found
            self._others.keep(now)
        if self._sized_views.changed():
            return "an attribute was added or removed"
        if not self._views.is_identical() and (found := self._views.difference()):
            return found
        if self._containers.changed():
            return "a container among the attributes or globals changed"
        if self._functions and _differ(chain.from_iterable(map(_DEFAULTS, self._functions)), self._code):
            return "the default arguments of a function changed"
        if self._cells and _differ(map(cell_content, self._cells), self._variables):
            return "a variable of a closure changed"
        if self._slot_values and _differ(map(getattr, *self._slots, repeat(_UNSET)), self._slot_values):
            return "a slot of an object changed"
        if self._context and _differ((v.get(_UNSET) for v in self._context), self._context_values):
            return "a context variable changed"
        if self._parameters and list(_wanted(self._parameters)) != self._wanted:
            return "a weight has or wants a gradient now, or no longer does"
        if self._arrays and list(map(_snapshot, self._arrays)) != self._array_bytes:
            return "the contents of an array changed"
        return ""

    def _changed_inside(self) -> str:
        """What is different inside of the modules' dictionaries."""
        if self._children != self._saved_children:
            return "a submodule was added, removed or replaced"
        if self._sized.changed():
            return "an attribute was added or removed"
        if not self._loose.is_equal() and (found := self._loose.difference()):
            return found
        return "" if self._exact.is_identical() else self._exact.difference()

    def _changed_beyond(self) -> str:
        """What is different inside of other dictionaries."""
        if not self._reached.is_identical() and (found := self._reached.difference()):
            return found
        return "a container among the attributes or globals changed" if self._mappings.changed() else ""

    def state(self) -> list[Any]:
        """All that `changed` looks at, as it is now; what is missing counts as well."""
        tables = (self._loose, self._exact, self._reached, self._views)
        groups = [group for each in tables for group in zip(each.live, each.keys, strict=True)]
        found = [table.get(key, _UNSET) for live, keys in groups for table in live for key in keys]
        found += map(type, self._modules)
        found += chain.from_iterable(children.items() for children in (*self._children, *self._childless))
        found += map(bool, self._hooks)
        found += chain(self._sized.counts(), self._sized_views.counts(), self._mappings.state(), self._containers.state())
        found += chain.from_iterable(map(_DEFAULTS, self._functions))
        found += chain(map(cell_content, self._cells), map(getattr, *self._slots, repeat(_UNSET)))
        found += chain((v.get(_UNSET) for v in self._context), map(_snapshot, self._arrays), _wanted(self._parameters))
        return found


def _check_weights(named: Iterable[tuple[str, torch.nn.Module]], names: set[str]) -> None:
    """Refuse code that reads of a weight what torch.export does not carry over."""
    hidden = names & {"_version", "_base"}
    if hidden:
        raise CaptureError(f"it reads {min(hidden)} of a tensor, which differs from call to call; it stays eager")
    for where, module in named:
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            read = names.intersection(own_attributes(tensor)) if tensor is not None else ()
            if read:
                raise CaptureError(
                    f"it reads attribute {min(read)!r} of the weight {name} of {where}; set it on the module instead"
                )


def _wanted(tables: Iterable[Mapping[str, Any]]) -> Iterable[tuple[bool, bool]]:
    """Which weights want a gradient, and have one; asked only where code mentions that."""
    return ((w.requires_grad, w.grad is None) for table in tables for w in table.values() if w is not None)


def same_state(a: list[Any], b: list[Any]) -> bool:
    """Whether nothing changed between two states."""
    return len(a) == len(b) and all(map(_same, a, b))


def _differ(now: Iterable[Any], saved: list[Any]) -> bool:
    """Whether values are others than before; numbers and strings by type and value, everything else by identity."""
    kept = list(now)
    return not all(map(operator.is_, kept, saved)) and not all(map(_same, kept, saved))


def _same(value: Any, before: Any) -> bool:
    """1 is neither True nor 1.0, 0.0 is not -0.0, and one not-a-number is as good as another of its bits."""
    if value is before:
        return True
    if type(value) is not type(before):
        return False
    if type(value) is tuple:
        return len(value) == len(before) and all(map(_same, value, before))
    if isinstance(value, (float, complex)):
        return repr(value) == repr(before)
    return type(value) in PLAIN and bool(value == before)


def _count(table: Mapping[str, Any]) -> int:
    """How many names a table has, without those that Python itself adds to a class when it is pickled or looked at."""
    return len(table) - sum(name in table for name in ("__slotnames__", "__annotations__"))


def _snapshot(array: Any) -> Any:
    if isinstance(array, bytearray):
        return bytes(array)
    return array.tobytes(), getattr(array, "shape", ()), getattr(array, "dtype", None)


def _grouped(tables: Iterable[tuple[str, Mapping[str, Any], tuple[str, ...]]], pace: Pace) -> Tables:
    by_keys: dict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]] = {}
    for name, table, keys in tables:
        pace()
        if keys:  # one key is read twice, since a getter of one gives no tuple
            by_keys.setdefault(keys if len(keys) > 1 else keys * 2, []).append((name, table))
    live = tuple(tuple(table for _, table in members) for members in by_keys.values())
    reads = tuple(operator.itemgetter(*keys) for keys in by_keys)
    saved = list(chain.from_iterable(map(map, reads, live)))
    names = tuple(tuple(name for name, _ in members) for members in by_keys.values())
    return Tables(names, tuple(by_keys), live, reads, saved, list(chain.from_iterable(saved)))
