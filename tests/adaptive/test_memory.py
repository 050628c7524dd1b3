"""What is remembered of failed targets: it grows, it is bounded, it outlives the process, and nothing damaged is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotfuse.adaptive.memory import Lesson, Memory, read_memory, write_memory
from hotfuse.adaptive.message import Called, Decision, Disproved, Event, Prove
from hotfuse.adaptive.target import Baked, Generic, Merged, Split, Target
from hotfuse.errors import ParseError
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.runtime.backoff import Backoff


def test_back_off_doubles_up_to_a_bound() -> None:
    backoff, waits = Backoff(), []
    for _ in range(6):
        backoff = backoff.longer(100.0, 2.0, 20.0)
        waits.append(backoff.until_s - 100.0)
    assert waits == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert Backoff(times=10**6).longer(0.0, 2.0, 20.0).until_s == 20.0


def test_back_off_is_over_at_its_end() -> None:
    backoff = Backoff().longer(100.0, 2.0, 20.0)
    assert [backoff.is_over(t) for t in (100.0, 101.9, 102.0)] == [False, False, True]


def lesson(form: str, **fields: Any) -> Lesson:
    return Lesson(Baked(form), f"why {form}", **fields)


def test_one_lesson_for_each_target() -> None:
    memory = Memory(4).learn(lesson("a")).learn(lesson("b")).learn(lesson("a", barred=True))
    assert [known.target for known in memory.lessons] == [Baked("b"), Baked("a")]
    assert memory.of(Baked("a")).barred
    assert memory.of(Generic()) == Lesson(Generic(), "")


def test_lessons_that_need_not_last_make_room() -> None:
    memory = Memory(2).learn(lesson("a", barred=True)).learn(lesson("b")).learn(lesson("c"))
    assert [known.target for known in memory.lessons] == [Baked("a"), Baked("c")]
    memory = memory.learn(lesson("d", units=("u",)))
    assert memory.is_full
    assert [known.target for known in memory.lessons] == [Baked("a"), Baked("d")]


def test_a_full_memory_takes_no_other_but_changes_what_it_has() -> None:
    memory = Memory(1).learn(lesson("a", units=("u",)))
    assert memory.learn(lesson("b", barred=True)) is memory
    assert memory.learn(lesson("a", barred=True)).of(Baked("a")).barred


def full_memory() -> Memory:
    waiting = lesson("8x128", backoff=Backoff(3, 140.0))
    over = Lesson(Merged(("a", "b")), "slow", backoff=Backoff(1, 90.0))
    return Memory(8, (waiting, over, Lesson(Generic(), "wrong", units=("a",)), Lesson(Split(("c",)), "wrong", barred=True)))


def test_memory_outlives_the_process_and_its_clock() -> None:
    data = write_memory(full_memory(), 100.0)
    memory = read_memory(data, 5.0)
    assert memory.of(Baked("8x128")).backoff == Backoff(3, 45.0)  # 40 s were left, and are
    assert memory.of(Merged(("a", "b"))).backoff == Backoff(1, 5.0)  # over, and it failed once
    assert memory.of(Generic()).units == ("a",)
    assert memory.of(Split(("c",))).barred
    assert read_memory(write_memory(memory, 5.0), 5.0) == memory


@pytest.mark.parametrize(
    "memory",
    [
        replace(full_memory(), limit=3),
        replace(full_memory(), limit=0),
        replace(full_memory(), limit=True),
        Memory(8, (lesson("a"), lesson("a", barred=True))),
        *(Memory(8, (lesson("a", backoff=b),)) for b in (Backoff(-1), Backoff(1, float("nan")), Backoff(1, float("inf")))),
        Memory(8, (lesson("a", backoff=Backoff(1, 10**400)),)),
        Memory(8, (lesson("a", units=["u"]),)),
        lesson("a"),
    ],
)
def test_what_is_no_memory_is_refused(memory: Any) -> None:
    with pytest.raises(ParseError, match="damaged"):
        read_memory(write_record(memory), 0.0)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (Target, Merged(("a", "b"))),
        (Event, Called(1.0, "8", 0, 0.5, 3)),
        (Event, Disproved(1.0, Baked("8"), 2, ("a",), "off by 1")),
        (Decision, Prove(Generic(), 4, (), "built")),
    ],
)
def test_records_read_back_as_they_were(kind: Any, record: Any) -> None:
    assert read_record(kind, write_record(record)) == record


def test_a_whole_number_is_a_time_and_a_truth_value_is_no_number() -> None:
    called = Called(1.0, "8", 0, 0.5, 3)
    assert read_record(Called, write_record(replace(called, now_s=1))) == called
    with pytest.raises(ParseError, match="True is not int"):
        read_record(Called, write_record(replace(called, tier=True)))
