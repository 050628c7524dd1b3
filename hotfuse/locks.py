"""Locks that are free in a forked child, and imports that a fork does not cut off.

A lock held by another thread while this process forks would stay locked in the child for ever: that thread does not exist
there. What our locks guard is replaced whole or may be made anew, so the child may take it as it is. A half-imported module it
may not, and Python's lock of it is nobody's there: the child forgets it, with the parts of it that are written in Python, and
imports it anew. A library that was forked amid its work would be broken in the child: a fork waits for the locks of
`make_awaited_lock`, and for imports under `IMPORTS`, those of libraries that cannot be imported anew.

State: weak references to every lock made here; the threads that make copies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from importlib._bootstrap_external import SourceLoader  # of `importlib.abc`'s, which takes 4 ms to import
from typing import Any

_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_COPYING: set[int] = set()


def make_lock() -> threading.Lock:
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """This thread forks, so that a copy of the process works for it."""
    _COPYING.add(threading.get_ident())
    try:
        yield
    finally:
        _COPYING.discard(threading.get_ident())


def is_copy() -> bool:
    """Asked amid a fork, in the child: whether it is a copy that works for its parent, and not a user's."""
    return threading.get_ident() in _COPYING


def half_imported() -> list[str]:
    """The modules that other threads are importing: Python has a lock for each."""
    found = [(name, lock) for name, reference in list(_import_locks().items()) if (lock := reference()) is not None]
    return [name for name, lock in found if getattr(lock, "owner", None) not in (None, threading.get_ident())]


def _import_locks() -> dict[str, Any]:
    return getattr(sys.modules["_frozen_importlib"], "_module_locks", {})


def _has_source(name: str) -> bool:
    """Whether a module is Python's: other ones cannot be imported twice."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), SourceLoader)


def _free_all() -> None:
    """In a forked child."""
    for lock in _LOCKS:
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for name in half_imported():
        _import_locks().pop(name, None)
        for inner in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
            if inner == name or _has_source(inner):
                del sys.modules[inner]


os.register_at_fork(after_in_child=_free_all)


def make_awaited_lock() -> threading.RLock:
    """A lock that a fork takes first, so that nobody holds it while the process is copied. A thread that holds two of them took
    the one that was made later first, as a fork does."""
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


IMPORTS = make_awaited_lock()
