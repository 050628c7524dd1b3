"""Tally: what callers leave behind for the controller: who answered calls of which form, and how long that took.

Noting a call takes a fraction of a microsecond and no lock: a deque's append is one step. The background's thread collects.

State: the last calls that nobody collected yet, and the times of the last ones of each form and tier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

from hotfuse.records import dataclass
from hotfuse.runtime.turns import spread

KEPT = 4096  # calls between two looks; where there are more, the oldest are not counted
TIMES = 32  # kept of each form and tier
FORMS = 64


@dataclass(frozen=True)
class Timed:
    """The median of some calls' seconds, and what noise explains of a difference to it."""

    seconds: float
    spread_s: float


class Tally:
    def __init__(self) -> None:
        self._calls: deque[tuple[Hashable, int, float, int]] = deque(maxlen=KEPT)
        self._times: dict[tuple[Hashable, int], deque[float]] = {}

    def note(self, form: Hashable, tier: int, seconds: float, count: int = 1) -> None:
        """One call took so long, and stands for `count` of them. Called by any thread."""
        self._calls.append((form, tier, seconds, count))

    def collect(self) -> dict[tuple[Hashable, int], tuple[float, int]]:
        """Seconds and number of calls since the last time, by form and tier."""
        found: dict[tuple[Hashable, int], tuple[float, int]] = {}
        while self._calls:
            form, tier, seconds, count = self._calls.popleft()
            spent, counted = found.get((form, tier), (0.0, 0))
            found[form, tier] = spent + seconds * count, counted + count
            self._keep(form, tier, seconds)
        return found

    def _keep(self, form: Hashable, tier: int, seconds: float) -> None:
        if (form, tier) not in self._times and len(self._times) >= FORMS:
            del self._times[next(iter(self._times))]
        self._times.setdefault((form, tier), deque(maxlen=TIMES)).append(seconds)

    def timed(self, form: Hashable, tier: int, least: int, skipped: int = 0) -> Timed | None:
        """The last calls of a form by a tier, but for the first ones; None if there were fewer than `least` besides."""
        times = list(self._times.get((form, tier), ()))[skipped:]
        if len(times) < least:
            return None
        return Timed(median(times), spread(times))

    def forget(self, tier: int) -> None:
        """The times of a tier that another implementation has from now on."""
        for key in [key for key in self._times if key[1] == tier]:
            del self._times[key]
