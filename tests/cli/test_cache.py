"""`hotfuse cache`: each command tells what it found and did, on the screen and as JSON, and says why where it cannot."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from hotfuse.adaptive.memory import Lesson, Memory
from hotfuse.adaptive.remembered import read_remembered, remember
from hotfuse.adaptive.target import Generic
from hotfuse.cli.cache import command, read_bytes, show_age
from hotfuse.cli.main import main
from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.cache_entry import BLOCK_BYTES, entry_name, part_name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """Three entries, used one after the other."""
    monkeypatch.setenv("HOTFUSE_CACHE", str(tmp_path / "cache"))
    made = open_cache(Config())
    assert made is not None
    for place, (kind, key, size) in enumerate(
        [("object", "tile\n  softmax", 5000), ("proof", "p", 10), ("object", "k" * 99, 1)]
    ):
        assert made.put(kind, key, b"x" * size)
        then = time.time() - 7200 + 1000 * place
        os.utime(tmp_path / "cache" / entry_name(kind, key), (then, then))
    return made


def run(*arguments: str, **more: Any) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments], **more)


def data(*arguments: str, code: int = 0) -> Any:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def damage(cache: DiskCache) -> str:
    name = entry_name("proof", "p")
    path = Path(cache.folder.path) / name
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    return name


def test_ls_shows_the_entries_used_last_first(cache: DiskCache) -> None:
    found = data("ls")
    assert [(e["kind"], e["key"], e["bytes"]) for e in found] == [
        ("object", "k" * 99, 1),
        ("proof", "p", 10),
        ("object", "tile\n  softmax", 5000),
    ]
    shown = run("ls").output
    assert "2 h ago" in shown
    assert "tile softmax" in shown
    assert "k" * 57 + "..." in shown
    assert "5.0 kB" in shown
    assert [e["kind"] for e in data("ls", "--kind", "proof")] == ["proof"]


def test_ls_shows_the_first_of_many(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotfuse.cli.cache.MOST_SHOWN", 2)
    assert "Entries, 2 of 3" in run("ls").output
    assert "softmax" not in run("ls").output
    assert "softmax" in run("ls", "--all").output
    assert len(data("ls")) == 3


def test_names_in_keys_do_not_steer_the_terminal(cache: DiskCache) -> None:
    assert cache.put("object", "red \x1b[31m [bold]name[/bold]", b"")
    assert "red ?[31m [bold]name[/bold]" in run("ls").output


def test_stats_add_up(cache: DiskCache) -> None:
    (Path(cache.folder.path) / part_name(entry_name("a", "b"))).write_bytes(b"half")
    found = data("stats")
    assert found == {
        "folder": cache.folder.path,
        "limit_bytes": cache.limit_bytes,
        "entries": 3,
        "bytes": 4 * BLOCK_BYTES,
        "leftovers": 1,
        "kinds": {
            "object": {"entries": 2, "bytes": 3 * BLOCK_BYTES},
            "proof": {"entries": 1, "bytes": BLOCK_BYTES},
        },
    }
    shown = run("stats").output
    assert "3 entries, 16.4 kB on disk, 0% of what it may hold" in shown
    assert "half-written files: 1; `hotfuse cache prune`" in shown


def test_verify_passes_what_is_sound_and_fails_what_is_damaged(cache: DiskCache) -> None:
    result = run("verify")
    assert (result.exit_code, "3 entries read, all sound" in result.output) == (0, True)
    name = damage(cache)
    found = data("verify", code=1)
    assert found == {"entries": 3, "damaged": [{"name": name, "reason": "its digest does not fit"}], "removed": False}
    shown = run("verify")
    assert shown.exit_code == 1
    assert "1 damaged: what is damaged is never used; `hotfuse cache verify --remove`" in shown.output
    assert data("verify", "--remove", code=1)["removed"]
    assert data("verify") == {"entries": 2, "damaged": [], "removed": False}


def test_prune_keeps_what_was_used_last(cache: DiskCache) -> None:
    assert data("prune") == {"entries": 0, "bytes": 0}
    assert data("prune", "--limit", "9k") == {"entries": 1, "bytes": 2 * BLOCK_BYTES}
    assert [e["kind"] for e in data("ls")] == ["object", "proof"]
    assert "1 entry removed, 4.1 kB" in run("prune", "--limit", "5k").output
    assert "1 entry removed" in run("prune", "--limit", "0").output
    assert "0 entries removed" in run("prune", "--limit", "0").output


def test_clear_asks_first(cache: DiskCache) -> None:
    asked = run("clear", input="n\n")
    assert asked.exit_code == 1
    assert f"Remove 3 entries (16.4 kB) from {cache.folder.path}?" in asked.output
    assert len(data("ls")) == 3
    assert run("clear", input="y\n").exit_code == 0
    assert data("ls") == []
    assert cache.put("object", "again", b"")
    assert data("clear", "--yes") == {"entries": 1, "bytes": BLOCK_BYTES}


def test_lessons_are_listed_counted_checked_and_removed(cache: DiskCache) -> None:
    """They are what keeps a kernel out that was found wrong: who clears the cache wants it tried again."""
    config, events = Config(), EventLog()
    lessons = Memory(4, (Lesson(Generic(), "row 3 differs", barred=True),))
    remember(config, "a model", lessons, 0.0, events)
    assert [e["key"] for e in data("ls", "--kind", "memory")] == ["a model"]
    assert [e["kind"] for e in data("ls")] == ["memory", "object", "proof", "object"]
    assert data("stats")["kinds"]["memory"] == {"entries": 1, "bytes": BLOCK_BYTES}
    assert (data("stats")["entries"], data("verify")["entries"]) == (4, 4)
    assert data("prune")["entries"] == 0
    assert "Remove 4 entries (20.5 kB)" in run("clear", input="n\n").output
    assert read_remembered(config, "a model", 0.0, events) == lessons
    assert data("clear", "--yes")["entries"] == 4
    assert read_remembered(config, "a model", 0.0, events) is None
    assert data("ls") == []


def test_another_folder_can_be_named(cache: DiskCache, tmp_path: Path) -> None:
    assert data("stats", "--folder", str(tmp_path / "other"))["entries"] == 0
    assert data("stats")["entries"] == 3


@pytest.mark.parametrize("name", list(command.commands))  # type: ignore[attr-defined]
def test_each_command_says_why_there_is_no_cache(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_CACHE", "off")
    off = run(name)
    assert off.exit_code == 1
    assert "the cache is off (HOTFUSE_CACHE=off); unset" in off.output
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refused = run(name, "--folder", str(tmp_path / "open"))
    assert refused.exit_code == 1
    assert "is open to others (mode 0777)" in refused.output


@pytest.mark.parametrize("name", list(command.commands))  # type: ignore[attr-defined]
def test_each_command_has_examples(name: str) -> None:
    assert f"  hotfuse cache {name}" in run(name, "--help").output


def test_sizes_are_read_and_ages_shown() -> None:
    assert [read_bytes(text) for text in ("0", "500", "2k", "200M", "1GB", " 3T ")] == [
        0,
        500,
        2000,
        200_000_000,
        10**9,
        3 * 10**12,
    ]
    for text in ("", "M", "-1", "1.5G", "1x", "9" * 20):
        with pytest.raises(click.UsageError, match="no number of bytes"):
            read_bytes(text)
    assert [show_age(s) for s in (-5, 3, 60, 7200, 1e6)] == ["now", "now", "1 min ago", "2 h ago", "12 d ago"]
