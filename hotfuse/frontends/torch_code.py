"""What Python code may read: told from its bytecode.

A name counts as read wherever code mentions it: as a variable, as an attribute, as an imported module, or as a string that
could be an attribute's name (`getattr(self, "scale")`). A global variable is read only by code that names it as one, or that
may reach it by a string: a script's variable `b` is none of the business of a model that has an attribute `b`. Torch's, numpy's
and Python's own code is taken for granted.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

_TRUSTED = frozenset({"torch", "hotfuse", "numpy", *sys.stdlib_module_names}) - {"__main__"}
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
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_GLOBALS = frozenset(  # the last one is of Python 3.12 and later
    dis.opmap[name] for name in ("LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
# Who mentions one of these may reach a global variable by a string.
_BY_NAME = frozenset(
    [
        "__builtins__",
        "__dict__",
        "__globals__",
        "__import__",
        "__main__",
        "__module__",
        "__name__",
        "_getframe",
        "currentframe",
        "eval",
        "exec",
        "f_globals",
        "f_locals",
        "getattr_static",
        "getmodule",
        "globals",
        "import_module",
        "modules",
        "resolve_name",
        "run_module",
        "run_path",
        "vars",
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
def globals_in(code: types.CodeType) -> frozenset[str]:
    """Every name that a piece of code, or code nested in it, may look up as a global variable."""
    names = names_in(code)
    return names if names & _BY_NAME else frozenset(_global_names(code))


def _global_names(code: types.CodeType) -> Iterator[str]:
    upper, steps = 0, code.co_code
    for kind, lower in zip(steps[::2], steps[1::2], strict=True):
        argument = upper | lower
        upper = argument << 8 if kind == dis.EXTENDED_ARG else 0
        if kind == _LOAD_GLOBAL:
            yield code.co_names[argument >> 1]  # the lowest bit says that a call follows
        elif kind in _GLOBALS:
            yield code.co_names[argument]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


@functools.lru_cache(maxsize=4096)
def imports_in(code: types.CodeType) -> tuple[tuple[str, int], ...]:
    """The modules that code imports when it runs: names, and how many packages up they are counted from."""
    found: list[tuple[str, int]] = []
    level: Any = 0
    previous: list[Any] = [None, None]
    for step in dis.get_instructions(code) if _IMPORT_NAME in code.co_code[::2] else ():  # few do, and `dis` is slow
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


CodeKey = tuple[str, str, int]  # file, qualified name, first line: the same in this process and in the capture's


GENERATED = "<eval_with_key>"  # how the file of code begins that torch generates; a number follows, another one every time
GRAPH = "<graph "  # how the file of such code begins in its key


def code_key(code: types.CodeType) -> CodeKey:
    name = code.co_filename
    return _graph_name(code) if name.startswith(GENERATED) else name, code.co_qualname, code.co_firstlineno


@functools.lru_cache(maxsize=4096)
def _graph_name(code: types.CodeType) -> str:
    """A name for code that torch generated, by what it does."""
    consts = [_graph_name(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    does = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts)
    return f"{GRAPH}{hashlib.sha256(repr(does).encode()).hexdigest()[:32]}>"
