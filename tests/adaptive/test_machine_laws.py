"""The laws of the tier machine hold for traffic, answers, late answers and lies in any order; and they are laws that can be
broken: each of the defects planted here breaks one."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from hotfuse.adaptive.machine import step
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
    Queue,
    Shadow,
    Shadowed,
    Spent,
    Spotted,
    Tick,
)
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.target import Baked, Edit, Generic, Merged, Revised, Split, Target
from hotfuse.ir.record_form import read_record, write_record
from tests.adaptive.laws import Witness
from tests.adaptive.story import Job, good_answer

MODULES = (  # what the machine is made of, in the order of their imports
    "hotfuse.runtime.backoff",
    "hotfuse.adaptive.hotness",
    "hotfuse.adaptive.memory",
    "hotfuse.adaptive.state",
    "hotfuse.adaptive.promotion",
    "hotfuse.adaptive.machine",
)
MACHINE = types.SimpleNamespace(start=start, step=step, Rules=Rules)

ROOMY = {"forms": 4, "baked": 2, "edits": 2, "shadow_calls": 2, "back_off_s": 4.0, "most_back_off_s": 20.0}
ROOMY |= {"special_bytes": 130}  # for three of them
ROOMY |= {"quiet_s": 0.5, "most_quiet_s": 4.0, "review_s": 5.0, "most_review_s": 20.0, "wrong_units": 3, "patience_s": 5.0}
TIGHT = {**ROOMY, "baked": 1, "edits": 1, "lessons": 2, "shadow_calls": 1}

FORMS = [Baked(form) for form in "abcde"]
EDITS: list[Edit] = [
    Merged(("u", "v")), Merged(("v", "w")), Split(("u",)), Split(("x", "y")), Merged(("x", "z")), Revised("tiles", ("x", "w")),
    Revised("grain", ("u",), "a"), Revised("grain", ("u",), "a", 1), Revised("tiles", ("u", "v"), "b"),
]  # fmt: skip
TARGETS: list[Target] = [Generic(), *FORMS, *EDITS]

places = st.integers(0, 15)
waits = st.sampled_from([0.0, 0.0, 0.3, 1.0, 6.0, 40.0])


def bad_answer(job: Job, how: int, now_s: float) -> Event:
    """What comes of a job when it does not go well. What ends everything is rare: there is more to see while it goes on."""
    final = how == 9 or (how > 6 and job.target != Generic())
    match job:
        case Build():
            if how == 8:
                return Built(now_s, job.target, job.attempt, 0, 0.1)
            if how == 7:
                return Built(now_s, job.target, job.attempt, 3, 0.1, 131)
            return BuildFailed(now_s, job.target, job.attempt, "killed", final)
        case Prove():
            if how % 3 == 0:
                return BuildFailed(now_s, job.target, job.attempt, "the worker died", False)
            return Disproved(now_s, job.target, job.attempt, () if final else (f"unit {how}",), "off by 1")
        case Shadow():
            return Shadowed(now_s, job.target, job.attempt, not final, "row 3 differs")
        case Measure():
            return Measured(now_s, job.target, job.attempt, job.form, 0.9 + 0.1 * (how % 4), 1.0, 0.1)


class Traffic(RuleBasedStateMachine):
    """State: the witness. `machine` is the one under test."""

    machine = MACHINE

    @initialize(tight=st.booleans(), fuel=st.sampled_from([-1, -1, -1, -1, 0, 4]), warm=st.integers(0, 3))
    def begin(self, tight: bool, fuel: int, warm: int) -> None:
        """A model that was never called, or one for which much serves already."""
        rules = self.machine.Rules(**(TIGHT if tight else ROOMY), fuel=fuel)
        self.witness = Witness(self.machine.step, self.machine.start(rules))
        for form, edit in zip(FORMS[:warm], EDITS[2:], strict=False):
            self.go_well(self.heat(form, 0.0) + self.heat(form, 0.0), 20)
            self.go_well(self.tell(Spotted(self.now_s, edit, 10.0)), 20)

    def tell(self, event: Event) -> list[Job]:
        return [d for d in self.witness.tell(event) if isinstance(d, Job)]

    @property
    def now_s(self) -> float:
        return self.witness.now_s

    @rule(form=st.sampled_from(FORMS), tier=st.integers(0, 2), seconds=st.sampled_from([0.0, 0.01, 0.2, 1.0, 20.0]), wait=waits)
    def call(self, form: Baked, tier: int, seconds: float, wait: float) -> None:
        self.tell(Called(self.now_s + wait, form.form, tier, seconds, 5))

    @rule(edit=st.sampled_from(EDITS), saves=st.sampled_from([0.01, 1.0, 10.0]), wait=waits)
    def spot(self, edit: Edit, saves: float, wait: float) -> None:
        self.tell(Spotted(self.now_s + wait, edit, saves))

    def heat(self, form: Baked, wait: float) -> list[Job]:
        """Much traffic of one form, and what is asked because of it."""
        tier = int(Generic() in self.witness.serving)
        return self.tell(Called(self.now_s + wait, form.form, tier, 20.0, 5)) + self.tell(Tick(self.now_s + 1.0))

    @rule(form=st.sampled_from(FORMS), steps=st.integers(3, 14), wait=waits, pays=st.sampled_from([True, True, False]))
    def promote(self, form: Baked, steps: int, wait: float, pays: bool) -> None:
        """Everything goes well for a while."""
        self.go_well(self.heat(form, wait), steps, pays)

    def go_well(self, asked: list[Job], steps: int, pays: bool = True) -> None:
        for job in asked:  # grows as it goes
            if len(asked) > steps:
                break
            slow = isinstance(job, Measure) and not pays
            asked += self.tell(bad_answer(job, 1, self.now_s)) if slow else self.witness.do_well(job)

    @rule(form=st.sampled_from(FORMS), wait=waits, how=st.integers(0, 9), times=st.integers(1, 3))
    def fail(self, form: Baked, wait: float, how: int, times: int) -> None:
        """What is asked goes wrong, in one way after the other, while traffic goes on."""
        asked: list[Job] = []
        for more in range(times):
            asked += self.heat(form, wait)
            if asked:
                asked += self.tell(bad_answer(asked.pop(), (how + more) % 10, self.now_s))

    @rule(about=st.sampled_from([*TARGETS, Generic()]), seconds=st.sampled_from([1.0, 1.05, 2.0]), doubt=st.booleans())
    def topple(self, about: Target, seconds: float, doubt: bool) -> None:
        """Something does not pay, and turns out to be wrong when it has gone."""
        live = self.witness.state.find(about)
        if live is not None:
            self.tell(Measured(self.now_s, about, live.attempt, "a", seconds, 1.0, 0.1))
            if doubt and about != Generic():
                self.tell(Shadowed(self.now_s, about, live.attempt, False, "row 3 differs"))

    @rule(place=places, wait=waits)
    def answer_well(self, place: int, wait: float) -> None:
        if self.witness.jobs:
            self.tell(good_answer(self._pick(self.witness.jobs, place), self.now_s + wait))

    @rule(place=places, how=st.integers(0, 9), times=st.integers(1, 3))
    def answer_badly(self, place: int, how: int, times: int) -> None:
        for more in range(times if self.witness.jobs else 0):
            self.tell(bad_answer(self._pick(self.witness.jobs, place), (how + more) % 10, self.now_s))

    @rule(place=places)
    def repeat(self, place: int) -> None:
        """An event comes twice, or late."""
        if self.witness.history:
            event, _ = self._pick(self.witness.history, place)
            self.tell(replace(event, now_s=self.now_s))

    @rule(place=places, ok=st.sampled_from([True, True, False]))
    def audit(self, place: int, ok: bool) -> None:
        if self.witness.publications:
            published = self._pick(self.witness.publications, place)
            final = not ok and (published.target != Generic() or place > 10)
            self.tell(Shadowed(self.now_s, published.target, published.attempt, not final, "row 3 differs"))

    @rule(place=places, seconds=st.sampled_from([0.5, 0.95, 1.05, 2.0]))
    def measure(self, place: int, seconds: float) -> None:
        if self.witness.publications:
            published = self._pick(self.witness.publications, place)
            self.tell(Measured(self.now_s, published.target, published.attempt, "a", seconds, 1.0, 0.1))

    @rule(about=st.sampled_from(TARGETS), back=st.integers(-1, 4), kind=st.integers(0, 4))
    def lie(self, about: Target, back: int, kind: int) -> None:
        """An answer to a question that was never asked."""
        now_s, attempt = self.now_s, self.witness.state.attempts - back
        lies: list[Event] = [
            Built(now_s, about, attempt, 3, 0.1),
            Proved(now_s, about, attempt),
            Shadowed(now_s, about, attempt, True, ""),
            Measured(now_s, about, attempt, "a", 2.0, 1.0, 0.1),
            Disproved(now_s, about, attempt, ("u",), "off by 1"),
        ]
        self.tell(lies[kind])

    @rule(wait=waits, doubt=st.booleans())
    def change(self, wait: float, doubt: bool) -> None:
        self.tell(Changed(self.now_s + wait, "new weights"))
        if doubt and self.witness.publications:
            last = self.witness.publications[-1]
            self.tell(Shadowed(self.now_s, last.target, last.attempt, False, "seen before the change"))

    @rule(length=st.integers(0, 5), seconds=st.sampled_from([0.0, 0.2, 0.4]))
    def queue(self, length: int, seconds: float) -> None:
        self.tell(Queue(self.now_s, length))
        self.tell(Called(self.now_s, "a", 0, seconds, 5))

    @rule(form=st.sampled_from(FORMS), steps=st.integers(1, 6), more=st.integers(1, 4))
    def spend(self, form: Baked, steps: int, more: int) -> None:
        """Other parts of the model publish while something is in the making."""
        asked = self.heat(form, 0.0)
        self.go_well(asked, steps)
        self.tell(Spent(self.now_s, self.witness.elsewhere + more))
        self.go_well(asked[-1:], 4)

    @rule()
    def keep(self) -> None:
        self.tell(Kept(self.now_s, Generic()))

    @rule(wait=st.sampled_from([-5.0, 0.0, 0.5, 5.0, 100.0]))
    def tick(self, wait: float) -> None:
        self.tell(Tick(self.now_s + wait))

    def _pick(self, items: list[Any], place: int) -> Any:
        """One of the last."""
        return items[-1 - place % len(items)]

    def teardown(self) -> None:
        if not hasattr(self, "witness"):
            return
        self.witness.settles()
        self.witness.replays()
        if self.machine is MACHINE:
            state = self.witness.state
            assert read_record(State, write_record(state)) == state
            for event, decided in self.witness.history[-20:]:
                assert read_record(Event, write_record(event)) == event
                assert all(read_record(Decision, write_record(d)) == d for d in decided)


def run(machine: Any, examples: int, steps: int, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> None:
    under_test = type("Traffic", (Traffic,), {"machine": machine})
    options: dict[str, Any] = {
        "deadline": None,
        "database": None,
        "derandomize": True,
        "phases": phases,
        "report_multiple_bugs": False,
    }
    options |= {"suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(under_test, settings=settings(max_examples=examples, stateful_step_count=steps, **options))


def test_the_laws_hold() -> None:
    run(MACHINE, 100, 50)


@pytest.mark.long
def test_the_laws_hold_for_long() -> None:
    run(MACHINE, 3000, 80)


# ---- planted defects: a file, what stands there, what is put in its place

DEFECTS = {
    "code has no bounds": ("promotion", " - sum(live.code_bytes for live in others)", ""),
    "what is too large is built": ("machine", " and event.code_bytes > state.rules.special_bytes", " and False"),
    "a late answer counts": ("machine", "live.attempt == event.attempt and ", ""),
    "an answer counts in any stage": ("machine", " and live.stage in stages else None", " else None"),
    "it is published without a shadowed call": (
        "machine",
        'return state.put(replace(live, stage="shadowing")), [Shadow(',
        "return _publish(state, live) if 1 else [Shadow(",
    ),
    "one shadowed call is always enough": ("machine", "live.agreed >= state.rules.shadow_calls", "live.agreed >= 1"),
    "what serves survives a change": ("machine", 'if live.stage != "building":', 'if live.stage == "proving":'),
    "a verdict from before a change counts": ("machine", "void=state.attempts, ", ""),
    "a verdict on a retired target is ignored": (
        "machine",
        "known = state.void < event.attempt <= state.attempts and",
        'known = _attempt(state, event, "shadowing", "serving") is not None and',
    ),
    "what is wrong may be tried again": ("machine", "barred=True, ", ""),
    "nobody asks whether it is barred": ("promotion", "if lesson.barred:", "if False:"),
    "nobody asks whether it backs off": ("promotion", "if not lesson.backoff.is_over(state.now_s):", "if False:"),
    "back-off does not grow": ("backoff", "2.0 ** min(self.times, MOST_DOUBLINGS)", "1.0"),
    "a build under way is forgotten": ("machine", ' and live.stage != "building"]', "]"),
    "one drop of fuel too many": ("promotion", "0 <= rules.fuel <= state.published", "0 <= rules.fuel < state.published"),
    "what others spend does not count": ("promotion", "state.published + state.elsewhere", "state.published"),
    "what others spend meanwhile does not count": ("machine", "if is_spent(state):", "if False:"),
    "many things are in the making": ("promotion", "if making is not None and", "if False and"),
    "what gives way stays": ("machine", "if making is not None:", "if False:"),
    "a build gives way": ("promotion", 'late = making.stage != "building" and', "late ="),
    "one baked form too many": ("promotion", "len(others) + 1 - most", "len(others) - most"),
    "edits of the same units serve together": ("promotion", "return [*touching, *others[", "return [*others["),
    "memory grows": ("memory", "while len(others) >= self.limit:", "while False:"),
    "heat grows": ("hotness", "if target not in known and len(known) >= self.limit:", "if False:"),
    "heat does not fade": ("hotness", "return float(0.5 ** (", "return 1.0 + 0 * float(0.5 ** ("),
    "the queue does not matter": ("promotion", "(1 + state.queue)", "1"),
    "a wrong unit comes back": ("machine", "units=wrong", "units=new"),
    "what stands on generic kernels stays without them": ("machine", "if isinstance(target, Generic) and", "if False and"),
    "what never paid stays": ("machine", "if live.paid and gain_s", "if gain_s"),
    "a review needs no traffic": ("machine", "if not state.unseen or not (", "if not ("),
    "a reason is missing": ("machine", 'note = f"{event.kernels} kernels were built in', 'note = "" and f"{event.kernels}'),
    "a failure that lasts is tried again": ("machine", "if event.lasting:", "if False:"),
    "nobody waits until it is quiet": ("promotion", "if state.quiet.is_over(state.now_s) else", "if True else"),
    "it depends on more than it is told": (
        "machine",
        "state.attempts + 1, state",
        "state.attempts + 1 + __import__('time').perf_counter_ns() % 97, state",
    ),
    "two attempts have one number": ("machine", "state = replace(state, attempts=attempt)", "state = replace(state)"),
}


def mutant(file: str, there: str, instead: str) -> Any:
    """The machine with a defect: its modules are loaded again, one of them from other text."""
    loaded: dict[str, types.ModuleType] = {}
    with mock.patch.dict(sys.modules):
        for module_name in MODULES:
            name = module_name.rpartition(".")[2]
            text = inspect.getsource(importlib.import_module(module_name))
            if name == file:
                assert text.count(there) == 1, f"{there!r} stands in {file} {text.count(there)} times"
                text = text.replace(there, instead)
            sys.modules[module_name] = loaded[name] = module = types.ModuleType(module_name)
            exec(compile(text, name, "exec"), module.__dict__)
    return types.SimpleNamespace(start=loaded["state"].start, step=loaded["machine"].step, Rules=loaded["state"].Rules)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect: str) -> None:
    with pytest.raises((AssertionError, Flaky)):
        run(mutant(*DEFECTS[defect]), 8000, 40, (Phase.generate,))


def test_a_mutant_without_a_defect_passes() -> None:
    run(mutant("", "", ""), 10, 30)
