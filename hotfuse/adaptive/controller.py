"""The controller of one model: tells the tier machine what happened, and carries out what it decides.

    callers -> Tally -> background's thread: step(state, event) -> decisions -> Making, Subject -> events -> ...
                                             Watch (traces -> edits), Contests (does it pay), Audits (is it still right),
                                             Learning (what may pay)

Callers only note, wait and close; the rest runs in the background's thread. A decision that fails tells the machine so; what
serves stays.

State: the tier machine's; what was made of each target, which of them serve, and the candidates that answer for them. Only the
background's thread touches it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import fields

from hotfuse.adaptive.audits import Audits
from hotfuse.adaptive.background import BACKGROUND, Background
from hotfuse.adaptive.contests import Contests
from hotfuse.adaptive.drifting import Drifting
from hotfuse.adaptive.learning import Learning
from hotfuse.adaptive.lineup import Lineup
from hotfuse.adaptive.machine import step
from hotfuse.adaptive.making import Making, failed
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Called,
    Changed,
    Decision,
    Event,
    Measure,
    Measured,
    Prove,
    Publish,
    Quarantine,
    Queue,
    Rest,
    Retire,
    Shadow,
    Shadowed,
    Spent,
    Spotted,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.promotion import next_target, objection
from hotfuse.adaptive.spare import SPARE
from hotfuse.adaptive.spotting import Found
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.tally import Tally
from hotfuse.adaptive.target import Baked, Edit, Generic, Target, form_of
from hotfuse.adaptive.watch import Watch
from hotfuse.locks import make_lock
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.turns import Judged, Times
from hotfuse.stress import parse

FORMS = 256  # that are known by their texts
LOOK_S = 0.005  # of calls, after which the background looks at once and not with the next tick
LOOK_SHARE = 0.005  # of calls' time, that looks may take while something fused serves and nothing is under way


class Controller:
    """Adapts one subject."""

    def __init__(self, subject: Subject, rules: Rules, background: Background = BACKGROUND) -> None:
        self._subject, self._background = subject, background
        self._state: State = start(rules)
        self._tally = Tally()
        self._lineup = Lineup(subject)
        self._contests = Contests(subject, self._tally, self._lineup.candidate)
        self._audits = Audits()
        self.watch = Watch(background.post)
        self._learning = Learning(subject)
        self._unseen, self._unseen_s = 0, 0.0  # calls that fused kernels answered, and seconds of all
        self._look_after_s = LOOK_S  # of these
        self._posted = self._closed = False
        self._forms: dict[str, Hashable] = {}
        self.baked_calls: Counter[str] = Counter()  # by the text of a target, as far as calls were looked at
        self._making = Making(subject, self._lineup, self._forms, self._told, background.post)
        self._drifting = Drifting(subject, background.post, self._making.submit)
        self._forked = False  # what was in the making is the parent's
        self._quiet = threading.Condition(make_lock())
        background.register(self)
        if self._making.may_find:
            background.post_after_answer(self._making.ask_cache)

    @property
    def state(self) -> State:
        """The tier machine's, as it is now."""
        return self._state

    def why(self) -> str:
        """What keeps the generic kernels from serving now; "" if they do."""
        state = self._state
        if state.serves(Generic()):
            return ""
        return objection(state, Generic()) or ("it is being closed" if self._closed else "they are begun with the next look")

    @property
    def awaits_audit(self) -> bool:
        """Whether what serves was never audited. Called by any thread."""
        return self._audits.first > 0

    @property
    def serving(self) -> tuple[Target, ...]:
        return self._lineup.serving

    # what callers do

    def note(self, form: Hashable, tier: int, seconds: float, count: int = 1) -> None:
        """Calls of a form were answered by a tier, one of them in so many seconds. Called by any thread."""
        self._tally.note(form, tier, seconds, count)
        self._unseen_s += seconds
        self._unseen += count if tier else 0
        if (self._unseen_s > self._look_after_s or 0 < self._audits.first <= self._unseen) and not self._posted:
            self._posted = True
            if not self._background.post(self._look):
                self._posted = False

    def forked(self) -> None:
        """The process is a forked child: nobody will answer what the parent asked for."""
        self._posted, self._forked = False, True

    def changed(self, reason: str) -> None:
        """The model is another one now. Called by any thread."""

        def tell() -> None:
            self._making.forget_weights()
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
        self._background.post(self._making.close)
        self._background.post(self._lineup.let_go)

    # the background's thread

    def tick(self, now_s: float) -> None:
        if self._closed:
            return
        self._subject.look_at_next()
        self._look()
        self._drifting.tick(now_s, self.watch, self._lineup)
        if self._lineup.serving and (given := SPARE.tick(now_s)):
            self._subject.events.emit("memory.given_back", self._subject.name, bytes=given)

    def _look(self) -> None:
        """Tell the machine of the calls since the last look, and of the time."""
        self._posted, self._unseen, self._unseen_s = False, 0, 0.0
        now_s, cpu_s = time.monotonic(), time.thread_time()
        if self._forked:
            self._give_up(now_s)
        seen: Counter[str] = Counter()
        for (form, tier), (seconds, count) in self._tally.collect().items():
            text = str(form)
            seen[text] += count
            self._keep_form(text, form)
            if tier and (baked := Baked(text)) in self._lineup.serving:
                self.baked_calls[str(baked)] += count
            self.watch.count(form, tier, count, seconds, now_s)
            self._audits.count(count if tier else 0)
            self._tell(Called(now_s, text, tier, seconds, count))
        if self.watch.wants_trace(self._subject.executor if self._lineup.serving else None):
            self._subject.look_at_next()
        self._spot(now_s)
        self._tell(Queue(now_s, self._making.queue))
        self._tell(Tick(now_s))
        self._contests.count(seen)
        self._contests.begin(self._forms, self._lineup.serving, self._measured)
        self._making.go_on(self._state)
        if self._audits.is_due(now_s) and not self._closed:
            self._audit()
        rests = self._lineup.serving and not self._contests.wait and self._is_quiet()
        self._look_after_s = max(LOOK_S, (time.thread_time() - cpu_s) / LOOK_SHARE) if rests else LOOK_S
        with self._quiet:
            self._quiet.notify_all()

    def _give_up(self, now_s: float) -> None:
        """What was in the making when the process was forked."""
        self._forked = False
        for live in self._state.live:
            if live.stage in ("building", "proving", "shadowing"):
                self._tell(BuildFailed(now_s, live.target, live.attempt, "the process was forked amid it", False))

    def _keep_form(self, text: str, form: Hashable) -> None:
        """The last forms by their texts: what the machine speaks of is among them, or has no calls any more."""
        self._forms.pop(text, None)
        self._forms[text] = form
        while len(self._forms) > FORMS:
            del self._forms[next(iter(self._forms))]

    def _spot(self, now_s: float) -> None:
        if self._lineup.serving:
            build = self._lineup.made[Generic()].build
            hoped = self._hoped(now_s)
            for found, saves_s in self.watch.spot(build, self._lineup.serving, self._subject.config.isa, now_s, hoped):
                if self._state.spotted.of(found.edit, now_s) == 0:
                    self._subject.events.emit("tier.spotted", str(found.edit), found.reason, saves_s=found.saves_s)
                self._tell(Spotted(now_s, found.edit, saves_s, found.reason))

    def _hoped(self, now_s: float) -> list[Found]:
        """Edits that the builds in service are unsure of, and that may be tried."""
        bases = [target for target in self._lineup.serving if isinstance(target, Generic | Baked)]
        unsure = {form_of(target): self._lineup.made[target].build.unsure for target in bases}
        lessons = self._state.memory.lessons
        closed = {lesson.target for lesson in lessons if lesson.barred or not lesson.backoff.is_over(now_s)}
        achieved = {form_of(target): self._lineup.made[target].achieved for target in bases}
        return self._learning.find(unsure, self.watch.unit_seconds, self.watch.profile.added, closed, now_s, achieved)

    def _is_quiet(self) -> bool:
        state = self._state
        busy = any(live.stage in ("building", "proving") for live in state.live) and not self._making.waits
        return self._closed or not (self._posted or busy or self._making.keeps or next_target(state) is not None)

    def _tell(self, event: Event) -> None:
        if self._closed:
            return
        if not isinstance(event, Called | Spotted | Queue | Tick):
            self._note(event)
        if isinstance(event, BuildFailed):
            self._learning.lost(event.target, event.now_s)
        before = self._state.memory
        decisions = self._step(event)
        if any(isinstance(d, Withdraw | Retire) and isinstance(d.target, Generic) for d in decisions):
            self._serve(())  # at once, before what stands on it goes piece by piece
        for decision in decisions:
            if not isinstance(decision, Publish):
                self._note(decision)
            self._try(decision)
            if isinstance(decision, Publish):  # who reads of it finds it served
                self._note(decision)
        if self._state.memory is not before:
            self._making.remember(self._state.memory, event.now_s)

    def _step(self, event: Event) -> tuple[Decision, ...]:
        """The machine's decisions, of which publications draw on the model's fuel."""
        told: tuple[Decision, ...] = ()
        with self._subject.fuel.held() as fuel:
            elsewhere = fuel.spent - self._state.published
            if elsewhere != self._state.elsewhere:
                self._state, told = step(self._state, Spent(event.now_s, elsewhere))
            self._state, decided = step(self._state, event)
            fuel.spent = self._state.published + elsewhere
        return (*told, *decided)

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
                self._told(failed(decision, reason))
            else:
                self._subject.events.emit("tier.failed", str(getattr(decision, "target", "")), reason)
                self._lineup.serve(())
                # the machine takes it for published, or others for serving still: they are to be proved again, later
                self._tell(Changed(time.monotonic(), f"what serves could not be replaced: {reason}"))

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Build():
                self._making.build(decision)
            case Prove():
                if not self._lineup.serving:
                    self._subject.keep_call()
                self._making.prove(decision)
            case Shadow():
                self._shadow(decision)
            case Publish():
                if isinstance(decision.target, Generic):
                    self._tally.forget(1)
                    SPARE.published(time.monotonic())
                self._subject.forget_sample()
                self._serve((*self._lineup.serving, decision.target))
                if isinstance(decision.target, Generic):
                    self._subject.release_weights()
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

    def _told(self, event: Event) -> None:
        """Tell the machine what came of a decision, and look at once at what follows."""
        self._tell(event)
        self._look()

    # what serves

    def _serve(self, targets: tuple[Target, ...]) -> None:
        self._lineup.serve(targets)
        self._shadow_again("something else serves now")
        self._contests.restart()
        self.watch.replaced()
        self._drifting.replaced(self.watch)
        if self._lineup.serving:
            self._audits.restart(time.monotonic(), soon=RIGHT_OF_WAY.crowded)
        else:
            self._audits.stop()

    # from a candidate to what serves

    def _shadow(self, decision: Shadow) -> None:
        target = decision.target

        def report(judged: Judged) -> None:
            self._background.post(lambda: self._shadowed(decision, judged))

        candidate = self._lineup.candidate((*self._lineup.serving, target))
        self._subject.shadow(candidate, self._making.form(target), report)

    def _shadowed(self, decision: Shadow, judged: Judged) -> None:
        """A call was. Where more of them must agree the next one is, too."""
        target, attempt, reason = decision.target, decision.attempt, judged.reason
        if reason and not self._closed:
            self._making.was_wrong(target, reason, judged.inputs)
        shadowed = Shadowed(time.monotonic(), target, attempt, not reason, reason)
        self._told(failed(decision, judged.untold) if judged.untold else shadowed)
        live = self._state.find(target)
        if live is not None and live.attempt == attempt:
            self._shadow_again("more calls must agree")

    def _shadow_again(self, reason: str) -> None:
        """Ask for a shadowed call of what still waits for one, beside what serves now."""
        for live in self._state.live:
            if live.stage == "shadowing" and live.target in self._lineup.made:
                decision = Shadow(live.target, live.attempt, self._state.rules.shadow_calls - live.agreed, reason)
                self._note(decision)
                self._try(decision)

    # while it serves

    def _measured(self, measure: Measure, times: Times) -> None:
        """Called by any thread."""

        def tell() -> None:
            self._contests.end(measure)
            self.watch.gained(measure.target, times.without_s - times.with_s)
            self._learning.measured(measure.target, times, time.monotonic())
            found = (times.with_s, times.without_s, times.spread_s)
            self._tell(Measured(time.monotonic(), measure.target, measure.attempt, measure.form, *found))

        self._background.post(tell)

    def _audit(self) -> None:
        self._audits.ask(time.monotonic())
        audited = self._lineup.serving

        def report(form: Hashable, judged: Judged) -> None:
            self._background.post(lambda: self._audited(audited, form, judged))

        self._subject.audit(self._making.submit, report)

    def _audited(self, audited: tuple[Target, ...], form: Hashable, judged: Judged) -> None:
        """An answer agreed with the original's, or did not. What answered it is then wrong, and all that stands beside it is
        proved again."""
        now_s, reason = time.monotonic(), judged.reason
        self._audits.done(now_s, judged.cost_s)
        kind = "audit.failed" if reason else "audit.lost" if judged.untold else "audit.passed"
        self._subject.events.emit(kind, str(form), reason or judged.untold, cost_s=judged.cost_s)
        if not reason:
            return
        baked = Baked(str(form))
        mine = baked.form if baked in audited else ""  # what answered: kernels for this form, or for all sizes
        edits = (t for t in reversed(audited) if isinstance(t, Edit) and form_of(t) == mine)
        blamed = next(edits, baked if mine else Generic())
        live = self._state.find(blamed)
        self._subject.publish(None)
        if live is not None:
            why = f"an audit found that {reason}"
            if not self._closed:
                self._making.was_wrong(blamed, why, judged.inputs)
            self._tell(Shadowed(now_s, blamed, live.attempt, False, why))
        self._tell(Changed(now_s, f"an audit of {form} failed: {reason}"))
