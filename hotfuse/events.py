"""Events: what happened, when, to what, and why. The log is bounded; the oldest events are dropped first."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotfuse.locks import make_lock


@dataclass(frozen=True)
class Event:
    """`kind` is a dotted name ("capture.done", "guard.miss"); `subject` is what it happened to; `reason` is a sentence."""

    kind: str
    subject: str
    reason: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    time_s: float = field(default_factory=time.time)

    def json(self) -> str:
        return json.dumps(
            {"time_s": self.time_s, "kind": self.kind, "subject": self.subject, "reason": self.reason, **self.data}, default=str
        )


class EventLog:
    """State: the last events and the count of each kind; `emit` changes both and may be called from any thread."""

    def __init__(self, limit: int = 10_000) -> None:
        self._events: deque[Event] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()
        self._lock = make_lock()

    def emit(self, kind: str, subject: str, reason: str = "", **data: Any) -> Event:
        event = Event(kind, subject, reason, data)
        with self._lock:
            self._events.append(event)
            self.counts[kind] += 1
        return event

    def counted(self) -> dict[str, int]:
        """How many events of each kind there were."""
        with self._lock:
            return dict(self.counts)

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: str) -> list[Event]:
        """Events whose kind is `kind` or starts with `kind.`."""
        return [e for e in self if e.kind == kind or e.kind.startswith(kind + ".")]
