"""The controller of one model: tells the tier machine what happened, and carries out what it decides.

    callers -> Tally -> background's thread: step(state, event) -> decisions -> Maker, Subject -> events -> ...
                                             Watch (traces -> edits), Contests (does it pay), Audits (is it still right)

Callers only note, wait and close; the rest runs in the background's thread. A decision that fails tells the machine so; what
serves stays.

State: the tier machine's; what was made of each target, which of them serve, and the candidates that answer for them; what
waits for a call. Only the background's thread touches it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from hotfuse.adaptive.audits import Audits
from hotfuse.adaptive.background import BACKGROUND, Background
from hotfuse.adaptive.contests import Contests
from hotfuse.adaptive.lineup import Lineup, Made
from hotfuse.adaptive.machine import step
from hotfuse.adaptive.maker import Maker
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Called,
    Changed,
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
    Recalled,
    Rest,
    Retire,
    Shadow,
    Shadowed,
    Spotted,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.promotion import next_target
from hotfuse.adaptive.remembering import Remembering
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.subject import Array, Subject
from hotfuse.adaptive.tally import Tally
from hotfuse.adaptive.target import Baked, Edit, Generic, Target
from hotfuse.adaptive.watch import Watch
from hotfuse.errors import WorkerError
from hotfuse.runtime.turns import Times
from hotfuse.stress import parse

if TYPE_CHECKING:
    from hotfuse.runtime.build import Sizes
    from hotfuse.runtime.build_request import BuildReply, ProveReply, ProveRequest

KILLED = ("died", "memory")  # causes of errors: of a proof they speak against its kernels
FORMS = 256  # that are known by their texts
LOOK_S = 0.005  # of calls, after which the background looks at once and not with the next tick


@dataclass(frozen=True, eq=False)
class Evidence:
    """A target whose answer to a call of some form was wrong."""

    made: Made
    form: Hashable | None
    reason: str


class Controller:
    """Adapts one subject."""

    def __init__(self, subject: Subject, rules: Rules, background: Background = BACKGROUND) -> None:
        self._subject, self._background = subject, background
        self._state: State = start(rules)
        self._tally = Tally()
        self._maker = Maker(subject)
        self._lineup = Lineup(subject)
        self._contests = Contests(subject, self._tally, self._lineup.candidate)
        self._audits = Audits()
        self._remembering = Remembering(subject)
        self.watch = Watch(background.post)
        self._evidence: Evidence | None = None
        self._waiting: Build | Prove | None = None  # for the inputs of a call
        self._unseen_s = 0.0
        self._posted = self._closed = False
        self._forms: dict[str, Hashable] = {}
        self._quiet = threading.Condition()
        background.register(self)

    @property
    def state(self) -> State:
        """The tier machine's, as it is now."""
        return self._state

    @property
    def serving(self) -> tuple[Target, ...]:
        return self._lineup.serving

    # what callers do

    def note(self, form: Hashable, tier: int, seconds: float, count: int = 1) -> None:
        """Calls of a form were answered by a tier, one of them in so many seconds. Called by any thread."""
        self._tally.note(form, tier, seconds, count)
        self._unseen_s += seconds
        if self._unseen_s > LOOK_S and not self._posted:
            self._posted = True
            self._background.post(self._look)

    def changed(self, reason: str) -> None:
        """The model is another one now. Called by any thread."""

        def tell() -> None:
            self._maker.forget()
            self._tell(Changed(time.monotonic(), reason))

        self._background.post(tell)

    def later(self, work: Callable[[], None]) -> None:
        """Have something done in the background. Called by any thread."""
        self._background.post(work)

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
        self._background.post(self._lineup.let_go)

    # the background's thread

    def tick(self, now_s: float) -> None:
        if self._closed:
            return
        self.watch.wants_trace(self._subject.executor if self._lineup.serving else None)
        self._subject.look_at_next()
        self._look()
        if self._audits.is_due(now_s):
            self._audit()

    def _look(self) -> None:
        """Tell the machine of the calls since the last look, and of the time."""
        self._posted, self._unseen_s = False, 0.0
        now_s = time.monotonic()
        for (form, tier), (seconds, count) in self._tally.collect().items():
            text = str(form)
            self._keep_form(text, form)
            self.watch.count(form, tier, count, seconds, now_s)
            self._audits.count(count if tier else 0)
            self._tell(Called(now_s, text, tier, seconds, count))
        self._spot(now_s)
        self._tell(Queue(now_s, self._maker.queue))
        self._tell(Tick(now_s))
        self._contests.begin(self._forms, self._lineup.serving, self._measured)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and any(live.attempt == waiting.attempt for live in self._state.live):
            self._try(waiting)
        self._write_evidence()
        with self._quiet:
            self._quiet.notify_all()

    def _keep_form(self, text: str, form: Hashable) -> None:
        """The last forms by their texts: what the machine speaks of is among them, or has no calls any more."""
        self._forms.pop(text, None)
        self._forms[text] = form
        while len(self._forms) > FORMS:
            del self._forms[next(iter(self._forms))]

    def _write_evidence(self) -> None:
        """Have what was wrong written down, as soon as there is a call to show it on."""
        evidence = self._evidence
        inputs = None if evidence is None else self._subject.sample(evidence.form)
        if evidence is not None and inputs is not None:
            self._evidence = None
            self._maker.reproduce(evidence.made.target, self._request(evidence.made, inputs), None, evidence.reason)

    def _spot(self, now_s: float) -> None:
        if self._lineup.serving:
            build = self._lineup.made[Generic()].build
            for found, saves_s in self.watch.spot(build, self._lineup.serving, self._subject.config.isa, now_s):
                if self._state.spotted.of(found.edit, now_s) == 0:
                    self._subject.events.emit("tier.spotted", str(found.edit), found.reason, saves_s=found.saves_s)
                self._tell(Spotted(now_s, found.edit, saves_s, found.reason))

    def _is_quiet(self) -> bool:
        state = self._state
        busy = any(live.stage in ("building", "proving") for live in state.live) and self._waiting is None
        return self._closed or not (self._posted or busy or next_target(state) is not None)

    def _tell(self, event: Event) -> None:
        if self._closed:
            return
        if not isinstance(event, Called | Spotted | Queue | Tick):
            self._note(event)
        if isinstance(event, Shadowed) and not event.ok and (made := self._lineup.made.get(event.target)) is not None:
            form = self._forms.get(event.target.form) if isinstance(event.target, Baked) else None
            self._evidence = Evidence(made, form, event.reason)
        before = self._state.memory
        self._state, decisions = step(self._state, event)
        if any(isinstance(d, Withdraw | Retire) and isinstance(d.target, Generic) for d in decisions):
            self._serve(())  # at once, before what stands on it goes piece by piece
        for decision in decisions:
            if not isinstance(decision, Publish):
                self._note(decision)
            self._try(decision)
            if isinstance(decision, Publish):  # who reads of it finds it served
                self._note(decision)
        if self._state.memory is not before:
            self._remembering.keep(self._state.memory, event.now_s)

    def _note(self, message: Event | Decision) -> None:
        """An event for whoever reads the story later."""
        told = {f.name: getattr(message, f.name) for f in fields(message) if f.name not in ("target", "reason", "now_s")}
        target, reason = getattr(message, "target", ""), getattr(message, "reason", "")
        kind = f"tier.{type(message).__name__.lower()}"
        self._subject.events.emit(kind, str(target), reason, model=self._subject.name, **told)

    def _try(self, decision: Decision) -> None:
        """Carry out a decision; where that fails the machine is told, or what serves is the original again."""
        try:
            self._carry_out(decision)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(decision, Build | Prove | Shadow):
                self._fail(decision, reason)
            else:
                self._subject.events.emit("tier.failed", str(getattr(decision, "target", "")), reason)
                self._lineup.serve(())
                if isinstance(decision, Publish):  # the machine takes it for published: it is to be proved again, later
                    self._tell(Changed(time.monotonic(), f"it could not be published: {reason}"))

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Build():
                self._build(decision)
            case Prove():
                self._prove(decision)
            case Shadow():
                self._shadow(decision)
            case Publish():
                if isinstance(decision.target, Generic):
                    self._tally.forget(1)
                self._subject.forget_sample()
                self._serve((*self._lineup.serving, decision.target))
            case Withdraw() | Retire():
                self._contests.drop(decision.target)
                if isinstance(decision, Retire):
                    self._lineup.made.pop(decision.target, None)
                if decision.target in self._lineup.serving:
                    self._serve(self._lineup.without(decision.target))
            case Measure():
                if not parse(self._subject.config.stress).always_top:
                    self._contests.ask(decision)
            case Quarantine() | Rest():
                pass

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

    # what serves

    def _serve(self, targets: tuple[Target, ...]) -> None:
        self._lineup.serve(targets)
        self._contests.restart()
        self.watch.replaced()
        if self._lineup.serving:
            self._audits.restart(time.monotonic())
        else:
            self._audits.stop()

    # from a decision to a candidate

    def _build(self, decision: Build) -> None:
        target = decision.target
        sizes: Sizes = ()
        memory = self._remembering.recall()
        if memory is not None:
            self._tell(Recalled(time.monotonic(), memory))
            if self._state.find(target) is None:
                return
        if isinstance(target, Baked):
            found = self._sizes(target)
            if found is None:
                self._waiting = decision
                return
            sizes = found
        self._maker.build(target, sizes, lambda result: self._later(decision, lambda: self._built(decision, sizes, result)))

    def _sizes(self, target: Baked) -> Sizes | None:
        """Those of a form; None until there was a call of it."""
        from hotfuse.runtime.build import sizes_of
        from hotfuse.runtime.proof import given_types

        inputs = self._subject.sample(self._forms.get(target.form))
        if inputs is None:
            return None
        main = self._lineup.made[Generic()].build.main
        return sizes_of(main, given_types(main, inputs, self._subject.weight))

    def _built(self, decision: Build, sizes: Sizes, result: BuildReply | BaseException) -> None:
        if isinstance(result, BaseException):
            self._fail(decision, f"{type(result).__name__}: {result}", lasting="IllegalEdit" in str(result))
            return
        from hotfuse.runtime.kernels import link_kernels
        from hotfuse.runtime.subgraph import fusions_of

        target, build, generic = decision.target, result.build, self._lineup.generic
        if not isinstance(target, Generic) and generic is not None:
            build = replace(build, hoisted=generic.build.hoisted)
        objects = dict(zip(build.programs, result.objects, strict=True))
        made = Made(target, build, objects, link_kernels(build.programs, result.objects), sizes, decision.without)
        self._lineup.made[target] = made
        units = self._lineup.new_units(made)
        fusions = fusions_of(units, objects, sizes)
        self._subject.events.emit(
            "tier.units", str(target), model=self._subject.name, fusions=fusions, compiled=result.compiled
        )
        self._tell(Built(time.monotonic(), target, decision.attempt, len(units), result.cpu_s))
        self._look()

    def _request(self, made: Made, inputs: Mapping[str, Array]) -> ProveRequest:
        """For a proof of all units of a target."""
        from hotfuse.runtime.build_request import ProveRequest

        build = replace(made.build, units=made.units)
        objects = tuple(made.objects[p] for p in build.programs)
        return ProveRequest(build, objects, inputs, self._subject.config, other_sizes=not made.sizes)

    def _prove(self, decision: Prove) -> None:
        target = decision.target
        form = self._forms.get(target.form) if isinstance(target, Baked) else None
        inputs = self._subject.sample(form)
        if inputs is None:
            self._waiting = decision
            return
        made = self._lineup.made[target] = replace(self._lineup.made[target], without=decision.without)
        asked = self._request(made, inputs)
        if isinstance(target, Edit):
            new = {unit.nodes for unit in self._lineup.new_units(made)}
            asked = replace(asked, units=tuple(i for i, unit in enumerate(asked.build.units) if unit.nodes in new))
        self._maker.prove(target, asked, lambda result: self._later(decision, lambda: self._proved(decision, asked, result)))

    def _proved(self, decision: Prove, asked: ProveRequest, result: ProveReply | BaseException) -> None:
        if decision.target not in self._lineup.made:
            return
        if isinstance(result, BaseException):
            reason = f"{type(result).__name__}: {result}"
            if isinstance(result, WorkerError) and result.cause in KILLED:
                self._maker.reproduce(decision.target, asked, None, reason)
            self._fail(decision, reason)
            return
        wrong = [v for v in result.verdicts if not v.ok]
        if wrong and not any(v.tried for v in result.verdicts):
            self._fail(decision, wrong[0].reason)
            return
        if wrong:
            names = tuple(asked.build.units[v.unit].name for v in wrong)
            units = () if isinstance(decision.target, Edit) else names
            for verdict in wrong:
                if verdict.tried:
                    self._maker.reproduce(decision.target, asked, verdict.unit, verdict.reason)
            reason = f"{names[0]}: {wrong[0].reason}"
            self._tell(Disproved(time.monotonic(), decision.target, decision.attempt, units, reason))
            self._look()
            return
        self._lineup.candidate((*self._lineup.serving, decision.target))
        self._tell(Proved(time.monotonic(), decision.target, decision.attempt))
        self._look()

    def _shadow(self, decision: Shadow) -> None:
        target, attempt = decision.target, decision.attempt

        def report(ok: bool, reason: str) -> None:
            def tell() -> None:
                self._tell(Shadowed(time.monotonic(), target, attempt, ok, reason))
                self._look()

            self._background.post(tell)

        form = self._forms.get(target.form) if isinstance(target, Baked) else None
        self._subject.shadow(self._lineup.candidate((*self._lineup.serving, target)), form, report)

    # while it serves

    def _measured(self, measure: Measure, times: Times) -> None:
        """Called by any thread."""

        def tell() -> None:
            self._contests.end(measure)
            self.watch.gained(measure.target, times.without_s - times.with_s)
            found = (times.with_s, times.without_s, times.spread_s)
            self._tell(Measured(time.monotonic(), measure.target, measure.attempt, measure.form, *found))

        self._background.post(tell)

    def _audit(self) -> None:
        self._audits.ask(time.monotonic())
        audited = self._lineup.serving

        def report(form: Hashable, reason: str, cost_s: float) -> None:
            self._background.post(lambda: self._audited(audited, form, reason, cost_s))

        self._subject.audit(self._maker.submit, report)

    def _audited(self, audited: tuple[Target, ...], form: Hashable, reason: str, cost_s: float) -> None:
        """An answer agreed with the original's, or did not. What answered it is then wrong, and all that stands beside it is
        proved again."""
        now_s = time.monotonic()
        self._audits.done(now_s, cost_s)
        self._subject.events.emit("audit.failed" if reason else "audit.passed", str(form), reason, cost_s=cost_s)
        if not reason:
            return
        baked = Baked(str(form))
        blamed = baked if baked in audited else next((t for t in reversed(audited) if isinstance(t, Edit)), Generic())
        live = self._state.find(blamed)
        self._subject.publish(None)
        if live is not None:
            self._tell(Shadowed(now_s, blamed, live.attempt, False, f"an audit found that {reason}"))
        self._tell(Changed(now_s, f"an audit of {form} failed: {reason}"))
