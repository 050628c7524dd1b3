"""Object code -> code that can be called.

An object needs nothing but itself, so linking it is little work: its sections are laid out in one block of memory, so that
32-bit distances hold wherever the block lies, and the places that wait for an address get it. Code is then executable and not
writable, constants are neither. (LLVM's own linker does the same at a hundred times the cost, and whoever serves from a cache
would load all of LLVM for it.)

State: a `Code` owns the memory of one object, from its making until `close` or until nobody holds it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import weakref
from collections.abc import Callable, Sequence

from hotfuse.codegen.object_file import ObjectFile, Patch, Section, Symbol, read_object, refuse_undefined
from hotfuse.errors import CodegenError

PAGE = mmap.PAGESIZE
_X86 = platform.machine() in ("x86_64", "AMD64")
# how the x86-64 ABI (table 4.9) numbers the ways in which an address is written
_ABSOLUTE, _NEAR, _CALL = 1, 2, 4
_THROUGH_TABLE = (9, 41, 42)
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_munmap = _libc.munmap


class Code:
    """An object in memory. Whoever calls into it keeps it open meanwhile. Any thread may close it, any number of times."""

    __slots__ = ("__weakref__", "_addresses", "_drop", "size_bytes")

    def __init__(self, data: bytes) -> None:
        found = read_object(data)
        refuse_undefined(found.undefined)
        drop: Callable[[], object]
        if _X86:
            block = _Block(found)
            self._addresses = {name: block.address_of(symbol) for name, symbol in found.offered.items()}
            drop = functools.partial(_munmap, block.address, block.size)
        else:
            from hotfuse.codegen.llvm_link import link_by_llvm

            self._addresses, drop = link_by_llvm(data, found.offered)
        self.size_bytes = len(data)
        self._drop = weakref.finalize(self, drop)
        self._drop.atexit = False  # threads that outlive the interpreter may be in it

    def address(self, name: str) -> int:
        """Where a function or variable of the object lies."""
        if self.closed:
            raise CodegenError(f"{name!r} was asked of code that is closed")
        if name not in self._addresses:
            raise CodegenError(f"the object has no {name!r}; it has {', '.join(self._addresses) or 'nothing'}")
        return self._addresses[name]

    @property
    def closed(self) -> bool:
        return not self._drop.alive

    def close(self) -> None:
        """Free the memory. Addresses must not be used any more."""
        self._drop()


class _Block:
    """The memory of one object: code, then constants, then variables, each from a page of its own, then a table of addresses.
    State: none after it is made; `starts` has the address of each loaded section."""

    def __init__(self, found: ObjectFile) -> None:
        offsets, ends = _lay_out(found.sections)
        self._slots = {p.symbol: place for place, p in enumerate(_indirect(found.patches))}
        self._table = _rounded(ends[2], PAGE)
        self.size = max(PAGE, _rounded(self._table + 8 * len(self._slots), PAGE))
        read_write = mmap.PROT_READ | mmap.PROT_WRITE
        made = _libc.mmap(None, self.size, read_write, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if made == _MAP_FAILED:
            raise CodegenError(f"the object cannot be linked: there are no {self.size:,} bytes of memory for it")
        self.address = int(made)
        self.starts = {number: self.address + offset for number, offset in offsets.items()}
        try:
            self._fill(found)
            self._protect(0, ends[0], mmap.PROT_READ | mmap.PROT_EXEC)
            self._protect(ends[0], ends[1], mmap.PROT_READ)
        except BaseException:
            _munmap(self.address, self.size)
            raise

    def address_of(self, symbol: Symbol) -> int:
        if symbol.section not in self.starts:
            raise CodegenError(f"the object cannot be linked: {symbol.name or 'a symbol'} lies in no part of it that is loaded")
        return self.starts[symbol.section] + symbol.value

    def _fill(self, found: ObjectFile) -> None:
        memory = (ctypes.c_char * self.size).from_address(self.address)
        view = memoryview(memory).cast("B")
        for number, start in self.starts.items():
            section = found.sections[number]
            if section.data is not None:
                at = start - self.address
                view[at : at + section.size] = section.data
        for patch in found.patches:
            if patch.section in self.starts:
                self._patch(view, found, patch)

    def _patch(self, view: memoryview, found: ObjectFile, patch: Patch) -> None:
        symbol = found.symbols[patch.symbol]
        width = 8 if patch.kind == _ABSOLUTE else 4
        if patch.offset + width > found.sections[patch.section].size:
            raise CodegenError("the object cannot be linked: an address is to be written behind the end of a section")
        place = self.starts[patch.section] + patch.offset
        target = self.address_of(symbol)
        if patch.kind in _THROUGH_TABLE:
            slot = self.address + self._table + 8 * self._slots[patch.symbol]
            view[slot - self.address : slot - self.address + 8] = target.to_bytes(8, "little")
            target = slot
        if patch.kind == _ABSOLUTE:
            value = (target + patch.addend) % (1 << 64)
        elif patch.kind in (_NEAR, _CALL, *_THROUGH_TABLE):
            value = target + patch.addend - place
            if not -(1 << 31) <= value < 1 << 31:
                raise CodegenError("the object cannot be linked: two parts of it lie too far apart")
            value %= 1 << 32
        else:
            raise CodegenError(
                f"the object cannot be linked: addresses of kind {patch.kind} are none that a compiler of ours uses"
            )
        at = place - self.address
        view[at : at + width] = value.to_bytes(width, "little")

    def _protect(self, start: int, end: int, mode: int) -> None:
        if end > start and _libc.mprotect(self.address + start, end - start, mode):
            raise CodegenError("the object cannot be linked: this system lets no process make code (mprotect was refused)")


def _lay_out(sections: Sequence[Section]) -> tuple[dict[int, int], list[int]]:
    """Where each loaded section begins in the block, and where code, constants and variables end, each at a page."""
    offsets: dict[int, int] = {}
    ends: list[int] = []
    at = 0
    for wanted in ((True, False), (False, False), (False, True)):
        for number, section in enumerate(sections):
            if section.is_loaded and section.size and (section.is_code, section.is_writable) == wanted:
                at = _rounded(at, section.align)
                offsets[number] = at
                at += section.size
        at = _rounded(at, PAGE)
        ends.append(at)
    if any(s.is_loaded and s.size and s.is_code and s.is_writable for s in sections):
        raise CodegenError("the object cannot be linked: it has code that would be writable")
    return offsets, ends


def _indirect(patches: Sequence[Patch]) -> list[Patch]:
    """One patch for each symbol whose address is read from the table."""
    return list({p.symbol: p for p in patches if p.kind in _THROUGH_TABLE}.values())


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
