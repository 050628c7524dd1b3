"""Locks that are free in a forked child, and imports that no fork happens amid.

A lock held by another thread while this process forks would stay locked in the child for ever: that thread does not exist
there. What our locks guard is replaced whole or may be made anew, so the child may take it as it is. A half-imported module it
may not: what other threads import on demand they import under `IMPORTS`, and a fork waits for that.

State: weak references to every lock made here.
"""

from __future__ import annotations

import os
import threading
import weakref

IMPORTS = threading.RLock()
_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def make_lock() -> threading.Lock:
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in _LOCKS:
        lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_free_all)
os.register_at_fork(before=IMPORTS.acquire, after_in_parent=IMPORTS.release, after_in_child=IMPORTS.release)
