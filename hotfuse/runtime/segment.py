"""Segments: kernels that follow each other, bound to sizes, run in one native call.

Values that only the segment's own kernels read lie in an arena; what it takes in and gives out is the engine's. A barrier is
where a kernel reads what others wrote since the last one, or writes memory that they use: kernels in between run side by side.

State: a `Segment` keeps idle frames. A `Frame` is the memory of one call: tables, arena, counters and scratch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hotfuse.codegen.lower import Recipe
from hotfuse.codegen.tile import scratch_offsets
from hotfuse.errors import ExecutionError
from hotfuse.ir.dim import evaluate
from hotfuse.ir.types import TensorType
from hotfuse.locks import make_lock
from hotfuse.runtime.driver import Driver, Job, Step
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.memory import Interval, aligned_block, plan_arena

MAX_IDLE = 4  # frames


class Arrays(Protocol):
    """What a segment needs of an engine's arrays."""

    def address(self, value: Any) -> int: ...
    def contiguous(self, value: Any) -> Any: ...
    def empty(self, type: TensorType) -> Any: ...


class BadIndex(ExecutionError):
    """A kernel met an index outside of its tensor; the operators themselves say which."""


@dataclass(frozen=True)
class Part:
    """One kernel of a segment and what it is applied to."""

    recipe: Recipe
    kernel: Kernel


@dataclass(frozen=True)
class _Bound:
    address: int
    words: tuple[int, ...]  # the table, pointers of arguments left 0
    places: tuple[tuple[str, int], ...]  # argument, word
    tasks: int
    barrier: bool


class Frame:
    __slots__ = ("arena", "job", "pointers", "status", "words")

    def __init__(self, steps: Sequence[_Bound], inner: Mapping[str, int], arena: int, scratch: int, threads: int) -> None:
        self.arena = aligned_block(max(arena, 1))
        self.status = np.zeros(1, np.int64)
        self.words = np.zeros(max(1, sum(len(s.words) for s in steps)), np.int64)
        base, start = self.arena.ctypes.data, self.words.ctypes.data
        made, at = [], 0
        for step in steps:
            self.words[at : at + len(step.words)] = step.words
            self.words[at] = self.status.ctypes.data
            for name, word in step.places:
                if name in inner:
                    self.words[at + word] = base + inner[name]
            made.append(Step(step.address, start + 8 * at, step.tasks, 1, step.barrier))
            at += len(step.words)
        self.job = Job(made, threads, scratch)
        self.pointers: list[int] = []


class Segment:
    """Runs its parts for the inputs in order; returns the outputs in order."""

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[str],
        outputs: Sequence[str],
        types: Mapping[str, TensorType],
        sizes: Mapping[str, int],
        arrays: Arrays,
        driver: Driver,
        threads: int,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._types = [types[name] for name in outputs]
        self._arrays, self._driver, self._threads = arrays, driver, threads
        self._kernels = tuple(p.kernel for p in parts)  # held while we may call them
        self._inner, self._arena = _place(parts, inputs, outputs, types)
        self._steps = _bind(parts, sizes, self._inner, types)
        self._scratch = max((_scratch_bytes(p.recipe, sizes) for p in parts), default=0)
        self._which, self._where = self._pointers()
        self._idle: list[Frame] = []
        self._lock = make_lock()

    @property
    def arena_bytes(self) -> int:
        return self._arena

    def _pointers(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Which of inputs and outputs goes to which words of the tables."""
        order = {name: place for place, name in enumerate((*self.inputs, *self.outputs))}
        which, where, at = [], [], 0
        for step in self._steps:
            for name, word in step.places:
                if name in order:
                    which.append(order[name])
                    where.append(at + word)
            at += len(step.words)
        return np.array(which, np.int64), np.array(where, np.int64)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        arrays = self._arrays
        given = [arrays.contiguous(x) for x in inputs]
        results = tuple(arrays.empty(type) for type in self._types)
        pointers = [*map(arrays.address, given), *map(arrays.address, results)]
        with self._lock:
            frame = self._idle.pop() if self._idle else None
        if frame is None:
            frame = Frame(self._steps, self._inner, self._arena, self._scratch, self._threads)
        if frame.pointers != pointers:
            frame.words[self._where] = np.array(pointers, np.int64)[self._which]
            frame.pointers = pointers
        self._driver.run(frame.job)
        failed = bool(frame.status[0])
        frame.status[0] = 0
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(frame)
        if failed:
            raise BadIndex("an index lies outside of the tensor that it indexes")
        return results


def _own(recipe: Recipe, sizes: Mapping[str, int]) -> dict[str, int]:
    """The program's sizes as numbers."""
    names = recipe.program.sizes
    return {name: int(evaluate(dim, sizes)) for name, dim in zip(names, recipe.sizes, strict=True)}


def _scratch_bytes(recipe: Recipe, sizes: Mapping[str, int]) -> int:
    return int(evaluate(scratch_offsets(recipe.program)[1], _own(recipe, sizes)))


def _place(
    parts: Sequence[Part], inputs: Sequence[str], outputs: Sequence[str], types: Mapping[str, TensorType]
) -> tuple[dict[str, int], int]:
    """Places in the arena for what stays inside, and its size."""
    outside = {*inputs, *outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, part in enumerate(parts):
        for name in part.recipe.arguments:
            if name not in outside:
                first.setdefault(name, place)
                last[name] = place
    names = list(first)
    offsets, total = plan_arena([Interval(first[n], last[n], _bytes(types[n])) for n in names])
    return dict(zip(names, offsets, strict=True)), total


def _bytes(type: TensorType) -> int:
    count = 1
    for size in type.sizes:
        count *= size
    return count * type.dtype.bytes


def _bind(
    parts: Sequence[Part], sizes: Mapping[str, int], inner: Mapping[str, int], types: Mapping[str, TensorType]
) -> tuple[_Bound, ...]:
    """Tables and barriers. A barrier belongs to the step before it."""

    def span(name: str) -> tuple[str, int, int]:
        if name in inner:
            return "", inner[name], inner[name] + max(1, _bytes(types[name]))
        return name, 0, 1

    made: list[_Bound] = []
    read: set[tuple[str, int, int]] = set()
    written: set[tuple[str, int, int]] = set()
    for part in parts:
        recipe, own = part.recipe, _own(part.recipe, sizes)
        reads, writes = {span(n) for n in recipe.reads}, {span(n) for n in recipe.writes}
        if made and (_meet(reads, written) or _meet(writes, written) or _meet(writes, read)):
            made[-1] = _Bound(made[-1].address, made[-1].words, made[-1].places, made[-1].tasks, True)
            read, written = set(), set()
        read |= reads
        written |= writes
        arguments = len(recipe.arguments)
        words = (0,) * (1 + arguments) + tuple(own[s] for s in recipe.program.sizes)
        places = tuple((name, 1 + i) for i, name in enumerate(recipe.arguments))
        made.append(_Bound(part.kernel.address, words, places, int(evaluate(recipe.program.tasks, own)), False))
    return tuple(made)


def _meet(a: set[tuple[str, int, int]], b: set[tuple[str, int, int]]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)
