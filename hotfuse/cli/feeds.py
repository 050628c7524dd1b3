"""Inputs for a model nobody gave inputs for: random, but of a kind that the model can take.

Free sizes get a default by what their name or place suggests. Integers that index a table stay below its length, masks are
all ones, other integers are 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InputError
from hotfuse.ir.dim import Dim, evaluate, symbols_of
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.types import TensorType
from hotfuse.runtime.feeds import Signature

# What a free size most likely means, by its name; the first that matches counts.
NAMED_SIZES = (
    (re.compile(r"batch|^n$|^b$", re.I), 1),
    (re.compile(r"seq|len|token|time|frames|^[tsl]$", re.I), 16),
    (re.compile(r"height|width|^[hw]$", re.I), 224),
    (re.compile(r"channel|^c$", re.I), 3),
)
PASS_THROUGH = ("cast", "identity", "reshape", "squeeze", "unsqueeze", "transpose", "flatten", "clip")
MASK = re.compile(r"mask", re.I)


def default_size(name: str, axis: int, rank: int) -> int:
    """A sensible size for a free dim."""
    for pattern, size in NAMED_SIZES:
        if pattern.search(name):
            return size
    if axis == 0:
        return 1
    return 224 if rank == 4 and axis >= 2 else 16


def free_sizes(inputs: Sequence[Signature]) -> dict[str, int]:
    """Every symbol in the inputs' shapes with its default size."""
    sizes: dict[str, int] = {}
    for signature in inputs:
        shape = _shape(signature)
        for axis, dim in enumerate(shape or ()):
            for symbol in symbols_of([dim]):
                sizes.setdefault(symbol.name, max(symbol.minimum, default_size(symbol.name, axis, len(shape or ()))))
    return sizes


def make_feeds(
    graph: Graph,
    inputs: Sequence[Signature],
    *,
    given: Mapping[str, np.ndarray[Any, Any]],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    seed: int,
) -> dict[str, Any]:
    """An array for each input: as given, else random of the given or default shape."""
    names = [s.name for s in inputs]
    for name in (*given, *shapes):
        if name not in names:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
    sizes = free_sizes(inputs)
    for name in dims:
        if name not in sizes:
            raise InputError(f"the model has no free size {name!r}; its free sizes are {', '.join(sizes) or 'none'}")
    sizes.update(_sizes_given(inputs, given, shapes))
    sizes.update(dims)
    generator = np.random.default_rng(seed)
    return {
        s.name: given[s.name] if s.name in given else _random(graph, s, shapes.get(s.name), sizes, generator) for s in inputs
    }


def _sizes_given(
    inputs: Sequence[Signature], given: Mapping[str, np.ndarray[Any, Any]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Sizes that a given array or shape fixes for the other inputs too."""
    found: dict[str, int] = {}
    for signature in inputs:
        actual = given[signature.name].shape if signature.name in given else shapes.get(signature.name)
        for dim, size in zip(_shape(signature) or (), actual or (), strict=False):
            symbols = list(symbols_of([dim]))
            if len(symbols) == 1 and str(dim) == symbols[0].name:
                found[symbols[0].name] = int(size)
    return found


def _shape(signature: Signature) -> tuple[Dim, ...] | None:
    return signature.type.shape if isinstance(signature.type, TensorType) else None


def _random(
    graph: Graph, signature: Signature, shape: tuple[int, ...] | None, sizes: Mapping[str, int], generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    kind = signature.type
    if not isinstance(kind, TensorType):
        raise InputError(f"input {signature.name!r} is a {kind}, for which no random value is made; run the model from Python")
    if shape is None and kind.shape is None:
        raise InputError(f"the rank of input {signature.name!r} is free; give its shape with --shape {signature.name}=...")
    if shape is None:
        shape = tuple(evaluate(d, sizes) for d in kind.shape or ())
    dtype = kind.dtype.numpy
    if kind.dtype.kind == "string":
        return np.full(shape, "text", dtype=object)
    if kind.dtype.kind == "bool" or (MASK.search(signature.name) and kind.dtype.is_integer):
        return np.ones(shape, dtype=dtype)
    if kind.dtype.is_integer:
        return generator.integers(0, index_limit(graph, signature.name), shape).astype(dtype)
    values = generator.standard_normal(shape)
    return (values + 1j * generator.standard_normal(shape) if kind.dtype.kind == "complex" else values).astype(dtype)


def index_limit(graph: Graph, name: str) -> int:
    """The length of the shortest table that the integers of input `name` index; 2 where none is found."""
    limits: list[int] = []
    pending, seen = [name], {name}
    while pending:
        value = pending.pop()
        for node in graph.consumers.get(value, ()):
            table = _table_length(graph, node, value)
            if table is not None:
                limits.append(table)
            elif node.op in PASS_THROUGH and node.id not in seen:
                seen.add(node.id)
                pending.append(node.id)
    return max(1, min(limits, default=2))


def _table_length(graph: Graph, node: Node, indices: str) -> int | None:
    """The length of the axis that `node` picks from with `indices`, if it is a lookup and the length is a number."""
    is_lookup = node.op == "gather" or node.attrs.get("op_type") == "Gather"
    if not is_lookup or len(node.inputs) < 2 or node.inputs[1] != indices or node.inputs[0] is None:
        return None
    table = graph.type(node.inputs[0])
    if not isinstance(table, TensorType) or not table.shape:
        return None
    length = table.shape[int(node.attrs.get("axis", 0))]
    return length if isinstance(length, int) else None
