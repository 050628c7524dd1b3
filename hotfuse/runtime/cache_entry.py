"""Entries of the disk cache, each one file that says all of itself.

    b"hotfuse" version | length of the header | header (JSON) | SHA-256 of all the rest | data
    8 bytes              4 bytes                                32 bytes

The header has kind, full key, number of bytes and time of making. A file's name is a digest of kind and key; whoever opens one
compares the full key, and believes nothing of it before the digest fits. What cannot be used has a `Flaw`: it is damaged, or it
is not to be trusted whatever it holds, being a link, another user's, or open to the writing of others.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hotfuse.records import dataclass

MAGIC = b"hotfuse\x01"  # ends with the version of the format
BLOCK_BYTES = 4096  # what a disk gives to a file is a multiple of this

_START = struct.Struct("<8sI")
_DIGEST_BYTES = 32
_FIELDS = {"kind": str, "key": str, "bytes": int, "made_s": float}
_LATEST_S = 1e11  # the year 5138
_ENTRY = re.compile(r"[0-9a-f]{64}\.entry")
_PART = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}\.part")
# A pipe or a terminal under an entry's name must neither keep us waiting nor become ours.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Header:
    kind: str
    key: str
    bytes: int  # of the data
    made_s: float


@dataclass(frozen=True)
class Entry:
    """What a file says of itself before its data is read. Only `load` knows whether that is true."""

    name: str
    kind: str
    key: str
    bytes: int  # of the data
    made_s: float
    used_s: float  # to a minute


@dataclass(frozen=True)
class Found:
    header: Header
    data: bytes
    used_s: float


@dataclass(frozen=True)
class Flaw:
    """Why a file is not used. `inode` is the file that was looked at, if it could be opened."""

    reason: str
    is_damage: bool = False
    inode: int | None = None


def entry_name(kind: str, key: str) -> str:
    return hashlib.sha256(json.dumps([kind, key]).encode()).hexdigest() + ".entry"


def part_name(name: str) -> str:
    """A name that nobody else has, for an entry while it is being written."""
    return f"{name.removesuffix('.entry')}.{os.urandom(8).hex()}.part"


def is_entry(name: str) -> bool:
    return _ENTRY.fullmatch(name) is not None


def is_part(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def disk_bytes(size: int) -> int:
    """What a file of that size takes: a thousand small entries take a thousand blocks."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def encode_head(kind: str, key: str, data: bytes, made_s: float) -> bytes:
    """All that stands before the data."""
    header = json.dumps({"kind": kind, "key": key, "bytes": len(data), "made_s": float(made_s)}).encode()
    start = _START.pack(MAGIC, len(header)) + header
    return start + _digest(start, data)


def decode(raw: bytes) -> tuple[Header, bytes] | Flaw:
    """The entry that the whole of a file is."""
    start = _data_start(raw, len(raw))
    if isinstance(start, Flaw):
        return start
    if not _digest_fits(raw, start):
        return Flaw("its digest does not fit", is_damage=True)
    header = _decode_header(raw, start, len(raw))
    return header if isinstance(header, Flaw) else (header, raw[start:])


def _digest(start: bytes, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(start)
    digest.update(data)
    return digest.digest()


def _digest_fits(raw: bytes, data_start: int) -> bool:
    end = data_start - _DIGEST_BYTES
    return raw[end:data_start] == _digest(raw[:end], memoryview(raw)[data_start:])


def _data_start(raw: bytes, size: int) -> int | Flaw:
    """Where the data starts in a file of `size` bytes that begins with `raw`."""
    if len(raw) < _START.size:
        return Flaw("it is cut short", is_damage=True)
    magic, length = _START.unpack_from(raw)
    if magic != MAGIC:
        return Flaw("it is no entry of this version", is_damage=True)
    start: int = _START.size + length + _DIGEST_BYTES
    return start if start <= size else Flaw("it is cut short", is_damage=True)


def _decode_header(raw: bytes, data_start: int, size: int) -> Header | Flaw:
    try:
        fields: Any = json.loads(raw[_START.size : data_start - _DIGEST_BYTES])
    except (ValueError, RecursionError):  # text that is not JSON, or JSON that is nested without end
        fields = None
    if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != _FIELDS:
        return Flaw("its header cannot be read", is_damage=True)
    if fields["bytes"] != size - data_start:
        return Flaw("its data has another size than its header says", is_damage=True)
    if not 0 <= fields["made_s"] <= _LATEST_S:  # written so that NaN is refused
        return Flaw("its header cannot be read", is_damage=True)
    return Header(**fields)


def load(folder: int, name: str, most_bytes: int) -> Found | Flaw | None:
    """The whole entry of that name in an open folder, if it is sound; None if there is none."""

    def read(file: int, status: os.stat_result) -> Found | Flaw:
        entry = decode(_read(file, status.st_size))
        if isinstance(entry, Flaw):
            return entry
        header, data = entry
        return _require_name(header, name) or Found(header, data, status.st_mtime)

    return _open(folder, name, most_bytes, read)


def glance(folder: int, name: str, most_bytes: int) -> Entry | Flaw | None:
    """What the entry of that name says of itself. Its data is not read, so nothing is proved."""

    def read(file: int, status: os.stat_result) -> Entry | Flaw:
        raw = _read(file, min(status.st_size, BLOCK_BYTES))
        start = _data_start(raw, status.st_size)
        if isinstance(start, Flaw):
            return start
        raw += _read(file, max(0, start - len(raw)))
        header = _decode_header(raw, start, status.st_size)
        if isinstance(header, Flaw):
            return header
        known = Entry(name, header.kind, header.key, header.bytes, header.made_s, status.st_mtime)
        return _require_name(header, name) or known

    return _open(folder, name, most_bytes, read)


def _require_name(header: Header, name: str) -> Flaw | None:
    """A flaw if an entry lies under the name of another key."""
    fits = entry_name(header.kind, header.key) == name
    return None if fits else Flaw("it lies under the name of another key", is_damage=True)


def _open(
    folder: int, name: str, most_bytes: int, read: Callable[[int, os.stat_result], Result | Flaw]
) -> Result | Flaw | None:
    """What `read` makes of an entry's open file, which may be trusted as far as its owner and mode tell."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        return Flaw("it is a symbolic link" if is_link else f"it cannot be opened: {error.strerror}")
    try:
        status = os.fstat(file)
        unsafe = find_unsafe(status)
        if unsafe is not None:
            return unsafe
        if status.st_size > most_bytes:  # nothing that large was put here, and it is not to be read into memory
            return Flaw("it is larger than the whole cache may be")
        found = read(file, status)
        return replace(found, inode=status.st_ino) if isinstance(found, Flaw) else found
    except OSError as error:
        return Flaw(f"it cannot be read: {error.strerror}")
    finally:
        os.close(file)


def find_unsafe(status: os.stat_result) -> Flaw | None:
    """Why a file is not to be trusted whatever it holds. (One without a name was replaced a moment ago, and is as good.)"""
    if not stat.S_ISREG(status.st_mode):
        return Flaw("it is not a regular file")
    if status.st_uid != os.geteuid():
        return Flaw("it belongs to another user")
    if status.st_nlink > 1:
        return Flaw("it is a hard link, so others may hold it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Flaw("others may write to it")
    return None


def _read(file: int, size: int) -> bytes:
    """The next `size` bytes, fewer at the end of the file. It is one read, except past 2 GiB, where Linux reads in parts."""
    raw = os.read(file, size)
    while len(raw) < size and (more := os.read(file, size - len(raw))):
        raw += more
    return raw
