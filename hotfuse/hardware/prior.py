"""The roofline: seconds of a piece of work by the measured rates alone, before any kernel was ever timed.

A kernel takes as long as its arithmetic or as its memory, whichever is longer, for processors do both at once; and what it
costs to hand out tasks and to meet comes on top. Threads help as far as there are tasks for all of them.

    arithmetic = products / (multiply-adds a second) + (steps in vectors that rows fill, or not) / (vector operations a second)
    memory     = sum over what is touched of    bytes / bandwidth at the distance that they come from
    seconds    = max(arithmetic, memory) + a step, or a barrier where there is a team
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotfuse.hardware.rates import Curve, Rates
from hotfuse.hardware.work import IN_ORDER, Touch, Work

COMPUTE, MEMORY, OVERHEAD = "arithmetic", "memory", "overhead"
LINE = 64  # bytes that come with each element where memory is not gone through in order
DOUBLE = 8
SINGLE = 2.0  # a function of one number waits for each of its steps; others are on their way meanwhile in a vector's loop


@dataclass(frozen=True, slots=True)
class Bound:
    """The parts of a prediction, in seconds, and which of them binds."""

    arithmetic_s: float
    memory_s: float
    overhead_s: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_s, self.memory_s) + self.overhead_s

    @property
    def by(self) -> str:
        parts = {COMPUTE: self.arithmetic_s, MEMORY: self.memory_s, OVERHEAD: self.overhead_s}
        return max(parts, key=lambda name: parts[name])


def roofline(work: Work, rates: Rates, threads: int) -> Bound:
    """What a machine of these rates needs at least, with a team of so many threads."""
    team = max(1, min(threads, rates.threads, int(work.tasks)))
    halved = 2 if work.element >= DOUBLE else 1  # wide elements: half as many in a vector
    flops = rates.fma.of(team) * 1e9 / halved
    lanes = LINE / max(work.element, 1)
    filled = max(work.inner, 1.0) / (math.ceil(max(work.inner, 1.0) / lanes) * lanes)  # of vectors, to the end of a row
    arithmetic = 2 * work.products / flops + (work.steps / filled + SINGLE * lanes * work.row_steps) / (flops / 2)
    if team > 1:  # the last tasks are waited for
        arithmetic *= math.ceil(work.tasks / team) * team / work.tasks
    memory = sum(_seconds(touch, rates.read, team) for touch in work.reads)
    memory += sum(_seconds(touch, rates.write, team) for touch in work.writes)
    return Bound(arithmetic, memory, rates.call_s if threads == 1 else rates.barrier_s)


def _seconds(touch: Touch, curve: Curve, team: int) -> float:
    share = max(touch.distance / team, 1.0)  # each thread goes through its own part
    bytes = touch.bytes
    if touch.access != IN_ORDER:  # what stays near costs a line once, what does not, one for each element
        worst = LINE / touch.element
        far = share / (share + curve.bytes[len(curve.bytes) // 3])
        bytes *= 1 + (worst - 1) * far
    return bytes / (curve.at(share, team) * 1e9)
