"""The disk cache under damage: flipped and missing bytes, writers that are killed, disks that are full. Every check has a
planted defect that makes it fail."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotfuse
from hotfuse.config import Config
from hotfuse.runtime import cache as cache_module
from hotfuse.runtime import cache_entry
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.cache_entry import MAGIC, Flaw, decode, encode_head, entry_name

ROOT = Path(hotfuse.__file__).parent.parent


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    made = open_cache(Config(cache=str(tmp_path / "cache")))
    assert made is not None
    return made


def path_of(cache: DiskCache, kind: str, key: str) -> Path:
    return Path(cache.folder.path) / entry_name(kind, key)


def plant(path: Path, raw: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, raw)
    os.close(file)


# flips and truncations


def flips(raw: bytes) -> Iterator[bytes]:
    """A file with each of its bytes flipped, in turn."""
    for at in range(len(raw)):
        yield raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]


def cuts(raw: bytes) -> Iterator[bytes]:
    """A file that ends too early, at every place, or too late."""
    yield from (raw[:end] for end in range(len(raw)))
    yield raw + b"\0"


def undetected(cache: DiskCache, kind: str, key: str, variants: Iterable[bytes]) -> int:
    """How many damaged variants of an entry are not a miss that is counted and removed."""
    path, found = path_of(cache, kind, key), 0
    for raw in variants:
        plant(path, raw)
        before = cache.counts().get("damaged", 0)
        got = cache.get(kind, key)
        found += got is not None or path.exists() or cache.counts().get("damaged", 0) != before + 1
    return found


def test_every_flip_and_every_cut_is_a_miss(cache: DiskCache) -> None:
    assert cache.put("object", "a key", b"some code")
    raw = path_of(cache, "object", "a key").read_bytes()
    assert len(raw) < 200
    assert undetected(cache, "object", "a key", flips(raw)) == 0
    assert undetected(cache, "object", "a key", cuts(raw)) == 0
    assert cache.counts()["damaged"] == 2 * len(raw) + 1
    assert cache.put("object", "a key", b"some code")
    assert cache.get("object", "a key") == b"some code"


def test_no_other_value_of_any_byte_is_taken() -> None:
    data = b"some code"
    raw = encode_head("object", "a key", data, 1.5) + data
    assert decode(raw) == (cache_entry.Header("object", "a key", len(data), 1.5), data)
    wrong = bytearray(raw)
    for at, byte in enumerate(raw):
        for other in range(256):
            wrong[at] = other
            assert isinstance(decode(bytes(wrong)), Flaw) == (other != byte)
        wrong[at] = byte


@pytest.mark.long
def test_every_flip_and_every_cut_of_100_entries_is_a_miss(cache: DiskCache) -> None:
    chance = random.Random(0)
    for number in range(100):
        kind, key = chance.choice(("object", "build", "proof", "graph")), f"{number} " + "k" * chance.randrange(300)
        data = chance.randbytes(chance.randrange(1500))
        assert cache.put(kind, key, data)
        raw = path_of(cache, kind, key).read_bytes()
        assert undetected(cache, kind, key, flips(raw)) == 0
        assert undetected(cache, kind, key, cuts(raw)) == 0


def test_without_the_digest_flips_would_pass(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"some code"
    assert cache.put("object", "a key", data)
    raw = path_of(cache, "object", "a key").read_bytes()
    monkeypatch.setattr(cache_entry, "_digest_fits", lambda raw, start: True)
    assert undetected(cache, "object", "a key", flips(raw)) >= len(data) + 32


def test_without_removal_damage_would_stay(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.put("object", "a key", b"some code")
    raw = path_of(cache, "object", "a key").read_bytes()
    monkeypatch.setattr(DiskCache, "_discard", lambda *arguments: None)
    assert undetected(cache, "object", "a key", flips(raw)) == len(raw)


def forged(header: bytes, data: bytes = b"data") -> bytes:
    """A file whose digest fits."""
    start = MAGIC + struct.pack("<I", len(header)) + header
    return start + hashlib.sha256(start + data).digest() + data


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 200_000,
        b"[]",
        b"{}",
        b'{"kind": "object", "key": "a key", "bytes": 4}',
        b'{"kind": "object", "key": 7, "bytes": 4, "made_s": 1.0}',
        b'{"kind": "object", "key": "a key", "bytes": true, "made_s": 1.0}',
        b'{"kind": "object", "key": "a key", "bytes": 5, "made_s": 1.0}',
        b'{"kind": "object", "key": "a key", "bytes": 4, "made_s": NaN}',
        b'{"kind": "object", "key": "a key", "bytes": 4, "made_s": 1e300}',
        b'{"kind": "object", "key": "a key", "bytes": 4, "made_s": 1.0, "more": 1}',
        b'{"kind": "object", "key": "another key", "bytes": 4, "made_s": 1.0}',
    ],
)
def test_a_strange_header_is_damage_even_if_the_digest_fits(cache: DiskCache, header: bytes) -> None:
    path = path_of(cache, "object", "a key")
    plant(path, forged(header))
    assert list(cache.entries()) == []
    assert cache.stats().kinds["?"][0] == 1
    assert len(cache.verify()) == 1
    assert cache.get("object", "a key") is None
    assert cache.counts() == {"damaged": 1}
    assert not path.exists()


def test_a_forged_header_that_is_sound_is_read(cache: DiskCache) -> None:
    plant(path_of(cache, "object", "a key"), forged(b'{"kind": "object", "key": "a key", "bytes": 4, "made_s": 1.0}'))
    assert cache.get("object", "a key") == b"data"


# writers that are killed


def killed(folder: Path, kills: int, defect: str = "") -> dict[str, int]:
    command = [sys.executable, "-m", "tests.runtime.cache_killer", str(folder), str(kills), "7", *([defect] if defect else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def require_nothing_lost(found: dict[str, int], kills: int) -> None:
    assert (found["lost"], found["corrupt"], found["damaged"], found["failed"]) == (0, 0, 0, 0), found
    assert found["amid"] == kills
    assert found["committed"] > 0


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_no_kill_loses_or_corrupts_what_was_put(tmp_path: Path, kills: int) -> None:
    found = killed(tmp_path / "cache", kills)
    require_nothing_lost(found, kills)
    assert found["leftovers"] > 0  # or no kill came amid writing


@pytest.mark.parametrize(("defect", "what"), [("in place", "lost"), ("unchecked", "corrupt")])
def test_kills_would_find_a_put_that_writes_in_place(tmp_path: Path, defect: str, what: str) -> None:
    found = killed(tmp_path / "cache", 50, defect)
    assert found[what] > 0
    with pytest.raises(AssertionError):
        require_nothing_lost(found, 50)


# disks that fail


FULL = """
import json, os, resource, sys
from hotfuse.config import Config
from hotfuse.runtime.cache import open_cache
cache = open_cache(Config(cache=sys.argv[1]))
assert cache.put("object", "before", b"x")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
done = [cache.put("object", "large", b"x" * 9000), cache.put("object", "small", b"x")]
stats = cache.stats()
print(json.dumps([done, stats.counts, stats.reasons, sorted(n.split(".")[-1] for n in os.listdir(sys.argv[1]))]))
"""


def test_a_full_disk_is_a_put_that_failed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "cache")], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    puts, counts, reasons, files = json.loads(done.stdout)
    assert puts == [False, True]
    assert counts == {"put": 2, "put failed": 1}
    assert reasons == {"put failed: File too large": 1}
    assert files == ["entry", "entry"]  # and nothing half written


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_every_step_of_a_put_may_fail(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    assert cache.put("object", "a key", b"old")

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert not cache.put("object", "a key", b"new")
    assert cache.stats().reasons == {"put failed: Read-only file system": 1}
    assert cache.get("object", "a key") == b"old"
    assert len(os.listdir(cache.folder.path)) == 1


def test_an_interrupted_put_leaves_nothing_behind(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(file: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.put("object", "a key", b"new")
    assert os.listdir(cache.folder.path) == []


def test_a_disk_that_cannot_be_read_is_a_miss(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.put("object", "a key", b"data")

    def fail(*arguments: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        assert cache.get("object", "a key") is None
    assert cache.stats().reasons == {"refused: it cannot be read: Input/output error": 1}
    assert cache.get("object", "a key") == b"data"  # what could not be read for a moment was not thrown away


def test_an_entry_put_while_a_damaged_one_is_removed_stays(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(cache, "object", "a key")
    plant(path, b"damaged")
    real = cache_module.load

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        cache.put("object", "a key", b"new")  # another process, just now
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "load", slow)
        assert cache.get("object", "a key") is None
    assert cache.get("object", "a key") == b"new"
