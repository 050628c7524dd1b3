"""Parcels: records as bytes, on their way between this process and a child that it started.

They are pickled, at a pace where something serves meanwhile: pickle keeps the interpreter to itself for 64 KiB at a time. Only
what came from such a child, or from the parent, is ever unwrapped, and nothing from a file. Constants travel as plain arrays,
and what works out things about itself travels without them: another thread may be about to add one.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from dataclasses import fields
from typing import Any

from hotfuse.codegen.recipe import Recipe
from hotfuse.ir.graph import Constant, Graph
from hotfuse.pace import Pace, hurry


def wrap(record: Any, pace: Pace = hurry) -> bytes:
    """A record as bytes."""
    stream = _Written(pace)
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_FORMS}
    pickler.dump(record)
    return b"".join(stream.parts)


def unwrap(body: bytes | memoryview, pace: Pace = hurry) -> Any:
    """The record that `wrap` made bytes of in a process that we started, or that started us."""
    return pickle.load(_Read(body, pace))


def _by_fields(record: Any) -> tuple[Any, ...]:
    return type(record), tuple(getattr(record, field.name) for field in fields(record))


def _constant(constant: Constant) -> tuple[Any, ...]:
    return Constant, (constant.numpy(), constant.type)


_FORMS: dict[type, Any] = {Graph: _by_fields, Recipe: _by_fields, Constant: _constant}


class _Written:
    """Takes bytes at a pace."""

    def __init__(self, pace: Pace) -> None:
        self.parts: list[bytes] = []
        self._pace = pace

    def write(self, part: Any) -> int:
        self.parts.append(bytes(part))
        self._pace()
        return len(self.parts[-1])


class _Read(io.BytesIO):
    """Gives bytes at a pace."""

    def __init__(self, body: bytes | memoryview, pace: Pace) -> None:
        super().__init__(body)
        self._pace = pace

    def read(self, size: int | None = -1) -> bytes:
        self._pace()
        return super().read(size)
