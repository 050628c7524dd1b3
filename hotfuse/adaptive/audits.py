"""Audits: when an answer of what serves is held against the original's.

The first one of what serves comes after so many calls, however fast they are and whatever it costs: a process may not live for
long. Then one comes after so many calls, or so much time with calls, as long as audits take a small share of it.

State: calls and time since the last audit, what that cost, when one was asked for that did not come yet, and after how many
calls the first one is due.
"""

from __future__ import annotations

FIRST_CALLS = 100  # of what serves, before its first audit: whoever calls goes on while it is asked for, and 1,000 is the limit
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
        self._first = 0  # calls until then; 0: it was asked for

    def restart(self, now_s: float, soon: bool = False) -> None:
        """Something else serves: a shadowed call spoke for it. One that ran on a single thread spoke for less: then one of
        its first calls is held against the original's."""
        self._calls, self._since_s, self._asked_s = 0, now_s, None
        self._first = 1 if soon else FIRST_CALLS

    def stop(self) -> None:
        self._since_s, self._asked_s, self._first = None, None, 0

    @property
    def first(self) -> int:
        """In how many calls the first audit of what serves is due; 0 where it was asked for, or nothing serves."""
        return max(1, self._first - self._calls) if self._first else 0

    def count(self, calls: int) -> None:
        self._calls += calls

    def is_due(self, now_s: float) -> bool:
        if self._since_s is None or not self._calls:
            return False
        if self._asked_s is not None and now_s - self._asked_s < MOST_S:  # calls of its form may never come again
            return False
        if 0 < self._first <= self._calls:
            return True
        passed_s = now_s - self._since_s
        enough = passed_s >= (LEAST_S if self._calls >= CALLS else MOST_S)
        return enough and self._cost_s <= SHARE * passed_s

    def ask(self, now_s: float) -> None:
        """One was begun."""
        self._asked_s, self._first = now_s, 0

    def done(self, now_s: float, cost_s: float) -> None:
        self._calls, self._since_s, self._cost_s, self._asked_s = 0, now_s, cost_s, None
