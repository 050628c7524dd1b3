"""A regression forest as arrays: what is left of it once it was trained, and how it is asked.

Training needs scikit-learn and happens in a worker (`hardware/training`). Here a forest is five arrays over the nodes of all
trees, which safetensors keep without any code in them, and asking is numpy: all samples go down all trees side by side, a level
at a time, until they reach a leaf. Trees disagree where they have seen little: how far is the uncertainty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from hotfuse.errors import ParseError
from hotfuse.records import dataclass

FORM = "1"
BLOCK = 1024  # samples that go down side by side: of more, what is looked up leaves the nearest caches (1.5 times as long)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Forest:
    """Node n asks whether feature[n] <= threshold[n] and goes `left` or `right`; a leaf goes to itself.
    Trees begin at `roots`."""

    names: tuple[str, ...]  # of the features, in order
    roots: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    depth: int

    def trees(self, samples: Array) -> Array:
        """What each tree says of each sample: [samples, trees]."""
        samples = np.ascontiguousarray(samples, np.float32)
        parts = [self._trees(samples[begin : begin + BLOCK]) for begin in range(0, len(samples), BLOCK)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.roots)), self.value.dtype)

    def _trees(self, samples: Array) -> Array:
        at = ends = np.repeat(self.roots.astype(np.intp), len(samples))  # a tree after the other: its nodes are near each other
        way = np.arange(len(at))  # the places in `ends` of those that have not reached a leaf
        rows, flat = np.tile(np.arange(len(samples)) * samples.shape[1], len(self.roots)), samples.ravel()
        for level in range(self.depth):
            goes_left = flat.take(rows + self.feature.take(at)) <= self.threshold.take(at)
            at = np.where(goes_left, self.left.take(at), self.right.take(at)).astype(np.intp)
            ends[way] = at
            if level % 2:  # leaves stay where they are: it does no harm to look at every other level alone
                left = np.flatnonzero(self.left.take(at) != at)
                at, way, rows = at.take(left), way.take(left), rows.take(left)
        return np.ascontiguousarray(self.value.take(ends).reshape(len(self.roots), len(samples)).T)

    def ask(self, samples: Array) -> tuple[Array, Array]:
        """The mean of the trees, and how far they lie apart (their standard deviation), for each sample."""
        found = self.trees(samples)
        return found.mean(1), found.std(1)


_ARRAYS: Mapping[str, Any] = {
    "roots": np.int32, "feature": np.int32, "threshold": np.float32, "left": np.int32, "right": np.int32, "value": np.float32,
}  # fmt: skip


def write_forest(forest: Forest) -> bytes:
    arrays = {name: np.ascontiguousarray(getattr(forest, name), dtype) for name, dtype in _ARRAYS.items()}
    about = {"form": FORM, "names": json.dumps(forest.names), "depth": str(forest.depth)}
    return bytes(safetensors.numpy.save(arrays, about))


def read_forest(data: bytes) -> Forest:
    """Raises ParseError where the bytes are none of ours, or trees that one could get lost in."""
    try:
        about = _about(data)
        arrays = safetensors.numpy.load(data)
        if about["form"] != FORM or set(arrays) != set(_ARRAYS):
            raise ValueError("it has another form")
        forest = Forest(tuple(json.loads(about["names"])), **arrays, depth=int(about["depth"]))
        _check(forest)
        return forest
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise ParseError(f"this is no forest: {error}") from None


def _about(data: bytes) -> dict[str, str]:
    """The texts in the head, which safetensors' own reader of bytes leaves out."""
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= len(data) - 8:
        raise ValueError("its head is cut off")
    found: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return found


def _check(forest: Forest) -> None:
    nodes = len(forest.feature)
    for name, dtype in _ARRAYS.items():
        array = getattr(forest, name)
        if array.dtype != dtype or array.ndim != 1 or (name != "roots" and len(array) != nodes):
            raise ValueError(f"{name} is no row of {np.dtype(dtype)} for {nodes} nodes")
    places = np.arange(nodes)
    for name in ("roots", "left", "right"):
        array = getattr(forest, name)
        if len(array) == 0 or array.min() < 0 or array.max() >= nodes:
            raise ValueError(f"{name} leads to no node")
    leaf = (forest.left == places) & (forest.right == places)
    if not (leaf | ((forest.left > places) & (forest.right > places))).all():
        raise ValueError("a branch leads back")
    if forest.feature.min() < 0 or forest.feature.max() >= len(forest.names) or not 0 <= forest.depth <= nodes:
        raise ValueError("a node asks for a feature that there is not")
    if not (np.isfinite(forest.threshold).all() and np.isfinite(forest.value).all()):
        raise ValueError("a number is not finite")
