"""What is decided and cannot be begun does not wait for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotfuse.adaptive.lineup import Lineup
from hotfuse.adaptive.making import Making
from hotfuse.adaptive.message import Build, BuildFailed, Event
from hotfuse.adaptive.state import Live, Rules, State, start
from hotfuse.adaptive.target import Baked
from hotfuse.config import Config
from hotfuse.events import EventLog

TARGET = Baked("form")


class Subject:
    """Of a subject, what is asked before there is a call of the form."""

    name, config = "model", Config(cache="off")

    def __init__(self) -> None:
        self.events = EventLog()

    def sample(self, form: Any) -> None:
        return None


def waiting(forms: dict[str, Any]) -> tuple[Making, State, list[Event]]:
    told: list[Event] = []
    subject: Any = Subject()
    making = Making(subject, Lineup(subject), forms, told.append, lambda work: None)
    making.build(Build(TARGET, 3, (), "it is hot"))
    return making, replace(start(Rules()), live=(Live(TARGET, 3, "building"),)), told


def test_a_build_whose_calls_do_not_come_again_makes_room() -> None:
    making, state, told = waiting({"form": object()})
    making.go_on(state)
    assert making.waits
    assert not told
    making._waits_since_s -= state.rules.patience_s
    making.go_on(state)
    assert not making.waits
    (failed,) = told
    assert isinstance(failed, BuildFailed)
    assert (failed.target, failed.attempt, failed.lasting) == (TARGET, 3, False)
    assert "no call of its form came" in failed.reason


@pytest.mark.parametrize("attempt", [3, 4])
def test_a_form_that_is_not_known_any_more_is_not_waited_for(attempt: int) -> None:
    """Nor is one that nobody wants any more: then nobody is told."""
    making, state, told = waiting({})
    making.go_on(replace(state, live=(Live(TARGET, attempt, "building"),)))
    assert not making.waits
    assert len(told) == (attempt == 3)
