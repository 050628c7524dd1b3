"""Shelves: prepared weights lie side by side in one block of memory, in the order in which a call reads them.

A block of many megabytes gets huge pages, where arrays of two megabytes each get none; and what is fetched ahead past the end
of one weight is the beginning of the next (`codegen/lower_gemm`). Together that is 3 to 8 % of a transformer's time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.graph import Graph
from hotfuse.pace import breathe
from hotfuse.runtime.memory import ALIGNMENT, aligned_block

HUGE_BYTES = 1 << 21  # of a page
PIECE_BYTES = 1 << 21  # copied in one go: half a millisecond

Array = np.ndarray[Any, Any]


class Shelf:
    """Room for `sizes` bytes, one after the other. State: what is not filled yet."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        self._starts = [int(end) for end in ends[:-1]]
        self._sizes = list(sizes)
        self._block = aligned_block(max(1, int(ends[-1])), HUGE_BYTES)

    def place(self, number: int) -> Array:
        """The bytes of one place."""
        start = self._starts[number]
        return self._block[start : start + self._sizes[number]]

    def put(self, number: int, array: Array) -> Array:
        """A copy of an array, at its place."""
        copy = self.place(number).view(array.dtype).reshape(array.shape)
        if array.flags.c_contiguous:
            self.fill(number, array.reshape(-1).view(np.uint8))
        else:
            copy[...] = array
        return copy

    def fill(self, number: int, data: Array) -> None:
        """Copy bytes to a place, piece by piece."""
        place = self.place(number)
        for begin in range(0, len(data), PIECE_BYTES):
            place[begin : begin + PIECE_BYTES] = data[begin : begin + PIECE_BYTES]
            breathe()


def in_order_of_use(graph: Graph, names: Collection[str]) -> list[str]:
    """The names as a graph's nodes read them first; those that none reads come last."""
    wanted = set(names)
    used = (name for node in graph.nodes for name in node.uses if name in wanted)
    return list(dict.fromkeys((*used, *names)))
