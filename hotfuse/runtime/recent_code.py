"""Object code in memory: what this process made or read of late, the least recently used dropped first.

A kernel that comes again (a shape that is hot again, a second model of the same layers) is found here without a disk, and also
where none may be used. Workers have their own.

State: the code by a digest of its key, bounded in bytes by whoever built last; a lock guards it. A forked child goes on with a
copy.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from hotfuse.locks import make_lock

LIMIT_BYTES = 64 << 20  # BERT-base takes 35 KB


class RecentCode:
    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes, self.bytes = limit_bytes, 0
        self._code: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = make_lock()

    def __len__(self) -> int:
        return len(self._code)

    def get(self, key: str) -> bytes | None:
        name = _digest(key)
        with self._lock:
            found = self._code.get(name)
            if found is not None:
                self._code.move_to_end(name)
            return found

    def put(self, key: str, code: bytes) -> None:
        """Keep code, unless it alone is more than there may be."""
        if len(code) > self.limit_bytes:
            return
        name = _digest(key)
        with self._lock:
            self.bytes += len(code) - len(self._code.pop(name, b""))
            self._code[name] = code
            self._make_room()

    def bound(self, cache_bytes: int) -> None:
        """Keep no more than this from now on: a cache that may not have it on disk is not to have it here."""
        with self._lock:
            self.limit_bytes = min(LIMIT_BYTES, cache_bytes)
            self._make_room()

    def _make_room(self) -> None:
        while self.bytes > self.limit_bytes:
            _, dropped = self._code.popitem(last=False)
            self.bytes -= len(dropped)

    def clear(self) -> None:
        with self._lock:
            self._code.clear()
            self.bytes = 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


RECENT = RecentCode()
