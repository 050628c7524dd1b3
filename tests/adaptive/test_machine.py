"""The tier machine, rule by rule. `test_promotion` has what is begun first, `test_machine_laws` what holds whatever happens."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from hotfuse.adaptive.machine import step
from hotfuse.adaptive.memory import Lesson, Memory, read_memory, write_memory
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Called,
    Changed,
    Disproved,
    Kept,
    Measure,
    Measured,
    Prove,
    Proved,
    Publish,
    Quarantine,
    Recalled,
    Rest,
    Retire,
    Shadow,
    Shadowed,
    Spent,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.promotion import objection
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.target import Baked, Generic, Merged, Split
from hotfuse.errors import VerifyError
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.runtime.backoff import Backoff
from tests.adaptive.story import Story, good_answer, kinds, serving_generic

GENERIC = Generic()


# ---- failures


@pytest.mark.parametrize("lesson", [Lesson(GENERIC, "wrong", barred=True), Lesson(GENERIC, "slow", backoff=Backoff(2, 100.0))])
def test_what_an_earlier_process_gave_up_is_given_up_now(lesson: Lesson) -> None:
    story = Story()
    story.call()
    attempt = story.last(Build).attempt
    assert kinds(story.tell(Recalled(1.0, Memory(64, (lesson,))))) == ["Retire"]
    assert story.tell(Built(1.0, GENERIC, attempt, 3, 0.1)) == []  # it comes too late
    assert lesson.reason in objection(story.state, GENERIC)
    story.now_s = 101.0
    assert kinds(story.call(seconds=1e3)) == ([] if lesson.barred else ["Build"])


def test_what_an_earlier_process_made_is_built_before_the_first_call_and_once() -> None:
    story = Story()
    assert kinds(story.tell(Kept(0.0, GENERIC))) == ["Build"]
    assert "earlier process" in story.last(Build).reason
    story.tell(BuildFailed(0.0, GENERIC, story.last(Build).attempt, "no memory", lasting=False))
    story.now_s = 1e4
    assert story.tell(Tick(1e4)) == []  # from now on it must be worth it
    assert kinds(story.call(seconds=1e3)) == ["Build"]


def test_what_an_earlier_process_made_and_gave_up_is_not_built() -> None:
    story = Story()
    story.tell(Recalled(0.0, Memory(64, (Lesson(GENERIC, "wrong", barred=True),))))
    assert story.tell(Kept(0.0, GENERIC)) == []


def test_wrong_units_that_are_recalled_are_left_out() -> None:
    story = Story()
    story.call()
    assert story.tell(Recalled(1.0, Memory(64, (Lesson(GENERIC, "wrong", units=("u",)),)))) == []
    story.tell(Built(1.0, GENERIC, story.last(Build).attempt, 3, 0.1))
    assert story.last(Prove).without == ("u",)


def test_a_failed_build_is_left_alone_for_longer_and_longer() -> None:
    story, waits = Story(), []
    for _ in range(3):
        story.call(seconds=1000.0)
        build = story.last(Build)
        assert kinds(story.tell(BuildFailed(story.now_s, GENERIC, build.attempt, "killed", False))) == ["Retire", "Rest"]
        rest = story.last(Rest)
        waits.append(rest.until_s - story.now_s)
        story.now_s = rest.until_s - 0.01
        assert story.call(seconds=1000.0) == []
        assert "killed" in objection(story.state, GENERIC)
        story.now_s = rest.until_s
    first = Rules().back_off_s
    assert waits == [first, 2 * first, 4 * first]
    assert kinds(story.wait(0.0)) == ["Build"]


def test_a_build_that_fails_for_good_is_not_tried_again() -> None:
    story = Story()
    story.call()
    story.tell(BuildFailed(0.0, GENERIC, story.last(Build).attempt, "no compiler", True))
    story.now_s = 1e6
    assert story.call(seconds=1e6) == []
    assert objection(story.state, GENERIC) == "it never serves again: no compiler"


def test_a_build_without_kernels_is_not_tried_again() -> None:
    story = Story()
    story.call()
    assert kinds(story.tell(Built(0.0, GENERIC, story.last(Build).attempt, 0, 0.1))) == ["Retire"]
    assert story.call(seconds=1e6) == []


@pytest.mark.parametrize("stage", [Prove, Shadow])
def test_a_proof_that_could_not_be_made_backs_off(stage: type[Prove] | type[Shadow]) -> None:
    story = Story()
    story.call()
    story.tell(Built(0.0, GENERIC, story.last(Build).attempt, 3, 0.1))
    attempt = story.last(Prove).attempt
    if stage is Shadow:
        story.tell(Proved(0.0, GENERIC, attempt))
    assert kinds(story.tell(BuildFailed(0.0, GENERIC, attempt, "the worker died", False))) == ["Retire", "Rest"]


def proving() -> Story:
    story = Story()
    story.call()
    story.tell(Built(0.0, GENERIC, story.last(Build).attempt, 3, 0.1))
    return story


def test_wrong_units_are_left_out_and_the_rest_is_proved_again() -> None:
    story = proving()
    decided = story.tell(Disproved(0.0, GENERIC, story.last(Prove).attempt, ("u", "v", "u"), "off by 1"))
    assert kinds(decided) == ["Quarantine", "Prove"]
    assert story.last(Quarantine).units == ("u", "v")
    assert story.last(Prove).without == ("u", "v")
    story.tell(Disproved(0.0, GENERIC, story.last(Prove).attempt, ("w",), "off by 2"))
    assert story.last(Prove).without == ("u", "v", "w")
    story.tell(Proved(0.0, GENERIC, story.last(Prove).attempt))
    story.settle()
    assert story.serving == {GENERIC}


def test_units_that_are_wrong_are_left_out_of_a_later_build() -> None:
    story = proving()
    story.tell(Disproved(0.0, GENERIC, story.last(Prove).attempt, ("u",), "off by 1"))
    story.tell(BuildFailed(0.0, GENERIC, story.last(Prove).attempt, "the worker died", False))
    story.now_s = 1000.0
    story.call()
    assert story.last(Build).without == ("u",)


@pytest.mark.parametrize("units", [(), ("u",), tuple(map(str, range(17)))])
def test_a_target_with_no_right_part_left_is_quarantined(units: tuple[str, ...]) -> None:
    """None named, none new (the first of them was left out already), or too many."""
    story = proving()
    story.tell(Disproved(0.0, GENERIC, story.last(Prove).attempt, ("u",), "off by 1"))
    assert kinds(story.tell(Disproved(0.0, GENERIC, story.last(Prove).attempt, units, "off"))) == ["Retire", "Quarantine"]
    assert story.call(seconds=1e6) == []


def test_a_shadowed_call_that_differs_quarantines() -> None:
    story = proving()
    story.tell(Proved(0.0, GENERIC, story.last(Prove).attempt))
    decided = story.tell(Shadowed(0.0, GENERIC, story.last(Shadow).attempt, False, "row 3 differs"))
    assert kinds(decided) == ["Retire", "Quarantine"]
    story.now_s = 1e6
    assert story.call(seconds=1e6) == []
    assert "row 3 differs" in objection(story.state, GENERIC)


def test_as_many_shadowed_calls_as_asked_for_must_agree() -> None:
    story = Story(Rules(shadow_calls=3))
    story.call()
    story.tell(Built(0.0, GENERIC, story.last(Build).attempt, 3, 0.1))
    story.tell(Proved(0.0, GENERIC, story.last(Prove).attempt))
    shadow = story.last(Shadow)
    assert shadow.calls == 3
    agree = Shadowed(0.0, GENERIC, shadow.attempt, True, "")
    assert [kinds(story.tell(agree)) for _ in range(3)] == [[], [], ["Publish", "Measure"]]


def test_an_audit_that_differs_takes_out_what_serves_and_what_stands_on_it() -> None:
    story = serving_generic()
    story.call("8", tier=1)
    story.settle()
    assert story.serving == {GENERIC, Baked("8")}
    audit = Shadowed(0.0, GENERIC, story.state.live[0].attempt, False, "row 3 differs")
    assert kinds(story.tell(audit)) == ["Retire", "Retire", "Quarantine"]
    assert story.retired() == [Baked("8"), GENERIC]
    assert story.tell(audit) == []


def test_a_late_audit_speaks_against_a_target_that_was_retired() -> None:
    story = serving_generic()
    attempt = story.state.live[0].attempt
    story.tell(Measured(0.0, GENERIC, attempt, "8", 2.0, 1.0, 0.1))
    assert story.serving == set()
    assert kinds(story.tell(Shadowed(0.0, GENERIC, attempt, False, "row 3 differs"))) == ["Quarantine"]
    story.now_s = 1e6
    assert story.call(seconds=1e6) == []


def test_an_audit_from_before_a_change_says_nothing() -> None:
    story = serving_generic()
    attempt = story.state.live[0].attempt
    story.tell(Changed(0.0, "new weights"))
    assert story.tell(Shadowed(0.0, GENERIC, attempt, False, "row 3 differs")) == []
    story.wait(10.0)
    story.settle()
    assert story.serving == {GENERIC}


def test_a_full_memory_of_failures_builds_nothing_more() -> None:
    story = serving_generic(Rules(lessons=2))
    for form in ("a", "b"):
        story.call(form, tier=1, seconds=100.0)
        story.tell(BuildFailed(0.0, Baked(form), story.last(Build).attempt, "no", True))
    assert "Build" not in kinds(story.call("c", tier=1, seconds=1000.0))
    assert objection(story.state, Baked("c")) == "2 others failed for good: nothing is built any more"


def test_what_failed_is_remembered_by_the_next_process() -> None:
    story = serving_generic()
    story.tell(Measured(0.0, GENERIC, story.state.live[0].attempt, "8", 2.0, 1.0, 0.1))
    text = write_memory(story.state.memory, 10.0)
    later = Story(memory=read_memory(text, 1000.0), now_s=1000.0)
    assert later.call(seconds=1e3) == []
    later.now_s += Rules().back_off_s - 10.0
    assert kinds(later.call(seconds=1e3)) == ["Build"]
    assert later.state.memory.of(GENERIC).backoff.times == 1


# ---- measured on traffic


def measured(story: Story, target: Generic | Baked | Merged | Split, seconds: float, base: float = 1.0) -> list[str]:
    live = story.state.find(target)
    assert live is not None
    return kinds(story.tell(Measured(story.now_s, target, live.attempt, "8", seconds, base, 0.1)))


@pytest.mark.parametrize(("seconds", "stays"), [(0.85, True), (0.95, True), (1.05, True), (1.15, False), (math.nan, False)])
def test_generic_kernels_that_are_slower_by_more_than_the_spread_are_retired(seconds: float, stays: bool) -> None:
    story = proving()
    story.tell(Proved(0.0, GENERIC, story.last(Prove).attempt))
    story.tell(Shadowed(0.0, GENERIC, story.last(Shadow).attempt, True, ""))
    assert measured(story, GENERIC, seconds) == ([] if stays else ["Retire", "Rest"])
    assert (story.serving == {GENERIC}) is stays


def test_what_has_paid_leaves_only_when_it_is_slower_by_more_than_the_spread() -> None:
    story = serving_generic()
    assert measured(story, GENERIC, 1.05) == []
    assert measured(story, GENERIC, 1.15) == ["Retire", "Rest"]


def test_a_merge_that_is_slower_than_its_parts_is_taken_out_and_backs_off() -> None:
    story, pair = serving_generic(), Merged(("a", "b"))
    story.call("8", tier=1, seconds=1.0)
    story.spot(pair)
    story.settle()
    assert pair in story.serving
    assert measured(story, pair, 1.2) == ["Retire", "Rest"]
    assert story.spot(pair, 10.0) == []
    assert GENERIC in story.serving
    story.now_s += Rules().back_off_s
    assert kinds(story.spot(pair, 10.0)) == ["Build"]


def test_a_fusion_that_the_profile_shows_to_be_slow_is_taken_apart() -> None:
    story, apart = serving_generic(), Split(("a",))
    assert kinds(story.spot(apart, 0.2)) == ["Build"]
    story.settle()
    assert story.serving == {GENERIC, apart}


# ---- changes


def test_a_change_takes_everything_out_until_it_is_proved_again() -> None:
    story = serving_generic()
    story.call("8", tier=1)
    story.settle()
    builds = len(story.asked(Build))
    assert kinds(story.tell(Changed(1.0, "new weights"))) == ["Withdraw", "Withdraw", "Rest"]
    assert story.serving == set()
    assert story.tell(Tick(1.0)) == []
    story.now_s = story.last(Rest).until_s
    assert kinds(story.wait(0.0)) == ["Prove"]
    story.settle()
    assert story.serving == {GENERIC, Baked("8")}
    assert len(story.asked(Build)) == builds  # what was built is
    assert "new weights" in story.asked(Prove)[-1].reason


def test_a_proof_that_was_begun_before_a_change_does_not_count() -> None:
    story = proving()
    before = story.last(Prove)
    story.tell(Changed(0.0, "new weights"))
    story.wait(10.0)
    after = story.last(Prove)
    assert after.attempt != before.attempt
    assert story.tell(Proved(10.0, GENERIC, before.attempt)) == []
    assert kinds(story.tell(Proved(10.0, GENERIC, after.attempt))) == ["Shadow"]


def test_a_build_that_was_begun_before_a_change_does() -> None:
    story = Story()
    story.call()
    story.tell(Changed(0.0, "new weights"))
    story.wait(10.0)
    assert kinds(story.tell(Built(10.0, GENERIC, story.last(Build).attempt, 3, 0.1))) == ["Prove"]


def test_a_restless_model_is_waited_for_longer_and_longer_and_a_quiet_one_is_not() -> None:
    story, rules, waits = serving_generic(), Rules(), []
    for _ in range(3):
        story.tell(Changed(story.now_s, "a step of training"))
        waits.append(story.last(Rest).until_s - story.now_s)
        story.now_s = story.last(Rest).until_s
        story.tell(Tick(story.now_s))
        story.settle()
        assert story.serving == {GENERIC}
    assert waits == [rules.quiet_s, 2 * rules.quiet_s, 4 * rules.quiet_s]
    story.now_s += 2 * rules.most_quiet_s
    story.tell(Changed(story.now_s, "new weights"))
    assert story.last(Rest).until_s - story.now_s == rules.quiet_s


def test_another_regime_retires_forms_that_became_rare_and_bakes_the_new_ones() -> None:
    story = serving_generic()
    for _ in range(100):
        story.now_s += 0.1
        story.call("a", tier=2, seconds=0.1)
        story.settle()
    assert story.serving == {GENERIC, Baked("a")}
    for _ in range(1000):
        story.now_s += 0.1
        story.call("b", tier=1, seconds=0.1)
        story.settle()
    assert story.serving == {GENERIC, Baked("b")}
    assert any("other forms have most of the time" in m.reason for m in story.asked(Measure))
    assert [r.target for r in story.asked(Retire)] == [Baked("a")]
    assert "became rare" in story.last(Retire).reason


def test_what_serves_is_measured_again_now_and_then_but_less_and_less_often() -> None:
    story, asked = serving_generic(Rules(tier=1)), []
    for _ in range(3600):
        story.now_s += 1.0
        if any(isinstance(d, Measure) for d in story.call(tier=1, seconds=0.5)):
            asked.append(story.now_s)
        story.settle()
    gaps = [b - a for a, b in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert 5 <= len(asked) <= 12
    assert gaps[-1] == Rules().most_review_s


def test_an_idle_model_loses_nothing_and_asks_for_nothing() -> None:
    story = serving_generic()
    story.call("8", tier=1)
    story.settle()
    story.wait(60.0)  # what was called before is looked at once more
    story.settle()
    asked = len(story.decisions)
    for _ in range(1000):
        story.wait(60.0)
    assert len(story.decisions) == asked
    story.call("9", tier=1, seconds=0.01)  # the first call after a night is no regime
    assert story.serving == {GENERIC, Baked("8")}


# ---- fuel, and what step itself promises


@pytest.mark.parametrize("fuel", [0, 1, 2])
def test_fuel_bounds_what_is_published(fuel: int) -> None:
    story = Story(Rules(fuel=fuel))
    story.call()
    story.settle()
    for form in "abc":
        story.call(form, tier=1, seconds=10.0)
        story.settle()
    assert story.published() == [GENERIC, Baked("a"), Baked("b")][:fuel]
    assert f"all {fuel} decisions" in objection(story.state, Baked("c"))


def test_fuel_that_others_spent_meanwhile_keeps_a_target_from_being_published() -> None:
    story = Story(Rules(fuel=2))
    story.tell(Spent(0.0, 1))
    story.call()
    for answer in (Build, Prove):
        story.tell(good_answer(story.last(answer), story.now_s))
    shadow = story.last(Shadow)
    story.tell(Spent(story.now_s, 2))
    story.tell(good_answer(shadow, story.now_s))
    assert story.published() == []
    assert story.retired() == [GENERIC]
    assert "all 2 decisions" in objection(story.state, GENERIC)


def test_a_change_spends_fuel_as_well() -> None:
    story = serving_generic(Rules(fuel=1))
    story.tell(Changed(0.0, "new weights"))
    assert story.wait(1000.0) == []
    assert story.serving == set()


@pytest.mark.parametrize("now_s", [math.nan, math.inf])
def test_a_clock_that_shows_no_time_is_refused(now_s: float) -> None:
    with pytest.raises(VerifyError, match="correct the clock"):
        step(start(Rules()), Tick(now_s))


def test_a_clock_that_is_set_back_stands_still() -> None:
    state, _ = step(start(Rules()), Tick(100.0))
    state, _ = step(state, Tick(50.0))
    assert state.now_s == 100.0


def test_a_long_story_of_a_compiler_is_cut() -> None:
    story = Story()
    story.call()
    story.tell(BuildFailed(0.0, GENERIC, story.last(Build).attempt, "x" * 10**6, False))
    assert len(write_record(story.state)) < 5000


def test_a_state_reads_back_as_it_was_and_goes_on_alike() -> None:
    story = serving_generic()
    story.call("8", tier=1)
    state = read_record(State, write_record(story.state))
    assert state == story.state
    build = story.last(Build)
    event = Built(0.0, build.target, build.attempt, 1, 0.1)
    assert step(state, event) == step(story.state, event)


def test_step_changes_no_state() -> None:
    story = serving_generic()
    before = replace(story.state)
    step(story.state, Called(0.0, "8", 1, 100.0, 1))
    assert story.state == before


def test_withdrawn_and_published_say_why() -> None:
    story = serving_generic()
    assert story.last(Publish).reason == (
        "it was proved, and 1 shadowed calls agreed (3 kernels were built in 0.2 s of CPU time)"
    )
    story.tell(Changed(0.0, "new weights"))
    assert story.last(Withdraw).reason == "to be proved again: new weights"
