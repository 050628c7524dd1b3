"""Backing off: what failed is left alone for a while, and for twice as long each time, up to a bound."""

from __future__ import annotations

from hotfuse.records import dataclass

MOST_DOUBLINGS = 64  # far beyond any bound, and still a number


@dataclass(frozen=True)
class Backoff:
    """`times` it happened; nothing is tried before `until_s`."""

    times: int = 0
    until_s: float = 0.0

    def longer(self, now_s: float, first_s: float, most_s: float) -> Backoff:
        """After one more time, at `now_s`."""
        wait_s = min(first_s * 2.0 ** min(self.times, MOST_DOUBLINGS), most_s)
        return Backoff(self.times + 1, now_s + wait_s)

    def is_over(self, now_s: float) -> bool:
        return now_s >= self.until_s


FRESH = Backoff()  # it has not happened yet
