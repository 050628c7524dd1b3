"""What is remembered of failed targets: it grows, it is bounded, it outlives the process, and nothing damaged is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hotfuse.adaptive.backoff import Backoff
from hotfuse.adaptive.json_form import from_json, to_json
from hotfuse.adaptive.memory import Lesson, Memory, read_memory, write_memory
from hotfuse.adaptive.message import Called, Decision, Disproved, Event, Prove
from hotfuse.adaptive.target import Baked, Generic, Merged, Split, Target
from hotfuse.errors import ParseError


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
    text = write_memory(full_memory(), 100.0)
    memory = read_memory(text, 5.0)
    assert memory.of(Baked("8x128")).backoff == Backoff(3, 45.0)  # 40 s were left, and are
    assert memory.of(Merged(("a", "b"))).backoff == Backoff(1, 5.0)  # over, and it failed once
    assert memory.of(Generic()).units == ("a",)
    assert memory.of(Split(("c",))).barred
    assert read_memory(write_memory(memory, 5.0), 5.0) == memory


def values(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in inner for found in values(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = put(data[path[0]], path[1:], value)
    return copy


def test_every_value_of_another_type_is_refused() -> None:
    data = json.loads(write_memory(full_memory(), 100.0))
    paths = values(data)
    assert len(paths) > 40
    for path in paths:
        for wrong in (None, {"is": "Config"}, "NaN" if "until_s" in path else 1.5, [[]]):
            with pytest.raises(ParseError):
                read_memory(json.dumps(put(data, path, wrong)), 0.0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"limit": 8', '"limit": 3'),
        lambda text: text.replace('"limit": 8', '"limit": 0'),
        lambda text: text.replace('"times": 3', '"times": -1'),
        lambda text: text.replace('"times": 3', '"times": true'),
        lambda text: text.replace("40.0", "NaN"),
        lambda text: text.replace("40.0", "1" + 400 * "0"),
        lambda text: text.replace('"is": "Split"', '"is": "Lesson"'),
        lambda text: text.replace('"is": "Split", "units"', '"is": "Merged", "units"').replace('"c"', '"a", "b"'),
        lambda text: text.replace('"reason": "slow", ', ""),
        lambda text: text.replace('"reason": "slow"', '"reason": "slow", "more": 1'),
    ],
)
def test_damaged_memory_is_refused(damage: Any) -> None:
    text = write_memory(full_memory(), 100.0)
    assert damage(text) != text
    with pytest.raises(ParseError, match=r"memory|damaged"):
        read_memory(damage(text), 0.0)


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
    assert from_json(kind, json.loads(json.dumps(to_json(record)))) == record


def test_a_whole_number_is_a_time_and_a_truth_value_is_no_number() -> None:
    data = to_json(Called(1.0, "8", 0, 0.5, 3))
    assert from_json(Called, {**data, "now_s": 1}) == Called(1.0, "8", 0, 0.5, 3)
    with pytest.raises(ParseError, match="True is not of type int"):
        from_json(Called, {**data, "tier": True})
    with pytest.raises(ParseError, match="is none of Called"):
        from_json(Called, to_json(replace(full_memory().lessons[0])))
