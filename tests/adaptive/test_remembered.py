"""What is learned about models stays on disk: by model, across processes, whatever several of them write at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfuse.adaptive.memory import Lesson, Memory, merged
from hotfuse.adaptive.remembered import FOLDER, MOST_BYTES, memory_key, read_remembered, remember
from hotfuse.adaptive.target import Baked, Generic, Merged, Split, Target
from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.backoff import Backoff

NOW_S = 100.0
WRONG = Memory(
    8,
    (
        Lesson(Generic(), "a tail", units=("softmax_0",), backoff=Backoff(0, NOW_S)),  # one that is over ends now
        Lesson(Baked("8x128"), "slow", backoff=Backoff(2, 160.0)),
    ),
)


def at(folder: Path) -> Config:
    return Config(cache=str(folder / "cache"))


def files(config: Config) -> list[Path]:
    return sorted((Path(config.cache) / FOLDER).glob("*.entry"))


def graph(op: str = "tanh", width: int = 5) -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("n", 1), width))
    return builder.build([builder.add(op, x)])


def test_lessons_outlive_the_process_that_learned_them(tmp_path: Path) -> None:
    config, events = at(tmp_path), EventLog()
    assert read_remembered(config, "m", NOW_S, events) is None
    remember(config, "m", WRONG, NOW_S, events)
    found = read_remembered(config, "m", 5.0, events)
    assert found is not None
    assert found.of(Generic()).units == ("softmax_0",)
    assert found.of(Baked("8x128")).backoff == Backoff(2, 65.0)  # 60 s were left, and are
    assert read_remembered(config, "another", NOW_S, events) is None
    assert len(events) == 0
    for folder in (Path(config.cache), Path(config.cache) / FOLDER):
        assert os.stat(folder).st_mode & 0o777 == 0o700


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    config, events = at(tmp_path), EventLog()
    remember(config, "m", WRONG, NOW_S, events)
    (file,) = files(config)
    before = file.stat().st_ino
    remember(config, "m", WRONG, NOW_S, events)
    remember(config, "m", Memory(8, WRONG.lessons[:1]), NOW_S, events)
    remember(config, "m", Memory(8), NOW_S, events)
    assert file.stat().st_ino == before


@pytest.mark.parametrize("config", [Config(cache="off"), Config(tiles="edited")])
def test_nothing_is_kept_where_that_is_not_wanted(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remember(config, "m", WRONG, NOW_S, EventLog())
    assert read_remembered(config, "m", NOW_S, EventLog()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_key_is_not_remembered(tmp_path: Path) -> None:
    remember(at(tmp_path), "", WRONG, NOW_S, EventLog())
    assert read_remembered(at(tmp_path), "", NOW_S, EventLog()) is None
    assert list(tmp_path.iterdir()) == []


def test_models_are_told_apart_by_what_they_compute_and_where() -> None:
    config = Config()
    keys = [memory_key(g, config) for g in (graph(), graph("exp"), graph(width=6))]
    keys.append(memory_key(graph(), Config(isa="sse")))
    assert len(set(keys)) == 4
    assert memory_key(graph(), config) == keys[0]


@pytest.mark.parametrize("place", [3, 40, -1])
def test_a_damaged_file_is_nothing_known_and_an_event(tmp_path: Path, place: int) -> None:
    config, events = at(tmp_path), EventLog()
    remember(config, "m", WRONG, NOW_S, events)
    (file,) = files(config)
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(raw)
    assert read_remembered(config, "m", NOW_S, events) is None
    (event,) = events.of("memory.damaged")
    assert "nothing is known" in event.reason
    remember(config, "m", WRONG, NOW_S, events)
    assert read_remembered(config, "m", NOW_S, events) == WRONG


def test_an_entry_that_holds_something_else_is_nothing_known_and_an_event(tmp_path: Path) -> None:
    from hotfuse.adaptive.remembered import KIND, _open

    cache, events = _open(at(tmp_path), "m"), EventLog()
    assert cache is not None
    cache.put(KIND, "m", b"no memory")
    assert read_remembered(at(tmp_path), "m", NOW_S, events) is None
    assert events.of("memory.damaged")


def test_a_folder_that_cannot_be_written_is_an_event(tmp_path: Path) -> None:
    config, events = at(tmp_path), EventLog()
    remember(config, "m", WRONG, NOW_S, events)
    large = Memory(8, (Lesson(Generic(), "", units=tuple(os.urandom(60).hex() for _ in range(MOST_BYTES // 100))),))
    remember(config, "m", large, NOW_S, events)
    (event,) = events.of("memory.failed")
    assert "larger" in event.reason
    assert read_remembered(config, "m", NOW_S, events) == WRONG


def test_the_number_of_models_is_bounded(tmp_path: Path) -> None:
    config, events = at(tmp_path), EventLog()
    for number in range(MOST_BYTES // 4096 + 40):
        remember(config, f"m{number}", WRONG, NOW_S, events)
    assert len(files(config)) <= MOST_BYTES // 4096
    assert read_remembered(config, f"m{number}", NOW_S, events) == WRONG


WRITER = """
import sys
from hotfuse.adaptive.memory import Lesson, Memory
from hotfuse.adaptive.remembered import remember
from hotfuse.adaptive.target import Baked
from hotfuse.config import Config
from hotfuse.events import EventLog
for turn in range(10):
    lesson = Lesson(Baked(f"{sys.argv[2]} {turn}"), "wrong", barred=True)
    remember(Config(cache=sys.argv[1]), "m", Memory(64, (lesson,)), 0.0, EventLog())
"""


def test_what_any_of_several_processes_finds_wrong_stays_wrong(tmp_path: Path) -> None:
    config = at(tmp_path)
    command = [sys.executable, "-c", WRITER, str(config.cache)]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = read_remembered(config, "m", NOW_S, EventLog())
    assert found is not None
    assert {lesson.target for lesson in found.lessons} == {Baked(f"{w} {t}") for w in range(4) for t in range(10)}


names = st.sampled_from("abc")
targets: st.SearchStrategy[Target] = st.one_of(
    st.just(Generic()), names.map(Baked), names.map(lambda n: Merged((n, "z"))), names.map(lambda n: Split((n,)))
)
lessons = st.builds(
    Lesson,
    targets,
    st.sampled_from(["slow", "wrong"]),
    st.booleans(),
    st.lists(names, max_size=2, unique=True).map(tuple),
    st.builds(Backoff, st.integers(0, 4), st.floats(0, 100)),
)


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    memory = Memory(4)
    for lesson in draw(st.lists(lessons, max_size=6)):
        memory = memory.learn(lesson)
    return memory


def facts(memory: Memory) -> dict[Target, tuple[bool, frozenset[str], Backoff]]:
    return {lesson.target: (lesson.barred, frozenset(lesson.units), lesson.backoff) for lesson in memory.lessons}


@given(memories(), memories())
def test_of_two_memories_nothing_that_must_last_is_lost(a: Memory, b: Memory) -> None:
    both = merged(a, b)
    assert len(both.lessons) <= both.limit
    for lesson in (*a.lessons, *b.lessons):
        if lesson.lasts and not both.is_full:
            found = both.of(lesson.target)
            assert found.barred >= lesson.barred
            assert set(found.units) >= set(lesson.units)
            assert found.backoff.until_s >= lesson.backoff.until_s
    assert facts(merged(a, a)) == facts(a)
    assert facts(merged(both, a)) == facts(both) or both.is_full
    if len({lesson.target for lesson in (*a.lessons, *b.lessons)}) <= both.limit:
        assert facts(both) == facts(merged(b, a))
