"""Which Python code ran, and what it may read: told from its bytecode.

A name counts as read wherever code mentions it: as a variable, as an attribute, as an imported module, or as a string that
could be an attribute's name (`getattr(self, "scale")`). Torch's, numpy's and Python's own code is taken for granted.
"""

from __future__ import annotations

import dis
import functools
import gc
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

_TRUSTED = frozenset({"torch", "hotfuse", "numpy", *sys.stdlib_module_names}) - {"__main__"}
_TORCH = os.path.dirname(str(importlib.util.find_spec("torch").origin)) + os.sep  # type: ignore[union-attr]
# Methods that no forward pass calls unmentioned: printing, copying, pickling, setting attributes, making classes.
_UNUSED = frozenset(
    [
        "__repr__",
        "__str__",
        "__format__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__getnewargs__",
        "__sizeof__",
        "__dir__",
        "__doc__",
        "__setattr__",
        "__delattr__",
        "__init_subclass__",
        "__subclasshook__",
        "__class_getitem__",
        "__class__",
    ]
)
_OTHERS = frozenset(
    [
        "__call__",
        "__getattr__",
        "__enter__",
        "__exit__",
        "__next__",
        "__get__",
        "__missing__",
        "__post_init__",
        "__torch_function__",
    ]
)
_IMPLICIT = (frozenset({*dir(float), *dir(int), *dir(dict), *dir(list), *dir(set)}) | _OTHERS) - _UNUSED


def is_library(name: str | None) -> bool:
    """Whether code of this module is torch's, numpy's, Python's or ours, which nobody changes between calls."""
    return str(name).partition(".")[0] in _TRUSTED


def is_implicit(name: str) -> bool:
    """Whether Python itself calls a method of this name (`__call__`, `__getattr__`, operators), so that nobody mentions it."""
    return name.startswith("__") and name in _IMPLICIT


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Every name that a piece of code, or code nested in it, mentions."""
    return frozenset(_mentioned(code))


def _mentioned(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        yield from _strings(constant)


def _strings(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        if constant.isidentifier():
            yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for item in constant:
            yield from _strings(item)
    elif isinstance(constant, types.CodeType):
        yield from _mentioned(constant)


@functools.lru_cache(maxsize=4096)
def imports_in(code: types.CodeType) -> tuple[tuple[str, int], ...]:
    """The modules that code imports when it runs: names, and how many packages up they are counted from."""
    found: list[tuple[str, int]] = []
    level: Any = 0
    previous: list[Any] = [None, None]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level = previous[0].argval if previous[0] is not None and isinstance(previous[0].argval, int) else 0
            found.append((str(step.argval), level))
        previous = [previous[1], step]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += imports_in(constant)
    return tuple(found)


def imported_modules(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """Modules that a function imports when it runs, as far as they are loaded now."""
    package = str(function.__globals__.get("__package__") or "")
    for name, level in imports_in(function.__code__):
        prefix = package.rsplit(".", level - 1)[0] if level > 1 else package
        full = f"{prefix}.{name}".strip(".") if level else name
        parts = full.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end]))
            if isinstance(module, types.ModuleType):
                yield module


# Calls of sympy's functions that a trace may make for all its sizes, and for each operator. Of the models tried Segformer makes
# the most and ends: 9.2 million for 1,450 operators, 20 s. Swin makes 30 million for 500, and would go on for many minutes.
SIZE_CALLS = 1_000_000
SIZE_CALLS_EACH = 10_000
CodeKey = tuple[str, str, int]  # file, qualified name, first line: the same in this process and in the capture's


def code_key(code: types.CodeType) -> CodeKey:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class IntricateSizes(BaseException):
    """A trace thinks about its symbolic sizes for longer than that is worth. No Exception: nobody on the way may take it for an
    answer."""

    def __str__(self) -> str:
        return "its sizes depend on each other in too many ways"


class CodeRecord:
    """Notes, while entered, which Python code the thread runs, and where the user's code reads the clock; and raises
    IntricateSizes in a trace that runs more of sympy's functions than `SIZE_CALLS` and `SIZE_CALLS_EACH` for each operator.
    State: the code, `clock` ("" or the place), `intricate`, the counts, and the profiler it stands in for."""

    def __init__(self) -> None:
        self._codes: dict[int, types.CodeType] = {}  # by id, and held: equal code may come from different files
        self._sympy: set[int] = set()
        self._dispatch: set[int] = set()
        self._left = SIZE_CALLS
        self.clock = ""
        self.intricate = False

    def __enter__(self) -> CodeRecord:
        self._before = sys.getprofile()
        codes, sympy, dispatch = self._codes, self._sympy, self._dispatch

        def note(frame: types.FrameType, event: str, called: Any) -> None:
            if event == "call":
                code = frame.f_code
                key = id(code)
                if key not in codes:
                    self._add(code)
                if key in sympy:
                    self._left -= 1
                    if self._left < 0:  # here, amid arithmetic: nothing is left half done, as no context is being left
                        self.intricate = True
                        raise IntricateSizes
                elif key in dispatch:
                    self._left += SIZE_CALLS_EACH
            elif event == "c_call" and _reads_clock(called) and not is_library(frame.f_globals.get("__name__")):
                self.clock = f"time.{called.__name__} in {frame.f_code.co_name}, line {frame.f_lineno}"

        self._note = note
        self._thread = threading.get_ident()
        gc.callbacks.insert(0, self._collection_begins)
        gc.callbacks.append(self._collection_ends)
        sys.setprofile(note)
        return self

    def _add(self, code: types.CodeType) -> None:
        self._codes[id(code)] = code
        if f"{os.sep}sympy{os.sep}" in code.co_filename:
            self._sympy.add(id(code))
        elif code.co_name == "__torch_dispatch__":
            self._dispatch.add(id(code))

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(self._before)
        gc.callbacks.remove(self._collection_begins)
        gc.callbacks.remove(self._collection_ends)

    # What others hook into the garbage collector (pytest plug-ins time it) is no part of the forward pass it interrupts.
    def _collection_begins(self, phase: str, _: Any) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            sys.setprofile(None)

    def _collection_ends(self, phase: str, _: Any) -> None:
        if phase == "stop" and threading.get_ident() == self._thread:
            sys.setprofile(self._note)

    def keys(self) -> frozenset[CodeKey]:
        """The code that ran, torch's own left out."""
        return frozenset(code_key(c) for c in self._codes.values() if not c.co_filename.startswith(_TORCH))


def _reads_clock(called: Any) -> bool:
    return getattr(called, "__module__", None) == "time" and called.__name__ != "sleep"
