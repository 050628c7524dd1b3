"""What calls freed is given back soon after a publication, and later where the process has grown."""

from __future__ import annotations

import pytest

from hotfuse.adaptive import spare
from hotfuse.adaptive.spare import EVERY_S, SOON_S, Spare
from hotfuse.runtime import child

MIB = 1 << 20


class Process:
    """Stands for this one: memory, and when some of it was given back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held, self.used, self.given = 500 * MIB, 100 * MIB, 0
        monkeypatch.setattr(child, "resident_bytes", lambda pid: self.held)
        monkeypatch.setattr(spare, "give_back", self.give_back)

    def give_back(self) -> None:
        self.given += 1
        self.held = self.used


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_nothing_is_given_back_before_a_publication(process: Process) -> None:
    found = Spare()
    found.tick(1000.0)
    assert process.given == 0


def test_it_is_given_back_soon_after_one(process: Process) -> None:
    found = Spare()
    found.published(10.0)
    found.tick(10.0 + SOON_S / 2)
    assert process.given == 0
    found.tick(10.0 + SOON_S)
    assert (process.given, process.held) == (1, process.used)


def test_a_process_that_does_not_grow_is_left_alone(process: Process) -> None:
    found = Spare()
    found.published(0.0)
    for second in range(200):
        found.tick(float(second))
    assert process.given == 1


def test_one_that_grows_gives_back_now_and_then(process: Process) -> None:
    found = Spare()
    found.published(0.0)
    for second in range(200):
        process.held += MIB
        found.tick(float(second))
    assert 200 / EVERY_S - 2 <= process.given <= 200 / EVERY_S + 1


def test_another_publication_gives_back_whatever_the_last_one_left(process: Process) -> None:
    found = Spare()
    for now_s in (0.0, 5.0):
        found.published(now_s)
        found.tick(now_s + SOON_S)
    assert process.given == 2
