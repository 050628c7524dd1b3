"""Spotting: which edits of a model's units the profile speaks for, and why. Whether they pay is measured afterwards, in duels.

A unit is to be taken apart where it takes far longer than its work explains:

    floor  =  max(flops / rate, bytes / bandwidth)     what any machine with such vectors has; for products, or the model's best
    saves  =  seconds - GENEROUS * floor               where that is positive

Two units are to be merged where

    frequency   the second follows the first in nearly every call,
    locality    what the first hands on does not fit the second-level caches, or waiting between them takes its time,
    resources   the weights of both fit the second-level cache (fusion/chains has merged those that fit half of it), and
    saves  =  what is handed on, written and read again / bandwidth, and what threads waited for each other
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hotfuse.adaptive.profile import Use
from hotfuse.adaptive.target import Edit, Merged, Split
from hotfuse.errors import DimError
from hotfuse.ir.dim import evaluate
from hotfuse.records import dataclass
from hotfuse.runtime.order import Chain

if TYPE_CHECKING:
    from hotfuse.fusion.grouping import Joint
    from hotfuse.hardware.spec import Spec
    from hotfuse.runtime.build import Build

GENEROUS = 3.0  # times the floor is no reason for anything
SHARE = 0.02  # of a model's time: what takes less is not worth a look
ALWAYS = 0.9  # of the calls
PRODUCTS = ("product", "chain", "attention")
LANE_GFLOPS = 2.0  # a second, of a thread, for each lane of a vector, in products: half a product a cycle
LEAST_GFLOPS, LEAST_GBYTES = 1.0, 2.0  # a second, of a thread, elsewhere: some functions take ten cycles
FAR_GBYTES = 10.0  # a second, of a thread, from beyond the second-level cache
LEAST_S = 2e-6  # below that a clock says little


@dataclass(frozen=True)
class Found:
    """An edit, what it could save of each call, and what speaks for it."""

    edit: Edit
    saves_s: float
    reason: str


def find_edits(
    build: Build, uses: Iterable[Use], chains: Iterable[Chain], sizes: Mapping[str, int] | None, spec: Spec
) -> tuple[Found, ...]:
    """What the profile of a build's calls speaks for, what saves most first. `sizes` are those of most calls."""
    kinds = {unit.name: unit.kind for unit in build.units}
    mine = {use.unit: use for use in uses if use.unit in kinds}
    follows = {(c.first, c.second): min(c.of_first, c.of_second) for c in chains}
    products = _products_rate([use for use in mine.values() if kinds[use.unit] in PRODUCTS], spec)
    found = []
    for unit in build.units:
        use = mine.get(unit.name)
        if use is not None and len(unit.nodes) > 1:
            found.append(_split(use, products if unit.kind in PRODUCTS else 1e9 * LEAST_GFLOPS * use.threads))
    if sizes is not None:
        found += [_merge(joint, mine, follows, sizes, spec.l2_bytes) for joint in build.joints]
    return tuple(sorted((f for f in found if f is not None), key=lambda f: -f.saves_s))


def _products_rate(uses: Sequence[Use], spec: Spec) -> float:
    """Flops a second that a product may be expected to reach: what another one did, or what any machine does."""
    threads = max((use.threads for use in uses), default=1)
    return 1e9 * max([LANE_GFLOPS * spec.vector_bytes / 4 * threads, *(use.gflops_per_s for use in uses)])


def _split(use: Use, rate: float) -> Found | None:
    if use.share < SHARE or use.seconds < LEAST_S:
        return None
    floor_s = max(use.flops / rate, use.bytes_moved / (1e9 * LEAST_GBYTES * use.threads))
    saves_s = use.seconds - GENEROUS * floor_s
    if saves_s <= 0:
        return None
    times = use.seconds / max(floor_s, 1e-9)
    return Found(
        Split((use.unit,)),
        saves_s,
        f"it takes {1e6 * use.seconds:.3g} us, {times:.3g} times what {use.flops:.3g} flops and {use.bytes_moved:.3g} bytes "
        f"should take, and {use.share:.1%} of the model's time",
    )


def _merge(
    joint: Joint,
    uses: Mapping[str, Use],
    follows: Mapping[tuple[str, str], float],
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
    passes_s = 2 * handed / (1e9 * FAR_GBYTES * threads) if handed > l2_bytes * threads else 0.0
    saves_s = passes_s + first.waiting_s / threads
    if saves_s < SHARE * (first.seconds + second.seconds):
        return None
    return Found(
        Merged(joint.groups),
        saves_s,
        f"the second follows the first in {often:.0%} of the calls (frequency); {handed:,} bytes pass between them, for which "
        f"{threads} caches of {l2_bytes:,} are there (locality); weights of {joint.weights:,} bytes stay in one (resources)",
    )
