"""The disk cache: bytes by kind and key, in one folder that any number of processes and threads share.

An entry comes into being by a rename, whole or not at all, so readers need no lock and a writer may be killed at any moment. It
is read with one open, one fstat and one read, and is either what was put or a miss: damage, links, files of others and full
disks are counted, never raised. Of the bytes allowed, the least recently used go first. Where two processes remove and put the
same entry at the same moment it may be lost, which costs a compilation and no more.

State: the caches open in this process, why others were refused, and in each cache its counts and when it looked over its folder
last. Locks guard them. Forked children go on with the folder and the counts of their parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from hotfuse.config import Config
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.cache_entry import (
    Entry,
    Flaw,
    Found,
    disk_bytes,
    encode_head,
    entry_name,
    glance,
    is_entry,
    is_part,
    load,
    part_name,
)
from hotfuse.runtime.cache_folder import OPEN_FOLDER, Folder, folder_path, open_folder, refusal

TOUCH_S = 60.0  # an entry's time of use is true to this
LOOK_S = 60.0  # between looks over the folder, to see what other processes put
LOOKS = 16  # the folder is looked over at least this often while the bytes allowed are written
LEFT_S = 3600.0  # after which whoever was writing is dead


@dataclass(frozen=True)
class Stats:
    """What is in the folder, and what this process did there. Bytes are of the disk, in whole blocks."""

    folder: str
    limit_bytes: int
    entries: int
    bytes: int
    kinds: Mapping[str, tuple[int, int]]  # entries and bytes of each; "?" where the header cannot be read
    leftovers: int  # files that are being written, or whose writers died
    counts: Mapping[str, int]  # hit, miss, damaged, refused, put, put failed, removed
    reasons: Mapping[str, int]  # of what was damaged, refused or failed


@dataclass(frozen=True)
class Damaged:
    """An entry that is never used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Removed:
    entries: int
    bytes: int


@dataclass(frozen=True)
class _File:
    used_s: float
    name: str
    bytes: int


class DiskCache:
    """State: counts and reasons; the bytes that may be written before the next look over the folder, and when the last was."""

    def __init__(self, folder: Folder, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._room, self._looked_s = 0, float("-inf")
        self._lock = make_lock()
        # At exit the system closes it: threads that outlive the interpreter's end may still be reading.
        weakref.finalize(self, folder.close).atexit = False

    def get(self, kind: str, key: str) -> bytes | None:
        """What was put there; None if nothing was, or if what is found is not exactly that."""
        name = entry_name(kind, key)
        found = load(self.folder.descriptor, name, self.limit_bytes)
        if isinstance(found, Found) and (found.header.kind, found.header.key) == (kind, key):
            self._count("hit")
            self._touch(name, found.used_s)
            return found.data
        if not isinstance(found, Flaw):
            self._count("miss")
        elif found.is_damage:
            self._count("damaged", found.reason)
            self._discard(name, found.inode)
        else:  # not to be trusted: it stays for its owner to see, until a put takes its place
            self._count("refused", found.reason)
        return None

    def holds(self, kind: str, key: str) -> bool:
        """Whether there is an entry of that name. Nothing is read, and nothing is counted."""
        try:
            os.stat(entry_name(kind, key), dir_fd=self.folder.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def put(self, kind: str, key: str, data: bytes) -> bool:
        """Keep bytes under a kind and a key, in place of what was there. False, with a reason counted, where that cannot be."""
        name, head = entry_name(kind, key), encode_head(kind, key, data, time.time())
        size = disk_bytes(len(head) + len(data))
        if size > self.limit_bytes:
            self._count("put failed", "the entry is larger than the whole cache may be")
            return False
        if not self.folder.is_there:
            self._count("put failed", "the folder was removed, or its descriptor closed")
            return False
        try:
            self._write(name, head, data)
        except OSError as error:
            self._count("put failed", f"{error.strerror}")
            return False
        self._count("put")
        self._make_room(name, size)
        return True

    def put_later(self, kind: str, key: str, data: bytes) -> None:
        """Put by a thread of its own: a disk takes longer than a kernel."""
        threading.Thread(target=self.put, args=(kind, key, data), name="hotfuse-cache", daemon=True).start()

    def _write(self, name: str, *pieces: bytes) -> None:
        """Write a file under a name of its own, and give it its name when it is safe on the disk."""
        folder, part = self.folder.descriptor, part_name(name)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            try:
                os.fchmod(file, 0o600)  # whatever the process takes away from new files
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # Ctrl-C too leaves nothing behind
            self._unlink(part)
            raise
        os.fsync(folder)

    def _touch(self, name: str, used_s: float) -> None:
        """Note that an entry was used, so that it stays longer."""
        if abs(time.time() - used_s) > TOUCH_S:
            with contextlib.suppress(OSError):  # pruned meanwhile, or on a disk that is only read
                os.utime(name, dir_fd=self.folder.descriptor, follow_symlinks=False)

    def _discard(self, name: str, inode: int | None) -> None:
        """Remove a damaged entry, unless another was put in its place meanwhile."""
        try:
            there = os.stat(name, dir_fd=self.folder.descriptor, follow_symlinks=False)
        except OSError:
            return
        if there.st_ino == inode:
            self._unlink(name)

    def _unlink(self, name: str) -> bool:
        """Whether a file is gone."""
        try:
            os.unlink(name, dir_fd=self.folder.descriptor)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._count("remove failed", f"{error.strerror}")
            return False
        return True

    def _make_room(self, name: str, size: int) -> None:
        """After a put: keep the folder within its bytes. It is looked over seldom, for that takes a stat of every file."""
        now = time.monotonic()
        with self._lock:
            self._room -= size
            if self._room >= 0 and now - self._looked_s < LOOK_S:
                return
            self._room, self._looked_s = self.limit_bytes // LOOKS, now  # other threads go on meanwhile
        taken = sum(file.bytes for file in self._files(is_entry))
        if taken > self.limit_bytes:  # down to less than allowed, or every further put would have to prune
            taken -= self._remove_oldest(self.limit_bytes - self.limit_bytes // 8, name).bytes
        self._remove_leftovers(LEFT_S)
        with self._lock:
            self._room = min(self._room, self.limit_bytes - taken)

    def entries(self) -> Iterator[Entry]:
        """What the entries say of themselves, most recently used first. Their data is not read."""
        for file in reversed(self._files(is_entry)):
            found = glance(self.folder.descriptor, file.name, self.limit_bytes)
            if isinstance(found, Entry):
                yield found

    def stats(self) -> Stats:
        files = self._files(is_entry)
        kinds: dict[str, tuple[int, int]] = {}
        for file in files:
            found = glance(self.folder.descriptor, file.name, self.limit_bytes)
            kind = found.kind if isinstance(found, Entry) else "?"
            count, taken = kinds.get(kind, (0, 0))
            kinds[kind] = (count + 1, taken + file.bytes)
        taken = sum(file.bytes for file in files)
        leftovers = len(self._files(is_part))
        with self._lock:
            counts, reasons = dict(self._counts), dict(self._reasons)
        return Stats(self.folder.path, self.limit_bytes, len(files), taken, kinds, leftovers, counts, reasons)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all in the folder. Nothing is read for it."""
        with self._listing() as names:
            return next(names, None) is None

    def counts(self) -> dict[str, int]:
        """How often this process hit, missed, put and so on: the part of `stats` that costs nothing."""
        with self._lock:
            return dict(self._counts)

    def verify(self, progress: Callable[[int, int], None] | None = None, remove: bool = False) -> list[Damaged]:
        """Read every entry whole; those that would not be used, and why. `progress` hears how many of how many are read."""
        files, damaged = self._files(is_entry), []
        for number, file in enumerate(files, 1):
            found = load(self.folder.descriptor, file.name, self.limit_bytes)
            if isinstance(found, Flaw):
                damaged.append(Damaged(file.name, found.reason))
                if remove:
                    self._unlink(file.name)
            if progress is not None:
                progress(number, len(files))
        return damaged

    def prune(self, limit_bytes: int | None = None) -> Removed:
        """Remove what dead writers left, and the least recently used entries until the rest takes at most `limit_bytes`."""
        self._remove_leftovers(LEFT_S)
        return self._remove_oldest(self.limit_bytes if limit_bytes is None else limit_bytes)

    def clear(self) -> Removed:
        """Remove every entry and everything half written. Who is writing at this moment fails to put, and says so."""
        self._remove_leftovers(0)
        return self._remove_oldest(0)

    def _remove_oldest(self, limit_bytes: int, keep: str = "") -> Removed:
        files = self._files(is_entry)
        taken, removed = sum(file.bytes for file in files), []
        for file in files:
            if taken <= limit_bytes:
                break
            if file.name != keep and self._unlink(file.name):
                taken -= file.bytes
                removed.append(file)
        if removed:
            self._count("removed", times=len(removed))
        return Removed(len(removed), sum(file.bytes for file in removed))

    def _remove_leftovers(self, age_s: float) -> None:
        now = time.time()
        for file in self._files(is_part):
            if abs(now - file.used_s) >= age_s:  # a time far ahead is a clock that was set back
                self._unlink(file.name)

    def _files(self, wanted: Callable[[str], bool]) -> list[_File]:
        """The files with names of that sort, least recently used first. What bears other names is somebody else's."""
        with self._listing() as names:
            found = [file for item in names if wanted(item.name) and (file := _look(item)) is not None]
        return sorted(found, key=lambda file: (file.used_s, file.name))

    @contextlib.contextmanager
    def _listing(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        """What is in the folder; nothing where that cannot be told."""
        try:
            # A descriptor of its own: threads and forked children share the reading position of the other.
            listing = os.open(".", OPEN_FOLDER, dir_fd=self.folder.descriptor)
        except OSError as error:
            self._count("list failed", f"{error.strerror}")
            yield iter(())
            return
        try:
            with os.scandir(listing) as names:
                yield names
        finally:
            os.close(listing)

    def _count(self, what: str, reason: str = "", times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times
            if reason:
                self._reasons[f"{what}: {reason}"] += times


def _look(item: os.DirEntry[str]) -> _File | None:
    try:
        status = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        return None
    return _File(status.st_mtime, item.name, disk_bytes(status.st_size))


_OPEN: dict[tuple[str, int], DiskCache] = {}
_REFUSED: dict[str, str] = {}
_LOCK = make_lock()


def open_cache(config: Config) -> DiskCache | None:
    """The cache that a configuration asks for, one per folder and limit; None if it asks for none or the folder is refused."""
    path = folder_path(config)
    if path is None:
        return None
    with _LOCK:
        cache = _OPEN.get((path, config.max_cache_bytes))
        status = None if cache is None else cache.folder.status
        if cache is not None and status is not None and status.st_nlink:
            reason = refusal(status, path)  # others may have been let in since
        else:
            folder = open_folder(path)
            reason = folder if isinstance(folder, str) else ""
            if isinstance(folder, Folder):
                cache = _OPEN[path, config.max_cache_bytes] = DiskCache(folder, config.max_cache_bytes)
        _REFUSED[path] = reason
        return None if reason else cache


def refused_reason(config: Config) -> str:
    """Why `open_cache` gave none although one was asked for; empty where it did, or where the cache is off."""
    return _REFUSED.get(folder_path(config) or "", "")
