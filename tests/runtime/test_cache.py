"""The disk cache: what was put is got, by its full key alone; it stays within its bytes; processes and threads share it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hotfuse
from hotfuse.config import Config
from hotfuse.runtime import cache as cache_module
from hotfuse.runtime import cache_entry
from hotfuse.runtime.cache import LEFT_S, DiskCache, open_cache, refused_reason
from hotfuse.runtime.cache_entry import BLOCK_BYTES, disk_bytes, entry_name, part_name
from hotfuse.runtime.cache_folder import folder_path

ROOT = Path(hotfuse.__file__).parent.parent


def make(folder: Path, blocks: int = 1000) -> DiskCache:
    cache = open_cache(Config(cache=str(folder), max_cache_bytes=blocks * BLOCK_BYTES))
    assert cache is not None
    return cache


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return make(tmp_path / "cache")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many puts in little time: the disk, which takes milliseconds for each, is not waited for."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def path_of(cache: DiskCache, kind: str, key: str) -> Path:
    return Path(cache.folder.path) / entry_name(kind, key)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


# what was put is got


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("a key", b"data"),
        ("", b""),
        ("line\nafter \0 line \N{SNOWMAN} \ud800", bytes(range(256))),
        ("k" * 20_000, b"x" * 3_000_000),
    ],
    ids=["plain", "empty", "odd", "large"],
)
def test_what_was_put_is_got(cache: DiskCache, key: str, data: bytes) -> None:
    assert cache.get("object", key) is None
    before = time.time()
    assert cache.put("object", key, data)
    assert cache.get("object", key) == data
    (entry,) = cache.entries()
    assert (entry.kind, entry.key, entry.bytes, entry.name) == ("object", key, len(data), entry_name("object", key))
    assert before <= entry.made_s <= time.time()
    assert entry.used_s == pytest.approx(entry.made_s, abs=5)
    assert cache.verify() == []
    assert cache.counts() == {"miss": 1, "put": 1, "hit": 1}
    assert path_of(cache, "object", key).stat().st_mode & 0o777 == 0o600


def test_a_second_put_takes_the_place_of_the_first(cache: DiskCache) -> None:
    assert cache.put("object", "a key", b"old")
    assert cache.put("object", "a key", b"new")
    assert cache.get("object", "a key") == b"new"
    assert len(list(cache.entries())) == 1


def test_an_entry_is_on_the_disk_before_it_has_its_name_and_its_name_is_before_put_returns(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, os.rename

    def note_sync(file: int) -> None:
        steps.append("sync folder" if file == cache.folder.descriptor else f"sync {os.fstat(file).st_size} bytes")
        sync(file)

    def note_rename(*names: Any, **folders: Any) -> None:
        steps.append("rename")
        rename(*names, **folders)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    assert cache.put("object", "a key", b"data")
    size = path_of(cache, "object", "a key").stat().st_size
    assert steps == [f"sync {size} bytes", "rename", "sync folder"]


FIELDS = {
    "program": "tile softmax (m, n)\n  x = load f32[16] a",
    "shapes": "m n",
    "dtypes": "float32",
    "layouts": "n 1",
    "isa": "avx512",
    "llvm": "20.1.8",
    "generator": "3",
}


def text(fields: dict[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in fields.items())


def wrong_hits(cache: DiskCache) -> list[str]:
    """The changes of a key after which the entry is still found."""
    assert cache.put("object", text(FIELDS), b"code")
    assert cache.get("object", text(FIELDS)) == b"code"
    changes = {name: ("object", text({**FIELDS, name: value + "1"})) for name, value in FIELDS.items()}
    changes |= {f"without {name}": ("object", text({n: v for n, v in FIELDS.items() if n != name})) for name in FIELDS}
    changes |= {
        "kind": ("build", text(FIELDS)),
        "border": ("objec", "t" + text(FIELDS)),
        "end": ("object", text(FIELDS) + "\n"),
    }
    return [name for name, (kind, key) in changes.items() if cache.get(kind, key) is not None]


def test_a_change_of_any_field_of_a_key_is_a_miss(cache: DiskCache) -> None:
    assert wrong_hits(cache) == []


def test_names_that_collide_are_told_apart_by_the_full_key(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cache_module, cache_entry):
        monkeypatch.setattr(module, "entry_name", lambda kind, key: "0" * 64 + ".entry")
    assert wrong_hits(cache) == []


def test_an_entry_under_another_name_is_not_taken_for_that_key(cache: DiskCache) -> None:
    assert cache.put("object", "a key", b"data")
    os.rename(path_of(cache, "object", "a key"), path_of(cache, "object", "another key"))
    assert cache.get("object", "another key") is None
    assert cache.stats().reasons == {"damaged: it lies under the name of another key": 1}


def test_keys_would_be_mixed_up_without_comparing_them(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cache_module, cache_entry):
        monkeypatch.setattr(module, "entry_name", lambda kind, key: "0" * 64 + ".entry")

    class Careless(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    real = cache_entry.Header
    monkeypatch.setattr(cache_entry, "Header", lambda kind, key, **more: real(Careless(kind), Careless(key), **more))
    assert "isa" in wrong_hits(cache)


# what it holds


def test_stats_tell_what_is_there_and_what_was_done(cache: DiskCache) -> None:
    cache.put("object", "one", b"x" * 5000)
    cache.put("object", "two", b"x")
    cache.put("proof", "one", b"")
    (Path(cache.folder.path) / part_name(entry_name("object", "three"))).write_bytes(b"half")
    (Path(cache.folder.path) / "notes.txt").write_text("not of the cache")
    found = cache.stats()
    assert (found.entries, found.bytes, found.leftovers) == (3, 4 * BLOCK_BYTES, 1)
    assert found.kinds == {"object": (2, 3 * BLOCK_BYTES), "proof": (1, BLOCK_BYTES)}
    assert (found.folder, found.limit_bytes, found.counts) == (cache.folder.path, cache.limit_bytes, {"put": 3})


def test_verify_names_what_is_damaged_and_tells_how_far_it_is(cache: DiskCache) -> None:
    for number in range(5):
        cache.put("object", str(number), b"data")
    damaged = path_of(cache, "object", "3")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    steps: list[tuple[int, int]] = []
    (found,) = cache.verify(lambda done, total: steps.append((done, total)))
    assert (found.name, found.reason) == (damaged.name, "its digest does not fit")
    assert steps == [(n, 5) for n in range(1, 6)]
    assert damaged.exists()
    assert len(cache.verify(remove=True)) == 1
    assert not damaged.exists()
    assert cache.verify() == []


# it stays within its bytes


def test_sizes_are_of_whole_blocks() -> None:
    assert [disk_bytes(size) // BLOCK_BYTES for size in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1)] == [1, 1, 1, 2]


def test_puts_stay_within_the_bytes_allowed(tmp_path: Path, quick: None) -> None:
    cache = make(tmp_path, blocks=20)
    for number in range(100):
        assert cache.put("object", str(number), b"x" * 5000)  # two blocks
        assert cache.get("object", str(number)) is not None  # the newest is never the one that goes
        assert sum(disk_bytes(p.stat().st_size) for p in tmp_path.iterdir()) <= 20 * BLOCK_BYTES
    assert 8 <= cache.stats().entries <= 10
    assert cache.counts()["removed"] == 100 - cache.stats().entries


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = make(tmp_path, blocks=8)
    for number in range(8):
        assert cache.put("object", str(number), b"x")
        age(path_of(cache, "object", str(number)), 1000 - number)
    assert cache.get("object", "0") is not None  # used: now the youngest
    assert cache.put("object", "new", b"x")
    assert {entry.key for entry in cache.entries()} == {"new", "0", "3", "4", "5", "6", "7"}
    assert [entry.key for entry in cache.entries()][-2:] == ["4", "3"]


def test_a_hit_notes_its_time_once_a_minute(cache: DiskCache) -> None:
    cache.put("object", "a key", b"data")
    path = path_of(cache, "object", "a key")
    age(path, 30)
    before = path.stat().st_mtime
    cache.get("object", "a key")
    assert path.stat().st_mtime == before
    age(path, 90)
    cache.get("object", "a key")
    assert path.stat().st_mtime == pytest.approx(time.time(), abs=10)


def test_an_entry_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = make(tmp_path, blocks=2)
    assert cache.put("object", "fits", b"x" * BLOCK_BYTES)
    assert not cache.put("object", "large", b"x" * 3 * BLOCK_BYTES)
    assert cache.get("object", "fits") is not None
    assert cache.stats().reasons == {"put failed: the entry is larger than the whole cache may be": 1}
    assert not make(tmp_path, blocks=0).put("object", "any", b"")


def test_an_entry_that_a_smaller_cache_may_not_hold_is_not_read(tmp_path: Path) -> None:
    assert make(tmp_path).put("object", "large", b"x" * 9 * BLOCK_BYTES)
    small = make(tmp_path, blocks=4)
    assert small.get("object", "large") is None
    assert small.stats().reasons == {"refused: it is larger than the whole cache may be": 1}


def test_what_other_processes_put_is_seen_before_much_is_written(tmp_path: Path, quick: None) -> None:
    ours, theirs = make(tmp_path, blocks=160), make(tmp_path, blocks=10_000)
    assert ours.put("object", "first", b"x")
    for number in range(200):
        assert theirs.put("object", f"theirs {number}", b"x")
    for number in range(11):  # a sixteenth of what is allowed
        assert ours.put("object", f"ours {number}", b"x")
    assert ours.stats().bytes <= 160 * BLOCK_BYTES
    assert {f"ours {number}" for number in range(11)} <= {entry.key for entry in ours.entries()}


def test_what_dead_writers_left_goes_after_an_hour(cache: DiskCache) -> None:
    folder = Path(cache.folder.path)
    young, old, ahead = (folder / part_name(entry_name("object", str(number))) for number in range(3))
    for path, seconds in ((young, LEFT_S - 60), (old, LEFT_S + 60), (ahead, -2 * LEFT_S)):
        path.write_bytes(b"half")
        age(path, seconds)
    assert cache.put("object", "a key", b"data")
    assert [path.exists() for path in (young, old, ahead)] == [True, False, False]
    age(young, LEFT_S + 60)
    cache.prune()
    assert not young.exists()


def test_prune_and_clear_say_what_they_removed_and_leave_other_files(cache: DiskCache) -> None:
    folder = Path(cache.folder.path)
    for number in range(4):
        cache.put("object", str(number), b"x")
        age(path_of(cache, "object", str(number)), 1000 - number)
    (folder / "notes.txt").write_text("not of the cache")
    (folder / part_name(entry_name("object", "x"))).write_bytes(b"half")
    (folder / entry_name("object", "emptied")).write_bytes(b"")
    removed = cache.prune(3 * BLOCK_BYTES)
    assert (removed.entries, removed.bytes) == (2, 2 * BLOCK_BYTES)
    assert [entry.key for entry in cache.entries()] == ["3", "2"]
    assert cache.prune() == cache_module.Removed(0, 0)
    assert cache.clear().entries == 3
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert cache.counts()["removed"] == 5


# one folder, many users


def test_there_is_one_cache_per_folder_and_limit(tmp_path: Path) -> None:
    one = make(tmp_path / "one")
    assert make(tmp_path / "one") is one
    assert open_cache(Config(cache=f"{tmp_path}/./one/", max_cache_bytes=one.limit_bytes)) is one
    assert make(tmp_path / "other") is not one
    assert make(tmp_path / "one", blocks=5) is not one


def test_off_is_no_cache(tmp_path: Path) -> None:
    config = Config(cache="off")
    assert open_cache(config) is None
    assert refused_reason(config) == ""


def test_the_default_is_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOTFUSE_CACHE", raising=False)
    before = os.umask(0)
    try:
        cache = open_cache(Config())
    finally:
        os.umask(before)
    assert cache is not None
    assert cache.folder.path == str(tmp_path / "hotfuse/kernels")
    assert os.stat(cache.folder.path).st_mode & 0o777 == 0o700
    assert folder_path(Config(cache="~/mine")) == str(tmp_path / "home/mine")
    monkeypatch.setenv("HOTFUSE_CACHE", "7")  # a name, although it looks like a number
    assert folder_path(Config()) == os.path.abspath("7")


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert cache.get("object", "a key") is None
    assert not cache.put("object", "a key", b"data")
    assert cache.stats().reasons["put failed: the folder was removed, or its descriptor closed"] == 1
    again = make(tmp_path / "cache")
    assert again is not cache
    assert again.put("object", "a key", b"data")


def test_a_program_that_closes_our_descriptor_gets_nothing_written_elsewhere(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    (tmp_path / "elsewhere").mkdir()
    elsewhere = os.open(tmp_path / "elsewhere", os.O_RDONLY)
    os.dup2(elsewhere, cache.folder.descriptor)  # as when a daemon closes everything and opens files of its own
    assert not cache.put("object", "a key", b"data")
    assert os.listdir(elsewhere) == []
    descriptor = cache.folder.descriptor
    again = make(tmp_path / "cache")
    assert again.put("object", "a key", b"data")
    del cache
    os.fstat(descriptor)  # was not closed with the cache: it is somebody else's
    os.close(descriptor)
    os.close(elsewhere)


def test_the_descriptor_goes_with_the_cache(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cache = make(tmp_path / "cache")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    cache_module._OPEN.pop((cache.folder.path, cache.limit_bytes))
    del cache
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_list_the_folder_at_once(cache: DiskCache, quick: None) -> None:
    for number in range(40):
        cache.put("object", str(number), b"x")
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(len(list(cache.entries())) for _ in range(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [40] * 80


FORKS = """
import os, sys, threading
from hotfuse.config import Config
from hotfuse.runtime.cache import open_cache
cache = open_cache(Config(cache=sys.argv[1]))
stop = threading.Event()
def busy():  # holds the locks while the process forks
    while not stop.is_set():
        cache.get("object", "0 0")
thread = threading.Thread(target=busy)
thread.start()
children = []
for child in range(4):
    children.append(os.fork())
    if children[-1] == 0:
        good = all(cache.put("object", f"{child} {n}", b"%d %d" % (child, n)) for n in range(10))
        os._exit(0 if good and cache.get("object", f"{child} 9") == b"%d 9" % child else 1)
print([os.waitpid(child, 0)[1] for child in children])
stop.set()
thread.join()
print(all(cache.get("object", f"{c} {n}") == b"%d %d" % (c, n) for c in range(4) for n in range(10)))
"""


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_forked_children_go_on_with_the_cache(tmp_path: Path) -> None:
    out, errors = run(FORKS, str(tmp_path / "cache")).communicate(timeout=60)
    assert out == "[0, 0, 0, 0]\nTrue\n", errors


SHARE = """
import random, sys, threading
from hotfuse.config import Config
from hotfuse.runtime.cache import open_cache
cache = open_cache(Config(cache=sys.argv[1], max_cache_bytes=40 * 4096))
wrong = []
def work(seed):
    chance = random.Random(seed)
    for _ in range(60):
        key = chance.randrange(30)
        found = cache.get("object", str(key))
        if found is not None and found != bytes([key]) * 9000 and found != bytes([key + 100]) * 5000:
            wrong.append(key)
        if found is None or chance.random() < 0.3:
            cache.put("object", str(key), chance.choice((bytes([key]) * 9000, bytes([key + 100]) * 5000)))
threads = [threading.Thread(target=work, args=(int(sys.argv[2]) * 10 + n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
counts = cache.counts()
print(wrong, counts.get("damaged", 0), counts.get("refused", 0), counts.get("put failed", 0), counts["hit"] > 0)
"""


def test_processes_and_threads_share_a_folder_that_is_pruned_meanwhile(tmp_path: Path) -> None:
    children = [run(SHARE, str(tmp_path / "cache"), str(number)) for number in range(3)]
    for child in children:
        out, errors = child.communicate(timeout=120)
        assert out == "[] 0 0 0 True\n", errors
    cache = make(tmp_path / "cache", blocks=40)
    assert cache.verify() == []
    assert cache.stats().leftovers == 0
    # each process may write a sixteenth between looks, and each of its threads may be amid a put of three blocks
    assert cache.stats().bytes <= (40 + 3 * (3 + 3 * 3)) * BLOCK_BYTES
