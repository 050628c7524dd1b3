"""Criteria: what speaks for making one kernel of several, each scored from 0 to 1, with the reason.

    complementarity   one computes while the other waits for memory: together neither is idle
    locality          the part of all bytes that no longer moves
    constraints       streams of memory and weights of tiles against what prefetchers follow and caches hold
    parallelism       tasks for every thread, after as before

They say why an edit that the model predicts to pay may do so, and are what the policy learns by (`strategies`) which of those
that nobody is sure of to try first; only legality may veto.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.hardware.prior import Bound
from hotfuse.hardware.spec import Spec
from hotfuse.hardware.work import Work
from hotfuse.records import dataclass

STREAMS = 16  # of memory that prefetchers follow at a time, about
TASKS = 4.0  # for each thread: fewer leave threads idle at the end


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    value: float  # 0 to 1
    reason: str


def score_complementarity(bounds: Sequence[Bound]) -> Score:
    """How far the groups differ in what they spend their time on."""
    shares = [b.arithmetic_s / max(b.arithmetic_s + b.memory_s, 1e-12) for b in bounds]
    value = max(shares) - min(shares)
    words = " and ".join(f"{share:.0%}" for share in shares)
    return Score("complementarity", value, f"arithmetic is {words} of what they do")


def score_locality(before: Sequence[Work], after: Sequence[Work]) -> Score:
    moved, left = sum(w.moved for w in before), sum(w.moved for w in after)
    saved = max(0.0, moved - left)
    return Score("locality", min(1.0, saved / max(moved, 1.0)), f"{saved:,.0f} of {moved:,.0f} bytes move no more")


def score_constraints(after: Sequence[Work], spec: Spec) -> Score:
    streams = max(len(work.reads) + len(work.writes) for work in after)
    weights = max(sum(t.bytes for t in work.reads if t.is_weight) if work.kind == "chain" else 0.0 for work in after)
    value = min(1.0, STREAMS / streams if streams else 1.0, spec.l2_bytes / weights if weights else 1.0)
    reason = f"{streams} streams of memory"
    return Score("constraints", value, f"{reason}; {weights:,.0f} bytes of weights stay near" if weights else reason)


def score_parallelism(after: Sequence[Work], threads: int) -> Score:
    tasks = min(work.tasks for work in after)
    value = 1.0 if threads == 1 else min(1.0, tasks / (TASKS * threads))
    return Score("parallelism", value, f"{tasks:,.0f} tasks for {threads} threads")


def score(
    before: Sequence[Work], bounds: Sequence[Bound], after: Sequence[Work], spec: Spec, threads: int
) -> tuple[Score, ...]:
    """All of them, for groups that would become others."""
    return (
        score_complementarity(bounds),
        score_locality(before, after),
        score_constraints(after, spec),
        score_parallelism(after, threads),
    )


def show(scores: Sequence[Score]) -> str:
    return "; ".join(f"{s.name} {s.value:.2f} ({s.reason})" for s in scores)
