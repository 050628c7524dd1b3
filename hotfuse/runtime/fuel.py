"""Fuel: how many decisions of one model may change who answers its calls. All of its parts draw from the same, in the order in
which they decide.

Whoever looks for the first bad decision halves the number that is allowed (`Config.fuel`).

State: how many were made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hotfuse.locks import make_lock


class Fuel:
    def __init__(self, limit: int) -> None:
        """`limit` decisions are allowed; -1 is any number."""
        self._limit = limit
        self._lock = make_lock()
        self.spent = 0

    @contextmanager
    def held(self) -> Iterator[Fuel]:
        """Nobody else draws meanwhile: whoever decides may look first how much was spent, and then spend."""
        with self._lock:
            yield self

    def draw(self) -> str:
        """Make a decision, if one more is allowed; otherwise why not."""
        with self._lock:
            if 0 <= self._limit <= self.spent:
                return f"all {self._limit} decisions that the fuel allows were made"
            self.spent += 1
            return ""
