"""Overrides: values for a model's initializers that are inputs too, so that they have a default.

A session treats them as constants, which is what they nearly always are. A call that feeds some is answered by another session,
in which just those are inputs.

State: these sessions by the names that are fed, bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotfuse.locks import make_lock
from hotfuse.runtime.feeds import Signature

if TYPE_CHECKING:
    from hotfuse.runtime.session import Session

_KEPT = 8  # sessions; a caller feeds the same names again and again


class Overrides:
    def __init__(self, defaults: Sequence[Signature], make: Callable[[frozenset[str]], Session]) -> None:
        self.defaults = tuple(defaults)
        self._names = frozenset(s.name for s in defaults)
        self._make = make
        self._sessions: dict[frozenset[str], Session] = {}
        self._lock = make_lock()

    def session(self, feeds: Any) -> Session | None:
        """The session for feeds that override something; None if nothing is."""
        if not isinstance(feeds, Mapping):
            return None
        names = self._names.intersection(feeds)
        if not names:
            return None
        with self._lock:
            if names not in self._sessions:
                if len(self._sessions) >= _KEPT:
                    del self._sessions[next(iter(self._sessions))]  # calls under way finish with what they have
                self._sessions[names] = self._make(names)
            return self._sessions[names]

    def sessions(self) -> Mapping[frozenset[str], Session]:
        """Those there are now, by the names that are fed."""
        with self._lock:
            return dict(self._sessions)

    def clear(self) -> None:
        with self._lock:
            self._sessions.clear()
