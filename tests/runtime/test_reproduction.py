"""Reproductions: a unit stands by itself, reads back from its files, and is kept in a folder that is bounded and private."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.config import Config
from hotfuse.errors import HotfuseError, LimitExceeded, ParseError
from hotfuse.events import Event, EventLog
from hotfuse.runtime import reproduction_folder as folders
from hotfuse.runtime.build_pool import build_pool
from hotfuse.runtime.replay import COMPILED, RIGHT, TODAY, TOGETHER, WRONG, ReplayRequest, replay_here
from hotfuse.runtime.reproduce import note_reproduction, reproduce_here, submit_reproduction
from hotfuse.runtime.reproduction import Reproduction, cut_call
from hotfuse.runtime.reproduction_folder import read_reproduction, reproductions_path, write_reproduction
from hotfuse.runtime.reproduction_form import GRAPH, RECORD, TENSORS, from_files, program_name, to_files
from tests.runtime.proof_models import CONFIG, SIZES, TEXTS, Built, built, from_graph
from tests.runtime.reproductions import feeds, reproduction_of, request, rows, unit_of, written, wrong


def judge(reproduction: Reproduction, way: str) -> list[tuple[str, bool | None]]:
    return [(finding.verdict, finding.same) for finding in replay_here(ReplayRequest(reproduction, way, CONFIG))]


@pytest.mark.parametrize("name", list(TEXTS))
def test_every_unit_stands_by_itself_and_reads_back(name: str) -> None:
    model = built(name)
    for unit in range(len(model.build.units)):
        files = to_files(reproduction_of(model, unit))
        found = from_files(files)
        assert to_files(found) == files
        assert judge(found, COMPILED) == [(RIGHT, True)]
        assert judge(found, TODAY) == [(RIGHT, True)]  # the same program is made of the part as of the whole


def test_a_whole_call_stands_by_itself_and_reads_back() -> None:
    model = built("block")
    files = to_files(reproduction_of(model, None))
    found = from_files(files)
    assert to_files(found) == files
    assert judge(found, COMPILED) == [(RIGHT, True)] * len(model.build.units)
    assert judge(found, TOGETHER) == [(RIGHT, None)]


def test_sizes_that_no_shape_tells_are_inputs() -> None:
    model = from_graph(rows("lgamma", "tanh"), feeds)  # lgamma has no native code
    found = from_files(to_files(reproduction_of(model, unit_of(model, "tanh"))))
    assert found.sizes == SIZES
    assert found.inputs["size of b"] == 3
    assert judge(found, COMPILED) == [(RIGHT, True)]
    assert judge(found, TODAY) == [(RIGHT, True)]


def test_units_made_for_one_choice_of_sizes_are_written_down_for_those() -> None:
    model = built("norms")
    assert reproduction_of(model, 1, other_sizes=False).sizes == {}


def test_the_smallest_inputs_that_show_it_are_looked_for() -> None:
    """A tail that three rows do not have."""
    model = built("norms")
    broken = wrong(model, 1, "[19*i0.t : min(19*i0.t + 19, n0) : 1]", "[19*i0.t : min(19*i0.t + 19, min(n0, 8)) : 1]")
    found = reproduction_of(broken, 1)
    assert found.sizes == {"b": 9}
    assert "differ" in found.reason


def test_files_name_no_folder_of_the_user() -> None:
    model = from_graph(rows("tanh", source="/home/somebody/secret/model.py:7"), feeds)
    files = to_files(reproduction_of(model, 0))
    assert b"model.py:7" in files[GRAPH]
    assert not any(text in data for data in files.values() for text in (b"/home", b"secret", os.getcwd().encode()))


# damage


@pytest.fixture(name="files", scope="module")
def _files() -> dict[str, bytes]:
    model = built("moves")
    return to_files(reproduction_of(model, unit_of(model, "gather", "add")))


def refused(files: dict[str, bytes], says: str | None = None) -> None:
    with pytest.raises(ParseError, match=says):
        from_files(files)


@pytest.mark.parametrize("name", [RECORD, GRAPH, TENSORS, program_name(0)])
def test_each_file_must_be_there_and_whole(files: dict[str, bytes], name: str) -> None:
    refused({n: data for n, data in files.items() if n != name}, f"{name}.*missing")
    for size in (0, len(files[name]) // 2, len(files[name]) - 3):
        refused({**files, name: files[name][:size]}, name)


def paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in inner for found in paths(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = put(data[path[0]], path[1:], value)
    return copy


def test_every_field_has_a_type(files: dict[str, bytes]) -> None:
    record = json.loads(files[RECORD])
    for path in paths(record):
        for other in (None, 1.5, [[]], {"a": None}):
            refused({**files, RECORD: json.dumps(put(record, path, other)).encode()})


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (RECORD, '"format": 1', '"format": 2', "its format is 2"),
        (RECORD, '"kind": "unit"', '"kind": "thing"', "its kind"),
        (RECORD, '"program": 0', '"program": 1', "program-1.tile.*missing"),
        (RECORD, '"program": 0', '"program": -1', "number -1"),
        (RECORD, '"program": 0', '"program": 10000000', "number 10000000"),
        (RECORD, '"nodes": [', '"nodes": ["nobody", ', "nobody"),
        (RECORD, '"arguments": [', '"arguments": ["nobody", ', "arguments"),
        (GRAPH, "= gather", "= torch_op", "another library"),
        (GRAPH, "= gather", "= levitate", "levitate"),
        (GRAPH, "f32[40, 33]", "f32[41, 33]", "wt"),
        (program_name(0), "map add", "map fly", "fly"),
    ],
)
def test_what_does_not_fit_together_is_refused(files: dict[str, bytes], file: str, old: str, new: str, says: str) -> None:
    text = files[file].decode()
    assert old in text
    refused({**files, file: text.replace(old, new, 1).encode()}, says)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_byte_makes_reading_fail_otherwise(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    raw = bytearray(files[name])
    raw[data.draw(st.integers(0, min(len(raw), 3000) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = from_files({**files, name: bytes(raw)})
    except ParseError:
        return
    to_files(found)


# the folder


@pytest.fixture(name="small", scope="module")
def _small() -> Reproduction:
    return reproduction_of(from_graph(rows("tanh"), feeds), 0)


def other(reproduction: Reproduction, number: int) -> Reproduction:
    """The same of another fault."""
    return replace(reproduction, graph=replace(reproduction.graph, name=f"unit {number}"))


def test_a_folder_is_closed_to_others_and_reads_back(tmp_path: Path, small: Reproduction) -> None:
    path = written(tmp_path / "kept", small)
    assert to_files(read_reproduction(path)) == to_files(small)
    for folder in (tmp_path / "kept", path):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
    assert [p.name for p in (tmp_path / "kept").iterdir()] == [path.name]


def test_one_fault_is_kept_once_and_nothing_is_overwritten(tmp_path: Path, small: Reproduction) -> None:
    folder = tmp_path / "kept"
    path = written(folder, small)
    (path / RECORD).write_text("mine now")
    again = replace(small, tensors={n: a + 1 for n, a in small.tensors.items()}, reason="on other values")
    assert written(folder, again) == path
    assert (path / RECORD).read_text() == "mine now"
    assert written(folder, replace(small, shrunk=True)) != path


def test_equal_layers_have_one_fault(tmp_path: Path) -> None:
    model = from_graph(rows("lgamma", "tanh", "lgamma", "tanh"), feeds)
    assert [unit.name for unit in model.build.units] == ["tanh_0", "tanh_1"]
    assert len({written(tmp_path / "kept", reproduction_of(model, unit)) for unit in (0, 1)}) == 1


def test_in_a_folder_that_somebody_chose_all_others_stay(
    tmp_path: Path, small: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOST_KEPT", 1)
    paths = [write_reproduction(str(tmp_path / "kept"), other(small, n), bounded=False).path for n in range(3)]
    assert [path is not None and path.exists() for path in paths] == [True] * 3


def test_the_oldest_go(tmp_path: Path, small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    (folder / "notes").mkdir(parents=True)
    folder.chmod(0o700)
    made = []
    for number in range(folders.MOST_KEPT + 3):
        made.append(written(folder, other(small, number)))
        os.utime(made[-1], (number, number))
    assert [path.exists() for path in made] == [False] * 3 + [True] * folders.MOST_KEPT
    monkeypatch.setattr(folders, "MOST_BYTES", 3 * sum(file.stat().st_size for file in made[-1].iterdir()))
    last = written(folder, other(small, 1000))
    assert {path for path in folder.iterdir() if path.name != "notes"} <= {last, *made[-3:]}
    assert last.exists()
    assert (folder / "notes").exists()


def test_what_dead_writers_left_goes(tmp_path: Path, small: Reproduction) -> None:
    folder = tmp_path / "kept"
    written(folder, small)
    old, new = folder / f"{'0' * 16}.part", folder / f"{'1' * 16}.part"
    for path in (old, new):
        path.mkdir()
    os.utime(old, (1, 1))
    written(folder, other(small, 1))
    assert (old.exists(), new.exists()) == (False, True)


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [(open_to_all, "open to others.*HOTFUSE_REPRODUCTIONS"), (lambda folder: folder.write_text(""), "no folder")],
)
def test_folders_that_are_not_to_be_trusted_are_refused(
    tmp_path: Path, small: Reproduction, prepare: Callable[[Path], None], says: str
) -> None:
    prepare(tmp_path / "kept")
    found = write_reproduction(str(tmp_path / "kept"), small)
    assert found.path is None
    assert re.search(says, found.reason)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_write_file", full)
    found = write_reproduction(str(tmp_path / "kept"), small)
    assert found.path is None
    assert "No space left" in found.reason
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_is_too_large_or_has_no_form_is_not_written(
    tmp_path: Path, small: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = replace(small, tensors={"x": np.array(["a"], object)})
    assert "cannot be written down" in write_reproduction(str(tmp_path / "kept"), texts).reason
    monkeypatch.setattr(folders, "ONE_BYTES", 100)
    assert "at most 100" in write_reproduction(str(tmp_path / "kept"), small).reason
    assert not (tmp_path / "kept").exists()


def test_where_reproductions_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert reproductions_path(Config(reproductions="")) == str(tmp_path / "hotfuse/reproductions")
    assert reproductions_path(Config(reproductions="~/mine")) == os.path.expanduser("~/mine")
    assert reproductions_path(Config(reproductions="off")) is None
    assert "off" in write_reproduction(None, Reproduction("unit", "", "", rows("tanh"), (), {})).reason


@pytest.mark.parametrize("what", ["nothing", "file", "empty", "large"])
def test_what_is_no_reproduction_is_not_read(
    tmp_path: Path, small: Reproduction, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "kept", small) if what == "large" else tmp_path / "it"
    if what == "file":
        path.write_text("")
    if what == "empty":
        path.mkdir()
    monkeypatch.setattr(folders, "ONE_BYTES", 100)
    with pytest.raises(ParseError, match="refused" if what == "large" else "give the folder of a reproduction"):
        read_reproduction(path)


# behind a model that serves


def submitted(model: Built, unit: int | None, folder: Path | str) -> Event:
    """What is told once a build worker was asked."""
    config, events = replace(CONFIG, reproductions=str(folder), strict=False), EventLog()
    submit_reproduction(build_pool(config).submit, "softmax_0", request(model, unit, config), model.weight, events)
    deadline = time.monotonic() + 60
    while not len(events):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (event,) = events
    return event


@pytest.mark.parametrize("unit", [1, None])
def test_a_worker_finds_the_wrong_unit_and_an_event_says_where_it_is_written(tmp_path: Path, unit: int | None) -> None:
    event = submitted(wrong(built("norms"), 1, "map exp", "map sin"), unit, tmp_path / "kept")
    assert (event.kind, event.subject) == ("reproduction.written", "softmax_0")
    found = read_reproduction(Path(event.data["path"]))
    assert found.reason.startswith("row ")
    assert len(found.circumstances.objects) == len(found.programs) == len(found.units) == 1
    assert [verdict for verdict, _ in judge(found, COMPILED)] == [WRONG]


def test_where_kernels_kill_the_worker_the_whole_call_is_written(tmp_path: Path) -> None:
    model = wrong(built("norms"), 1, "store v12 to a1[35*c2 +", "store v12 to a1[99999999999*c2 + 99999999999 +")
    event = submitted(model, 1, tmp_path / "kept")
    assert len(read_reproduction(Path(event.data["path"])).units) == len(model.build.units)


def test_a_call_that_is_wrong_while_its_units_are_right_is_written_whole(tmp_path: Path) -> None:
    model = built("norms")
    event = submitted(model, None, tmp_path / "kept")
    assert len(read_reproduction(Path(event.data["path"])).units) == len(model.build.units)


def test_weights_of_a_whole_call_are_not_asked_for_where_they_are_too_large() -> None:
    def weight(name: str) -> Any:
        raise AssertionError("it was asked for")

    model = built("mlp")
    with pytest.raises(LimitExceeded, match="at most 1,000"):
        cut_call(model.build, model.feeds(1, **SIZES), weight, 1000)


def test_what_cannot_be_written_is_an_event(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    event = submitted(built("norms"), 1, tmp_path / "file")
    assert event.kind == "reproduction.failed"
    assert "no folder" in event.reason


def test_where_none_are_wanted_nobody_is_asked() -> None:
    model = built("norms")
    nobody: Any = None
    submit_reproduction(nobody, "softmax_0", request(model, 1, Config(reproductions="off")), model.weight, EventLog())


def test_whatever_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("hotfuse.runtime.reproduce.make_reproduction", fail)
    config = Config(reproductions=str(tmp_path / "kept"))
    model = from_graph(rows("tanh"), feeds)
    events = EventLog()
    for reply in (reproduce_here(request(model, 0, config), model.weight), HotfuseError("planted")):
        note_reproduction(events, "tanh_0", reply)
    assert ["planted" in event.reason for event in events.of("reproduction.failed")] == [True, True]
    assert "off" in reproduce_here(request(model, 0, Config(reproductions="off")), model.weight).reason
    assert not (tmp_path / "kept").exists()
