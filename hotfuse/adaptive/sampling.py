"""Sampling: how many calls of a plan are traced: as many as a given share of their time pays for.

    a trace costs   the call's CPU time outside of kernels and operators + what the long way costs + what handling it costs
    one is due when what all traces cost so far + what one more may cost <= three quarters of share * seconds of all calls

Whatever is uncertain counts against tracing. A call takes at least what its pieces take, or the CPU time of its thread in them,
where other processes had the core: that is taken for all of its time. The next trace is taken to cost what the dearest of late
did. What traces cost in truth is less than what is reported here.

State: a `Sampler` keeps the sampling of each plan. Only the background's thread uses it.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hotfuse.adaptive.profile import Profile
from hotfuse.pace import Unhurried, imports
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.runtime.executor import Executor
    from hotfuse.runtime.stopwatch import Stopwatch
    from hotfuse.runtime.tracer import Outlines, Tracer

GUESS_S = 2e-3  # of the first trace: 0.2 s of calls pay for it
LONG_WAY_S = 1.5e-4  # a call that is sent the long way, and the next one: 60 to 115 us measured on small models
AIM = 0.75  # of the share: one trace in a while costs more than all before it
PLANS = 64
FADES = 0.9  # of the dearest and the quickest, with every trace: one hiccup must not count for ever


@dataclass(frozen=True)
class Sampling:
    """`spent_s` was spent on `traces` so far; `plain_s` is the least that a call takes (0: not known yet)."""

    share: float = 0.01
    traces: int = 0
    spent_s: float = 0.0
    next_s: float = GUESS_S
    plain_s: float = 0.0

    def is_due(self, calls: int, seconds: float) -> bool:
        """Whether another trace is paid for by so many calls, which took so many seconds as far as somebody looked."""
        return self.spent_s + self.next_s <= AIM * self.share * self._time_s(calls, seconds)

    def after(self, inside_s: float, outside_s: float, handling_s: float = 0.0) -> Sampling:
        """With one more trace, which took so long to handle."""
        cost = outside_s + LONG_WAY_S + handling_s
        dearest = max(cost, FADES * self.next_s) if self.traces else cost
        quickest = min(inside_s, self.plain_s / FADES) if self.plain_s else inside_s
        return replace(self, traces=self.traces + 1, spent_s=self.spent_s + cost, next_s=dearest, plain_s=quickest)

    @property
    def every(self) -> int:
        """One call in how many can be traced."""
        return math.ceil(self.next_s / (AIM * self.share * self.plain_s)) if self.plain_s else 0

    def cost(self, calls: int, seconds: float) -> float:
        """What traces cost so far, as a share of all calls' time."""
        time_s = self._time_s(calls, seconds)
        return self.spent_s / time_s if time_s > 0 else 0.0

    def _time_s(self, calls: int, seconds: float) -> float:
        return min(seconds, calls * self.plain_s) if self.plain_s else seconds


@dataclass(frozen=True)
class Sampled:
    """What tracing a plan's calls cost so far, as a share of their time, and one call in how many can be traced now."""

    plan: str
    calls: int
    traces: int
    every: int
    cost: float


class Sampler:
    """Has calls of one model's plans traced, and their traces in its profile. `post` has something done in the background."""

    def __init__(self, profile: Profile, post: Callable[[Callable[[], None]], object], share: float = 0.01) -> None:
        self._profile, self._post, self._share = profile, post, share
        self._plans: dict[str, Sampling] = {}
        self._outlines: Outlines | None = None
        self._stopwatch: Stopwatch | None = None

    def ask(self, plan: str, executor: Executor) -> bool:
        """Have one of the next calls that the executor answers for a plan traced, if that is paid for. True: it is; one must
        be sent the long way. Asking again before it came changes nothing."""
        sampling = self._plans.setdefault(plan, Sampling(self._share))
        if not sampling.is_due(*self._profile.calls(plan)):
            return False
        with imports(Unhurried()):  # not before something is traced: who imports hotfuse need not wait for it
            from hotfuse.runtime.stopwatch import get_stopwatch
            from hotfuse.runtime.tracer import Outlines, Tracer
        self._outlines = self._outlines or Outlines()
        if self._stopwatch is None and executor.kernels:
            self._stopwatch = get_stopwatch()

        def report(tracer: Tracer) -> None:
            self._post(functools.partial(self._take, plan, tracer))

        executor.watch_next(Tracer(executor, report, self._stopwatch))
        while len(self._plans) > PLANS:
            del self._plans[next(iter(self._plans))]
        return True

    def forget(self, plan: str) -> None:
        """A plan that answers no more: what replaces it may have its id."""
        self._plans.pop(plan, None)
        self._profile.forget(plan)

    def sampled(self) -> tuple[Sampled, ...]:
        """What it cost so far, by plan."""
        found = []
        for plan, sampling in list(self._plans.items()):
            calls, seconds = self._profile.calls(plan)
            found.append(Sampled(plan, calls, sampling.traces, sampling.every, sampling.cost(calls, seconds)))
        return tuple(found)

    def _take(self, plan: str, tracer: Tracer) -> None:
        if plan not in self._plans or self._outlines is None:  # forgotten meanwhile
            return
        begun = time.thread_time()
        trace = tracer.trace(plan, self._outlines.of(tracer))
        self._profile.add(trace, time.monotonic())
        handling_s = time.thread_time() - begun
        self._plans[plan] = self._plans[plan].after(min(trace.inside_s, trace.inside_cpu_s), trace.outside_cpu_s, handling_s)
