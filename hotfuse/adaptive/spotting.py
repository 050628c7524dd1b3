"""Spotting: which edits of a model's units the profile speaks for, and why. Whether they pay is measured afterwards, in duels.

A unit is to be taken apart where it takes far longer than its work explains:

    floor  =  max(flops / best rate, bytes / best bandwidth)      of all units of the model, or what any machine has
    saves  =  seconds - GENEROUS * floor                          where that is positive

Two units are to be merged where

    frequency   the second follows the first in nearly every call,
    locality    what the first hands on does not fit the second-level caches, or waiting between them takes its time,
    resources   the weights of both fit the second-level cache (fusion/chains has merged those that fit half of it), and
    saves  =  what is handed on, written and read again / best bandwidth, or what threads waited for each other
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotfuse.adaptive.order import Chain
from hotfuse.adaptive.profile import Use
from hotfuse.adaptive.target import Edit, Merged, Split
from hotfuse.errors import DimError
from hotfuse.ir.dim import evaluate

if TYPE_CHECKING:
    from hotfuse.fusion.grouping import Joint
    from hotfuse.runtime.build import Build

GENEROUS = 3.0  # times the floor is no reason for anything
SHARE = 0.02  # of a model's time: what takes less is not worth a look
ALWAYS = 0.9  # of the calls
LEAST_GFLOPS, LEAST_GBYTES = 4.0, 4.0  # a second, of a thread: what any machine with vectors has
LEAST_S = 2e-6  # below that a clock says little


@dataclass(frozen=True)
class Found:
    """An edit, what it could save of each call, and what speaks for it."""

    edit: Edit
    saves_s: float
    reason: str


def find_edits(
    build: Build,
    uses: Iterable[Use],
    chains: Iterable[Chain],
    sizes: Mapping[str, int] | None,
    l2_bytes: int,
) -> tuple[Found, ...]:
    """What the profile of a build's calls speaks for, what saves most first. `sizes` are those of most calls."""
    known = {unit.name for unit in build.units}
    mine = {use.unit: use for use in uses if use.unit in known}
    follows = {(c.first, c.second): min(c.of_first, c.of_second) for c in chains}
    rates = _rates(mine.values())
    found = [f for unit in build.units if (f := _split(unit.nodes, mine.get(unit.name), rates)) is not None]
    if sizes is not None:
        merges = (_merge(joint, mine, follows, rates, sizes, l2_bytes) for joint in build.joints)
        found += [f for f in merges if f is not None]
    return tuple(sorted(found, key=lambda f: -f.saves_s))


def _rates(uses: Iterable[Use]) -> tuple[float, float]:
    """The best rates that units of the model have reached, in flops and bytes a second."""
    seen = list(uses)
    threads = max((use.threads for use in seen), default=1)
    flops = max([LEAST_GFLOPS * threads, *(use.gflops_per_s for use in seen)])
    moved = max([LEAST_GBYTES * threads, *(use.gbytes_per_s for use in seen if use.bytes_moved > 1 << 16)])
    return 1e9 * flops, 1e9 * moved


def _split(nodes: Sequence[str], use: Use | None, rates: tuple[float, float]) -> Found | None:
    if use is None or len(nodes) < 2 or use.share < SHARE or use.seconds < LEAST_S:
        return None
    floor_s = max(use.flops / rates[0], use.bytes_moved / rates[1])
    saves_s = use.seconds - GENEROUS * floor_s
    if saves_s <= 0:
        return None
    times = use.seconds / max(floor_s, 1e-9)
    return Found(
        Split((use.unit,)),
        saves_s,
        f"it takes {1e6 * use.seconds:.3g} us, {times:.3g} times what {use.flops:.3g} flops and {use.bytes_moved:.3g} bytes "
        f"take at the best rates of this model's units, and {use.share:.1%} of its time",
    )


def _merge(
    joint: Joint,
    uses: Mapping[str, Use],
    follows: Mapping[tuple[str, str], float],
    rates: tuple[float, float],
    sizes: Mapping[str, int],
    l2_bytes: int,
) -> Found | None:
    first, second = (uses.get(name) for name in joint.groups)
    often = follows.get(joint.groups, 0.0)
    if first is None or second is None or often < ALWAYS or joint.weights > l2_bytes:
        return None
    try:
        handed = int(evaluate(joint.bytes, sizes))
    except DimError:
        return None
    threads = max(first.threads, 1)
    passes_s = 2 * handed / rates[1] if handed > l2_bytes * threads else 0.0
    saves_s = passes_s + first.waiting_s / threads
    if saves_s < SHARE * (first.seconds + second.seconds):
        return None
    return Found(
        Merged(joint.groups),
        saves_s,
        f"the second follows the first in {often:.0%} of the calls (frequency); {handed:,} bytes pass between them, for which "
        f"{threads} caches of {l2_bytes:,} are there (locality); weights of {joint.weights:,} bytes stay in one (resources)",
    )
