"""Reach: everything outside its tensors that a module's answer may depend on, found without running the module.

From the modules of a tree it follows attributes, slots and containers, the classes of objects, functions with their default
arguments and closures, and the globals of functions. Of a class or a Python module only names that some followed function
mentions are followed, since most of their contents is never read. What can be reached through mentioned names but not compared
between calls is a `CaptureError`: better eager than an old answer.
"""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import logging
import os
import pathlib
import random
import re
import threading
import types
import typing
import uuid
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, cast

import numpy
import torch

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import CodeKey, code_key, globals_in, imported_modules, is_implicit, is_library, names_in
from hotfuse.pace import Pace, hurry
from hotfuse.records import dataclass

_OURS = str(pathlib.Path(__file__).parents[1])
LIMIT = 20_000  # objects followed from one module; more than that is data, not configuration
ARRAY_BYTES = 64 * 1024  # larger arrays are weights and belong into buffers
PLAIN = (type(None), bool, int, float, complex, str, bytes, numpy.generic)  # compared by type and value
_DERIVED = {"_flat_weights", "_flat_weight_refs"}  # what recurrent modules make of their parameters, anew where needed
OWN = (frozenset(torch.nn.Module().__dict__) | _DERIVED) - {"training"}
_FIELD = type(collections.namedtuple("_FIELD", "x").x)  # type: ignore[attr-defined]
FIXED = (
    *PLAIN, enum.Enum, range, slice, types.BuiltinFunctionType, types.EllipsisType, types.NotImplementedType, types.CodeType,
    types.GenericAlias, types.UnionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, re.Pattern, _FIELD,
    pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction,
    uuid.UUID,
    inspect.Signature, inspect.Parameter, typing.TypeVar, numpy.dtype, numpy.ufunc, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.finfo, torch.iinfo, torch._ops.OperatorBase, torch._ops.OpOverloadPacket,
    torch._ops._OpNamespace, torch._ops._Ops,
)  # fmt: skip
_IRRELEVANT = (logging.Logger, logging.Handler, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()))
_CONTAINERS = (list, dict, set, deque)
# C classes that a watched object may extend
_BASES = (object, *_CONTAINERS, OrderedDict, defaultdict, tuple, frozenset, *PLAIN, types.SimpleNamespace)
_HIDDEN = (random.Random.__base__, threading.local)
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # of type.__flags__
_TYPING = ("typing", "types", "typing_extensions")
# Library functions whose answers differ between this process and the capture's.
_UNSTEADY = {"torch": ("get_num_threads", "get_num_interop_threads"), "os": ("environ", "getenv")}
_REFUSED = {
    id(f): f"torch.{f.__name__}, which answers differently in the capture process"
    for f in (torch.get_num_threads, torch.get_num_interop_threads)
}


@dataclass(frozen=True)
class Table:
    """A dictionary of attributes or variables, whose it is, and the keys that count."""

    where: str
    mapping: Mapping[str, Any]
    keys: dict[str, None]  # in order
    named: bool = False  # whether it belongs to a class or a Python module


@dataclass(frozen=True)
class _Item:
    """A value to look at. `path` holds the attribute names that lead to it: it is read if code mentions all of them. `names` is
    what the function mentions that read it by name; None stands for the names in all functions."""

    where: str
    value: Any
    path: tuple[str, ...] = ()
    names: frozenset[str] | None = None


@dataclass
class Reach:
    """What was found. All of it is compared by identity, except `arrays` (by content) and `tensors` (their holder's task)."""

    ran: frozenset[CodeKey] | None = None  # only this code is followed; None: any
    tables: dict[int, Table] = field(default_factory=dict)
    sized: list[Mapping[str, Any]] = field(default_factory=list)  # tables in which new keys count as well
    containers: list[Any] = field(default_factory=list)
    functions: list[types.FunctionType] = field(default_factory=list)
    cells: list[types.CellType] = field(default_factory=list)
    slots: list[tuple[Any, str]] = field(default_factory=list)
    variables: list[contextvars.ContextVar[Any]] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    bindings: dict[tuple[str, str], Any] = field(default_factory=dict)  # what variables name that nobody gives another meaning
    _seen: dict[int, Any] = field(default_factory=dict)  # holds what it saw: an id is only good while its object lives
    _spaces: set[tuple[int, frozenset[str] | None]] = field(default_factory=set)
    _views: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _pending: list[_Item] = field(default_factory=list)
    _waiting: dict[str, list[tuple[str, Mapping[str, Any], str]]] = field(default_factory=dict)
    _refused: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    def follow(self, pace: Pace = hurry) -> None:
        """Look at everything pending, and at what that leads to."""
        while self._pending:
            pace()
            self._look(self._pending.pop())
            if len(self._seen) > LIMIT:
                raise CaptureError("its attributes hold too many objects to watch")

    def refusal(self) -> str:
        """What the code reads that cannot be compared between calls; "" if there is no such thing."""
        return next((why for path, why in self._refused if self.names.issuperset(path)), "")

    def read(
        self, where: str, mapping: Mapping[str, Any], key: str, path: tuple[str, ...] = (), names: frozenset[str] | None = None
    ) -> None:
        """Note that the value under a key counts, and follow it."""
        if path or not _is_binding(mapping[key]):
            self.tables.setdefault(id(mapping), Table(where, mapping, {}, not path)).keys[key] = None
        else:
            self.bindings[where, key] = mapping[key]
        self._pending.append(_Item(f"{where}.{key}", mapping[key], path, names))

    def modules(self, named: Iterable[tuple[str, torch.nn.Module]], pace: Pace = hurry) -> None:
        """The modules of the tree. Their own tensors do not count: these are read anew by each call."""
        for name, module in named:
            pace()
            self._seen[id(module)] = module
            self._class(type(module))
            self.mention(k for k in module.__dict__ if k == "forward")
            for key, value in module.__dict__.items():
                if key not in OWN and not isinstance(value, torch.Tensor):
                    self._pending.append(_Item(f"{name}.{key}", value, (key,)))
        self.mention(("forward",))

    def mention(self, names: Iterable[str]) -> None:
        for name in set(names) - self.names:
            self.names.add(name)
            for where, mapping, key in self._waiting.pop(name, ()):
                self.read(where, mapping, key)

    def _look(self, item: _Item) -> None:
        value = item.value
        if id(value) in _REFUSED:
            self._refuse(item, _REFUSED[id(value)])
        elif value is os.getenv:
            self._push(item, os.environ)
        elif isinstance(value, (*FIXED, *_IRRELEVANT)):
            if isinstance(value, enum.Enum):
                self._class(type(value))
        elif isinstance(value, (type, types.ModuleType)):
            self._namespace(value, item.names)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._look_closely(item, value)

    def _look_closely(self, item: _Item, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, types.FunctionType):
            self._function(item, value)
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            self._push(item, value.__func__, getattr(value, "__self__", None))
        elif isinstance(value, (property, functools.cached_property)):
            self._push(item, getattr(value, "fget", None) or getattr(value, "func", None))
        elif isinstance(value, functools.partial):
            self._push(item, value.func, value.args, value.keywords, value.__dict__)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._function(
                item, cast(types.FunctionType, value.__wrapped__), cached=True
            )  # may have run before anybody took notes
        elif isinstance(value, types.MappingProxyType):
            self.containers.append(value)
            self._push(item, *value.values(), at="[...]")
        elif isinstance(value, contextvars.ContextVar):
            self.variables.append(value)
        elif isinstance(value, weakref.ReferenceType):
            self._push(item, value())
        elif isinstance(value, (numpy.ndarray, array.array, bytearray)):
            self._array(item, value)
        else:
            self._object(item, value)

    def _object(self, item: _Item, value: Any) -> None:
        cls = type(value)
        if cls.__module__ in _TYPING and not isinstance(value, types.SimpleNamespace):  # what annotations are made of
            return
        hidden = [c for c in cls.__mro__ if not isinstance(c, type) or (_is_c_class(c) and c not in _BASES)]
        if hidden:
            self._refuse(item, f"a {cls.__module__}.{cls.__qualname__}, which cannot be compared between calls")
            return
        self._class(cls)
        if isinstance(value, _CONTAINERS):
            self.containers.append(value)
        if isinstance(value, dict):
            for key, content in list(dict.items(value)):
                self._push(item, key, content, at=f"[{key!r}]")
        elif isinstance(value, (list, deque, tuple)):
            self._push(item, *value, at="[...]")
        elif isinstance(value, (set, frozenset)):  # of a class in a set only its being there is asked for
            self._push(item, *(v for v in value if not isinstance(v, type)), at="[...]")
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.sized.append(attributes)
            for key in list(attributes):
                self.read(item.where, attributes, key, (*item.path, key))
        for c in cls.__mro__:
            for key, descriptor in vars(c).items():
                if isinstance(descriptor, types.MemberDescriptorType):
                    self.slots.append((value, descriptor.__name__))
                    self._push(item, getattr(value, descriptor.__name__, None), at=f".{key}", name=(key,))

    def _class(self, cls: type) -> None:
        """The class of an object: any function may mention what is in it."""
        self._namespace(cls, None)
        if not is_library(type(cls).__module__):
            self._namespace(type(cls), None)

    def _namespace(self, space: type | types.ModuleType, names: frozenset[str] | None) -> None:
        """A class or a Python module: what is mentioned of it counts."""
        if (id(space), names) in self._spaces:
            return
        self._spaces.add((id(space), names))
        self._seen[id(space)] = space
        if isinstance(space, types.ModuleType):
            keys = _UNSTEADY.get(space.__name__, ()) if is_library(space.__name__) else tuple(space.__dict__)
            self._keys(space.__name__, space.__dict__, keys, names)
            return
        for base in space.__mro__:
            if not is_library(base.__module__):
                view = self._views.setdefault(id(base), vars(base))  # each `vars` is another view
                if names is None:
                    self.sized.append(view)
                unused = ("__init__", "__new__") if issubclass(base, torch.nn.Module) else ()  # modules are made already
                self._keys(f"{base.__module__}.{base.__qualname__}", view, [k for k in view if k not in unused], names)

    def _keys(self, where: str, mapping: Mapping[str, Any], keys: Iterable[str], names: frozenset[str] | None) -> None:
        for key in list(keys):
            if key in (self.names if names is None else names) or is_implicit(key):
                self.read(where, mapping, key, names=names)
            elif names is None:
                self._waiting.setdefault(key, []).append((where, mapping, key))

    def _function(self, item: _Item, function: types.FunctionType, cached: bool = False) -> None:
        if function.__code__.co_filename.startswith(_OURS):  # the wrapper around a forward pass that is being traced
            self._push(item, getattr(function, "__wrapped__", None))
            return
        if self.ran is not None and not cached and code_key(function.__code__) not in self.ran:
            return
        if function.__dict__:
            self._push(item, function.__dict__)
        for cell in function.__closure__ or ():
            self.cells.append(cell)
            self._push(item, cell_content(cell), at=" (closure)")
        self._push(item, function.__defaults__, function.__kwdefaults__, at=" (default)")
        if is_library(function.__module__):
            return
        self.functions.append(function)
        names = names_in(function.__code__)
        self.mention(names)
        table = function.__globals__
        for name in globals_in(function.__code__) & table.keys():
            self.read(str(table.get("__name__")), table, name, names=names)
        for module in imported_modules(function):
            self._namespace(module, names)

    def _array(self, item: _Item, value: Any) -> None:
        if isinstance(value, numpy.ndarray) and (value.dtype.hasobject or value.nbytes > ARRAY_BYTES):
            self._refuse(item, "a large numpy array, or one of objects; make it a buffer")
        elif not isinstance(value, numpy.ndarray) and len(value) > ARRAY_BYTES:
            self._refuse(item, "a large array; make it a buffer")
        else:
            self.arrays.append(value)

    def _push(self, item: _Item, *values: Any, at: str = "", name: tuple[str, ...] = ()) -> None:
        self._pending += [_Item(item.where + at, value, item.path + name) for value in values]

    def _refuse(self, item: _Item, what: str) -> None:
        self._refused.append((item.path, f"it reads {what} ({item.where}); it stays eager"))


def _is_binding(value: Any) -> bool:
    """Whether a variable only names a library's class or function, or a Python module: nobody gives it another meaning."""
    if isinstance(value, types.ModuleType) or type(value).__module__ in _TYPING:
        return True
    return isinstance(value, (type, types.BuiltinFunctionType)) and is_library(value.__module__)


class _Empty:
    """Stands for the content of a closure's variable that has no value."""


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _Empty


def _is_c_class(cls: type) -> bool:
    """Whether instances may hold state that Python code cannot list."""
    return cls in _HIDDEN or not cls.__flags__ & _HEAP or bool(cls.__flags__ & _IMMUTABLE)


def reach_from(
    named: Iterable[tuple[str, torch.nn.Module]], ran: frozenset[CodeKey] | None = None, pace: Pace = hurry
) -> Reach:
    """All that the modules of a tree may depend on."""
    reach = Reach(ran)
    reach.modules(named, pace)
    reach.follow(pace)
    return reach
