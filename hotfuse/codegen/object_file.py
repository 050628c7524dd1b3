"""Reads an object file: its sections, its symbols and the places that wait for an address.

Objects come from other processes and from disk, so every offset is checked against the bytes at hand before it is followed.
The format is ELF for 64-bit little-endian machines (System V ABI, chapters 4 and 5), as LLVM writes it.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.errors import CodegenError
from hotfuse.records import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PATCH = struct.Struct("<QQq")
_RELOCATABLE = 1
_SYMBOL_TABLE, _PATCHES, _NO_BYTES, _PLAIN_PATCHES = 2, 4, 8, 9  # types of sections
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
_SPECIAL, _ABSOLUTE = 0xFF00, 0xFFF1  # numbers of sections that stand for something else
NOWHERE = -1
MAX_SYMBOLS = 1 << 16  # a kernel has a handful


@dataclass(frozen=True)
class Section:
    """`data` is None where the bytes are all 0."""

    size: int
    align: int
    is_loaded: bool
    is_code: bool
    is_writable: bool
    data: memoryview | None


@dataclass(frozen=True)
class Symbol:
    """A place in a section. `is_offered`: other code may ask for it by name."""

    name: str
    section: int  # 0: nobody here defines it; NOWHERE: it is no place
    value: int
    is_offered: bool


@dataclass(frozen=True)
class Patch:
    """The bytes at `offset` of `section` wait for the address of a symbol, in the way that `kind` says."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Symbols:
    """Names that other code may call, and names that somebody else would have to define."""

    defined: tuple[str, ...]
    undefined: tuple[str, ...]


@dataclass(frozen=True)
class ObjectFile:
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]  # the first one stands for none
    patches: tuple[Patch, ...]

    @property
    def offered(self) -> Mapping[str, Symbol]:
        return {s.name: s for s in self.symbols[1:] if s.section and s.is_offered}

    @property
    def undefined(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.symbols[1:] if not s.section)


def read_symbols(data: bytes) -> Symbols:
    """The names of an object for this machine; `CodegenError` if it is none, or damaged."""
    found = read_object(data)
    return Symbols(tuple(found.offered), found.undefined)


def refuse_undefined(names: Sequence[str]) -> None:
    """Generated code calls nothing outside of itself: LLVM writes a call where the processor lacks an instruction."""
    if names:
        raise CodegenError(
            f"the object needs {', '.join(names)} from outside of itself; compile it without what {names[0]} stands for"
        )


def read_object(data: bytes) -> ObjectFile:
    """An object for this machine; `CodegenError` if it is none, or damaged."""
    magic, kind, machine, _, _, _, start, _, _, _, _, entry, count, _ = _unpack(_HEADER, data, 0)
    if magic[:6] != b"\x7fELF\x02\x01":
        raise CodegenError("these bytes are not a 64-bit ELF object")
    if kind != _RELOCATABLE or machine != _MACHINES.get(platform.machine()):
        raise CodegenError(f"the object (ELF type {kind}, machine {machine}) was not compiled for linking on this machine")
    if entry != _SECTION.size:
        raise CodegenError(f"damaged object: its section headers have {entry} bytes, not {_SECTION.size}")
    headers = [_unpack(_SECTION, data, start + entry * number) for number in range(count)]
    sections = tuple(_section(data, header) for header in headers)
    symbols: list[Symbol] = [Symbol("", 0, 0, False)]
    patches: list[Patch] = []
    for header in headers:
        if header[1] == _SYMBOL_TABLE:
            if header[6] >= len(headers):
                raise CodegenError("damaged object: its symbols have no names")
            names = headers[header[6]]
            symbols += _read_table(_part(data, header[4], header[5]), _part(data, names[4], names[5]), sections)
        elif header[1] == _PLAIN_PATCHES:
            raise CodegenError("the object cannot be linked: its addresses are written in a way that no compiler of ours uses")
        elif header[1] == _PATCHES:
            patches += _read_patches(_part(data, header[4], header[5]), header[7])
    for patch in patches:
        if not (0 < patch.section < len(sections) and patch.symbol < len(symbols)):
            raise CodegenError("the object cannot be linked: it names a section or a symbol that is not there")
    return ObjectFile(sections, tuple(symbols), tuple(patches))


def _section(data: bytes, header: tuple[Any, ...]) -> Section:
    _, kind, flags, _, offset, size, _, _, align, _ = header
    if kind == _NO_BYTES:
        content = None
    else:
        content = _part(data, offset, size)
    if align & (align - 1) or align > 1 << 16:
        raise CodegenError(f"damaged object: a section is to lie at multiples of {align}")
    return Section(size, max(align, 1), bool(flags & 2), bool(flags & 4), bool(flags & 1), content)


def _read_table(table: memoryview, names: memoryview, sections: tuple[Section, ...]) -> list[Symbol]:
    if len(table) % _SYMBOL.size or len(table) // _SYMBOL.size > MAX_SYMBOLS:
        raise CodegenError(f"damaged object: a symbol table of {len(table)} bytes")
    found = []
    for name, info, other, section, value, _ in list(_SYMBOL.iter_unpack(table))[1:]:  # the first one is always empty
        if section == _ABSOLUTE:  # a number, not a place; the name of the source file is one, too
            section = NOWHERE
        elif section >= _SPECIAL:
            raise CodegenError("the object cannot be linked: it leaves memory for others to lay out")
        elif section >= len(sections):
            raise CodegenError("damaged object: a symbol lies in a section that is not there")
        elif section and value > sections[section].size:
            raise CodegenError("damaged object: a symbol lies behind the end of its section")
        found.append(Symbol(_name(names, name), section, value, info >> 4 != 0 and other & 3 == 0))
    return found


def _read_patches(table: memoryview, section: int) -> list[Patch]:
    if len(table) % _PATCH.size:
        raise CodegenError(f"damaged object: a table of addresses of {len(table)} bytes")
    return [Patch(section, offset, info & 0xFFFFFFFF, info >> 32, addend) for offset, info, addend in _PATCH.iter_unpack(table)]


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
