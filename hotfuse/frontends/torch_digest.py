"""Digests of what a captured program rests on, by contents: equal in two processes only where a trace would be the same.

Within a process a `ModuleWatch` compares by identity what `Reach` finds. Here the same things are told by what they are: code
by its instructions, objects by their class and attributes, classes and Python modules by what the code that ran reads of them,
arrays and tensors outside of the modules by their bytes. The modules' own tensors are weights and do not count. Objects that
can be reached twice are told once, then by number, so that what is the same object stays the same object.

Code that ran although nothing leads to it (found by a computed name) is told by the file that it lies in. What Reach refuses to
follow is not read, or nothing is captured; here only its class is told. `CaptureError` where something cannot be told.
"""

from __future__ import annotations

import array
import contextvars
import enum
import functools
import hashlib
import logging
import os
import re
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import torch

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import GRAPH, CodeKey, code_key, is_library
from hotfuse.frontends.torch_reach import ARRAY_BYTES, FIXED, OWN, PLAIN, Reach, cell_content
from hotfuse.frontends.torch_reduction import HASH, state_of_graph
from hotfuse.pace import Pace, hurry

DEPTH = 100  # of objects in each other
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NAMED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_UNTOLD = (logging.Logger, logging.Handler, logging.LoggerAdapter)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# What these do in a trace is the work of torch.export and of ours; their versions are told.
_OURS = tuple(f"{folder}{os.sep}" for folder in (*torch.__path__, *numpy.__path__, Path(__file__).parents[1]))
_SIZES = tuple(f"{os.sep}{name}{os.sep}" for name in ("sympy", "mpmath"))
_PYTHON = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep, "<frozen ")


def digest_state(module: torch.nn.Module, reach: Reach, pace: Pace = hurry) -> str:
    """A digest of all that a trace of a module may have read, weights and arguments aside. `reach` is that of the code that
    the trace went through."""
    parts, ran = list(module.named_modules()), reach.ran
    assert ran is not None
    teller = _Teller(parts, ran, pace)
    for name, part in parts:
        teller.say("part", name, *_lineage(type(part)))
        told = state_of_graph(part) if isinstance(part, torch.fx.GraphModule) else part.__dict__.keys()
        for key in sorted(told - OWN):
            teller.say(key)
            teller.tell(part.__dict__[key])
    named = [(t.where, key, t.mapping[key]) for t in reach.tables.values() if t.named for key in t.keys]
    named += [(where, key, value) for (where, key), value in reach.bindings.items()]
    for where, key, value in sorted(named, key=lambda entry: entry[:2]):
        teller.say(where, key)
        teller.tell(value)
    for function in sorted(reach.functions, key=lambda f: (str(f.__module__), *code_key(f.__code__))):
        teller.tell_function(function)
    for path in sorted({key[0] for key in ran - _reached(reach) if not _is_trusted(key[0])}):
        teller.say("file", path, "" if path.startswith(GRAPH) else _file_digest(path))  # a graph's says all of it
    return hashlib.sha256(repr(teller.words).encode()).hexdigest()


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> str:
    """A digest of what code does, and of where it says it comes from."""
    consts = [code_digest(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    told = (
        *code_key(code), code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_code,
        code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, consts,
    )  # fmt: skip
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _constant(constant: Any) -> Any:
    """A constant of code in words that do not depend on the order of sets."""
    if isinstance(constant, frozenset):
        return "frozenset", sorted(map(repr, constant))
    return tuple(map(_constant, constant)) if isinstance(constant, tuple) else repr(constant)


def _reached(reach: Reach) -> set[CodeKey]:
    """The code of all functions that were found, and what is nested in it."""
    found: set[CodeKey] = set()
    pending = [function.__code__ for function in reach.functions]
    while pending:
        code = pending.pop()
        found.add(code_key(code))
        pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def _is_trusted(path: str) -> bool:
    if path.startswith(_OURS) or any(part in path for part in _SIZES):
        return True
    return path.startswith(_PYTHON) and not any(part in path for part in _INSTALLED)


def _file_digest(path: str) -> str:
    """A digest of the file of a Python module that this process has loaded."""
    if not any(getattr(m, "__file__", None) == path for m in list(sys.modules.values())):
        raise CaptureError(f"code of {path} ran that nothing leads to")
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise CaptureError(f"code of {path} ran, which cannot be read: {error.strerror}") from None


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _lineage(kind: type) -> list[str]:
    """The names of a class and of all that it extends. (What code reads of its attributes is told where that is found.)"""
    return [_name(kind)] if is_library(kind.__module__) else [_name(type(kind)), *map(_name, kind.__mro__)]


def _words(value: Any) -> str:
    """Something that never changes, in words; without addresses, which differ between processes."""
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, _NAMED):
        owner = getattr(value, "__self__", getattr(value, "__objclass__", None))
        whose = owner if isinstance(owner, (type, types.ModuleType)) else type(owner)
        return f"{getattr(value, '__module__', None)} {value.__qualname__} of {whose.__name__}"
    return _ADDRESS.sub("", repr(value))


class _Teller:
    """State: the words so far, and the numbers of objects that were told."""

    def __init__(self, parts: Iterable[tuple[str, torch.nn.Module]], ran: frozenset[CodeKey], pace: Pace) -> None:
        self.words: list[str] = []
        self._ran, self._pace = ran, pace
        self._seen: dict[int, tuple[int, Any]] = {}  # holds what it saw: an id is only good while its object lives
        for _, part in parts:
            self._number(part)
        tables = [(m._parameters, m._buffers, m.__dict__) for _, m in parts]
        for tensor in (v for row in tables for table in row for v in table.values() if isinstance(v, torch.Tensor)):
            self._number(tensor)
        self._depth = 0

    def _number(self, value: Any) -> None:
        self._seen.setdefault(id(value), (len(self._seen), value))

    def say(self, *words: str) -> None:
        self.words += words

    def tell(self, value: Any) -> None:
        """Tell a value, and all that it consists of."""
        self._pace()
        kind = type(value)
        if value is os.getenv:
            value = os.environ
        if isinstance(value, enum.Enum):
            self.say("enum", *_lineage(kind), value.name, repr(value.value) if isinstance(value.value, PLAIN) else "")
        elif isinstance(value, FIXED) and (not isinstance(value, PLAIN) or kind in PLAIN or isinstance(value, numpy.generic)):
            self.say(_name(kind), _words(value))
        elif isinstance(value, type):
            self.say("class", *_lineage(value))
        elif isinstance(value, types.ModuleType):
            self.say("module", value.__name__)
        elif id(value) in self._seen:
            self.say("again", str(self._seen[id(value)][0]))
        elif self._depth >= DEPTH:
            raise CaptureError(f"more than {DEPTH} objects hold each other")
        else:
            self._number(value)
            self._depth += 1
            self.say("(", *_lineage(type(value)))
            self._tell_parts(value)
            self.say(")")
            self._depth -= 1

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.tell(value)

    def _tell_parts(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.tell(value.__wrapped__)  # among the functions that were found
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            self._all((value.__func__, getattr(value, "__self__", None)))
        elif isinstance(value, (property, functools.cached_property)):
            self.tell(getattr(value, "fget", None) or getattr(value, "func", None))
        elif isinstance(value, functools.partial):
            self._all((value.func, value.args, value.keywords, value.__dict__))
        elif isinstance(value, contextvars.ContextVar):
            self.tell(value.get(None))
        elif isinstance(value, weakref.ReferenceType):
            self.tell(value())
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, (numpy.ndarray, array.array, bytearray)):
            self._array(value)
        elif not isinstance(value, _UNTOLD):
            self._object(value)

    def _function(self, function: types.FunctionType) -> None:
        if code_key(function.__code__) in self._ran:
            self.tell_function(function)
        else:
            self.say(str(function.__module__), function.__qualname__)

    def tell_function(self, function: types.FunctionType) -> None:
        """Tell what a function does, whether it ran or not."""
        self.say(str(function.__module__), code_digest(function.__code__))
        self._all((function.__defaults__, function.__kwdefaults__, function.__dict__))
        self._all(map(cell_content, function.__closure__ or ()))

    def _tensor(self, tensor: torch.Tensor) -> None:
        if tensor.numel() * tensor.element_size() > ARRAY_BYTES or tensor.device.type != "cpu":
            raise CaptureError(f"a tensor of shape {tuple(tensor.shape)} lies outside of the modules")
        self.say(str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.stride()), str(tensor.requires_grad))
        flat = tensor.detach().contiguous().reshape(-1)
        self._bytes(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")

    def _array(self, value: Any) -> None:
        if isinstance(value, numpy.ndarray):
            if value.dtype.hasobject or value.nbytes > ARRAY_BYTES:
                raise CaptureError("a large numpy array, or one of objects, lies outside of the modules")
            self.say(str(value.dtype), str(value.shape))
        self._bytes(value.tobytes() if not isinstance(value, bytearray) else bytes(value))

    def _bytes(self, data: bytes) -> None:
        self.say(hashlib.sha256(data).hexdigest())

    def _object(self, value: Any) -> None:
        """Anything else: what is in it, its attributes and slots."""
        kind = type(value)
        plain: Any = next((base for base in PLAIN if isinstance(value, base)), None)
        if plain is not None:  # of a class that extends numbers or text
            self.say(plain.__repr__(value))
        if isinstance(value, (dict, types.MappingProxyType)):
            for key, content in list(dict.items(value) if isinstance(value, dict) else value.items()):
                self.tell(key)
                self.tell(content)
        elif isinstance(value, (list, tuple, deque)):
            self._all(list(value))
        elif isinstance(value, (set, frozenset)):
            self.say(*_sorted(value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key in sorted(map(str, attributes.keys() - {HASH})):
                self.say(key)
                self.tell(attributes.get(key))
        slots = sorted({k for c in kind.__mro__ for k, d in vars(c).items() if isinstance(d, types.MemberDescriptorType)})
        for key in slots:
            self.say(key)
            self.tell(getattr(value, key, None))


def _sorted(items: Iterable[Any]) -> list[str]:
    """The elements of a set in words. An order of objects there is none."""
    said = []
    for item in items:
        if isinstance(item, type):
            said.append(f"class {_name(item)}")
        elif isinstance(item, PLAIN):
            said.append(f"{type(item).__name__} {item!r}")
        else:
            raise CaptureError(f"a set of objects ({_name(type(item))}) cannot be told in the same order twice")
    return sorted(said)
