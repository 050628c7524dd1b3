"""Memory for results that callers own, used again when the caller has dropped it.

Memory handed out stays in the pool's list. It is free again when nobody but the pool refers to it: an array over it, a view of
that, a tensor, a slice of a view all hold a reference to the memory, so counting references tells. Fresh memory of a
large result costs a page fault for every 4 KiB, which is more than many kernels take.

State: a few arrays of one type, each with its memory and address. A lock guards the list. All pools of the process together
keep a number of bytes: where one needs memory beyond, those that were not asked for longest let go of theirs.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from sys import getrefcount
from typing import Any

import numpy as np

from hotfuse.ir.types import TensorType
from hotfuse.locks import make_lock
from hotfuse.runtime.memory import aligned_block

KEPT = 3  # arrays of one result
KEPT_BYTES = 1 << 30  # of them together; one is kept in any case, for its page faults take longer than most kernels
ALL_BYTES = 1 << 25  # of all pools,
RECENT_S = 1.0  # but for those that were asked so short a time ago


class OutputPool:
    def __init__(self, type: TensorType) -> None:
        self._dtype, self._sizes = type.dtype.numpy, type.sizes
        self._bytes = math.prod(self._sizes) * self._dtype.itemsize
        self._kept: list[tuple[Any, Any, int]] = []
        self._used_s = 0.0
        self._lock = make_lock()
        entry = self._make()
        self._unused = getrefcount(entry[1])  # counted as `__call__` counts

    def _make(self) -> tuple[Any, Any, int]:
        """An array that is never handed out, the memory under it, and its address."""
        block = aligned_block(self._bytes)
        owner = block.base if block.base is not None else block
        array = block.view(self._dtype).reshape(self._sizes)
        return array, owner, int(array.ctypes.data)  # `__array_interface__` makes names that Python collects: they pile up

    def __call__(self) -> tuple[Any, int]:
        """An array over memory that nobody else has, undefined, and its address. The array is new: callers may reshape it."""
        self._used_s = time.monotonic()
        with self._lock:
            for entry in self._kept:
                if getrefcount(entry[1]) == self._unused:
                    return entry[0][...], entry[2]
            entry = self._make()
            keeps = not self._kept or (len(self._kept) < KEPT and (len(self._kept) + 1) * self._bytes <= KEPT_BYTES)
            if keeps:
                self._kept.append(entry)
            made = entry[0][...]  # before the next caller looks who holds it
        if keeps:
            _make_room(self)
        return made, entry[2]

    def _let_go(self) -> None:
        with self._lock:
            self._kept.clear()


def _make_room(pool: OutputPool) -> None:
    """Have the pools that were not asked for longest let go of what they keep, until all together keep little enough. What was
    asked for just now is asked for again: by the next call, if this one has much to give."""
    with _MAKING_ROOM:
        _POOLS.add(pool)
        held = {each: each._bytes * len(each._kept) for each in _POOLS}
        total, recent_s = sum(held.values()), time.monotonic() - RECENT_S
        for each in sorted(held, key=lambda each: each._used_s) if total > ALL_BYTES else ():
            if each is not pool and each._used_s < recent_s and total > ALL_BYTES:
                each._let_go()
                _POOLS.discard(each)
                total -= held[each]


_MAKING_ROOM = make_lock()
_POOLS: weakref.WeakSet[OutputPool] = weakref.WeakSet()  # that keep something


def fast_address() -> Any:
    """A function from an array to the address of its elements: the word after the object's head, where every numpy keeps it."""
    import ctypes

    head = object.__basicsize__
    word = ctypes.c_void_p.from_address

    def fast(array: Any) -> int:
        return word(id(array) + head).value or 0

    probe = np.empty(3, np.int8)
    if sys.implementation.name == "cpython" and fast(probe) == probe.ctypes.data:
        return fast
    return lambda array: array.ctypes.data
