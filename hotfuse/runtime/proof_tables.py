"""Tables in proofs: of a large weight of which a call reads some rows, a proof has a copy of those rows alone.

A table of embeddings has more bytes than all else that a proof looks at, and a call reads a few rows of it. Where only gathers
read a weight, each of them says which rows before it runs, and gets an array of the same shape with these rows. Behind the
others there is no memory: they are zeros, so that whoever reads another row has a wrong result.

State: the array of each table, and which of its rows are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.types import TensorType
from hotfuse.passes.fold import immutable
from hotfuse.runtime.memory import empty_block
from hotfuse.runtime.proof_inputs import HUGE

Array = np.ndarray[Any, Any]
FEW = 8  # times as many rows as are read: a table with fewer is read whole


class Tables:
    """Those among the weights of a graph, which are asked of `weight`. `rows` has the places of those that are there."""

    def __init__(self, graph: Graph, weight: Callable[[str], Array]) -> None:
        self._weight = weight
        self._names = {name for name in graph.weights if _is_table(graph, name)}
        self._whole: dict[str, Array] = {}  # that were asked for, and are large
        self._arrays: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}

    def read(self, node: Node, value: Callable[[str], Array]) -> None:
        """A node is about to run: have the rows that it reads there."""
        name = node.inputs[0] if node.op == "gather" else None
        if name not in self._names or name is None or node.inputs[1] is None:
            return
        whole, places = self._asked(name), np.asarray(value(node.inputs[1])).astype(np.int64)
        if places.size * FEW > len(whole) and name not in self._arrays:
            self._names.discard(name)
            return
        rows = np.unique(np.where(places < 0, places + len(whole), places))
        found = whole[rows]  # a place that is none of its is the gather's error
        if name not in self._arrays:
            self._arrays[name] = empty_block(whole.nbytes).view(whole.dtype).reshape(whole.shape)
        self._arrays[name][rows] = found
        self.rows[name] = np.union1d(self.rows.get(name, rows), rows)

    def value(self, name: str) -> Array:
        """A weight: whole, unless it is a table."""
        array = self._arrays.get(name)
        if array is not None:
            return immutable(array)
        whole = self._asked(name)
        if not whole.flags.aligned:  # products cannot read it
            whole = self._whole[name] = immutable(whole.copy())
        return whole

    def _asked(self, name: str) -> Array:
        """A weight as it is given; one that is large is asked for once."""
        found = self._whole.get(name)
        if found is None:
            found = self._weight(name)
            if found.size > HUGE:
                self._whole[name] = found
        return found


def _is_table(graph: Graph, name: str) -> bool:
    type = graph.type(name)
    if not isinstance(type, TensorType) or not type.is_static or math.prod(type.sizes) <= HUGE:
        return False
    return all(
        node.op == "gather"
        and node.inputs[0] == name != node.inputs[1]
        and node.attrs.get("axis", 0) == 0
        and not _follows_from_floats(graph, node.inputs[1])
        for node in graph.consumers.get(name, ())
    )


def _follows_from_floats(graph: Graph, name: str | None) -> bool:
    """Whether places may be others where numbers are: then a proof on other inputs reads rows that are not there."""
    waiting, seen = [name], set[str]()
    while waiting:
        name = waiting.pop()
        if name is None or name in seen:
            continue
        seen.add(name)
        type = graph.type(name)
        if isinstance(type, TensorType) and type.dtype.is_float:
            return True
        waiting.extend(graph.producer[name].inputs if name in graph.producer else ())
    return False
