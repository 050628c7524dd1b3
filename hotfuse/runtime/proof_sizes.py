"""Sizes of proofs: a call's inputs, made longer or shorter.

Sizes hide mistakes: a tail, or a second task, that a size does not have. `at_other_sizes` makes a call's inputs longer or
shorter, for a proof of its own: of planted miscompiles that are wrong at some size, one in nine was right at the first.

A large call takes minutes to prove on behind a model that is busy: `cut` takes a part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import DimError
from hotfuse.ir.dim import evaluate, symbols_of
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import Shape, TensorType, type_of
from hotfuse.runtime.concrete import learned_sizes

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]
Resize = Callable[[Array, Sequence[int]], Array]

LARGEST = 1 << 24  # elements that a call computes in all: half of what BERT-base does for 128 words


def cut(graph: Graph, inputs: Values, largest: int = LARGEST) -> Values:
    """The inputs of a call, or a part of them, from all over: the largest symbolic size is halved for as long as more elements
    would be computed. A model need not take what is left."""
    sizes, symbols = _sizes(graph, inputs)
    begun = dict(sizes)
    while _elements(graph, sizes) > largest:
        name = max(symbols, key=lambda name: sizes[name] // 2 - symbols[name], default="")
        if not name or sizes[name] // 2 < max(symbols[name], 1):
            break
        sizes[name] //= 2
    return inputs if sizes == begun else _at(graph, inputs, sizes, thinned)


def _elements(graph: Graph, sizes: Mapping[str, int]) -> int:
    """That the nodes of a graph compute, as far as that follows from its inputs' sizes."""
    found = 0
    for node in graph.nodes:
        for name in node.outputs:
            try:
                found += math.prod(evaluate(dim, sizes) for dim in shape_of(graph, name))
            except DimError:  # a size that the data decide
                continue
    return found


def at_other_sizes(graph: Graph, inputs: Values, largest: int = LARGEST) -> Iterator[dict[str, Array]]:
    """The inputs of a call at other symbolic sizes, elements repeated or left out: every other size longer, the rest shorter,
    then the other way round, then all shorter. Longer is twice as long and more, and one more where that would be too large."""
    sizes, symbols = _sizes(graph, inputs)
    seen = [sizes]
    for turn in (0, 1, None):
        longer = [name for place, name in enumerate(symbols) if turn is not None and (place + turn) % 2 == 0]
        shorter = {name: max(least, 1, sizes[name] // 2) for name, least in symbols.items() if name not in longer}
        changed = {**sizes, **shorter, **{name: 2 * sizes[name] + 3 for name in longer}}
        if _elements(graph, changed) > largest:
            changed |= {name: sizes[name] + 1 for name in longer}
        if changed not in seen:
            seen.append(changed)
            yield _at(graph, inputs, changed, resized)


def _sizes(graph: Graph, inputs: Values) -> tuple[dict[str, int], dict[str, int]]:
    """The symbolic sizes of a call, and the least that those of its inputs can be."""
    types = {**{w: graph.type(w) for w in graph.weights}, **{n: type_of(a) for n, a in inputs.items()}}
    sizes = learned_sizes(graph, types)
    return sizes, {s.name: s.minimum for n in inputs for s in symbols_of(shape_of(graph, n)) if s.name in sizes}


def _at(graph: Graph, inputs: Values, sizes: Mapping[str, int], resize: Resize) -> dict[str, Array]:
    return {name: resize(array, [evaluate(dim, sizes) for dim in shape_of(graph, name)]) for name, array in inputs.items()}


def thinned(array: Array, sizes: Sequence[int]) -> Array:
    """Some of the numbers along each axis, as far from each other as can be: the first ones may all be padding."""
    for axis, size in enumerate(sizes):
        if size != array.shape[axis]:
            array = np.take(array, np.arange(size) * array.shape[axis] // size, axis=axis)
    return array


def resized(array: Array, sizes: Sequence[int]) -> Array:
    """The same numbers, repeated or left out along each axis."""
    for axis, size in enumerate(sizes):
        places = np.arange(size)
        if size != array.shape[axis]:
            if array.shape[axis] == 0:  # nothing to repeat
                array = np.zeros((*array.shape[:axis], 1, *array.shape[axis + 1 :]), array.dtype)
            array = np.take(array, places % array.shape[axis], axis=axis)
    return array


def shape_of(graph: Graph, name: str) -> Shape:
    """Of a tensor of a graph; none of anything else."""
    type = graph.type(name)
    return (type.shape or ()) if isinstance(type, TensorType) else ()
