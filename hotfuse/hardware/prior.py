"""The roofline: seconds of a piece of work by the measured rates alone, before any kernel was ever timed.

A kernel takes as long as its arithmetic or as its memory, whichever is longer, for processors do both at once; and what it
costs to hand out tasks and to meet comes on top. Threads help as far as there are tasks for all of them.

    arithmetic = products, in tiles that fill registers or do not / (multiply-adds a second)
               + operators, by what elements and rows of each were measured to take, or by how many operations it is worth
    memory     = sum over what is touched of    bytes / bandwidth at the distance that they come from
               + what threads take over from each other's caches / the rate of that
    seconds    = max(arithmetic, memory) + a step, or a barrier where there is a team
"""

from __future__ import annotations

import math

from hotfuse.hardware.rates import Curve, Rates
from hotfuse.hardware.work import IN_ORDER, Touch, Work
from hotfuse.records import dataclass

COMPUTE, MEMORY, OVERHEAD = "arithmetic", "memory", "overhead"
LINE = 64  # bytes that come with each element where memory is not gone through in order
DOUBLE = 8
SINGLE = 2.0  # a function of one number waits for each of its steps; others are on their way meanwhile in a vector's loop
WAIT = 4.0  # cycles between two multiply-adds into one register; two registers get one in each cycle
KERNEL_S = 1.5e-8  # before a kernel's first point: it reads its table and works out its limits (Zen 5; 10 to 25 ns)
WIDE = 64  # bytes of vectors of which there are 32, and not 16


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
    arithmetic = arithmetic_s(work, rates, team)
    if team > 1:  # the last tasks are waited for
        arithmetic *= math.ceil(work.tasks / team) * team / work.tasks
    memory = sum([_seconds(touch, rates.read, team, rates.threads) for touch in work.reads])
    memory += sum([_seconds(touch, rates.write, team, rates.threads) for touch in work.writes])
    memory += work.read_again / (rates.read.at(max(work.row * work.element, 1.0), team, rates.threads) * 1e9)
    if threads > 1:
        memory += handed_s(work, rates, team)
    return Bound(arithmetic, memory, KERNEL_S + (rates.call_s if threads == 1 else rates.barrier_s))


def handed_s(work: Work, rates: Rates, team: int) -> float:
    """Of what threads take over from each other, each at the same time as the others."""
    return work.handed / (rates.handed * 1e9 * team)


def arithmetic_s(work: Work, rates: Rates, team: int) -> float:
    """Of all operations, shared evenly by a team."""
    halved = 2 if work.element >= DOUBLE else 1  # wide elements: half as many in a vector
    flops = rates.fma.of(team, rates.threads) * 1e9 / halved
    lanes = rates.vector_bytes / max(work.element, 1)
    inner = max(work.inner, 1.0)
    filled = inner / (math.ceil(inner / lanes) * lanes)  # of vectors, to the end of a row
    known_s = steps = row_steps = 0.0
    for use in work.uses:
        element_s, row_s = rates.operators.get(use.op, (0.0, 0.0))
        if element_s <= 0:
            continue
        if use.is_single:
            known_s += SINGLE * lanes * use.elements * element_s * halved
            row_steps += use.elements * use.steps
        else:
            known_s += (use.elements * element_s / (1.0 if use.rows else filled) + use.rows * row_s) * halved
            steps += use.elements * use.steps
    rest = max(0.0, work.steps - steps) / filled + SINGLE * lanes * max(0.0, work.row_steps - row_steps)
    known_s *= rates.fma.one / max(rates.fma.of(team, rates.threads), 1e-9)
    return issued(work, rates.vector_bytes) * 2 * work.products / flops + rest / (flops / 2) + known_s


def issued(work: Work, vector_bytes: int) -> float:
    """How much longer products take than if all their tiles filled the registers: narrow ones wait for their own results, or
    for loads. Tiles are those of `codegen/loop_order`: rows left behind whole tiles go through lower and lower ones."""
    if work.kind not in ("product", "chain") or not work.products:
        return 1.0
    lanes = max(1, vector_bytes // max(work.element, 1))
    height, vectors = (8, 3) if vector_bytes >= WIDE else (6, 2)
    columns = max(1.0, work.inner)
    rows = max(1.0, work.points / columns / work.matrices)
    whole, left = divmod(math.ceil(columns / lanes), vectors)
    widths = [(vectors, whole), (left, 1)]
    cycles = 0.0
    for tall, of_rows in _heights(rows, height):
        for wide, of_columns in widths:
            if wide:
                cycles += of_rows * of_columns * max(tall * wide / 2, (tall + wide) / 2, WAIT)
    return max(1.0, 2 * cycles * lanes / (rows * columns))


def _heights(rows: float, height: int) -> list[tuple[int, float]]:
    """Tiles of so many rows, and how many there are of each."""
    found = []
    while rows >= 1:
        count, rows = divmod(rows, height)
        if count:
            found.append((height, count))
        height = 1 if height <= 3 else (height + 1) // 2
    return found


def _seconds(touch: Touch, curve: Curve, team: int, most: int) -> float:
    share = max(touch.distance / team, 1.0)  # each thread goes through its own part
    bytes = touch.bytes
    if touch.access != IN_ORDER:  # what stays near costs a line once, what does not, one for each element
        worst = LINE / touch.element
        far = share / (share + curve.bytes[len(curve.bytes) // 3])
        bytes *= 1 + (worst - 1) * far
    return bytes / (curve.at(share, team, most) * 1e9)
