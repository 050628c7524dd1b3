"""Contests: one duel at a time, and none for ever."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import pytest

from hotfuse.adaptive import contests
from hotfuse.adaptive.contests import Contests
from hotfuse.adaptive.message import Measure
from hotfuse.adaptive.tally import Tally
from hotfuse.adaptive.target import Baked, Generic, Split, Target
from hotfuse.runtime.turns import Times

GENERIC, ONE, OTHER = Generic(), Split(("one",)), Split(("other",))
FORMS: dict[str, Hashable] = {"8": (8,), "9": (9,)}


class Duels:
    """Stands for a subject: the duel that is under way, and those before."""

    def __init__(self) -> None:
        self.begun: list[tuple[Hashable, Any]] = []
        self.report: Callable[[Times], None] | None = None

    def duel(self, form: Hashable, other: Any, report: Callable[[Times], None]) -> None:
        self.begun.append((form, other))
        self.report = report

    def end_duel(self) -> None:
        self.report = None


class Found:
    """Contests of a lineup, and what came of them."""

    def __init__(self, *serving: Target) -> None:
        self.subject, self.tally, self.serving = Duels(), Tally(), serving
        self.told: list[tuple[Target, Times]] = []
        self.contests = Contests(self.subject, self.tally, self._candidate)  # type: ignore[arg-type]

    def _candidate(self, targets: Collection[Target]) -> tuple[Target, ...]:
        return tuple(targets)

    def ask(self, target: Target, form: str = "8", reason: str = "") -> None:
        self.contests.ask(Measure(target, 1, form, reason))

    def look(self, **calls: int) -> None:
        """After so many calls of forms."""
        self.contests.count({form.removeprefix("of_"): count for form, count in calls.items()})
        self.contests.begin(FORMS, self.serving, self._measured)

    def _measured(self, measure: Measure, times: Times) -> None:
        self.told.append((measure.target, times))
        self.contests.end(measure)

    def finish(self) -> None:
        assert self.subject.report is not None
        self.subject.report(Times(1.0, 2.0, 0.1))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contests, "ELSEWHERE", 100)


def test_a_duel_whose_form_stays_away_makes_room_for_others() -> None:
    found = Found(GENERIC, ONE, OTHER)
    found.ask(ONE, "9")
    found.ask(OTHER, "8")
    found.look(of_9=1)
    assert found.subject.begun == [((9,), (GENERIC, OTHER))]
    found.look(of_8=60)
    found.look(of_8=30, of_9=1)  # it still comes
    found.look(of_8=60)
    assert len(found.subject.begun) == 1
    found.look(of_8=60)
    assert found.subject.begun[1:] == [((8,), (GENERIC, ONE))]
    found.finish()
    assert [target for target, _ in found.told] == [OTHER]
    found.look(of_8=60)
    assert len(found.subject.begun) == 2  # nobody waits for a form in vain twice
    found.look(of_9=1)
    assert found.subject.begun[2:] == [((9,), (GENERIC, OTHER))]
    found.finish()
    assert [target for target, _ in found.told] == [OTHER, ONE]


def test_a_duel_is_begun_again_beside_another_lineup() -> None:
    found = Found(GENERIC, ONE, Baked("8"))
    found.ask(ONE)
    found.look(of_8=1)
    found.serving = (GENERIC, ONE)
    found.contests.restart()
    found.look(of_8=1)
    assert found.subject.begun == [((8,), (GENERIC, Baked("8"))), ((8,), (GENERIC,))]


@pytest.mark.parametrize("above", [(), (ONE,), (ONE, Baked("8"))])
def test_the_generic_kernels_are_judged_by_all_that_stands_on_them(above: tuple[Target, ...]) -> None:
    found = Found(GENERIC, *above)
    for tier in (0, 1) * 20:  # calls before publication took as long as those since: that is not clear
        found.tally.note((8,), tier, 1.0)
    found.tally.collect()
    found.ask(GENERIC)
    for target in above:
        found.ask(target)
    for _ in found.serving:
        found.look(of_8=1)
        found.finish()
    assert found.subject.begun[-1] == ((8,), None)  # what serves, against the original
    assert [target for target, _ in found.told] == [*above, GENERIC]


def test_the_same_is_measured_once_however_often_it_is_asked_for() -> None:
    found = Found(GENERIC, ONE, OTHER)
    for reason in ("published", "review 1", "review 2"):
        found.ask(ONE, "8", reason)
    found.look(of_8=1)
    found.ask(ONE, "8", "review 3")
    found.ask(OTHER, "8")
    found.ask(OTHER, "9")  # the form that is hot now
    found.finish()
    found.look(of_9=1)
    found.finish()
    found.look(of_8=1, of_9=1)
    assert [form for form, _ in found.subject.begun] == [(8,), (9,)]
    assert [target for target, _ in found.told] == [ONE, OTHER]
