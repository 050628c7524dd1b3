"""Mapped files, whose bytes another process may map as well: it is told where they lie, and nothing is copied or sent.

    here     part_of(view)        ->  FilePart, as text    which file, as it was when it was mapped, and which bytes of it
    there    part.file.open()     ->  the file             None where its path leads to another one, or somebody wrote to it
             part.within(file)    ->  the same bytes

Bytes that are in no mapped file have no part: they travel. Of what is told, nothing is read.

State: none.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from dataclasses import asdict
from typing import Any

from hotfuse.records import dataclass


@dataclass(frozen=True)
class FileId:
    """A file, and in what state: whoever replaces it or writes to it changes one of these."""

    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    def open(self) -> memoryview | None:
        """Its bytes, mapped here too; None where they cannot be had, or are not those that were meant."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            descriptor = os.open(self.path, flags)
        except OSError:
            return None
        try:
            return memoryview(FileMap(descriptor)) if _id_of(descriptor) == self else None
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)


class FileMap(mmap.mmap):
    """The bytes of an open file, to be read. `id` says where others find them; None where nobody can tell."""

    id: FileId | None

    def __new__(cls, descriptor: int) -> FileMap:
        self = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        self.id = _id_of(descriptor)
        return self


@dataclass(frozen=True)
class FilePart:
    """`size` bytes of a file, from `begin` on."""

    file: FileId
    begin: int
    size: int

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def read(text: bytes) -> FilePart:
        found = json.loads(text)
        return FilePart(FileId(**found["file"]), found["begin"], found["size"])

    def within(self, file: memoryview) -> memoryview:
        return file[self.begin : self.begin + self.size]


def map_file(descriptor: int, size: int) -> memoryview:
    """A read-only view of an open file."""
    if size == 0:  # cannot be mapped
        return memoryview(b"")
    return memoryview(FileMap(descriptor))[:size]


def part_of(view: memoryview) -> FilePart | None:
    """Which part of which file a view of contiguous bytes shows; None if it shows something else."""
    mapped = map_under(view)
    if mapped is None or mapped.id is None:
        return None
    return FilePart(mapped.id, _address(view) - _address(memoryview(mapped)), view.nbytes)


def map_under(view: Any) -> FileMap | None:
    """The mapping that a view, or an array, goes back to; None where it is something else."""
    while view is not None and not isinstance(view, FileMap):
        view = view.obj if isinstance(view, memoryview) else getattr(view, "base", None)
    return view


def _address(view: memoryview) -> int:
    import numpy as np  # a child sets its threads before it imports it

    return np.frombuffer(view, np.uint8).ctypes.data


def _id_of(descriptor: int) -> FileId | None:
    """The file behind a descriptor, by a path that leads to it without a link; None where there is none."""
    status = os.fstat(descriptor)
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or not os.path.isabs(path):
        return None
    return FileId(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
