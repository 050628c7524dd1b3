"""Events: any data can be written, nothing that is rare is lost to what is frequent, and a file of events costs no caller
anything, whatever the disk does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse import event_file
from hotfuse.event_file import EventFile, open_event_file
from hotfuse.events import Event, EventLog


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def read(line: str) -> dict[str, Any]:
    return json.loads(line, parse_constant=refuse)


def lines(path: Path) -> list[dict[str, Any]]:
    return [read(line) for line in path.read_text().splitlines()]


class Rude:
    """Answers nothing that it is asked."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    def tolist(self) -> Any:
        raise RuntimeError("no")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


odd = st.sampled_from([Rude(), endless(), object(), np.float32("nan"), np.int8(3), np.zeros(0), np.ones((99, 3)), b"\xff", 1j])
plain_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | odd
values = st.recursive(
    plain_values, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=8
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(), values), st.text())
def test_any_data_is_json(data: dict[str, Any], text: str) -> None:
    found = read(Event("some.kind", text, text, data, time_s=1.5, calls=3).json())
    own = {"time_s": 1.5, "kind": "some.kind", "subject": text, "reason": text, "calls": 3}
    assert {name: found[name] for name in own} == own
    assert set(found) >= set(data)


def test_emitting_never_fails_for_what_is_told() -> None:
    log = EventLog()
    log.emit("a", "x", big=10**400, nan=float("nan"), rude=Rude(), ok=True, seconds=0.5)
    log.emit("a", "x", ok=False, seconds=0.25)
    assert dict(log.sums) == {("a", "ok"): 1.0, ("a", "seconds"): 0.75}


def test_what_is_frequent_does_not_push_out_what_is_rare() -> None:
    log = EventLog(limit=10)
    log.emit("tier.publish", "first")
    for number in range(100):
        log.emit("guard.miss", str(number))
        if number == 50:
            log.emit("tier.retire", "second")
    kept = [(e.kind, e.subject) for e in log]
    assert len(log) == len(kept) == 10
    assert kept[:2] == [("tier.publish", "first"), ("tier.retire", "second")]
    assert [subject for _, subject in kept[2:]] == [str(n) for n in range(92, 100)]
    assert log.counted() == {"tier.publish": 1, "guard.miss": 100, "tier.retire": 1}


def test_a_file_has_what_happened_before_it_was_given_and_after(tmp_path: Path) -> None:
    log, path = EventLog(), tmp_path / "events.jsonl"
    log.emit("first", "x", array=np.arange(3), nan=float("nan"))
    log.bind(lambda: 7, file := open_event_file(str(path)), "net")
    log.emit("second", "y", "for a reason")
    file.flush()
    first, second = lines(path)
    assert (first["kind"], first["array"], first["nan"], first["calls"]) == ("first", [0, 1, 2], "nan", 0)
    assert (second["kind"], second["model"], second["calls"], second["pid"]) == ("second", "net", 7, os.getpid())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert open_event_file(str(path)) is file


WRITER = """
import sys
from hotfuse.event_file import EventFile
file, name = EventFile(sys.argv[1], int(sys.argv[2])), sys.argv[3]
for number in range(300):
    file.put(lambda number=number: {"n": number, "text": "x" * (number % 90)}, name)
    if number % 50 == 40: file.flush(10)
"""  # the end of the process writes the rest


def write_at_once(path: Path, limit_bytes: int, writers: int = 4) -> None:
    run = [sys.executable, "-c", WRITER, str(path), str(limit_bytes)]
    processes = [subprocess.Popen([*run, f"w{number}"]) for number in range(writers)]
    assert [process.wait(60) for process in processes] == [0] * writers


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    write_at_once(tmp_path / "log", 1 << 30)
    assert sorted((e["model"], e["n"]) for e in lines(tmp_path / "log")) == [(f"w{w}", n) for w in range(4) for n in range(300)]


def test_a_large_file_is_put_aside_once_by_all_processes(tmp_path: Path) -> None:
    path, limit = tmp_path / "log", 30_000  # four processes write about 100,000 bytes
    write_at_once(path, limit)
    assert {p.name for p in tmp_path.iterdir()} == {"log", "log.1"}
    kept = [*lines(tmp_path / "log.1"), *lines(path)]
    assert max(p.stat().st_size for p in tmp_path.iterdir()) < limit + 4 * 200
    for number in range(4):
        mine = [e["n"] for e in kept if e["model"] == f"w{number}"]
        assert mine == sorted(mine)
    assert len(kept) > 300


def test_a_process_that_comes_late_puts_nothing_aside_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, late = EventFile(str(path), 100), EventFile(str(path), 100)
    for file, name in ((first, "a" * 99), (late, "b" * 99), (first, "c" * 99)):
        file.put(lambda name=name: {"kind": name}, "")
        file.flush()
    late._rotate()  # as if it had found the file too large just before the other one put that aside
    assert [e["kind"][0] for p in (f"{path}.1", path) for e in lines(Path(p))] == ["b", "c"]


def test_a_file_that_is_removed_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = EventFile(str(path))
    for name in ("first", "second"):
        file.put(lambda name=name: {"kind": name}, "")
        file.flush()
        assert [e["kind"] for e in lines(path)] == [name]
        path.unlink()


def test_a_disk_that_hangs_costs_callers_nothing_and_the_loss_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "QUEUED", 100)
    path, log = tmp_path / "log", EventLog()
    log.bind(int, file := EventFile(str(path)), "net")
    with file._writing:  # nothing gets written meanwhile
        started = time.perf_counter()
        for _ in range(150):
            log.emit("a", "x")
        assert time.perf_counter() - started < 1
        assert file.dropped == 50
    file.flush()
    found = lines(path)
    assert [e["kind"] for e in found].count("a") == 100
    assert [(e["kind"], e["count"]) for e in found if e["kind"] != "a"] == [("log.dropped", 50)]


def hostile(folder: Path) -> dict[str, Path]:
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to(folder / "elsewhere")
    return {
        "No such file": folder / "missing" / "log",
        "Is a directory": folder / "folder",
        "No such device": folder / "fifo",
        "symbolic links": folder / "link",
        "no regular file": Path("/dev/full"),
    }


@pytest.mark.parametrize("says", ["No such file", "Is a directory", "No such device", "symbolic links", "no regular file"])
def test_a_path_that_cannot_be_written_costs_lines_and_no_more(tmp_path: Path, says: str) -> None:
    log = EventLog()
    log.bind(int, file := EventFile(str(hostile(tmp_path)[says])), "net")
    for _ in range(3):
        log.emit("a", "x")
    file.flush()
    assert file.dropped >= 3
    assert says in file.failure
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_tears_no_line_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "REST_S", 0.0)
    path, write, left = tmp_path / "log", os.write, [2]

    def full(file: int, data: bytes) -> int:
        left[0] -= 1
        return write(file, data[:5] if left[0] == 0 else data)

    monkeypatch.setattr(os, "write", full)
    file = EventFile(str(path))
    for number in range(4):
        file.put(lambda number=number: {"n": number}, "")
    file.flush()
    whole = [read(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert [e["n"] for e in whole if "n" in e] == [0, 2, 3]
    assert [e["count"] for e in whole if e.get("kind") == "log.dropped"] == [1]


def test_a_forked_child_goes_on_and_writes_nothing_twice(tmp_path: Path) -> None:
    path, log = tmp_path / "log", EventLog()
    log.bind(int, file := EventFile(str(path)), "net")
    with file._writing:
        log.emit("before", "x")
        child = os.fork()
        if child == 0:
            try:
                log.emit("child", "x")
                file.flush()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    log.emit("after", "x")
    file.flush()
    assert [(e["kind"], e["pid"]) for e in lines(path)] == [("child", child), ("before", os.getpid()), ("after", os.getpid())]


def test_an_event_that_cannot_be_told_costs_its_own_line(tmp_path: Path) -> None:
    file = EventFile(str(tmp_path / "log"))
    file.put(lambda: {}["nothing"], "")
    file.put(lambda: {"kind": "fine"}, "")
    file.flush()
    assert [e["kind"] for e in lines(tmp_path / "log")] == ["log.dropped", "fine"]


def test_the_thread_ends_when_there_is_nothing_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "IDLE_S", 0.05)
    file = EventFile(str(tmp_path / "log"))
    for name in ("first", "second"):
        file.put(lambda name=name: {"kind": name}, "")
        deadline = time.monotonic() + 20
        while file._thread is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [e["kind"] for e in lines(tmp_path / "log")] == ["first", "second"]
