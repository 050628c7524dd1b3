"""Arena memory: one block for a call, in which `ir/arena` has a place for each intermediate.

State: an `ArenaPool` keeps the idle arenas of one plan, its nested graphs and its shapes included, up to a number of bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.arena import ALIGNMENT
from hotfuse.locks import make_lock
from hotfuse.records import dataclass

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt
MOST_KEPT = 1 << 28  # bytes at the end of the heap: a worker may be allowed no more than four times that
NOBODY = 0  # no object's `id`


def aligned_block(size: int, alignment: int = ALIGNMENT) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`size` bytes, undefined, that begin at a multiple of `alignment`."""
    block = np.empty(size + alignment, dtype=np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + size]


def empty_block(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`size` zeros that begin on a page. Each page takes memory when it is written to, and not before."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    block = mmap.mmap(-1, size, **private)
    with contextlib.suppress(OSError, AttributeError):  # there are none
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, np.uint8)


def parts_in_memory(array: np.ndarray[Any, Any]) -> list[slice]:
    """Which bytes of a contiguous array may have been touched since it was empty: those on pages that there is memory for."""
    size, begin = array.nbytes, array.ctypes.data
    ahead = begin % mmap.PAGESIZE
    pages = -(-(ahead + size) // mmap.PAGESIZE)
    marks = np.zeros(pages, np.uint8)
    try:
        mincore = ctypes.CDLL(None).mincore
    except (OSError, AttributeError):
        return [slice(0, size)]
    pointer = ctypes.c_void_p
    if mincore(pointer(begin - ahead), ctypes.c_size_t(pages * mmap.PAGESIZE), pointer(marks.ctypes.data)):
        return [slice(0, size)]
    edges = np.flatnonzero(np.diff(marks & 1, prepend=0, append=0)) * mmap.PAGESIZE - ahead
    return [slice(max(0, int(first)), min(size, int(last))) for first, last in edges.reshape(-1, 2)]


def give_back() -> None:
    """Give the system back what this process has freed, where the C library keeps it. (That of Linux does: calls of many shapes
    that allocate for every operator leave several times what a fused model needs.) Meanwhile others wait for memory: 0.1 ms
    for every MB."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Have the C library keep what this process frees: it is asked for again at once, and new memory has to be found and
    cleared, which costs a proof a tenth of its time, and more where a machine has to find it for its guest."""
    most = 32 << 20  # of one piece: the library takes no more
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((_MMAP_THRESHOLD, most), (_TRIM_THRESHOLD, MOST_KEPT), (_TOP_PAD, 2 * most)):
            library.mallopt(parameter, value)


@dataclass(frozen=True)
class Placement:
    """Where one value lies in the arena, and what it looks like there."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Arena:
    """One block of memory, used by one call at a time, and the views that a bound plan's steps write into: those of the plan
    that used it last, its `owner`."""

    __slots__ = ("address", "block", "bytes", "owner", "views")

    def __init__(self, size: int) -> None:
        self.block = aligned_block(size)
        self.bytes = size
        self.address = int(self.block.ctypes.data)
        self.owner = NOBODY
        self.views: Sequence[np.ndarray[Any, Any]] = ()

    def lay_out(self, owner: int, placements: Sequence[Placement]) -> None:
        self.owner = owner
        self.views = [
            np.ndarray(p.shape, p.dtype, buffer=self.block, offset=p.offset)  # type: ignore[call-overload]
            for p in placements
        ]


class ArenaPool:
    """Idle arenas, `limit` bytes of them at most. All shapes of a plan share them: there are as many as calls at a time, each
    as large as the largest needs. Owners are known by their `id`. Any thread may call it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._idle: list[Arena] = []
        self._lock = make_lock()

    @property
    def held_bytes(self) -> int:
        return self._held

    def take(self, size: int, owner: int = NOBODY, placements: Sequence[Placement] = ()) -> Arena:
        """An arena of so many bytes or more, laid out for its owner."""
        with self._lock:
            arena = self._found(size, owner)
        if arena is None:
            arena = Arena(size)
        if arena.owner != owner:
            arena.lay_out(owner, placements)
        return arena

    def _found(self, size: int, owner: int) -> Arena | None:
        """The owner's own, or the last that is large enough; where none is, the last one makes room. Holds the lock."""
        fits = [place for place, arena in enumerate(self._idle) if arena.bytes >= size]
        place = next((p for p in fits if self._idle[p].owner == owner), fits[-1] if fits else len(self._idle) - 1)
        if place < 0:
            return None
        arena = self._idle.pop(place)
        self._held -= arena.bytes
        return arena if fits else None

    def give(self, arena: Arena) -> None:
        """Keep an arena for the next call, if there is room."""
        with self._lock:
            if self._held + arena.bytes <= self._limit:
                self._idle.append(arena)
                self._held += arena.bytes

    def drop(self, owner: int) -> None:
        """Forget a bound plan that is no more: another one may have its `id`."""
        with self._lock:
            for arena in self._idle:
                if arena.owner == owner:
                    arena.owner, arena.views = NOBODY, ()

    def clear(self) -> None:
        """Free all that is idle."""
        with self._lock:
            self._idle.clear()
            self._held = 0
