"""Ways: short ways of calls by their form, each as long as the executor holds the bound plan that it belongs to.

State: the ways by form, in the order in which they were learned, and which plans were used of late. Any thread may call it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from hotfuse.locks import make_lock
from hotfuse.runtime.binding import BoundPlan

Way = TypeVar("Way")


class Ways(Generic[Way]):
    """At most `limit` of them. A user of plans (`executor.PlanUser`)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._table: dict[Hashable, tuple[BoundPlan, Way]] = {}
        self._used: set[int] = set()  # plans, by their `id`, since somebody asked
        self._lock = make_lock()

    def __contains__(self, form: Hashable) -> bool:
        return form in self._table

    def get(self, form: Hashable) -> Way | None:
        found = self._table.get(form)
        if found is None:
            return None
        self._used.add(id(found[0]))
        return found[1]

    def put(self, form: Hashable, bound: BoundPlan, way: Way) -> None:
        """Where there are too many, the oldest goes whose plan was not used of late."""
        with self._lock:
            while form not in self._table and self._table and len(self._table) >= self._limit:
                idle = (old for old, (plan, _) in self._table.items() if id(plan) not in self._used)
                self._remove(next(idle, next(iter(self._table))))
            if self._limit:
                self._table[form] = bound, way

    def used(self, bound: BoundPlan) -> bool:
        """Whether a bound plan answered a call since somebody asked."""
        with self._lock:
            was_used = id(bound) in self._used
            self._used.discard(id(bound))
        return was_used

    def drop(self, bound: BoundPlan) -> None:
        """Forget a bound plan."""
        with self._lock:
            for form in [form for form, (plan, _) in self._table.items() if plan is bound]:
                self._remove(form)

    def _remove(self, form: Hashable) -> None:
        bound, _ = self._table.pop(form)
        if all(plan is not bound for plan, _ in self._table.values()):
            self._used.discard(id(bound))

    def clear(self) -> None:
        with self._lock:
            self._table, self._used = {}, set()

    def close(self) -> None:
        """Forget, and learn nothing any more, whoever is still calling."""
        self._limit = 0
        self.clear()
