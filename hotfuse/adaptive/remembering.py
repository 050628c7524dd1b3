"""Remembering: what the tier machine learns about failed targets is kept on disk for the next process (`remembered`).

State: what the model is known by on disk, worked out when it is first needed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.subject import Subject
from hotfuse.pace import Pace, Unhurried, imports


class Remembering:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.pace: Callable[[], Pace] = Unhurried

    @functools.cached_property
    def _key(self) -> str:
        from hotfuse.adaptive.remembered import memory_key

        return memory_key(self._subject.request().graph, self._subject.config, self.pace())

    def recall(self) -> Memory | None:
        """What earlier processes learned; None if nothing."""
        with imports(self.pace()):
            from hotfuse.adaptive.remembered import read_remembered

        return read_remembered(self._subject.config, self._key, time.monotonic(), self._subject.events)

    def keep(self, memory: Memory, now_s: float) -> None:
        from hotfuse.adaptive.remembered import remember

        if memory.lessons:
            remember(self._subject.config, self._key, memory, now_s, self._subject.events)
