"""Features: a piece of work on a machine as a row of numbers, which the forest decides by.

Amounts are logarithms: what decides is how often one thing goes into another. What the roofline says is among them, so that
trees need only learn where it errs, and the machine's rates are, so that what was learned on one machine is not all lost on the
next. `FEATURES` names the columns; a forest that was trained with others is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from hotfuse.hardware.prior import Bound, handed_s, issued, roofline
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.work import GATHERED, STRIDED, Touch, Work

KINDS = ("rows", "product", "attention", "copy", "concat", "pack", "chain")
FEATURES = (
    *(f"is {kind}" for kind in KINDS),
    "points", "row", "inner", "products", "steps", "read", "written", "weights", "tasks", "links", "element",
    "rows", "row steps", "uneven", "tail", "operands", "results", "strided", "turned", "gathered", "read from", "written to",
    "intensity", "walks", "down", "steps of a point", "read for a point", "written for a point", "near bytes",
    "tasks of a thread", "issued", "matrix rows", "tile rest", "folded rows", "functions", "from middle", "from far",
    "from others", "to others", "lanes", "handed", "read again", "whole row",
    "arithmetic", "memory", "arithmetic / memory", "overhead / all",
    "threads", "multiply-adds", "near", "middle", "far", "barrier", "handing over",
)  # fmt: skip
NEAR, MIDDLE, FAR = 16 << 10, 1 << 20, 1 << 24
TAIL = 16  # elements: what is left of a row behind whole vectors
TILE = 8  # rows: what is left behind whole tiles
CHEAP = 4  # steps: what takes more is a function


def features_of(rates: Rates, threads: int) -> list[float]:
    """Those of the machine, which are the last ones of each piece of work."""
    return [
        _log(rates.fma.of(threads, rates.threads)),
        *(_log(rates.read.at(size, threads, rates.threads)) for size in (NEAR, MIDDLE, rates.read.bytes[-1])),
        _seconds(rates.barrier_s),
        _log(rates.handed),
    ]


def features(work: Work, bound: Bound, rates: Rates, threads: int, machine: Sequence[float]) -> list[float]:
    """`machine` is `features_of` it."""
    read, written = work.read, work.written
    weights = sum(touch.bytes for touch in work.reads if touch.is_weight)
    height = work.points / max(work.inner, 1.0) / work.matrices
    return [
        *(float(work.kind == kind) for kind in KINDS),
        *map(_log, (work.points, work.row, work.inner, work.products, work.steps, read, written, weights, work.tasks)),
        work.links,
        work.element,
        _log(work.points / max(work.inner, 1.0)),
        _log(work.row_steps),
        math.ceil(work.tasks / threads) * threads / max(work.tasks, 1.0),
        work.inner % TAIL / TAIL,
        len(work.reads),
        len(work.writes),
        _share(work.reads, STRIDED),
        _share(work.writes, STRIDED),
        _share(work.reads, GATHERED),
        _distance(work.reads),
        _distance(work.writes),
        _log(work.flops / max(read + written, 1.0)),
        work.walks,
        work.is_down,
        work.steps / max(work.points, 1.0),
        read / max(work.points, 1.0),
        written / max(work.points, 1.0),
        _log(min((touch.distance for touch in work.reads), default=0.0)),
        _log(work.tasks / threads),
        issued(work, rates.vector_bytes),
        _log(height),
        height % TILE / TILE,
        _log(sum(use.rows for use in work.uses)),
        sum(use.elements for use in work.uses if use.steps > CHEAP) / max(work.points, 1.0),
        *(_beyond(work, distance * threads) / max(read + written, 1.0) for distance in (MIDDLE, FAR)),
        *(_log(sum(touch.handed for touch in touches) * (threads > 1)) for touches in (work.reads, work.writes)),
        work.lanes * (threads > 1),
        handed_s(work, rates, 1) * (threads > 1) / max(bound.seconds, 1e-12),
        _log(work.read_again),
        math.ceil(work.inner / TAIL) if work.walks and not work.is_down else 0.0,
        _seconds(bound.arithmetic_s),
        _seconds(bound.memory_s),
        _seconds(bound.arithmetic_s) - _seconds(bound.memory_s),
        bound.overhead_s / max(bound.seconds, 1e-12),
        min(threads, work.tasks),
        *machine,
    ]


def rows_of(works: Iterable[Work], rates: Rates, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """The features of each piece of work, and the seconds that the roofline gives it."""
    bounds = [(work, roofline(work, rates, threads)) for work in works]
    machine = features_of(rates, threads)
    rows = [features(work, bound, rates, threads, machine) for work, bound in bounds]
    return np.array(rows, np.float32).reshape(-1, len(FEATURES)), np.array([bound.seconds for _, bound in bounds])


def _beyond(work: Work, distance: float) -> float:
    """The bytes touched that come from farther than that."""
    return sum([touch.bytes for touch in (*work.reads, *work.writes) if touch.distance > distance])


def _log(amount: float) -> float:
    return math.log2(1 + amount)


def _seconds(seconds: float) -> float:
    return math.log2(max(seconds, 1e-9))


def _share(touches: Iterable[Touch], access: int) -> float:
    """Of the bytes touched, the part that is gone through in this way."""
    found = [(touch.bytes, touch.access == access) for touch in touches]
    return sum([bytes for bytes, is_so in found if is_so]) / max(1.0, sum([bytes for bytes, _ in found]))


def _distance(touches: Iterable[Touch]) -> float:
    """From how far bytes come, each of them counted alike."""
    found = [(touch.bytes, touch.bytes * _log(touch.distance)) for touch in touches]
    return sum([weighted for _, weighted in found]) / max(1.0, sum([bytes for bytes, _ in found]))
