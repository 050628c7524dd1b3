"""What the Python code of a model reads besides its module: globals and closures.

Code is not run to find out. Names in the bytecode of `forward`, and of the methods and functions that it names in turn, are
looked up; torch's and Python's own code is not followed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LIMIT = 20_000  # functions followed
Owned = tuple[types.FunctionType, type]  # a function, and the class whose methods its attribute names may mean


@dataclass
class CodeReads:
    """`tables` gives, for each Python module, its globals and the names that are read; `cells` are those of closures."""

    tables: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)
    cells: list[types.CellType] = field(default_factory=list)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Everything read, with a name for people."""
        for table, names in self.tables.values():
            yield from ((f"{table.get('__name__')}.{name}", table[name]) for name in sorted(names))
        yield from (("a closure", cell.cell_contents) for cell in self.cells)


def read_code(functions: Iterable[Owned]) -> CodeReads:
    """What the given functions, and what they call, read."""
    reads = CodeReads()
    pending = list(functions)
    seen: set[tuple[int, type]] = set()
    while pending and len(seen) < LIMIT:
        function, owner = pending.pop()
        if (id(function), owner) in seen:
            continue
        seen.add((id(function), owner))
        table = function.__globals__
        names = reads.tables.setdefault(id(table), (table, set()))[1]
        for name in _names_in(function.__code__):
            if name in table and _is_state(table[name]):
                names.add(name)
            if name in table and is_followed(table[name]):
                pending.append((table[name], owner))
            pending += [(f, owner) for f in functions_of(owner, name) if is_followed(f)]
        for cell in function.__closure__ or ():
            value = _content(cell)
            if is_followed(value):
                pending.append((value, owner))
            if _is_state(value) or not isinstance(value, (type, types.ModuleType)):
                reads.cells.append(cell)
    return reads


def forward_functions(classes: Iterable[type]) -> Iterator[Owned]:
    for owner in dict.fromkeys(classes):
        if not is_library(owner.__module__):
            yield from ((f, owner) for f in functions_of(owner, "forward"))


def functions_of(owner: type, name: str) -> Iterator[types.FunctionType]:
    """The functions behind a method or property, decorators seen through."""
    value: Any = getattr(owner, name, None)
    value = getattr(value, "__func__", getattr(value, "fget", value))
    while value is not None:
        if isinstance(value, types.FunctionType):
            yield value
        value = getattr(value, "__wrapped__", None)


def is_followed(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not is_library(value.__module__ or "")


def is_library(name: str) -> bool:
    """Whether code is torch's, Python's or ours, which nobody changes between calls."""
    root = name.partition(".")[0]
    return root != "__main__" and (root in ("torch", "hotfuse") or root in sys.stdlib_module_names)


def _is_state(value: Any) -> bool:
    """Whether a global may change what a model computes: plain values, containers, tensors, functions, not loggers."""
    import torch

    return value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, list, dict, set, tuple, types.FunctionType, torch.Tensor)
    )


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
