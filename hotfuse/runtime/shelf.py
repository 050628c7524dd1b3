"""Shelves: prepared weights lie side by side in one block of memory, in the order in which a call reads them.

A block of many megabytes gets huge pages, where arrays of two megabytes each get none; and what is fetched ahead past the end
of one weight is the beginning of the next (`codegen/lower_gemm`). Together that is 3 to 8 % of a transformer's time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.ir.arena import ALIGNMENT
from hotfuse.ir.graph import Graph
from hotfuse.pace import breathe
from hotfuse.runtime.memory import aligned_block

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

    def place(self, number: int, dtype: Any, shape: Sequence[int]) -> Array:
        """One place, as an array."""
        start = self._starts[number]
        found: Array = self._block[start : start + self._sizes[number]].view(dtype).reshape(shape)
        return found

    def put(self, number: int, array: Array) -> Array:
        """A copy of an array, at its place; piece by piece."""
        copy = self.place(number, array.dtype, array.shape)
        if array.flags.c_contiguous:
            source, target = (a.reshape(-1).view(np.uint8) for a in (array, copy))
            for begin in range(0, len(source), PIECE_BYTES):
                target[begin : begin + PIECE_BYTES] = source[begin : begin + PIECE_BYTES]
                breathe()
        else:
            copy[...] = array
        return copy


def in_order_of_use(graph: Graph, names: Collection[str]) -> list[str]:
    """The names as a graph's nodes read them first; those that none reads come last."""
    wanted = set(names)
    used = (name for node in graph.nodes for name in node.uses if name in wanted)
    return list(dict.fromkeys((*used, *names)))


def without_packing(prepare: Graph) -> tuple[Graph, tuple[Mapping[str, Any] | None, ...]]:
    """A graph that stops short of packing, and how each output is to be packed: panels are written right onto a shelf."""
    packs = {node.outputs[0]: node for node in prepare.nodes if node.op == "pack" and node.outputs[0] not in prepare.consumers}
    columns = {name: node.inputs[0] or "" for name, node in packs.items()}
    nodes = tuple(node for node in prepare.nodes if node.outputs[0] not in packs)
    outputs = tuple(columns.get(name, name) for name in prepare.outputs)
    how = tuple(packs[name].attrs if name in packs else None for name in prepare.outputs)
    return replace(prepare, nodes=nodes, outputs=outputs), how
