"""Reads the symbol table of an object file: what it defines, and what it would need from elsewhere.

Objects come from other processes and from disk, so every offset is checked against the bytes at hand before it is followed.
The format is ELF for 64-bit little-endian machines (System V ABI, chapters 4 and 5), as LLVM writes it.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass
from typing import Any

from hotfuse.errors import CodegenError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE, _SYMBOL_TABLE = 1, 2
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
MAX_SYMBOLS = 1 << 16  # a kernel has a handful


@dataclass(frozen=True)
class Symbols:
    """Names that other code may call, and names that somebody else would have to define."""

    defined: tuple[str, ...]
    undefined: tuple[str, ...]


def read_symbols(data: bytes) -> Symbols:
    """The symbols of an object for this machine; `CodegenError` if it is none, or damaged."""
    magic, kind, machine, _, _, _, sections, _, _, _, _, entry, count, _ = _unpack(_HEADER, data, 0)
    if magic[:6] != b"\x7fELF\x02\x01":
        raise CodegenError("these bytes are not a 64-bit ELF object")
    if kind != _RELOCATABLE or machine != _MACHINES.get(platform.machine()):
        raise CodegenError(f"the object (ELF type {kind}, machine {machine}) was not compiled for linking on this machine")
    if entry != _SECTION.size:
        raise CodegenError(f"damaged object: its section headers have {entry} bytes, not {_SECTION.size}")
    headers = [_unpack(_SECTION, data, sections + entry * number) for number in range(count)]
    defined: list[str] = []
    undefined: list[str] = []
    for header in headers:
        if header[1] == _SYMBOL_TABLE:
            if header[6] >= len(headers):
                raise CodegenError("damaged object: its symbols have no names")
            names = headers[header[6]]
            _collect(_part(data, header[4], header[5]), _part(data, names[4], names[5]), defined, undefined)
    return Symbols(tuple(defined), tuple(undefined))


def _collect(table: memoryview, names: memoryview, defined: list[str], undefined: list[str]) -> None:
    if len(table) % _SYMBOL.size or len(table) // _SYMBOL.size > MAX_SYMBOLS:
        raise CodegenError(f"damaged object: a symbol table of {len(table)} bytes")
    for number, (name, info, other, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
        is_local, is_hidden = info >> 4 == 0, other & 3 != 0
        if number and section == 0:  # the first symbol is always an empty one
            undefined.append(_name(names, name))
        elif number and not is_local and not is_hidden:
            defined.append(_name(names, name))


def _name(names: memoryview, start: int) -> str:
    end = bytes(names[start : start + 1024]).find(b"\0")
    if end < 0:
        raise CodegenError("damaged object: the name of a symbol has no end")
    return bytes(names[start : start + end]).decode("ascii", "replace")


def _part(data: bytes, start: int, size: int) -> memoryview:
    if start + size > len(data):
        raise CodegenError(f"damaged object: bytes {start} to {start + size} of {len(data)}")
    return memoryview(data)[start : start + size]


def _unpack(layout: struct.Struct, data: bytes, start: int) -> tuple[Any, ...]:
    return layout.unpack(_part(data, start, layout.size))
