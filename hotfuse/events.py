"""Events: what happened, when, to what, and why.

A log is bounded. Where it is full the oldest event of the most frequent kind goes: what happens with every call does not push
out what happened once. Counts and sums are of all events, those included that went.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from hotfuse.event_file import EventFile
from hotfuse.locks import make_lock
from hotfuse.records import dataclass

DEPTH = 8  # of data within data that is written out; what is deeper may have no end
ELEMENTS = 64  # of an array, that are written out
LARGEST = 1e300  # number that is added up


@dataclass(frozen=True)
class Event:
    """`kind` is a dotted name ("capture.done", "guard.miss"); `subject` is what it happened to; `reason` is a sentence; `calls`
    is how many the model had answered."""

    kind: str
    subject: str
    reason: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    time_s: float = field(default_factory=time.time)
    calls: int = 0

    def record(self) -> dict[str, Any]:
        """Plain values for `json.dumps`, whatever the data is."""
        own = {"time_s": self.time_s, "kind": self.kind, "subject": self.subject, "reason": self.reason, "calls": self.calls}
        return {**own, **plain(self.data), **own}  # its own names come first, and win

    def json(self) -> str:
        return json.dumps(self.record(), allow_nan=False)


class EventLog:
    """State: the last events; the count of each kind, and the sum of every number in their data, by kind and name (of truth
    values, how many were true); a file that they are appended to as well, once one is given. Any thread may emit."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kinds: dict[str, deque[tuple[int, Event]]] = defaultdict(deque)
        self._emitted = self._kept = 0
        self._calls: Callable[[], int] = int
        self._file: tuple[EventFile, str] | None = None
        self.counts: Counter[str] = Counter()
        self.sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._lock = make_lock()

    def emit(self, kind: str, subject: str, reason: str = "", **data: Any) -> Event:
        event = Event(kind, subject, reason, data, calls=self._calls())
        with self._lock:
            self._emitted, self._kept = self._emitted + 1, self._kept + 1
            self._kinds[kind].append((self._emitted, event))
            if self._kept > self._limit:
                max(self._kinds.values(), key=len).popleft()
                self._kept -= 1
            self.counts[kind] += 1
            for name, value in data.items():
                if isinstance(value, int | float) and abs(value) < LARGEST:  # neither NaN nor beyond any float
                    self.sums[kind, name] += value
            if self._file is not None:
                file, model = self._file
                file.put(event.record, model)
        return event

    def bind(self, calls: Callable[[], int], file: EventFile | None = None, model: str = "") -> None:
        """From now on events tell how many calls there were, and are appended to a file, those so far first."""
        with self._lock:
            self._calls = calls
            if file is not None and self._file is None:
                self._file = file, model
                for event in self._in_order():
                    file.put(event.record, model)

    def counted(self) -> dict[str, int]:
        """How many events of each kind there were."""
        with self._lock:
            return dict(self.counts)

    def __iter__(self) -> Iterator[Event]:
        with self._lock:
            return iter(self._in_order())

    def _in_order(self) -> list[Event]:
        kept = [numbered for events in self._kinds.values() for numbered in events]
        return [event for _, event in sorted(kept, key=lambda numbered: numbered[0])]

    def __len__(self) -> int:
        return self._kept

    def of(self, kind: str) -> list[Event]:
        """Events whose kind is `kind` or starts with `kind.`."""
        return [e for e in self if e.kind == kind or e.kind.startswith(kind + ".")]


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Any value as what JSON can say of it. Numbers that JSON has none for are text, large arrays their type."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth:
        with contextlib.suppress(Exception):  # whoever made it may answer as he likes
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                return {f.name: plain(getattr(value, f.name), depth - 1) for f in dataclasses.fields(value)}
            if isinstance(value, Mapping):
                return {_text(key): plain(item, depth - 1) for key, item in value.items()}
            if hasattr(value, "tolist"):  # of numpy or torch
                is_small = math.prod(value.shape) <= ELEMENTS
                return plain(value.tolist(), depth - 1) if is_small else f"{value.dtype}{list(value.shape)}"
            if isinstance(value, Collection) and not isinstance(value, bytes | bytearray | memoryview):
                return [plain(item, depth - 1) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
