"""The disk cache among hostile files: folders and entries of others, links, open modes, swaps. Refused, nothing of them read.

Each refusal is shown to be the check's doing: with the check taken away the same file is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hotfuse.config import Config
from hotfuse.runtime import cache as cache_module
from hotfuse.runtime import cache_entry, cache_folder
from hotfuse.runtime.cache import DiskCache, open_cache, refused_reason
from hotfuse.runtime.cache_entry import entry_name
from hotfuse.runtime.cache_folder import Folder, open_folder

SOMEBODY = 65534
NAME = entry_name("object", "a key")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def make(folder: Path) -> DiskCache:
    cache = open_cache(Config(cache=str(folder)))
    assert cache is not None
    return cache


def evil(folder: Path) -> Path:
    """A folder with an entry for our key that somebody else made. Its mode and digest are right."""
    assert make(folder).put("object", "a key", b"evil")
    return folder


# folders


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def readable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


def given_away(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, SOMEBODY, -1)


def link(path: Path) -> None:
    path.symlink_to(evil(path.with_name("evil")))


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def plain_file(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (open_to_all, r"open to others \(mode 0777\); .*chmod 700"),
        (readable, r"open to others \(mode 0750\)"),
        pytest.param(given_away, f"belongs to another user .number {SOMEBODY}", marks=as_root),
        (link, "is a symbolic link or no folder"),
        (dangling, "is a symbolic link or no folder"),
        (plain_file, "is a symbolic link or no folder"),
    ],
)
def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path: Path, prepare: Callable[[Path], None], says: str) -> None:
    path = tmp_path / "cache"
    prepare(path)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    for spelling in (str(path), f"{path}/", f"{path}/."):
        config = Config(cache=spelling)
        assert open_cache(config) is None
        assert re.search(says, refused_reason(config)), refused_reason(config)
        assert "HOTFUSE_CACHE" in refused_reason(config)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["/proc/nowhere/cache", "/dev/null/cache", "/proc/nul\0l"])
def test_a_folder_that_cannot_be_made_is_refused(path: str) -> None:
    assert open_cache(Config(cache=path)) is None
    assert "cannot be made" in refused_reason(Config(cache=path))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make(tmp_path / "cache")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert open_cache(Config(cache=cache.folder.path)) is None
    assert "belongs to another user" in refused_reason(Config(cache=cache.folder.path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert make(tmp_path / "cache") is cache
    assert refused_reason(Config(cache=cache.folder.path)) == ""


def test_a_folder_that_is_opened_to_others_later_is_refused_then(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    (tmp_path / "cache").chmod(0o777)
    assert open_cache(Config(cache=cache.folder.path)) is None
    assert "open to others" in refused_reason(Config(cache=cache.folder.path))


def test_the_link_would_be_followed_without_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link(tmp_path / "cache")
    monkeypatch.setattr(cache_folder, "OPEN_FOLDER", os.O_RDONLY | os.O_DIRECTORY)
    assert make(tmp_path / "cache").get("object", "a key") == b"evil"


# swaps


def test_a_folder_that_is_swapped_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache = make(path)
    os.rename(path, tmp_path / "moved")
    os.rename(evil(tmp_path / "evil"), path)
    assert cache.get("object", "a key") is None
    assert cache.put("object", "a key", b"ours")
    assert cache.get("object", "a key") == b"ours"
    assert (tmp_path / "moved" / NAME).exists()
    assert make(path) is cache
    assert cache.clear().entries == 1
    assert (path / NAME).exists()


def test_a_folder_that_is_swapped_before_it_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, bad = tmp_path / "cache", evil(tmp_path / "evil")
    real = os.makedirs

    def swap(*arguments: object, **options: object) -> None:
        real(*arguments, **options)  # type: ignore[arg-type]
        path.rmdir()
        path.symlink_to(bad)

    monkeypatch.setattr(os, "makedirs", swap)
    assert open_cache(Config(cache=str(path))) is None
    assert "symbolic link" in refused_reason(Config(cache=str(path)))


SWAP = """
import os, random, sys, time
path, aside, bad = sys.argv[1:]
while os.getppid() == int(os.environ["PARENT"]):
    try:
        os.rename(path, aside)
        os.symlink(bad, path)
        time.sleep(random.random() * 2e-4)
        os.unlink(path)
    except OSError:  # the other process made the folder between two steps
        pass
    if os.path.exists(aside):
        os.rename(aside, path)
    time.sleep(random.random() * 2e-4)
"""


def race(tmp_path: Path, enough: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Open a folder while another process swaps it for a link all the time: how often we got ours, none, and the evil one."""
    path, bad = tmp_path / "cache", evil(tmp_path / "evil")
    assert make(path).put("object", "a key", b"ours")
    swapper = subprocess.Popen(
        [sys.executable, "-c", SWAP, str(path), str(tmp_path / "aside"), str(bad)], env={"PARENT": str(os.getpid())}
    )
    met: Counter[str] = Counter()
    try:
        limit_s = time.monotonic() + 60
        while not enough(met) and time.monotonic() < limit_s and swapper.poll() is None:
            folder = open_folder(str(path))
            got = DiskCache(folder, 1 << 20).get("object", "a key") if isinstance(folder, Folder) else b"refused"
            met[(got or b"nothing").decode()] += 1
    finally:
        swapper.kill()
        swapper.wait()
    return met


def test_no_race_of_swaps_gets_the_other_folder_in(tmp_path: Path) -> None:
    met = race(tmp_path, lambda met: min(met["ours"], met["refused"]) >= 300)
    assert met["evil"] == 0
    assert min(met["ours"], met["refused"]) >= 300, met  # both sides of the race were met


def test_the_race_would_be_lost_without_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "OPEN_FOLDER", os.O_RDONLY | os.O_DIRECTORY)
    assert race(tmp_path, lambda met: met["evil"] > 0)["evil"] > 0


# entries


def symlink(path: Path, good: Path) -> None:
    path.symlink_to(good)


def hard_link(path: Path, good: Path) -> None:
    path.hardlink_to(good)


def group_writable(path: Path, good: Path) -> None:
    os.rename(good, path)
    path.chmod(0o620)


def world_writable(path: Path, good: Path) -> None:
    os.rename(good, path)
    path.chmod(0o602)


def anothers(path: Path, good: Path) -> None:
    os.rename(good, path)
    os.chown(path, SOMEBODY, -1)


def pipe(path: Path, good: Path) -> None:
    os.mkfifo(path)


UNSAFE = [
    (symlink, "it is a symbolic link"),
    (hard_link, "it is a hard link, so others may hold it"),
    (group_writable, "others may write to it"),
    (world_writable, "others may write to it"),
    pytest.param(anothers, "it belongs to another user", marks=as_root),
    (pipe, "it is not a regular file"),
]


@pytest.mark.parametrize(("prepare", "reason"), UNSAFE)
def test_an_entry_that_is_not_ours_alone_is_refused(tmp_path: Path, prepare: Callable[[Path, Path], None], reason: str) -> None:
    cache = make(tmp_path / "cache")
    path = tmp_path / "cache" / NAME
    prepare(path, evil(tmp_path / "evil") / NAME)
    assert cache.get("object", "a key") is None
    assert cache.stats().reasons == {f"refused: {reason}": 1}
    assert list(cache.entries()) == []
    assert [(found.name, found.reason) for found in cache.verify()] == [(NAME, reason)]
    assert os.path.lexists(path)  # for its owner to see
    assert cache.put("object", "a key", b"ours")
    assert cache.get("object", "a key") == b"ours"
    if prepare in (symlink, hard_link):  # the other name still is what it was
        assert make(tmp_path / "evil").get("object", "a key") == b"evil"


@pytest.mark.parametrize(("prepare", "reason"), [case for case in UNSAFE if not isinstance(case, tuple) or case[0] is not pipe])
def test_each_would_be_read_without_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path, Path], None], reason: str
) -> None:
    cache = make(tmp_path / "cache")
    prepare(tmp_path / "cache" / NAME, evil(tmp_path / "evil") / NAME)
    monkeypatch.setattr(cache_entry, "find_unsafe", lambda status: None)
    monkeypatch.setattr(cache_entry, "_READ", os.O_RDONLY)
    assert cache.get("object", "a key") == b"evil"


def test_a_folder_in_an_entrys_place_is_refused_and_cannot_be_replaced(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    (tmp_path / "cache" / NAME / "inside").mkdir(parents=True)
    assert cache.get("object", "a key") is None
    assert not cache.put("object", "a key", b"ours")
    assert cache.clear().entries == 0
    assert cache.stats().reasons.keys() == {
        "refused: it is not a regular file",
        "put failed: Is a directory",
        "remove failed: Is a directory",
    }
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [NAME]


def test_an_entry_that_is_replaced_while_it_is_read_is_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make(tmp_path / "cache")
    cache.put("object", "a key", b"old")
    real, done = os.fstat, []

    def late(file: int) -> os.stat_result:
        if not done:
            done.append(True)
            cache.put("object", "a key", b"new")
        return real(file)

    monkeypatch.setattr(os, "fstat", late)
    assert cache.get("object", "a key") == b"old"
    assert cache.get("object", "a key") == b"new"
    assert "refused" not in cache.counts()


def test_clear_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "cache" / NAME).symlink_to(target)
    cache.clear()
    assert os.listdir(cache.folder.path) == []
    assert target.read_text() == "keep me"


def test_a_system_without_descriptors_of_folders_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    assert open_cache(Config(cache=str(tmp_path / "cache"))) is None
    assert "cannot open files of a folder safely" in refused_reason(Config(cache=str(tmp_path / "cache")))
    assert cache_module.open_cache(Config(cache="off")) is None
