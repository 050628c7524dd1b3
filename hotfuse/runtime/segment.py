"""Segments: kernels that follow each other, bound to sizes, run in one native call.

Values that only the segment's own kernels read lie in an arena; what it takes in and gives out is the engine's. A barrier is
where a kernel reads what others wrote since the last one, or writes memory that they use: kernels in between run side by side.

State: a `Segment` keeps idle frames. A `Frame` is what one call writes: tables, counters and scratch; its arena is lent by a
pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotfuse.errors import BadIndex
from hotfuse.ir.types import TensorType
from hotfuse.records import dataclass
from hotfuse.runtime.driver import Driver, Job, Step
from hotfuse.runtime.memory import Arena, ArenaPool
from hotfuse.runtime.tables import Bound, Part, bind, figures_of, place

if TYPE_CHECKING:
    from hotfuse.runtime.array_call import ArrayCall

MAX_IDLE = 4  # frames
LEAST_WOVEN = 2  # tasks for each thread: with fewer, one does what the others could do of the step that it is woven with
HANDS = 64  # times that a thread is handed tasks of a step, if these are many


class Arrays(Protocol):
    """What a segment needs of an engine's arrays. `shares_threads`: its operators run on the team of generated code."""

    @property
    def shares_threads(self) -> bool: ...
    def address(self, value: Any) -> int: ...
    def contiguous(self, value: Any) -> Any: ...
    def results(self, type: TensorType) -> Callable[[], tuple[Any, int]]:
        """Makes results of a type, each with its address."""
        ...


class Frame:
    """`pointers` are those of the last call, `words` and `status` what kernels read and write."""

    __slots__ = ("_inner", "_status", "_words", "arena", "job", "pointers", "status", "words")

    def __init__(self, steps: Sequence[Bound], known: Mapping[str, int], inner: Mapping[str, int], sizes: Sizes) -> None:
        self._status = np.zeros(1, np.int64)
        self._words = np.zeros(max(1, sum(len(s.words) for s in steps)), np.int64)
        start = self._words.ctypes.data
        self._inner: list[tuple[int, int]] = []  # words that point into the arena, and where
        made, at = [], 0
        for step in steps:
            self._words[at : at + len(step.words)] = step.words
            self._words[at] = self._status.ctypes.data
            for name, word in step.places:
                if name in inner:
                    self._inner.append((at + word, inner[name]))
                elif name in known:
                    self._words[at + word] = known[name]
            at_once, (every, unit) = tasks_at_once(step.tasks, sizes.threads), step.lanes
            if every // unit < sizes.threads:  # not a part for each thread
                every, unit = 0, 1
            table = start + 8 * at
            other = step.other if step.tasks >= LEAST_WOVEN * sizes.threads else -1
            made.append(Step(step.address, table, step.tasks, at_once, step.barrier, every, unit, step.row, step.member, other))
            at += len(step.words)
        self.job = Job(made, sizes.threads, sizes.scratch)
        # several times faster for single numbers than arrays are
        self.words, self.status = memoryview(self._words), memoryview(self._status)  # type: ignore[arg-type]
        self.pointers: list[int] = []
        self.arena = 0

    def use(self, arena: int) -> None:
        """Have what stays inside lie at this address from now on."""
        self.arena = arena
        for word, offset in self._inner:
            self.words[word] = arena + offset

    @property
    def address(self) -> int:
        """Of the tables."""
        return int(self._words.ctypes.data)

    @property
    def status_address(self) -> int:
        return int(self._status.ctypes.data)


def tasks_at_once(tasks: int, threads: int) -> int:
    """How many tasks are handed out at a time. Neighbours lie next to each other in memory, and two threads that take turns
    along it lose half of what it gives; yet no thread may be left waiting for long at the end."""
    return max(1, tasks // (threads * HANDS))


@dataclass(frozen=True)
class Sizes:
    """Bytes of the arena and of each thread's scratch, and how many threads there are."""

    arena: int
    scratch: int
    threads: int


class Segment:
    """Runs its parts for the inputs in order; returns the outputs in order. `fixed` are inputs that never change."""

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[str],
        outputs: Sequence[str],
        fixed: Mapping[str, Any],
        types: Mapping[str, TensorType],
        sizes: Mapping[str, int],
        arrays: Arrays,
        driver: Driver,
        threads: int,
        pool: ArenaPool | None = None,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._results = [arrays.results(types[name]) for name in outputs]
        self._contiguous, self._address, self._driver = arrays.contiguous, arrays.address, driver
        self.parts = tuple(parts)  # their kernels are held while we may call them
        self._fixed = {name: arrays.contiguous(value) for name, value in fixed.items()}
        self._known = {name: arrays.address(value) for name, value in self._fixed.items()}
        self._inner, arena = place(parts, (*inputs, *fixed), outputs, types)
        figures = figures_of(parts, sizes)
        self._steps = bind(parts, figures, self._inner, types)
        scratch = max((each.scratch for each in figures), default=0)
        self._sizes = Sizes(arena, scratch, threads)
        self._places = self._pointers()
        self._idle: list[Frame] = []
        self._pool = ArenaPool(arena) if pool is None else pool

    def soil(self, byte: int) -> None:
        """Have the next run find this byte wherever nothing was written yet."""
        frame = Frame(self._steps, self._known, self._inner, self._sizes)
        frame.job.soil(byte)
        arena = self._pool.take(self._sizes.arena)
        arena.block[:] = byte
        self._pool.give(arena)
        self._idle = [frame]

    @property
    def arena_bytes(self) -> int:
        return self._sizes.arena

    @property
    def tasks(self) -> tuple[int, ...]:
        """Of each part."""
        return tuple(step.tasks for step in self._steps)

    def run_by(self, run: Callable[[Job], object], *inputs: Any) -> tuple[Any, ...]:
        """A call whose job is run by another function than the driver's."""
        return tuple(self.run(list(map(self._contiguous, inputs)), run))

    def _pointers(self) -> tuple[tuple[int, int], ...]:
        """Which of inputs and outputs goes to which words of the tables."""
        order = {name: place for place, name in enumerate((*self.inputs, *self.outputs))}
        found, at = [], 0
        for step in self._steps:
            found += [(order[name], at + word) for name, word in step.places if name in order]
            at += len(step.words)
        return tuple(found)

    def array_call(self, arrays: Sequence[Any]) -> ArrayCall | None:
        """A native call for numpy arrays like these, where one thread does the work and looking at them would take as long."""
        from hotfuse.runtime.array_call import ArrayCall, heads_are_known

        if self._sizes.threads != 1 or not heads_are_known():
            return None
        frame = Frame(self._steps, self._known, self._inner, self._sizes)
        arena = Arena(self._sizes.arena)  # its own: who lends it would have to be asked with each call
        frame.use(arena.address)
        words = frame.address
        places = [(which, words + 8 * word) for which, word in self._places]
        owner = (self, frame, arena)
        return ArrayCall(
            arrays, len(self.outputs), places, frame.job.address, frame.status_address, self._driver.address, owner
        )

    def fresh(self) -> list[Any]:
        """Memory for the outputs."""
        return [make()[0] for make in self._results]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(self.run(list(map(self._contiguous, inputs))))

    def run(self, given: Sequence[Any], run: Callable[[Job], object] | None = None) -> list[Any]:
        """The outputs for contiguous inputs. `run` runs the job in the driver's place."""
        made = [fresh() for fresh in self._results]
        pointers = [*map(self._address, given), *[address for _, address in made]]
        try:
            frame = self._idle.pop()  # a list's pop and append are one step each, whoever else calls
        except IndexError:
            frame = Frame(self._steps, self._known, self._inner, self._sizes)
        arena = self._pool.take(self._sizes.arena) if self._sizes.arena else None
        if arena is not None and frame.arena != arena.address:
            frame.use(arena.address)
        if frame.pointers != pointers:
            words = frame.words
            for which, word in self._places:
                words[word] = pointers[which]
            frame.pointers = pointers
        (run or self._driver.run)(frame.job)
        status = frame.status
        failed = status[0]
        if failed:
            status[0] = 0
        if len(self._idle) < MAX_IDLE:
            self._idle.append(frame)
        if arena is not None:
            self._pool.give(arena)
        if failed:
            raise BadIndex("an index lies outside of the tensor that it indexes")
        return [result for result, _ in made]
