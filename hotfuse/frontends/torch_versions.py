"""Versions of dictionaries: Python counts a number on whenever something in one is set or removed, so who kept the numbers need
not look inside again. To ask for one costs the memory access that finds the dictionary.

torch reads them for its own guards, in every version of Python that it runs on. Where it does not, everything is looked at with
each call. An ordered dictionary may be put in another order without a trace, and an empty one filled from another at once where
Python tells watchers and does not count (3.12): these have no version here.
"""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import torch

_READ: Callable[[Any], int] | None = getattr(torch._C._dynamo.guards, "dict_version", None)

_WATCHED = sys.version_info >= (3, 12)


def has_version(table: Any) -> bool:
    return _dict_of(table) is not None


def _dict_of(table: Any) -> dict[Any, Any] | None:
    """The dictionary whose version is a table's: itself, or that which a proxy shows, as that of a class is."""
    if _READ is None:
        return None
    if isinstance(table, MappingProxyType):
        shown = gc.get_referents(table)
        return _dict_of(shown[0]) if len(shown) == 1 else None
    if not isinstance(table, dict) or isinstance(table, OrderedDict) or (_WATCHED and not table):
        return None
    return table


class Versions:
    """Those of some dictionaries. State: the versions that were kept, when somebody had looked inside."""

    def __init__(self, tables: Iterable[Any]) -> None:
        found = list(map(_dict_of, tables))
        self._known = all(table is not None for table in found)
        self._tables = list({id(table): table for table in found}.values())
        self._kept: list[int] | None = None

    def now(self) -> list[int] | None:
        """To be asked for before anybody looks inside: what changes meanwhile is then looked at once more. None where one has
        none."""
        return list(map(_READ, self._tables)) if _READ is not None and self._known else None

    def are(self, versions: list[int] | None) -> bool:
        """Whether nothing was set or removed since such versions were kept."""
        return versions is not None and versions == self._kept

    def keep(self, versions: list[int] | None) -> None:
        self._kept = versions
