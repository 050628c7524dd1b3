"""Inputs of proofs beside the real ones, made from those.

Real values hide mistakes: a factor of zero hides the other one, relu what is below zero, the greatest of some numbers all the
others and what the fold began with. So each unit also runs on the same numbers in another order, with ones for zeros; a unit
that leaves out numbers does so several times, and one with a fold that picks a number also on numbers that rise up to zero and
on numbers that sink down to it. Integers that are places stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from hotfuse.runtime.exact import is_float
from hotfuse.runtime.memory import empty_block

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]

PICKING = frozenset(("reduce_max", "reduce_min", "argmax", "argmin", "max_pool"))
_LOSSY = frozenset((
    *PICKING, "relu", "maximum", "minimum", "clip", "where", "sign", "floor", "ceil", "trunc", "round", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "reduce_any",
    "reduce_all", "cast",
))  # fmt: skip
_INDEXED = frozenset(("gather", "gather_elements", "gather_nd", "one_hot"))  # whose integers have to stay as they are
_LOSSY_RUNS, _LOSSY_RUNS_IF_LARGE = 16, 2  # one wrong operand of a comparison shows in about every third run
HUGE = 1 << 23  # elements: tables of embeddings, the weights of a large vocabulary
_SMALL = 1 << 16  # elements: more than these are not shuffled but turned, which is a copy
STIR = 1 / 64  # how far off each float is where it is only stirred, in proportion


def is_lossy(ops: Collection[str]) -> bool:
    """Whether some operator leaves out numbers, so that a mistake may not show in a run."""
    return not _LOSSY.isdisjoint(ops)


def other_inputs(inputs: Values, ops: Collection[str], rows: Values = MappingProxyType({})) -> Iterator[Values]:
    """Other inputs for a unit of these operators, made from the real ones. Of tables only `rows` are there."""
    lossy, picking = is_lossy(ops), not PICKING.isdisjoint(ops)
    small = sum(array.size for array in inputs.values()) <= _SMALL
    movable = {n: a for n, a in inputs.items() if is_float(a) or _INDEXED.isdisjoint(ops)}
    if any(a.size <= HUGE for a in movable.values()):  # what goes with it is another: a table need not be
        movable = {n: a for n, a in movable.items() if a.size <= HUGE}
    for seed in range(1 if not lossy else _LOSSY_RUNS if small else _LOSSY_RUNS_IF_LARGE):
        rng = np.random.default_rng(seed)
        yield {**inputs, **{n: remade(a, partial(shuffled, rng=rng), rows.get(n)) for n, a in movable.items()}}
    for side in (-1, 1) if picking else ():
        yield {**inputs, **{n: remade(a, partial(slope, side=side), rows.get(n)) for n, a in movable.items()}}


def remade(array: Array, make: Callable[[Array], Array], rows: Array | None) -> Array:
    """An array made from another; where only some rows are there, the same rows of a table."""
    if rows is None:
        return make(array)
    table: Array = empty_block(array.nbytes).view(array.dtype).reshape(array.shape)
    table[rows] = make(array[rows])
    return table


def shuffled(array: Array, rng: np.random.Generator) -> Array:
    """The same numbers in another order, ones for zeros."""
    flat = array.reshape(-1)
    turned = flat.size > _SMALL
    flat = _turned(flat, int(rng.integers(flat.size))) if turned else flat[rng.permutation(flat.size)]
    if is_float(array) and not flat.all():
        flat = np.where(flat == 0, array.dtype.type(1), flat).astype(array.dtype, copy=False)
    return flat.reshape(array.shape)


def _turned(flat: Array, place: int) -> Array:
    """Backwards, from some place on and around."""
    return np.concatenate((flat[place::-1], flat[:place:-1]))


def slope(array: Array, side: int) -> Array:
    """The floats, on one side of zero, from the furthest to the nearest in the order of memory."""
    if not is_float(array):
        return array
    return np.asarray(-side * np.sort(-np.abs(array.astype(np.float64)), axis=None)).astype(array.dtype).reshape(array.shape)


def stirred(array: Array, rng: np.random.Generator) -> Array:
    """Each float a little off; zeros, infinities and all else as they are."""
    if not is_float(array):
        return array
    with np.errstate(all="ignore"):
        moved = (array.astype(np.float64) * (1 + STIR * rng.uniform(-1, 1, array.shape))).astype(array.dtype)
        return np.asarray(np.where(np.isfinite(moved.astype(np.float64)), moved, array))
