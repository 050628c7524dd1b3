"""Promotion: what is worth building, in what order, and what makes room for it."""

from __future__ import annotations

from hotfuse.adaptive.message import Build, BuildFailed, Built, Changed, Measure, Prove, Queue, Retire
from hotfuse.adaptive.promotion import objection
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.target import Baked, Generic, Merged, Split
from tests.adaptive.story import Story, kinds, serving_generic

GENERIC = Generic()


# ---- what is built


def test_a_target_is_built_proved_shadowed_and_published_in_that_order() -> None:
    story = Story()
    story.call()
    story.settle()
    assert kinds(story.decisions) == ["Build", "Prove", "Shadow", "Publish", "Measure"]
    assert story.serving == {GENERIC}


def test_time_counts_and_not_calls() -> None:
    rules = Rules()
    many, one = Story(), Story()
    assert many.call(seconds=0.9 * rules.budget_s / rules.generic_gain, count=100_000) == []
    assert kinds(one.call(seconds=1.1 * rules.budget_s / rules.generic_gain, count=1)) == ["Build"]


def test_time_adds_up_and_fades() -> None:
    rules, share = Rules(), 0.6 * Rules().budget_s / Rules().generic_gain
    story = Story()
    assert story.call(seconds=share) == []
    story.now_s += 2 * rules.half_life_s
    assert story.call(seconds=share) == []  # a quarter of the first is left
    assert kinds(story.call(seconds=share)) == ["Build"]


def test_the_budget_rises_with_the_queue() -> None:
    story = Story()
    enough = 1.1 * Rules().budget_s / Rules().generic_gain
    story.tell(Queue(0.0, 3))
    assert story.call(seconds=enough) == []
    assert "with 3 jobs waiting" in objection(story.state, GENERIC)
    assert kinds(story.tell(Queue(0.0, 0))) == ["Build"]


def test_reasons_name_the_numbers() -> None:
    story = Story()
    story.call(seconds=2.0, count=7)
    assert story.last(Build).reason == "1.00 s of 2.00 s could be saved, more than 50 ms; 7 calls so far, 0 jobs wait"


def test_tier_0_builds_nothing_and_tier_1_bakes_nothing() -> None:
    assert Story(Rules(tier=0)).call(seconds=1e6) == []
    story = serving_generic(Rules(tier=1))
    assert story.call(tier=1, seconds=1e6) == []
    assert "tier 1 is the highest" in objection(story.state, Baked("8"))
    assert kinds(story.spot(Merged(("a", "b")), 1e6)) == ["Build"]


def test_a_hot_form_is_baked_once_the_generic_kernels_serve() -> None:
    story = serving_generic()
    assert "Build" in kinds(story.call("8x128", tier=1, seconds=1.0))
    story.settle()
    assert story.published() == [GENERIC, Baked("8x128")]
    assert story.last(Measure).form == "8x128"


def test_a_form_that_has_a_small_share_is_not_baked() -> None:
    story = serving_generic(Rules(baked=1))
    story.call("8", tier=1, seconds=100.0)
    story.settle()
    story.call("9", tier=1, seconds=5.0)
    assert "less than 1.0%" in objection(story.state, Baked("9"))
    assert story.published() == [GENERIC, Baked("8")]


def test_one_target_is_in_the_making_at_a_time_and_what_is_worth_most_comes_first() -> None:
    story = serving_generic()
    story.call("a", tier=1, seconds=2.0)
    story.call("b", tier=1, seconds=3.0)
    story.spot(Merged(("u", "v")), 1.0)
    assert "kernels for a: building" in objection(story.state, Baked("b"))
    story.settle()
    assert story.published() == [GENERIC, Baked("a"), Merged(("u", "v")), Baked("b")]


def test_many_random_shapes_build_generic_kernels_and_nothing_else() -> None:
    story = serving_generic()
    for i in range(2000):
        story.now_s += 0.01
        story.call(str(i * 7919 % 1000), tier=1, seconds=0.01)
        story.settle()
    assert story.published() == [GENERIC]
    assert len(story.state.fused.entries) == Rules().forms


# ---- room


def test_there_are_never_more_baked_forms_than_allowed_and_the_coldest_leaves() -> None:
    story = serving_generic(Rules(baked=2))
    for form, seconds in (("a", 4.0), ("b", 3.0), ("c", 6.5)):
        story.call(form, tier=1, seconds=seconds)
        story.settle()
    assert story.serving == {GENERIC, Baked("a"), Baked("c")}
    assert "makes room for kernels for c" in story.last(Retire).reason


def test_forms_that_are_about_as_hot_do_not_take_turns() -> None:
    story = serving_generic(Rules(baked=1))
    for i in range(400):
        story.now_s += 0.1
        story.call("ab"[i % 2], tier=1, seconds=0.1)
        story.settle()
    assert story.published() == [GENERIC, Baked("a")]
    assert "not 2 times as much" in objection(story.state, Baked("b"))


def test_what_would_be_replaced_serves_until_it_is() -> None:
    story = serving_generic(Rules(baked=1))
    story.call("a", tier=1, seconds=1.0)
    story.settle()
    story.call("b", tier=1, seconds=10.0)
    build = story.last(Build)
    assert (build.target, story.serving) == (Baked("b"), {GENERIC, Baked("a")})
    story.tell(BuildFailed(0.0, Baked("b"), build.attempt, "killed", False))
    assert story.serving == {GENERIC, Baked("a")}


def test_edits_of_the_same_units_do_not_serve_together() -> None:
    story, pair, three = serving_generic(), Merged(("a", "b")), Merged(("b", "c", "d"))
    story.spot(pair, 1.0)
    story.settle()
    story.spot(three, 1.5)
    assert "a + b as one" in objection(story.state, three)
    story.spot(three, 1.5)
    story.settle()
    assert story.serving == {GENERIC, three}


def test_what_would_replace_something_that_came_to_be_worth_more_does_not() -> None:
    """It was the hotter one when it was begun."""
    story, pair, apart = serving_generic(), Merged(("a", "b")), Split(("b",))
    story.spot(pair, 1.0)
    story.settle()
    story.spot(apart, 3.0)
    assert story.jobs
    story.spot(pair, 9.0)
    story.settle()
    assert pair in story.serving
    assert apart not in story.serving
    assert "worth 3.00 s by now" in story.last(Retire).reason
    assert not story.state.memory.of(apart).barred


def test_what_waits_for_calls_that_never_come_gives_way_to_something_hotter() -> None:
    story = serving_generic()
    story.call("a", tier=1, seconds=1.0)
    story.tell(Built(0.0, Baked("a"), story.last(Build).attempt, 3, 0.1))
    assert story.last(Prove).target == Baked("a")
    story.now_s = Rules().patience_s - 0.1
    assert "Build" not in kinds(story.call("b", tier=1, seconds=5.0))
    assert objection(story.state, Baked("b")) == "kernels for a: proving"
    story.now_s += 0.1
    assert kinds(story.wait(0.0)) == ["Retire", "Build"]
    assert story.last(Build).target == Baked("b")


def test_a_build_and_generic_kernels_do_not_give_way() -> None:
    story = serving_generic()
    story.call("a", tier=1, seconds=1.0)
    story.now_s = 10 * Rules().patience_s
    assert "Build" not in kinds(story.call("b", tier=1, seconds=50.0))
    story.tell(Changed(story.now_s, "new weights"))
    story.tell(Built(story.now_s, Baked("a"), story.last(Build).attempt, 3, 0.1))
    story.wait(1.0)
    assert story.last(Prove).target == GENERIC
    story.now_s += 10 * Rules().patience_s
    assert story.call("b", tier=1, seconds=50.0) == []


def baked_with_code(story: Story, form: str, seconds: float, code_bytes: int) -> list[str]:
    """A form becomes hot, and kernels of its own with so much code are built; what is decided then."""
    story.call(form, tier=1, seconds=seconds)
    build = story.last(Build)
    assert build.target == Baked(form)
    decided = kinds(story.tell(Built(story.now_s, build.target, build.attempt, 3, 0.1, code_bytes)))
    story.settle()
    return decided


def test_what_is_too_large_is_never_built_again() -> None:
    story = serving_generic(Rules(special_bytes=100))
    assert baked_with_code(story, "a", 1.0, 101) == ["Retire"]
    assert "too large: 101 bytes" in objection(story.state, Baked("a"))
    assert story.serving == {GENERIC}


def test_code_of_all_that_is_special_is_bounded() -> None:
    story = serving_generic(Rules(special_bytes=100))
    baked_with_code(story, "a", 1.0, 60)
    assert story.serving == {GENERIC, Baked("a")}
    assert "Retire" not in baked_with_code(story, "b", 3.0, 60)
    assert story.serving == {GENERIC, Baked("b")}
    assert "makes room" in story.last(Retire).reason


def test_what_is_large_and_not_much_hotter_pushes_nothing_out() -> None:
    story = serving_generic(Rules(special_bytes=100))
    baked_with_code(story, "a", 3.0, 60)
    assert baked_with_code(story, "b", 3.0, 60)[:2] == ["Retire", "Rest"]
    assert story.serving == {GENERIC, Baked("a")}
    assert "60 bytes of code would push out kernels for a" in story.last(Retire).reason
