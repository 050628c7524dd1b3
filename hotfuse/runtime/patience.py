"""Patience: how long something that changed must have stayed as it is before work is put into it.

State: what was seen last, how often in a row, and how often that must be. Callers hold a lock of their own around it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

LEAST_CALLS = 3
MOST_CALLS = 1024


class Patience:
    """Asks for `needed` calls in a row that see the same. Work that was of use for fewer calls than that came too early: the
    next takes twice as many. After work that was worth it the least is enough again."""

    def __init__(self) -> None:
        self.needed = LEAST_CALLS
        self._seen: Any = None
        self._calls = 0
        self._asked = 0

    def is_due(self, every: int) -> bool:
        """Whether to look: once in so many calls, and in each while calls are being counted."""
        self._asked += 1
        return self._calls > 0 or self._asked % every == 0

    def is_steady(self, seen: Any, same: Callable[[Any, Any], bool] = operator.eq) -> bool:
        """Note what a call sees. True if as many as needed saw the same."""
        if not (self._calls and same(seen, self._seen)):
            self._calls = 0
        self._seen = seen
        self._calls += 1
        return self._calls >= self.needed

    def forget(self) -> None:
        self._seen, self._calls = None, 0

    def judge(self, calls_of_use: int) -> None:
        """Learn from work that is of no use any longer."""
        self.needed = min(2 * self.needed, MOST_CALLS) if calls_of_use < self.needed else LEAST_CALLS
        self.forget()
