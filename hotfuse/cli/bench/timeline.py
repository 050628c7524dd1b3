"""Latency from cold: what one engine did from its first breath on, and what a series of calls says about it.

    Run   one process: opened, called for a while by one client, and what went on meanwhile

  steady state   the median of the last fifth of the time
  reached        the first time from which on the median of a sliding window of calls stays within 5 % of it, and of an engine
                 that adapts not before it published something; never, if that is in the last fifth
  outlier        a call of more than twice eager's median; its cause is the event that fell between the end of the call before
                 and its own end, or the background work that went on, or none
  lost           1 - calls served / calls that whoever answered at the time would have served with the machine to itself: what
                 is un-fused until something is published, the steady state from then on
  background     CPU seconds of capture and compilation: child processes, threads beside the client's, and what the client's
                 own calls took beyond a usual one

Times are seconds since construction began. Everything here is arithmetic on records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from hotfuse.records import dataclass

Series = np.ndarray[Any, np.dtype[np.float64]]

STEADY_SHARE = 0.2  # of the time, at its end
WITHIN = 0.05
WINDOWS = 6  # sliding windows are as long as the steady part divided by this: a second, of 30
LEAST_WINDOW = 5  # calls
OUTLIER = 2.0  # times eager's median
SPIKE = 2.0  # times what calls nearby take of the client's CPU time: something was compiled in this one
LEAST_SPIKE_S = 0.05  # nothing is compiled in less, but a thread that waits for a busy core may spin for some of that
NEARBY = 5  # calls on each side
BUSY = 0.1  # of a core, by child processes between two samples: they are at work

# work that goes on from one event of a subject to another
ACTIVITIES = {"tier.build": "building", "tier.prove": "proving", "tier.shadow": "shadowing"}
PUBLISHED = ("tier.publish", "native.made")


def _none() -> Series:
    return np.zeros(0)


@dataclass(frozen=True)
class Mark:
    """An event of the engine."""

    at_s: float
    kind: str
    subject: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Span:
    """Background work."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Cpu:
    """CPU seconds. `calls` are the process's during each call and `client` the calling thread's; `opening_s` is the process's
    of construction and first call without its other threads; `threads_s` and `children_s` are all there was until the end."""

    calls: Series = field(default_factory=_none)
    client: Series = field(default_factory=_none)
    opening_s: float = 0.0
    threads_s: float = 0.0
    children_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Run:
    """One process. `starts` and `seconds` are the calls, the first one included; `samples` are pairs of a time and the CPU
    seconds of child processes until then. `status` is ok, wrong, unchecked, failed or skipped, and `reason` says why. An
    engine that `adapts` is steady only once it published something."""

    engine: str
    load: str
    round: int
    status: str = "ok"
    reason: str = ""
    notes: str = ""
    construct_s: float = 0.0
    starts: Series = field(default_factory=_none)
    seconds: Series = field(default_factory=_none)
    cpu: Cpu = field(default_factory=Cpu)
    marks: tuple[Mark, ...] = ()
    samples: tuple[tuple[float, float], ...] = ()
    answers: int = 0  # that were checked
    adapts: bool = False

    @property
    def counts(self) -> bool:
        return self.status == "ok" and len(self.seconds) > 1

    @property
    def first_call_s(self) -> float:
        """Construction and first answer."""
        return float(self.starts[0] + self.seconds[0])

    @property
    def end_s(self) -> float:
        return float(self.starts[-1] + self.seconds[-1])

    @property
    def later(self) -> Series:
        """Seconds of all calls but the first."""
        return self.seconds[1:]


@dataclass(frozen=True)
class Steady:
    """`reached_s` is since when calls have kept their pace, `met_s` when they first had it: on a machine whose own pace drifts
    by more than the margin nothing is ever kept. None where the run ended before."""

    median_s: float
    mean_s: float
    p99_s: float
    reached_s: float | None
    met_s: float | None


def percentile(seconds: Series, share: float) -> float | None:
    return float(np.percentile(seconds, share)) if len(seconds) else None


def steady_state(run: Run) -> Steady:
    starts, seconds = run.starts[1:], run.later
    begin = run.end_s - STEADY_SHARE * (run.end_s - run.first_call_s)
    last = seconds[starts >= begin]
    if not len(last):
        last = seconds[-1:]
    median = float(np.median(last))
    found = (median, float(last.mean()), float(np.percentile(last, 99)))
    window = min(len(seconds), max(LEAST_WINDOW, len(last) // WINDOWS))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(seconds, window), axis=-1)
    away = np.flatnonzero(np.abs(medians - median) > WITHIN * median)
    swap = published_s(run) if run.adapts else run.first_call_s

    def time_of(place: int) -> float | None:
        """The middle of a window: that is where its median changes if all calls change at once."""
        if swap is None or place == len(medians):
            return None
        at_s = max(swap, float(starts[place + window // 2] if place else starts[0]))
        return at_s if at_s <= begin else None

    # who is faster than at the end has its pace, too; an engine that adapts has none before it published
    paced = medians <= (1 + WITHIN) * median
    if swap is not None:
        paced &= starts[window // 2 : window // 2 + len(medians)] >= swap
    return Steady(
        *found,
        reached_s=time_of(int(away[-1]) + 1 if len(away) else 0),
        met_s=time_of(int(np.argmax(paced)) if paced.any() else len(medians)),
    )


def before(run: Run, until_s: float | None) -> Series:
    """Seconds of the calls between the first and a time; all of them, if that never came."""
    return run.later if until_s is None else run.later[run.starts[1:] < until_s]


def after(run: Run, from_s: float | None) -> Series:
    return _none() if from_s is None else run.later[run.starts[1:] >= from_s]


# what went on


def spans(run: Run) -> list[Span]:
    """Background work: from an event that begins it to the next of the same subject. A capture ends with its event and begins,
    as far as anybody can tell from outside, with the first answer."""
    found = []
    for place, mark in enumerate(run.marks):
        if mark.kind in ACTIVITIES:
            ends = (m.at_s for m in run.marks[place + 1 :] if m.subject == mark.subject and m.kind.startswith("tier."))
            found.append(Span(ACTIVITIES[mark.kind], mark.at_s, next(ends, run.end_s)))
        elif mark.kind.startswith("capture."):
            found.append(Span("capturing", run.first_call_s, mark.at_s))
    return found


def children_work(run: Run) -> list[Span]:
    """When child processes were at work, by their CPU time."""
    pairs = zip(run.samples, run.samples[1:], strict=False)
    return [Span("child processes work", a, b) for (a, used), (b, more) in pairs if b > a and (more - used) / (b - a) > BUSY]


@dataclass(frozen=True)
class Outlier:
    """`cause` is an event's kind, `while` and what went on, or `none`."""

    at_s: float
    seconds: float
    cause: str


def outliers(run: Run, limit_s: float) -> list[Outlier]:
    """Calls but the first of more than `limit_s`, each with its cause."""
    work = [*spans(run), *children_work(run)]
    found = []
    for place in np.flatnonzero(run.later > limit_s) + 1:
        begin, took = float(run.starts[place]), float(run.seconds[place])
        since, end = float(run.starts[place - 1] + run.seconds[place - 1]), begin + took
        kinds = list(dict.fromkeys(m.kind for m in run.marks if since <= m.at_s <= end))
        going_on = [span.name for span in work if span.begin_s < end and span.end_s > begin]
        cause = ", ".join(kinds) or (f"while {going_on[0]}" if going_on else "none")
        found.append(Outlier(begin, took, cause))
    return found


def published_s(run: Run) -> float | None:
    """When something else than the original first answered."""
    return next((mark.at_s for mark in run.marks if mark.kind in PUBLISHED), None)


def lost(run: Run, unfused_s: float) -> float:
    """The share of time lost to background work between first answer and steady state, of a client that never rests.
    `unfused_s` is the mean time of a call of what answers before anything is published."""
    steady = steady_state(run)
    starts = run.starts[1:]
    served = int((starts < steady.reached_s).sum()) if steady.reached_s is not None else len(starts)
    if not served:
        return 0.0
    begin, end = run.first_call_s, float(starts[served - 1] + run.later[served - 1])
    swap = published_s(run)
    swap = end if swap is None else min(max(swap, begin), end)
    return 1.0 - served / ((swap - begin) / unfused_s + (end - swap) / steady.mean_s)


def background_cpu_s(cpu: Cpu) -> float:
    """CPU seconds of capture and compilation."""
    usual = float(np.median(cpu.calls[1 : 1 + 2 * NEARBY])) if len(cpu.calls) > 1 else 0.0
    return max(0.0, cpu.opening_s - usual) + _spikes_s(cpu.client[1:]) + cpu.threads_s + cpu.children_s


def _spikes_s(client: Series) -> float:
    """What single calls took beyond those around them: an engine may compile in the middle of a call."""
    if len(client) <= 2 * NEARBY:
        return 0.0
    total = 0.0
    for place in np.flatnonzero(client > SPIKE * client.min()):
        begin = max(0, int(place) - NEARBY)
        around = float(np.median(np.delete(client[begin : place + NEARBY + 1], place - begin)))
        more = float(client[place]) - around
        total += more if client[place] > SPIKE * around and more > LEAST_SPIKE_S else 0.0
    return total


def pooled(run: Run, pieces: int) -> list[list[float]]:
    """The series in pieces of equal time: begin, median, longest, number of calls. Pieces without a call are left out."""
    if not len(run.seconds):
        return []
    edges = np.linspace(0.0, run.end_s, pieces + 1)
    where = np.searchsorted(edges, run.starts, side="right")
    parts = ((float(edges[i - 1]), run.seconds[where == i]) for i in range(1, pieces + 1))
    return [[at, float(np.median(part)), float(part.max()), len(part)] for at, part in parts if len(part)]


def show_causes(found: Sequence[Outlier]) -> str:
    """How many of each cause, most first."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.cause] = counts.get(one.cause, 0) + 1
    return ", ".join(f"{n} {cause}" for cause, n in sorted(counts.items(), key=lambda item: -item[1]))
