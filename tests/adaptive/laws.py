"""The laws of the tier machine, as a witness who is told every event and decision and keeps books of his own.

He does not look at how the machine works: only at what was asked, what came of it, and when the model changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Called,
    Changed,
    Decision,
    Disproved,
    Event,
    Kept,
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
    Spent,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.target import Baked, Edit, Generic, Target, base_of, form_of
from tests.adaptive.story import Job, good_answer

Step = Callable[[Any, Event], tuple[Any, tuple[Decision, ...]]]
ROOM = 20  # lessons that are enough for every target of a test


class Witness:
    """State: the machine's state and the books. `tell` steps the machine and raises AssertionError where a law is broken."""

    def __init__(self, step: Step, state: Any) -> None:
        self.step, self.first, self.state, self.rules = step, state, state, state.rules
        self.now_s = 0.0
        self.history: list[tuple[Event, tuple[Decision, ...]]] = []
        self.jobs: list[Job] = []  # all that was ever asked for
        self.publications: list[Publish] = []
        self.begun: dict[int, tuple[Target, int]] = {}  # attempts: of what, and after how many changes
        self.open: dict[Target, int] = {}  # those that still may fail
        self.proving: dict[Target, int] = {}  # the last proof asked for, of this model
        self.changes = 0
        self.changed_s = -1e9
        self.under_way: dict[Target, int] = {}
        self.built: set[Target] = set()
        self.code: dict[Target, int] = {}
        self.proved: set[Target] = set()
        self.agreed: Counter[Target] = Counter()
        self.serving: set[Target] = set()
        self.paid: set[Target] = set()
        self.wrong: set[Target] = set()
        self.wrong_units: dict[Target, set[str]] = {}
        self.failures: Counter[Target] = Counter()
        self.not_before: dict[Target, float] = {}
        self.unfused: list[tuple[float, float]] = []
        self.kept: set[Target] = set()
        self.queue = 0
        self.elsewhere = 0

    def tell(self, event: Event) -> tuple[Decision, ...]:
        self.now_s = max(self.now_s, event.now_s)
        due = self._note(event)
        self.state, decided = self.step(self.state, event)
        self.history.append((event, decided))
        for decision in decided:
            assert decision.reason, f"{decision} has no reason"
            self._check(decision)
        for claim, holds in due:
            assert holds(decided), claim
        self._bounds(decided)
        return decided

    # ---- what happened

    def _has_paid(self, target: Target) -> bool:
        """What stands on nothing need not pay to stay: it must not cost."""
        return target in self.paid or isinstance(target, Generic)

    def _is_fresh(self, event: Proved | Shadowed | Measured) -> bool:
        """Whether it speaks of the last proof of this target, of a model that has not changed since."""
        return self.proving.get(event.target) == event.attempt

    def _note(self, event: Event) -> list[tuple[str, Callable[[tuple[Decision, ...]], bool]]]:
        """Write an event down. Returns what must come of it."""
        match event:
            case Called():
                if event.tier == 0:
                    self.unfused.append((self.now_s, event.seconds))
            case Kept():
                self.kept.add(event.target)
            case Queue():
                self.queue = event.length
            case Spent():
                self.elsewhere = event.elsewhere
            case Built():
                if self.under_way.get(event.target) == event.attempt:
                    del self.under_way[event.target]
                    self.open.pop(event.target, None)
                    self.built.add(event.target)
                    self.code[event.target] = event.code_bytes
                    too_large = event.code_bytes > self.rules.special_bytes and event.target != Generic()
                    if event.kernels == 0 or too_large:
                        self.not_before[event.target] = math.inf
            case BuildFailed():
                return self._note_failed(event)
            case Disproved():
                if self.open.get(event.target) == event.attempt and event.target not in self.under_way:
                    del self.open[event.target]
            case Proved():
                if self._is_fresh(event) and event.target in self.built:
                    self.proved.add(event.target)
            case Shadowed():
                return self._note_shadowed(event)
            case Measured():
                live = event.target in self.serving and self._is_fresh(event)
                gain_s = event.base_seconds - event.seconds
                if live and gain_s > event.spread_s:
                    self.paid.add(event.target)
                elif live and not (self._has_paid(event.target) and gain_s >= -event.spread_s):
                    self._back_off(event.target)
                    return [("what does not pay is retired", lambda decided: Retire in kinds_of(decided, event.target))]
            case Changed():
                self.changes += 1
                self.changed_s = self.now_s
                self.open = {target: attempt for target, attempt in self.open.items() if target in self.under_way}
                self.proving.clear()
                self.proved.clear()
                self.agreed.clear()
                return [("nothing serves after a change", lambda decided: not self.serving)]
        return []

    def _note_shadowed(self, event: Shadowed) -> list[tuple[str, Callable[[tuple[Decision, ...]], bool]]]:
        if event.ok:
            if self._is_fresh(event) and event.target in self.proved:
                self.agreed[event.target] += 1
            return []
        asked_of = self.begun.get(event.attempt)
        if asked_of == (event.target, self.changes):
            barred = self.wrong if self.not_before.get(event.target) != math.inf else {event.target}
            return [("what is wrong is quarantined at once", lambda decided: event.target in barred - self.serving)]
        if asked_of is not None and asked_of[1] < self.changes:
            return [("a verdict on what was is void", lambda decided: Quarantine not in kinds_of(decided, event.target))]
        return []

    def _note_failed(self, event: BuildFailed) -> list[tuple[str, Callable[[tuple[Decision, ...]], bool]]]:
        if self.under_way.get(event.target) == event.attempt:
            del self.under_way[event.target]
        if self.open.get(event.target) != event.attempt:
            return []
        if event.lasting:
            self.not_before[event.target] = math.inf
        else:
            self._back_off(event.target)
        return [("what failed is let go", lambda decided: Retire in kinds_of(decided, event.target))]

    def _back_off(self, target: Target) -> None:
        self.failures[target] += 1
        wait_s = min(self.rules.back_off_s * 2 ** (self.failures[target] - 1), self.rules.most_back_off_s)
        if self.rules.lessons >= ROOM:  # in a small memory it may be forgotten
            self.not_before[target] = self.now_s + wait_s

    # ---- what was decided

    def _check(self, decision: Decision) -> None:
        if isinstance(decision, Job):
            self.jobs.append(decision)
        match decision:
            case Build():
                self._check_build(decision)
            case Prove():
                assert decision.target in self.built, "only what is built is proved"
                assert self.now_s >= self.changed_s + self.rules.quiet_s, "nothing is proved until it is quiet"
                self._begin(decision)
                self.proving[decision.target] = decision.attempt
            case Shadow():
                assert decision.target in self.proved, "only what is proved is shadowed"
                assert decision.calls == self.rules.shadow_calls, "as many calls are shadowed as must agree"
            case Publish():
                self._check_publish(decision)
            case Withdraw() | Retire():
                self.serving.discard(decision.target)
                self.paid.discard(decision.target)
                if isinstance(decision, Retire):
                    self._forget(decision.target)
            case Measure():
                assert decision.target in self.serving, "only what serves is measured"
            case Quarantine():
                if decision.units:
                    self.wrong_units.setdefault(decision.target, set()).update(decision.units)
                else:
                    self.wrong.add(decision.target)
            case Rest():
                assert decision.until_s >= self.now_s, "rest ends later than it begins"

    def _begin(self, decision: Build | Prove) -> None:
        assert decision.attempt not in self.begun, "every attempt has a number of its own"
        assert decision.target not in self.wrong, "what is wrong is not tried again"
        assert self.wrong_units.get(decision.target, set()) <= set(decision.without), "wrong units are left out for good"
        self.begun[decision.attempt] = (decision.target, self.changes)
        self.open[decision.target] = decision.attempt
        self.proving.pop(decision.target, None)
        self.proved.discard(decision.target)
        self.agreed[decision.target] = 0

    def _check_build(self, decision: Build) -> None:
        assert decision.target not in self.under_way, "one build of a target at a time"
        assert decision.target not in self.serving, "what serves is not built"
        assert self.now_s >= self.not_before.get(decision.target, 0.0), "back-off is respected"
        assert not 0 <= self.rules.fuel <= len(self.publications) + self.elsewhere, "without fuel nothing is built"
        if decision.target in self.kept:
            self.kept.remove(decision.target)
        elif decision.target == Generic():
            heat = sum(s * 0.5 ** ((self.now_s - t) / self.rules.half_life_s) for t, s in self.unfused)
            budget_s = self.rules.budget_s * (1 + self.queue)
            assert self.rules.generic_gain * heat > budget_s * (1 - 1e-9), "time saved must exceed the budget"
        self._forget(decision.target)
        self._begin(decision)
        self.under_way[decision.target] = decision.attempt

    def _check_publish(self, decision: Publish) -> None:
        target = decision.target
        assert target in self.built, "only what is built is published"
        assert target in self.proved, "only what is proved since the last change is published"
        assert self.agreed[target] >= self.rules.shadow_calls, "only what was shadowed since then is published"
        assert target not in self.wrong, "nothing wrong is published"
        assert target not in self.serving, "nothing is published twice"
        self.publications.append(decision)
        assert self.rules.fuel < 0 or len(self.publications) + self.elsewhere <= self.rules.fuel, "fuel is respected"
        self.serving.add(target)
        self.open.pop(target, None)

    def _forget(self, target: Target) -> None:
        self.built.discard(target)
        self.proved.discard(target)
        self.agreed[target] = 0
        self.open.pop(target, None)
        self.proving.pop(target, None)

    # ---- what holds after every event

    def _bounds(self, decided: tuple[Decision, ...]) -> None:
        rules, state = self.rules, self.state
        stages = {live.target: live.stage for live in state.live}
        most = 2 + rules.baked + rules.edits
        assert len(stages) == len(state.live) <= most, "targets are bounded"
        assert len(decided) <= 2 * most + 4, "decisions are bounded"
        assert len(state.memory.lessons) <= rules.lessons, "memory is bounded"
        assert max(len(heat.entries) for heat in (state.unfused, state.fused, state.spotted)) <= rules.forms, "heat is bounded"
        assert sum(stage in ("building", "proving", "shadowing") for stage in stages.values()) <= 1, "one thing in the making"
        assert {target for target, stage in stages.items() if stage == "serving"} == self.serving, "decisions tell what serves"
        building = {target for target, stage in stages.items() if stage == "building"}
        assert building <= set(self.under_way) <= building | self.wrong, "a build under way is remembered"
        assert sum(isinstance(target, Baked) for target in self.serving) <= rules.baked, "baked forms are bounded"
        edits = [target for target in self.serving if isinstance(target, Edit)]
        units = [(form_of(edit), unit) for edit in edits for unit in set(edit.units)]
        assert len(edits) <= rules.edits, "edits are bounded"
        special = sum(self.code[target] for target in self.serving if target != Generic())
        assert special <= rules.special_bytes, "code of what is special is bounded"
        assert len(units) == len(set(units)), "edits in service share no unit"
        assert not self.serving or Generic() in self.serving, "all stands on the generic kernels"
        assert {base_of(edit) for edit in edits} <= self.serving, "an edit serves with what it edits"

    # ---- what holds at the end

    def do_well(self, job: Job) -> list[Job]:
        """Answer a job, as often as it asks for, and say what is asked next."""
        times = job.calls if isinstance(job, Shadow) else 1
        decided = [decision for _ in range(times) for decision in self.tell(good_answer(job, self.now_s))]
        return [decision for decision in decided if isinstance(decision, Job)]

    def settles(self) -> None:
        """Without new evidence nothing goes on for ever: neither while time goes by nor while all that is asked is answered."""
        asked = self.jobs[-10:]
        for _ in range(60 * (2 + self.rules.baked + self.rules.edits)):
            if asked:
                asked += self.do_well(asked.pop(0))
        assert not asked, "answers lead to questions without end"
        decided = [len(self.tell(Tick(self.now_s + wait_s))) for wait_s in 30 * [self.rules.review_s]]
        assert sum(decided[15:]) == 0, "time alone leads to decisions without end"

    def replays(self) -> None:
        """The same events lead to the same decisions."""
        state = self.first
        for event, decided in self.history:
            state, again = self.step(state, event)
            assert again == decided, "a replay decides the same"
        assert state == self.state


def kinds_of(decided: tuple[Decision, ...], target: Target) -> set[type[Decision]]:
    return {type(d) for d in decided if not isinstance(d, Rest) and d.target == target}
