"""The controller of one model: tells the tier machine what happened, and carries out what it decides.

    callers -> Tally -> background's thread: step(state, event) -> decisions -> worker processes, subject -> events -> ...

Callers only note, wait and close; the rest runs in the background's thread. A decision that fails tells the machine so; what
serves stays.

State: the tier machine's; what was made of each target; what waits for a call. Only the background's thread touches it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hotfuse.adaptive.background import BACKGROUND, Background
from hotfuse.adaptive.machine import step
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Called,
    Decision,
    Disproved,
    Event,
    Measure,
    Measured,
    Prove,
    Proved,
    Publish,
    Quarantine,
    Queue,
    Rest,
    Retire,
    Shadow,
    Shadowed,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.promotion import next_target
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.tally import Tally
from hotfuse.adaptive.target import Target
from hotfuse.locks import IMPORTS
from hotfuse.pace import Unhurried

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.runtime.build import Build as BuildRecord
    from hotfuse.runtime.build import Unit
    from hotfuse.runtime.build_jobs import BuildReply, ProveReply
    from hotfuse.runtime.workers import Pool

LOOK_S = 0.005  # of calls, after which the background looks at once and not with the next tick
TIMED_CALLS = 5  # of a form, before it is judged whether a target pays


@dataclass
class _Made:
    """What there is of a target: the reply of its build, its kernels, and what can answer calls."""

    reply: BuildReply
    kernels: Kernels
    candidate: Any = None


class Controller:
    """Adapts one subject."""

    def __init__(self, subject: Subject, rules: Rules, background: Background = BACKGROUND) -> None:
        self._subject, self._background = subject, background
        self._state: State = start(rules)
        self._tally = Tally()
        self._made: dict[Target, _Made] = {}
        self._waiting: Prove | None = None  # for the inputs of a call
        self._measures: list[Measure] = []
        self._pool: Pool | None = None
        self._unseen_s = 0.0
        self._posted = self._closed = False
        self._forms: dict[str, Hashable] = {}
        self._quiet = threading.Condition()
        background.register(self)

    @property
    def state(self) -> State:
        """The tier machine's, as it is now."""
        return self._state

    # what callers do

    def note(self, form: Hashable, tier: int, seconds: float, count: int = 1) -> None:
        """Calls of a form were answered by a tier, one of them in so many seconds. Called by any thread."""
        self._tally.note(form, tier, seconds, count)
        self._unseen_s += seconds
        if self._unseen_s > LOOK_S and not self._posted:
            self._posted = True
            self._background.post(self._look)

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is built or proved any more for the calls so far; what waits for another call does not count."""
        self._background.post(self._look)
        deadline = time.monotonic() + timeout_s
        with self._quiet:
            while not self._is_quiet():
                if not self._quiet.wait(min(0.05, max(0.0, deadline - time.monotonic()))) and time.monotonic() >= deadline:
                    return self._is_quiet()
        return True

    def close(self) -> None:
        """Decide nothing any more, and let go of what was made."""
        self._closed = True
        self._background.forget(self)
        if self._made:
            self._background.post(self._made.clear)

    # the background's thread

    def tick(self, now_s: float) -> None:
        if not self._closed:
            self._subject.look_at_next()
            self._look()

    def _look(self) -> None:
        """Tell the machine of the calls since the last look, and of the time."""
        self._posted, self._unseen_s = False, 0.0
        now_s = time.monotonic()
        for (form, tier), (seconds, count) in self._tally.collect().items():
            text = str(form)
            self._forms.setdefault(text, form)
            self._tell(Called(now_s, text, tier, seconds, count))
        if self._pool is not None:
            self._tell(Queue(now_s, max(0, len(self._pool.unfinished) - 1)))
        self._tell(Tick(now_s))
        self._measure_all()
        if self._waiting is not None:
            self._prove(self._waiting)
        with self._quiet:
            self._quiet.notify_all()

    def _is_quiet(self) -> bool:
        state = self._state
        busy = any(live.stage in ("building", "proving") for live in state.live) and self._waiting is None
        return self._closed or not (self._posted or busy or next_target(state) is not None)

    def _tell(self, event: Event) -> None:
        if self._closed:
            return
        self._state, decisions = step(self._state, event)
        for decision in decisions:
            self._note(decision)
            self._carry_out(decision)

    def _note(self, decision: Decision) -> None:
        kind = f"tier.{type(decision).__name__.lower()}"
        if not isinstance(decision, Rest):
            self._subject.events.emit(kind, str(decision.target), decision.reason)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Build():
                self._build(decision)
            case Prove():
                self._prove(decision)
            case Shadow():
                self._shadow(decision)
            case Publish():
                self._tally.forget(1)
                self._subject.publish(self._made[decision.target].candidate)
                self._subject.forget_sample()
            case Withdraw():
                self._subject.publish(None)
            case Retire():
                self._subject.publish(None)
                self._subject.forget_sample()
                self._made.pop(decision.target, None)
            case Measure():
                self._measures.append(decision)
            case Quarantine() | Rest():
                pass

    # building

    def _build(self, decision: Build) -> None:
        subject = self._subject

        def finish(result: BuildReply | BaseException) -> None:
            self._later(decision, lambda: self._built(decision, result))

        with IMPORTS:  # not before something is built: who imports hotfuse need not wait for it
            from hotfuse.runtime.build_jobs import build_job, build_pool
        self._pool = build_pool(subject.config)
        self._pool.submit(build_job(f"{subject.name}: {decision.target}", subject.request, finish, subject.config))

    def _built(self, decision: Build, result: BuildReply | BaseException) -> None:
        if isinstance(result, BaseException):
            self._fail(decision, f"{type(result).__name__}: {result}")
            return
        from hotfuse.runtime.kernels import link_kernels

        self._made[decision.target] = _Made(result, link_kernels(result.build.programs, result.objects))
        self._tell(Built(time.monotonic(), decision.target, decision.attempt, len(result.build.programs), result.cpu_s))
        self._look()

    def _later(self, decision: Build | Prove, work: Callable[[], None]) -> None:
        """Go on with a decision in the background; if that fails, the target has."""

        def go_on() -> None:
            try:
                work()
            except Exception as error:
                self._fail(decision, f"{type(error).__name__}: {error}")

        self._background.post(go_on)

    def _fail(self, decision: Build | Prove | Shadow, reason: str, lasting: bool = False) -> None:
        self._tell(BuildFailed(time.monotonic(), decision.target, decision.attempt, reason, lasting))
        self._look()

    # proving

    def _prove(self, decision: Prove) -> None:
        from hotfuse.runtime.build_jobs import ProveRequest, prove_job

        subject, made, inputs = self._subject, self._made[decision.target], self._subject.sample()
        self._waiting = decision if inputs is None else None
        if inputs is None:
            return
        build = _without(made.reply.build, decision.without)
        kept = dict(zip(made.reply.build.programs, made.reply.objects, strict=True))
        request = ProveRequest(build, tuple(kept[p] for p in build.programs), inputs, subject.config)

        def finish(result: ProveReply | BaseException) -> None:
            self._later(decision, lambda: self._proved(decision, build, result))

        label = f"{subject.name}: proof of {decision.target}"
        assert self._pool is not None  # it was built
        self._pool.submit(prove_job(label, lambda: request, subject.weight, finish, subject.config))

    def _proved(self, decision: Prove, build: BuildRecord, result: ProveReply | BaseException) -> None:
        now_s = time.monotonic()
        if isinstance(result, BaseException):
            self._fail(decision, f"{type(result).__name__}: {result}")
            return
        wrong = [v for v in result.verdicts if not v.ok]
        if wrong and not any(v.tried for v in result.verdicts):
            self._fail(decision, wrong[0].reason)
            return
        if wrong:
            names = tuple(unit_name(build.units[v.unit]) for v in wrong)
            self._tell(Disproved(now_s, decision.target, decision.attempt, names, f"{names[0]}: {wrong[0].reason}"))
            self._look()
            return
        made = self._made.get(decision.target)
        if made is None:
            return
        made.candidate = self._subject.make(build, made.kernels, Unhurried())
        self._tell(Proved(time.monotonic(), decision.target, decision.attempt))
        self._look()

    def _shadow(self, decision: Shadow) -> None:
        target, attempt = decision.target, decision.attempt
        made = self._made[target]

        def report(ok: bool, reason: str) -> None:
            def tell() -> None:
                self._tell(Shadowed(time.monotonic(), target, attempt, ok, reason))
                self._look()

            self._background.post(tell)

        self._subject.shadow(made.candidate, report)

    # measuring

    def _measure_all(self) -> None:
        """Answer what can be answered by now of the measurements that were asked for."""
        for measure in list(self._measures):
            form = self._forms.get(measure.form)
            if form is None:
                self._measures.remove(measure)
                continue
            before, after = self._tally.timed(form, 0, 1), self._tally.timed(form, 1, TIMED_CALLS)
            if before is not None and after is not None:
                self._measures.remove(measure)
                spread = before.spread_s + after.spread_s
                found = (after.seconds, before.seconds, spread)
                self._tell(Measured(time.monotonic(), measure.target, measure.attempt, measure.form, *found))


def unit_name(unit: Unit) -> str:
    """A unit's name in events: that of its last node."""
    return unit.nodes[-1]


def _without(build: BuildRecord, names: tuple[str, ...]) -> BuildRecord:
    """The build with some units left to tier 0."""
    if not names:
        return build
    left = {unit_name(unit): unit for unit in build.units if unit_name(unit) in names}
    reasons = {id: "its kernels were found wrong" for unit in left.values() for id in unit.nodes}
    return replace(build, units=tuple(u for u in build.units if unit_name(u) not in left), reasons={**build.reasons, **reasons})
