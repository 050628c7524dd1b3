"""Values prepared from weights that several plans need are there once.

A value is known by how it is computed and from what: operators and their attributes down to the weights, each with its place in
memory, form and checksums. Whoever prepares a value that is there already takes that one and drops its own. The table holds
nothing: a value goes with the last plan that uses it. Nobody writes to prepared values.

State: the table, and a lock.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable, Iterable, Sequence

import torch

from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Graph
from hotfuse.locks import make_lock

LARGEST_CONSTANT = 1 << 16  # bytes that are read to tell a constant from others
_SHARED: weakref.WeakValueDictionary[bytes, torch.Tensor] = weakref.WeakValueDictionary()
_LOCK = make_lock()


def share(values: Sequence[torch.Tensor], keys: Sequence[bytes | None]) -> list[torch.Tensor]:
    """The values, or those that are there already in their place."""
    with _LOCK:
        return [v if key is None else _SHARED.setdefault(key, v) for v, key in zip(values, keys, strict=True)]


def value_keys(graph: Graph, marks: Sequence[Hashable]) -> list[bytes | None]:
    """A key for each output of a graph over weights alone, of which `marks` say what they are; None where it cannot be told
    how the value is computed."""
    known: dict[str, bytes | None] = {name: _digest(mark) for name, mark in zip(graph.weights, marks, strict=True)}
    for name, constant in graph.constants.items():
        array = constant.numpy()
        small = array.nbytes <= LARGEST_CONSTANT and array.dtype != object
        known[name] = _digest((str(array.dtype), array.shape, array.tobytes())) if small else None
    for node in graph.nodes:
        inputs = tuple(None if name is None else known.get(name) for name in node.inputs)
        told = all(name is None or key is not None for name, key in zip(node.inputs, inputs, strict=True))
        steady = not node.graphs and not _has_symbols(node.attrs.values())
        for place, name in enumerate(node.outputs):
            how = (node.op, sorted(node.attrs.items()), inputs, place)
            known[name] = _digest(how) if told and steady else None
    return [known[name] for name in graph.outputs]


def _has_symbols(value: object) -> bool:
    """Whether a size that a call fixes is among attributes, however deep."""
    if isinstance(value, str | bytes):
        return False
    return isinstance(value, Expr) or (isinstance(value, Iterable) and any(map(_has_symbols, value)))


def _digest(what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()
