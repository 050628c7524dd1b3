"""Whereabouts: which core's cache has the bytes that a kernel touches, and how long ago they were touched.

A plan says in which order kernels run, `ir/arena` where what they hand on lies in memory, and lanes which part of it each
thread has (`docs/decisions/0018`). So all of it is known beforehand: spans of memory, who touched each last, and when. Values
that do not live at the same time share memory: a kernel may well write to what the other core has just read, and takes it over
line by line, for three times as long as it would write its own.

    works in order  ->  the same, each touch with what moved since (`distance`) and what another core has (`handed`)

Two threads stand for any number of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hotfuse.hardware.work import ALONE, BY_ROWS, GATHERED, STRIDED, Touch, Work
from hotfuse.ir.arena import Interval, plan_arena
from hotfuse.records import dataclass

NEAR = 1 << 21  # bytes moved by both: what another core touched longer ago has left its cache
SHARED = 0.5  # of the time to take a line over, that it takes to be its only owner again
Threads = tuple[float, float]  # of the first thread and of the second


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of one block of memory: which part of them each thread's cache has, when it touched them, and, where threads take
    turns along them, how: the part of the first, and after how many elements it is its turn again."""

    low: float
    high: float
    has: Threads
    at: Threads
    turns: tuple[float, float] | None


class _Memory:
    """State: spans of blocks, in order."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[_Span]] = {}

    def touch(self, block: str, parts: Sequence[_Span], is_write: bool, since: float) -> tuple[float, float]:
        """Touch parts of a block. Returns how much moved until `since`, and how many of the bytes another thread has."""
        spans = self._blocks.setdefault(block, [])
        total = far = handed = 0.0
        for part in parts:
            first = bisect.bisect_right(spans, part.low, key=lambda span: span.high)
            last = bisect.bisect_left(spans, part.high, key=lambda span: span.low)
            made: list[_Span] = [part] if is_write else []
            place = part.low
            for span in spans[first:last]:
                if span.low < part.low:
                    made.append(_cut(span, span.low, part.low))
                low, high = max(span.low, part.low), min(span.high, part.high)
                moved = max(0.0, since - max(span.at))
                total += high - low
                far += (high - low) * math.log2(1 + moved)
                if moved < NEAR:
                    handed += (high - low) * _handed(span, part, is_write)
                if not is_write:
                    if low > place:
                        made.append(_cut(part, place, low))
                    made.append(_read(span, part, low, high))
                if span.high > part.high:
                    made.append(_cut(span, part.high, span.high))
                place = high
            if place < part.high and not is_write:
                made.append(_cut(part, place, part.high))
            spans[first:last] = sorted(made, key=lambda span: span.low)
        return (2 ** (far / total) - 1 if total else 0.0), handed


def _handed(span: _Span, part: _Span, is_write: bool) -> float:
    """Of the bytes of a span, the part that a thread takes over from another; being the only one to have them costs less."""
    if part.turns is not None and span.turns is not None and part.turns[1] == span.turns[1]:
        return abs(part.turns[0] - span.turns[0])
    found = 0.0
    for thread in (0, 1):
        found += part.has[thread] * (1 - span.has[thread])
        if is_write:
            found += SHARED * part.has[thread] * span.has[thread] * span.has[1 - thread]
    return found


def _cut(span: _Span, low: float, high: float) -> _Span:
    return _Span(low, high, span.has, span.at, span.turns)


def _read(span: _Span, part: _Span, low: float, high: float) -> _Span:
    """Those of a span's bytes that are read: who had them before still has them."""
    first, second = part.has
    has = max(span.has[0], first), max(span.has[1], second)
    at = part.at[0] if first else span.at[0], part.at[1] if second else span.at[1]
    return _Span(low, high, has, at, part.turns if part.turns is not None and part.turns == span.turns else None)


def located(plan: Sequence[Work], bytes_of: Mapping[str, float], outside: Collection[str]) -> list[Work]:
    """The work of groups that run in this order, call after call: from how far each has its bytes, and from whom. What is
    `outside` has memory of its own, and all else a place in an arena."""
    places = _places(plan, bytes_of, outside)
    memory, clock = _Memory(), 0.0
    for _ in range(2):  # the call before, and this one
        found = []
        for work in plan:
            since, clock = clock, clock + work.moved
            sides = [
                tuple([_located(memory, work, t, (since, clock), places, is_write) for t in touches])
                for is_write, touches in ((False, work.reads), (True, work.writes))
            ]
            found.append(sides)
    return [replace(work, reads=reads, writes=writes) for work, (reads, writes) in zip(plan, found, strict=True)]


def _located(
    memory: _Memory, work: Work, touch: Touch, during: tuple[float, float], places: Mapping[str, int], is_write: bool
) -> Touch:
    """Its own bytes move between two touches, too."""
    start = places.get(touch.name)
    block = touch.name if start is None else ""
    parts = _parts(work, touch, float(start or 0), during[1], is_write)
    moved, handed = memory.touch(block, parts, is_write, during[0])
    return touch.found_at(moved + touch.bytes, min(handed, 2 * touch.bytes))


def _parts(work: Work, touch: Touch, start: float, now: float, is_write: bool) -> list[_Span]:
    """What each thread touches of a value that begins at `start`."""
    end, cut = start + touch.bytes, work.cut
    turns = _turns(work, touch, is_write)
    if turns is not None:
        return [_Span(start, end, (cut, 1 - cut), (now, now), turns)] if end > start else []
    if work.lanes != ALONE and _is_everybodys(work, touch, is_write):
        return [_Span(start, end, (1.0, 1.0), (now, now), None)] if end > start else []
    middle = end if work.lanes == ALONE else start + cut * touch.bytes
    halves = _Span(start, middle, (1.0, 0.0), (now, 0.0), None), _Span(middle, end, (0.0, 1.0), (0.0, now), None)
    return [part for part in halves if part.high > part.low]


def _turns(work: Work, touch: Touch, is_write: bool) -> tuple[float, float] | None:
    """Where threads take turns along memory: they share columns, and it has many rows, or rows of what is turned."""
    elements = touch.bytes / touch.element
    if work.lanes == ALONE or touch.is_weight:
        return None
    if work.lanes == BY_ROWS:
        return (work.cut, elements) if touch.access == STRIDED and work.kind not in ("product", "chain") else None
    if work.kind == "product":
        return (work.cut, work.inner) if is_write and work.points > work.inner else None
    return (work.cut, work.inner) if elements > work.inner else None


def _is_everybodys(work: Work, touch: Touch, is_write: bool) -> bool:
    """Whether all threads read all of it: weights where they share rows, rows where they share columns of a product."""
    if is_write:
        return False
    if work.kind in ("product", "chain"):
        return touch.is_weight == (work.lanes == BY_ROWS)
    if touch.access == GATHERED:
        return False
    elements = touch.bytes / touch.element
    rows = work.points / max(work.inner, 1.0)
    is_by_rows = elements >= work.points or elements in (rows, work.points / max(work.row, 1.0))
    return touch.is_weight or (work.lanes == BY_ROWS and not is_by_rows)


def _places(plan: Sequence[Work], bytes_of: Mapping[str, float], outside: Collection[str]) -> dict[str, int]:
    """Of values in the arena, as `runtime/tables` places them."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, work in enumerate(plan):
        for touch in (*work.reads, *work.writes):
            if touch.name not in outside and not touch.is_weight:
                first.setdefault(touch.name, step)
                last[touch.name] = step
    offsets, _ = plan_arena([Interval(first[name], last[name], int(bytes_of.get(name, 0.0))) for name in first])
    return dict(zip(first, offsets, strict=True))
