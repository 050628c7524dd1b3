"""Places in an arena: one block of memory for a call, with a place for each intermediate, planned from when values live.

    plan_arena: intervals (first step, last step, bytes) -> offset of each, total bytes

Values that live at the same time never share a byte. Greedy in the order of steps, the largest first where several begin at
one: each takes the smallest free block that holds it, or else the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hotfuse.records import dataclass

ALIGNMENT = 64  # a cache line, and the widest vector


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `size` bytes that is written at step `first` and last read at step `last`."""

    first: int
    last: int
    size: int


def plan_arena(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Offsets, and the size of the arena that holds them."""
    offsets = [0] * len(intervals)
    free: list[tuple[int, int]] = []  # (offset, size) blocks that are free now, by offset
    active: list[tuple[int, int, int]] = []  # (last step, offset, size)
    top = 0
    for index in sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].size)):
        interval = intervals[index]
        while active and active[0][0] < interval.first:
            _, offset, size = heapq.heappop(active)
            free = _merged(free, offset, size)
        size = _aligned(interval.size)
        fits = [(block, place) for place, block in free if block >= size]
        if fits:
            block, place = min(fits)
            free.remove((place, block))
            if block > size:
                free = _merged(free, place + size, block - size)
        elif free and free[-1][0] + free[-1][1] == top:
            place, _ = free.pop()
            top = place + size
        else:
            place = top
            top += size
        offsets[index] = place
        heapq.heappush(active, (interval.last, place, size))
    return offsets, top


def _aligned(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def _merged(free: list[tuple[int, int]], offset: int, size: int) -> list[tuple[int, int]]:
    """The free blocks with one more, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for place, block in sorted([*free, (offset, size)]):
        if joined and joined[-1][0] + joined[-1][1] == place:
            joined[-1] = (joined[-1][0], joined[-1][1] + block)
        else:
            joined.append((place, block))
    return joined
