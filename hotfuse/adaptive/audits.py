"""Audits: when an answer of what serves is held against the original's.

One comes after so many calls, or so much time with calls, as long as audits take a small share of it.

State: calls and time since the last audit, what that cost, and when one was asked for that did not come yet.
"""

from __future__ import annotations

CALLS = 500  # between audits: a kernel that is wrong now and then is found within 1,000
LEAST_S = 1.0  # between audits, however many calls there are: one takes some milliseconds of this process, too
MOST_S = 30.0  # between audits of a model that is called less often
SHARE = 0.03  # of the time, that audits may take of one core


class Audits:
    def __init__(self) -> None:
        self._calls = 0
        self._since_s: float | None = None
        self._cost_s = 0.0
        self._asked_s: float | None = None

    def restart(self, now_s: float, soon: bool = False) -> None:
        """Something else serves: a shadowed call spoke for it. One that ran on a single thread spoke for less: then one of
        its first calls is held against the original's."""
        self._calls, self._since_s, self._asked_s = 0, now_s - MOST_S if soon else now_s, None

    def stop(self) -> None:
        self._since_s = self._asked_s = None

    def count(self, calls: int) -> None:
        self._calls += calls

    def is_due(self, now_s: float) -> bool:
        if self._since_s is None or not self._calls:
            return False
        if self._asked_s is not None and now_s - self._asked_s < MOST_S:  # calls of its form may never come again
            return False
        passed_s = now_s - self._since_s
        enough = passed_s >= (LEAST_S if self._calls >= CALLS else MOST_S)
        return enough and self._cost_s <= SHARE * passed_s

    def ask(self, now_s: float) -> None:
        """One was begun."""
        self._asked_s = now_s

    def done(self, now_s: float, cost_s: float) -> None:
        self._calls, self._since_s, self._cost_s, self._asked_s = 0, now_s, cost_s, None
