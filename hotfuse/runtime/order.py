"""Order: what follows what: units within a plan, and parts of a model that are captured apart, as calls come. Parts that always
follow each other could be one (`torch_joins`).

Noting a call takes a fraction of a microsecond and no lock: a deque's append is one step. Somebody collects now and then.

State: the calls that nobody collected yet, the last one of each thread, and how often one followed another, fading.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from hotfuse.records import dataclass

KEPT = 4096  # calls between two looks; where there are more, the oldest are not counted
PAIRS = 256  # the rarest make room
THREADS = 64

Pairs = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Chain:
    """`second` directly followed `first`: two units of a plan, or (`plan` is "") two plans. `recent` says how often, as far as
    that is not long ago, the shares in how many of the cases in which something followed the first, or preceded the second."""

    plan: str
    first: str
    second: str
    recent: float
    of_first: float
    of_second: float


class Order:
    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._calls: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._last: dict[int, str] = {}
        self._pairs: Pairs = {}
        self._at_s = 0.0

    def note(self, plan: str) -> None:
        """A call was answered by a plan. Called by any thread, for every call or for none of a thread."""
        self._calls.append((threading.get_ident(), plan))

    def collect(self, now_s: float) -> Mapping[tuple[str, str], float]:
        """How often one plan directly followed another in one thread, what is long ago counting less."""
        left = 0.5 ** (max(0.0, now_s - self._at_s) / self._half_life_s)
        self._at_s = max(now_s, self._at_s)
        pairs = {pair: count * left for pair, count in self._pairs.items()}
        for _ in range(len(self._calls)):
            thread, plan = self._calls.popleft()
            before = self._last.pop(thread, None)
            self._last[thread] = plan
            if before is not None:
                pairs[before, plan] = pairs.get((before, plan), 0.0) + 1
        while len(self._last) > THREADS:
            del self._last[next(iter(self._last))]
        self._pairs = dict(sorted(pairs.items(), key=lambda item: -item[1])[:PAIRS])
        return dict(self._pairs)


def make_chains(plan: str, pairs: Mapping[tuple[str, str], float]) -> Iterator[Chain]:
    """Of how often one thing directly followed another."""
    firsts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for (first, second), count in pairs.items():
        firsts[first] = firsts.get(first, 0.0) + count
        seconds[second] = seconds.get(second, 0.0) + count
    for (first, second), count in pairs.items():
        of_first, of_second = (count / total if total else 0.0 for total in (firsts[first], seconds[second]))
        yield Chain(plan, first, second, count, of_first, of_second)


def runs(chains: Iterable[Chain], plan: str = "", least: float = 0.95) -> tuple[tuple[str, ...], ...]:
    """The longest rows of units of a plan, or of plans, in which each follows the one before it nearly always, and nothing else
    comes before it."""
    after = {c.first: c.second for c in chains if c.plan == plan and min(c.of_first, c.of_second) >= least and c.recent > 0}
    heads = sorted(after, key=lambda first: first in after.values())  # circles, which have no head, begin anywhere
    found: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for head in heads:
        row = [head]
        while row[-1] in after and after[row[-1]] not in row:
            row.append(after[row[-1]])
        if head not in seen:
            found.append(tuple(row))
        seen.update(row)
    return tuple(found)
