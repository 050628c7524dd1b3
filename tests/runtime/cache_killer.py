"""A campaign of SIGKILL against writers of a disk cache. A program of its own, so that the children it forks are small:

    python -m tests.runtime.cache_killer FOLDER KILLS SEED [DEFECT]

A child overwrites a few keys again and again, each time with the next version, and says before and after each put what it does.
It is killed at a random moment. Then every key must hold the version that was committed last, or the one that was being put.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import struct
import sys
import time

from hotfuse.config import Config
from hotfuse.runtime import cache_entry
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.cache_entry import is_part

KEYS = 6
MESSAGE = struct.Struct("<BBI")  # begun, committed or failed; key; version
BEGUN, COMMITTED, FAILED = range(3)


def content(key: int, version: int) -> bytes:
    """As long for each version of a key, so that a mixture of two versions would look like one."""
    return hashlib.sha256(b"%d %d" % (key, version)).digest() * (1 << (2 * key + 2))


def write_on(cache: DiskCache, versions: dict[int, int], pipe: int, seed: int) -> None:
    """Put version after version until somebody kills us."""
    choice = random.Random(seed)
    while True:
        key = choice.randrange(KEYS)
        versions[key] = versions.get(key, 0) + 1
        data = content(key, versions[key])
        os.write(pipe, MESSAGE.pack(BEGUN, key, versions[key]))
        done = cache.put("object", f"key {key}", data)
        os.write(pipe, MESSAGE.pack(COMMITTED if done else FAILED, key, versions[key]))


def kill_one(cache: DiskCache, versions: dict[int, int], seed: int, delay_s: float) -> list[tuple[int, int, int]]:
    """What a child said before it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)  # a child that outlives its parent fails to write, and ends
            write_on(cache, dict(versions), write, seed)
        finally:
            os._exit(1)
    os.close(write)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    return [MESSAGE.unpack_from(said, at) for at in range(0, len(said), MESSAGE.size)]


def campaign(cache: DiskCache, kills: int, seed: int) -> dict[str, int]:
    """Kill children until `kills` of them were amid a put."""
    chance = random.Random(seed)
    versions: dict[int, int] = {}
    found = dict.fromkeys(("kills", "amid", "committed", "failed", "lost", "corrupt"), 0)
    while found["amid"] < kills and found["kills"] < 3 * kills:
        pending: dict[int, int] = {}
        for what, key, version in kill_one(cache, versions, chance.randrange(1 << 30), chance.uniform(0.001, 0.03)):
            if what == BEGUN:
                pending[key] = version
                continue
            del pending[key]
            if what == COMMITTED:
                versions[key] = version
            found["committed" if what == COMMITTED else "failed"] += 1
        found["kills"] += 1
        found["amid"] += bool(pending)
        for key in {*versions, *pending}:
            data = cache.get("object", f"key {key}")
            if key in pending and data == content(key, pending[key]):  # renamed, and killed before it could say so
                versions[key] = pending[key]
            elif data is None:
                found["lost"] += key in versions
                versions.pop(key, None)
            elif key not in versions or data != content(key, versions[key]):
                found["corrupt"] += 1
    return found


def write_in_place(cache: DiskCache, name: str, *pieces: bytes) -> None:
    """What `DiskCache._write` is not to be, on a slow disk."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=cache.folder.descriptor)
    raw = b"".join(pieces)
    for at in range(0, len(raw), 1024):
        os.write(file, raw[at : at + 1024])
        time.sleep(1e-4)
    os.close(file)


def main(folder: str, kills: str, seed: str, defect: str = "") -> None:
    cache = open_cache(Config(cache=folder))
    assert cache is not None
    if defect:
        DiskCache._write = write_in_place  # type: ignore[assignment, method-assign]
    if defect == "unchecked":
        cache_entry._digest_fits = lambda raw, start: True
    found = campaign(cache, int(kills), int(seed))
    leftovers = sum(map(is_part, os.listdir(folder)))
    print(json.dumps({**found, "leftovers": leftovers, "damaged": len(cache.verify())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
