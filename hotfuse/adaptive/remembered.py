"""What was learned about a model's targets, on disk: one small file for each model, shared by all processes that serve it.

A model is known by its skeleton, the machine and the sources of hotfuse: another generator may be right. Whoever writes takes
what is there and adds its own, so what any process found wrong stays wrong. Files lie in a folder of their own within that of
the cache, as entries of a disk cache: whole or not at all, checked by a digest, the least recently used removed first. What is
damaged is nothing known, and an event. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from hotfuse.adaptive.memory import Memory, merged, read_memory, write_memory
from hotfuse.config import Config
from hotfuse.errors import ParseError
from hotfuse.events import EventLog
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.record_form import write_record
from hotfuse.pace import Pace, hurry
from hotfuse.runtime.build_cache import version
from hotfuse.runtime.cache import DiskCache, open_cache

KIND, FOLDER, LOCK = "memory", "lessons", "lessons.lock"
MOST_BYTES = 1 << 20  # of all files: those of 256 models, each a block of the disk
PATIENCE_S = 1.0  # for another process that is writing
_FLAWS = ("damaged", "refused")


def memory_key(skeleton: Graph, config: Config, pace: Pace = hurry) -> str:
    """What a model is known by; "" where it cannot be told, so that nothing is remembered."""
    try:
        digest = hashlib.sha256(write_record(skeleton, pace)).hexdigest()
    except TypeError:  # an attribute that has no record form
        return ""
    return "\n".join((version(), host_spec(config.isa).key, digest))


def read_remembered(config: Config, key: str, now_s: float, events: EventLog) -> Memory | None:
    """What is remembered of a model; None if nothing is. `now_s` is by the clock that back-offs go by."""
    cache = _open(config, key)
    return None if cache is None else _read(cache, key, now_s, events)


def remember(config: Config, key: str, memory: Memory, now_s: float, events: EventLog) -> None:
    """Add what a process knows to what is remembered. It may wait for a disk: not for a thread that answers calls."""
    cache = _open(config, key) if memory.lessons else None
    if cache is None:
        return
    with _alone(cache):
        there = _read(cache, key, now_s, events)
        whole = memory if there is None else merged(memory, there)
        news = there is None or set(whole.lessons) != set(there.lessons)
        if news and not cache.put(KIND, key, write_memory(whole, now_s)):
            reason = next((why for why in cache.stats().reasons if why.startswith("put failed")), "put failed")
            events.emit("memory.failed", KIND, f"lessons cannot be kept on disk: {reason}")


def _open(config: Config, key: str) -> DiskCache | None:
    """The folder of lessons; None where nothing is to be kept, or where the cache's own folder is refused."""
    if not key or config.tiles:  # of programs that were edited by hand nothing is learned
        return None
    outer = open_cache(config)
    return None if outer is None else _lessons_in(outer, config)


def kept_lessons(outer: DiskCache, config: Config) -> DiskCache | None:
    """The folder of lessons within that of a cache, if there is one."""
    return _lessons_in(outer, config) if os.path.isdir(os.path.join(outer.folder.path, FOLDER)) else None


def _lessons_in(outer: DiskCache, config: Config) -> DiskCache | None:
    return open_cache(replace(config, cache=os.path.join(outer.folder.path, FOLDER), max_cache_bytes=MOST_BYTES))


def _read(cache: DiskCache, key: str, now_s: float, events: EventLog) -> Memory | None:
    before = cache.counts()
    data = cache.get(KIND, key)
    if data is None:
        counts = cache.counts()
        if any(counts.get(flaw, 0) > before.get(flaw, 0) for flaw in _FLAWS):
            events.emit("memory.damaged", KIND, "the file of lessons cannot be used; nothing is known of this model")
        return None
    try:
        return read_memory(data, now_s)
    except ParseError as error:
        events.emit("memory.damaged", KIND, f"{error}; nothing is known of this model")
        return None


@contextlib.contextmanager
def _alone(cache: DiskCache) -> Iterator[None]:
    """While no other process writes; after some patience beside it, for then it hangs."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(LOCK, flags, 0o600, dir_fd=cache.folder.descriptor)
    except OSError:  # what cannot be locked can hardly be written either
        yield
        return
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _locked(lock) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    import fcntl  # not every system has it, and where there is none the folder was refused

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
