"""Remembering: what the tier machine learns about failed targets is kept on disk for the next process (`remembered`).

State: what the model is known by on disk, worked out when it is first needed.
"""

from __future__ import annotations

import time

from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.subject import Subject
from hotfuse.pace import Unhurried


class Remembering:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._key: str | None = None

    def recall(self) -> Memory | None:
        """What earlier processes learned; None if nothing, and from the second time on."""
        from hotfuse.adaptive.remembered import memory_key, read_remembered

        if self._key is not None:
            return None
        subject = self._subject
        self._key = memory_key(subject.request().graph, subject.config, Unhurried())
        return read_remembered(subject.config, self._key, time.monotonic(), subject.events) if self._key else None

    def keep(self, memory: Memory, now_s: float) -> None:
        from hotfuse.adaptive.remembered import remember

        if self._key:
            remember(self._subject.config, self._key, memory, now_s, self._subject.events)
