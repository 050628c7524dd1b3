"""Facts: what this process holds in classes and globals, in words that another process can compare with its own.

A fresh capture process imports the model's code anew. Where a global was changed since, or a method was replaced, its module
is not the caller's although both have the same source; then their facts differ.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Mapping
from typing import Any

from hotfuse.frontends.torch_code import code_key, is_library
from hotfuse.frontends.torch_reach import PLAIN, Table
from hotfuse.pace import Pace, hurry

Facts = Mapping[str, Any]
DEPTH = 4  # of containers and objects in each other

# Of the environment: what a capture process adds to, and what pytest changes with every phase of a test.
_RESTLESS = ("PYTHONPATH", "PYTEST_CURRENT_TEST")


def make_facts(tables: Iterable[Table], pace: Pace = hurry) -> dict[str, Any]:
    """The facts of classes and modules, by name; dictionaries of nameless objects count where a name leads to them."""
    facts: dict[str, Any] = {}
    for table in tables:
        if table.named:
            pace()
            facts |= {f"{table.where}.{key}": _fact(table.mapping[key], DEPTH) for key in table.keys}
    return facts


def conflict(ours: Facts, theirs: Facts) -> str:
    """The first name that means something else on the other side; "" if none does."""
    return next((name for name in sorted(ours.keys() & theirs.keys()) if not _agree(ours[name], theirs[name])), "")


def _agree(ours: Any, theirs: Any) -> bool:
    """Whether two facts are the same. Keys that only one dictionary has are let pass: registries grow as classes are used."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_agree(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_agree, ours, theirs))
    return bool(ours == theirs)


def _fact(value: Any, depth: int) -> Any:
    kind = type(value).__qualname__
    if value is os.environ or value is os.getenv:
        return kind, sorted(item for item in os.environ.items() if item[0] not in _RESTLESS)
    if isinstance(value, PLAIN):
        return kind, repr(value)
    if isinstance(value, types.FunctionType):
        return kind, code_key(value.__code__), _fact(value.__defaults__, depth - 1) if depth else None
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return kind, value.__qualname__
    if not depth:
        return kind
    if isinstance(value, dict):
        return kind, {repr(k): _fact(v, depth - 1) for k, v in value.items() if isinstance(k, PLAIN)}
    if isinstance(value, (list, tuple)):
        return kind, [_fact(v, depth - 1) for v in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(v) for v in value if isinstance(v, PLAIN))
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not is_library(type(value).__module__):
        return kind, _fact(attributes, depth - 1)
    return kind
