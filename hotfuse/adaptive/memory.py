"""Memory: what was learned about targets that failed. It outlives the process: `write_memory`, `read_memory`.

On disk a back-off is the time that was left of it, so that no clock need be the same before and after. Time in which no process
ran does not count.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from hotfuse.adaptive.target import Target
from hotfuse.errors import ParseError
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.records import dataclass
from hotfuse.runtime.backoff import FRESH, Backoff


@dataclass(frozen=True)
class Lesson:
    """`barred`: never again. `units` of it are wrong and left to tier 0. It may be tried again when the back-off is over."""

    target: Target
    reason: str
    barred: bool = False
    units: tuple[str, ...] = ()
    backoff: Backoff = FRESH

    @property
    def lasts(self) -> bool:
        """Whether it must not be forgotten."""
        return self.barred or bool(self.units)


@dataclass(frozen=True)
class Memory:
    """At most `limit` lessons, one for each target. Those that need not last make room, the oldest first. When all must last
    the memory is full: it takes no other, and nothing may be built any more, so that none is needed."""

    limit: int
    lessons: tuple[Lesson, ...] = ()

    @property
    def is_full(self) -> bool:
        return sum(lesson.lasts for lesson in self.lessons) >= self.limit

    def of(self, target: Target) -> Lesson:
        """What was learned about a target; an empty lesson if nothing was."""
        return next((lesson for lesson in self.lessons if lesson.target == target), Lesson(target, ""))

    def learn(self, lesson: Lesson) -> Memory:
        """With this lesson in place of what was known about its target."""
        others = [known for known in self.lessons if known.target != lesson.target]
        while len(others) >= self.limit:
            forgettable = next((known for known in others if not known.lasts), None)
            if forgettable is None:
                return self
            others.remove(forgettable)
        return replace(self, lessons=(*others, lesson))


def merged(memory: Memory, other: Memory) -> Memory:
    """What either knows: wrong is what either found wrong, and the longer back-off counts. Where more must last than there is
    room for the memory is full, so that nothing is built that either found wrong."""
    known = {lesson.target: lesson for lesson in memory.lessons}
    for lesson in other.lessons:
        mine = known.get(lesson.target)
        known[lesson.target] = lesson if mine is None else _joined(mine, lesson)
    found = Memory(memory.limit)
    for lesson in sorted(known.values(), key=lambda lesson: not lesson.lasts):  # what must last is not pushed out
        if lesson.lasts or len(found.lessons) < found.limit:
            found = found.learn(lesson)
    return found


def _joined(a: Lesson, b: Lesson) -> Lesson:
    worse = b if (b.barred, len(b.units), b.backoff.times) > (a.barred, len(a.units), a.backoff.times) else a
    backoff = Backoff(max(a.backoff.times, b.backoff.times), max(a.backoff.until_s, b.backoff.until_s))
    return Lesson(a.target, worse.reason, a.barred or b.barred, tuple(dict.fromkeys((*a.units, *b.units))), backoff)


def write_memory(memory: Memory, now_s: float) -> bytes:
    return write_record(_shifted(memory, -now_s))


def read_memory(data: bytes, now_s: float) -> Memory:
    """The memory that `write_memory` wrote. Raises ParseError if it did not."""
    memory = read_record(Memory, data)
    targets = [lesson.target for lesson in memory.lessons]
    if memory.limit < 1 or len(targets) > memory.limit or len(set(targets)) < len(targets):
        raise ParseError(f"not each once, or more than {memory.limit} targets: {targets}; the memory is damaged, delete it")
    backoffs = [lesson.backoff for lesson in memory.lessons]
    if any(b.times < 0 or not 0 <= b.until_s <= sys.float_info.max for b in backoffs):  # written so that NaN is refused
        raise ParseError("a target failed less than no times, or is left alone for ever; the memory is damaged, delete it")
    return _shifted(memory, now_s)


def _shifted(memory: Memory, by_s: float) -> Memory:
    """Back-offs by another clock. What is over stays over: it ends no earlier than that clock begins."""
    return replace(memory, lessons=tuple(replace(known, backoff=_shift(known.backoff, by_s)) for known in memory.lessons))


def _shift(backoff: Backoff, by_s: float) -> Backoff:
    return replace(backoff, until_s=max(0.0, backoff.until_s + by_s))
