"""The tier machine and edits of the kernels for one form: they stand on these, and are others than edits for all sizes."""

from __future__ import annotations

from hotfuse.adaptive.message import Build, Built, Measure, Retire, Shadowed
from hotfuse.adaptive.promotion import objection
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.target import Baked, Generic, Revised, Split
from tests.adaptive.story import CODE_BYTES, Story, serving_generic

GENERIC = Generic()


def serving_a_form() -> Story:
    story = serving_generic(Rules(baked_gain=1.0))
    story.call("8", tier=1, seconds=10.0)
    story.settle()
    assert story.serving == {GENERIC, Baked("8")}
    return story


def test_an_edit_of_kernels_for_a_form_stands_on_these() -> None:
    story = serving_a_form()
    edit = Revised("grain", ("u",), "8")
    story.spot(edit, 10.0)
    story.settle()
    assert story.serving == {GENERIC, Baked("8"), edit}
    assert story.asked(Measure)[-1].form == "8"
    live = story.state.find(Baked("8"))
    assert live is not None
    told = story.tell(Shadowed(story.now_s, Baked("8"), live.attempt, False, "row 3 differs"))
    assert [d.target for d in told if isinstance(d, Retire)] == [edit, Baked("8")]
    assert story.serving == {GENERIC}


def test_an_edit_of_kernels_that_there_are_not_is_not_begun() -> None:
    story = serving_generic()
    edit = Revised("grain", ("u",), "8")
    assert story.spot(edit, 10.0) == []
    assert "kernels for 8 that it stands on do not serve" in objection(story.state, edit)


def test_an_edit_whose_kernels_went_while_it_was_built_goes() -> None:
    story = serving_a_form()
    edit = Revised("grain", ("u",), "8")
    story.spot(edit, 10.0)
    attempt = story.last(Build).attempt
    live = story.state.find(Baked("8"))
    assert live is not None
    story.tell(Shadowed(story.now_s, Baked("8"), live.attempt, False, "row 3 differs"))
    told = story.tell(Built(story.now_s, edit, attempt, 1, 0.1))
    assert [d.target for d in told if isinstance(d, Retire)] == [edit]


def test_units_of_one_form_are_others_than_those_for_all_sizes() -> None:
    story = serving_a_form()
    for edit in (Revised("grain", ("u",), "8"), Split(("u",)), Revised("tiles", ("u", "v"), "8")):
        story.spot(edit, 10.0)
        story.settle()
    assert Split(("u",)) in story.serving
    story.spot(Revised("tiles", ("u", "v"), "8"), 100.0)
    story.settle()
    assert story.serving == {GENERIC, Baked("8"), Split(("u",)), Revised("tiles", ("u", "v"), "8")}


def test_an_edit_never_pushes_out_what_it_stands_on() -> None:
    story = serving_generic(Rules(baked_gain=1.0, special_bytes=CODE_BYTES * 2 - 1))
    story.call("8", tier=1, seconds=10.0)
    story.settle()
    edit = Revised("grain", ("u",), "8")
    story.spot(edit, 100.0)
    story.settle()
    assert story.serving == {GENERIC, Baked("8")}
    assert any(isinstance(d, Retire) and d.target == edit and "no room" in d.reason for d in story.decisions)
    assert story.state.memory.of(edit).backoff.times == 1


def test_an_edit_for_all_sizes_is_measured_on_calls_that_run_it() -> None:
    story = serving_a_form()
    story.call("3", tier=1, seconds=0.01)  # too little for kernels of its own
    edit = Revised("grain", ("u",))
    story.spot(edit, 10.0)
    story.settle()
    assert edit in story.serving
    assert [d.form for d in story.asked(Measure) if d.target == edit][-1] == "3"
