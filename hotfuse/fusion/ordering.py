"""Ordering: groups that do not need each other and spend their time on different things are put next to each other. They run
woven, each thread both at once (`fusion/weaving`), or side by side: one thread computes while another waits for memory, or each
has a task where there is but one.

    alone, of a team     t(x) + t(y)
    side by side         s * min(t1(x), t1(y)), one thread each, then the rest of the longer one, of a team
                         s = what both ask of the memory at once, where that is more than it gives

t1 are times of one thread. Who is done first helps the other (`runtime/driver`), so a wrong guess costs little. One thread
alone has nobody to run beside, but weaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotfuse.fusion.draft import Draft, Item
from hotfuse.fusion.rules import Fused
from hotfuse.hardware.prior import roofline
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.work import Work
from hotfuse.records import dataclass

LOOK = 16  # places ahead
LEAST_GAIN = 0.08  # of both: threads that begin elsewhere find less of what they need in their own caches
LEAST_S = 1e-6  # of the shorter of both: less is lost where threads begin


@dataclass(frozen=True, slots=True)
class Pace:
    """What an item takes: with a team, with one thread, and the part of that in which it has all of the memory's bandwidth."""

    team_s: float
    one_s: float
    memory: float


@dataclass(frozen=True)
class Pair:
    """Two items that are to run side by side, and what that is to gain. With `woven`, the first is a product, which is to be
    that one."""

    items: tuple[Item, Item]
    before_s: float
    after_s: float
    woven: Fused | None = None

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s


def pace_of(work: Work, team_s: float, rates: Rates, threads: int) -> Pace:
    """`team_s` is what the model predicts of a team; what one thread takes follows from the rates."""
    team, one = roofline(work, rates, threads), roofline(work, rates, 1)
    one_s = team_s * max(1.0, one.seconds / max(team.seconds, 1e-12))
    return Pace(team_s, one_s, min(1.0, team.memory_s / max(one.seconds, 1e-12)))


def beside_s(first: Pace, second: Pace) -> float:
    """Of both, side by side."""
    shorter, longer = sorted((first, second), key=lambda pace: pace.one_s)
    slower = max(1.0, first.memory + second.memory)
    together = slower * shorter.one_s
    left = max(0.0, 1.0 - together / (slower * longer.one_s))
    return together + left * longer.team_s


def no_weave(first: Item, second: Item) -> Pair | None:
    return None


def arrange(
    draft: Draft,
    paces: Mapping[Item, Pace],
    found: Callable[[Pair], None],
    weave: Callable[[Item, Item], Pair | None] = no_weave,
    threads: int = 2,
) -> list[Item]:
    """The items of a draft in an order in which those that gain most by it are next to each other; each is told. `weave` says
    what two items gain that way."""
    order = list(draft)
    taken: set[Item] = set()
    for place in range(len(order)):
        first = order[place]
        if first not in paces or first in taken or paces[first].one_s < LEAST_S:
            continue
        best: tuple[int, Pair] | None = None
        for at in _movable(draft, order, place):
            second = order[at]
            if second not in paces or second in taken or paces[second].one_s < LEAST_S:
                continue
            before = paces[first].team_s + paces[second].team_s
            beside = Pair((first, second), before, beside_s(paces[first], paces[second]) if threads > 1 else before)
            for pair in (beside, weave(first, second)):
                if pair is not None and pair.gain_s > max(LEAST_GAIN * before, 0.0 if best is None else best[1].gain_s):
                    best = at, pair
        if best is not None:
            at, pair = best
            order.insert(place + 1, order.pop(at))
            order[place : place + 2] = pair.items
            taken.update(pair.items)
            found(pair)
    return order


def _movable(draft: Draft, order: Sequence[Item], place: int) -> list[int]:
    """The places of items that may as well run right behind the one at `place`: they need neither it nor what is between."""
    passed = {order[place]}
    found = []
    for at in range(place + 1, min(len(order), place + 1 + LOOK)):
        if not any(source in passed for source in draft.sources(order[at])):
            found.append(at)
        passed.add(order[at])
    return found
