"""Weaving: a product, and a kernel over long rows that waits for memory, as one step. Behind each task of the product its
thread runs the matching share of the other's tasks; what that will read is fetched meanwhile, a line or two with every step of
the product's sums, so that memory streams amid arithmetic.

    one after the other   t(product) + t(rows)
    woven                 the longer of    t(product) * (1 + LINE_COST * lines) + t(rows, read out of the second-level cache)
                                    and    what both ask of the memory

The product's tasks are made so fine that what is fetched stays in the cache. Where rows are longer than that, or than
MOST_LINES a step can fetch, the first part of each share is fetched, and that part is gained. Measured by hand and as generated
code (docs/decisions/0030); without the fetches nothing is gained, as a thread waits for its own loads.

Legality: prefetches change no result, and tasks are independent, so any two groups that need not wait for each other may be
woven. What is refused here would gain nothing: fetches go from front to back, and so must what they are made for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hotfuse.fusion.analyzer import TILE_ROWS
from hotfuse.fusion.legality import Legality, Refusal
from hotfuse.fusion.rules import PLACED, Fetch, Fused
from hotfuse.hardware.pairs import STRIPS
from hotfuse.hardware.prior import roofline
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.spec import Spec
from hotfuse.hardware.work import Touch, Work
from hotfuse.ir.graph import Value
from hotfuse.ir.layout import Layout, contiguous_strides
from hotfuse.ir.types import TensorType
from hotfuse.records import dataclass

LINE = 64
LINE_COST = 0.015  # of a product's time, for each line that a step of its sums fetches
MOST_LINES = 3  # with each step: four gain no more, and hold up the product
SHARE = 6  # one part in so many of the second-level cache is the most that is fetched ahead
MOST_GRAIN = 3  # a task is one tile of rows then
FEWEST_TASKS = 4  # of the product, for each thread


@dataclass(frozen=True)
class Weave:
    """The product as it is to be made, what both take one after the other, and what they are to take woven."""

    product: Fused
    before_s: float
    after_s: float


@dataclass(frozen=True)
class Side:
    """A group with what it does, and what that is predicted to take."""

    group: Fused
    work: Work
    seconds: float


@dataclass(frozen=True, eq=False)
class Place:
    """Where both run."""

    spec: Spec
    rates: Rates
    threads: int


def streams_of(group: Fused, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> tuple[str, ...] | Refusal:
    """What the tasks of a group read from front to back, each a part for itself."""
    if group.kind != "rows":
        return Refusal(f"a kernel of kind {group.kind} goes over no long rows")
    rank = len(group.domain)
    if group.variant == STRIPS or group.folded != tuple(range(rank - len(group.folded), rank)):
        return Refusal("it folds down columns: no task has a part of its rows for itself")
    if group.placed:
        return Refusal("its result is written in another order, and it is gone through in squares")
    inside = {name for node in group.nodes for name in node.outputs}
    found: dict[str, None] = {}
    for node in group.nodes:
        for name in node.uses if node.op not in PLACED else ():
            layout = layouts.get(name)
            if layout is None or layout.root in inside or not isinstance(values[name].type, TensorType):
                continue
            if layout.strides == contiguous_strides(layout.shape):
                found |= {name: None} if layout.shape == group.domain else {}
            elif layout.strides and layout.strides[-1] not in (0, 1):
                return Refusal(f"{name} has its neighbours along another axis, and both are gone through in squares")
    return tuple(found) or Refusal("it reads nothing from front to back")


def weigh(first: Side, second: Side, legality: Legality, tasks_of: Callable[[Fused], float], place: Place) -> Weave | Refusal:
    """What weaving two groups that need not wait for each other is to gain, or why that is nothing."""
    if (first.group.kind == "product") == (second.group.kind == "product"):
        return Refusal("one of both has to be a product, and the other one none")
    product, rows = (first, second) if first.group.kind == "product" else (second, first)
    streams = streams_of(rows.group, legality.values, legality.layouts)
    if isinstance(streams, Refusal):
        return streams
    spec, threads = place.spec, place.threads
    roots = {name: legality.layouts[name].root for name in streams}
    far = {touch.name: touch.bytes for touch in rows.work.reads if touch.distance / threads > spec.l2_bytes}
    long = sorted((name for name in streams if roots[name] in far), key=lambda name: -far[roots[name]])[:MOST_LINES]
    if not long:
        return Refusal("what it reads is near")
    panel = next(node.attrs["panel"] for node in product.group.nodes if node.op == "panel_matmul")
    steps = max(1.0, product.work.products / (TILE_ROWS * panel))
    fetches = _fetches({name: far[roots[name]] / LINE / steps for name in long})
    fetched = sum(min(far[roots[fetch.value]], fetch.lines * LINE * steps) for fetch in fetches)
    for grain in range(product.group.grain, max(product.group.grain, MOST_GRAIN) + 1):
        made = replace(product.group, grain=grain)
        tasks = tasks_of(made)
        if fetched / tasks <= spec.l2_bytes / SHARE:
            break
    fetched = min(fetched, tasks * spec.l2_bytes / SHARE)
    if tasks < FEWEST_TASKS * threads:
        return Refusal(f"the product has {tasks:,.0f} tasks for {threads} threads")
    part = fetched / sum(far[roots[name]] for name in long)
    after_s = _after_s(product, rows, {roots[name] for name in long}, fetches, part, fetched / tasks, place)
    return Weave(replace(made, fetches=fetches, parts=(product.group,)), product.seconds + rows.seconds, after_s)


def _fetches(needed: Mapping[str, float]) -> tuple[Fetch, ...]:
    """Lines of each value with every step, as many as are needed or else as pay."""
    lines = {name: max(1, math.ceil(each)) for name, each in needed.items()}
    while sum(lines.values()) > MOST_LINES:
        most = max(lines, key=lambda name: lines[name])
        lines[most] -= 1
    return tuple(Fetch(name, each) for name, each in lines.items())


def _after_s(
    product: Side, rows: Side, fetched: set[str], fetches: Sequence[Fetch], part: float, share: float, place: Place
) -> float:
    rates, threads = place.rates, place.threads

    def near(touch: Touch) -> Touch:
        return replace(touch, distance=min(touch.distance, share * threads)) if touch.name in fetched else touch

    bound = roofline(rows.work, rates, threads)
    nearer = roofline(replace(rows.work, reads=tuple(map(near, rows.work.reads))), rates, threads)
    spared_s = part * rows.seconds * max(0.0, 1 - nearer.seconds / max(bound.seconds, 1e-12))
    product_s = product.seconds * (1 + LINE_COST * sum(fetch.lines for fetch in fetches))
    memory_s = roofline(product.work, rates, threads).memory_s + bound.memory_s
    return max(product_s + rows.seconds - min(spared_s, product.seconds), memory_s)  # it hides no more than it takes itself


def unwoven(group: Fused) -> Fused:
    """A group as it was before somebody put it beside another one."""
    return group.parts[0] if group.fetches else replace(group, row=0)
