"""The short way through a session: for feeds of a form that was answered before, by one run of kernels and nothing else.

A form is the dtypes and shapes of plain contiguous arrays, all inputs given by name. What was checked for a form holds for
every call of it, so such a call is a look into a table and a native call. Where the kernels of the last form are one thread's
work, even the look is native (`array_call`).

State: the runs of kernels by form, as long as the session's native executor holds the bound plans that they belong to; which of
them answered calls of late; the last one; and whether the next call goes the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy import ndarray

from hotfuse.errors import BadIndex
from hotfuse.locks import make_lock
from hotfuse.runtime.binding import BoundPlan

if TYPE_CHECKING:
    from hotfuse.runtime.array_call import ArrayCall
    from hotfuse.runtime.segment import Segment

Form: TypeAlias = tuple[Any, ...]  # dtype and shape of each input in turn


class ShortWay:
    def __init__(self, names: Sequence[str], limit: int) -> None:
        self._names = tuple(names)
        self._limit = limit
        self._table: dict[Form, tuple[Segment, ArrayCall | None]] = {}
        self._used: set[int] = set()  # segments, by their `id`, since somebody asked
        self._last: tuple[Segment, ArrayCall] | None = None
        self._resting = False
        self._lock = make_lock()

    def __call__(self, feeds: Any) -> list[Any] | None:
        """The answers; None if the feeds have no form, or one that was not answered before."""
        if type(feeds) is not dict or len(feeds) != len(self._names):
            return None
        last = self._last  # held while its memory is in use
        if last is not None:
            results = last[0].fresh()
            done = last[1].native(*map(feeds.get, self._names), *results)
            if done:
                return results
            if done is False:
                raise BadIndex("an index lies outside of the tensor that it indexes")
        return self._look(feeds)

    def _look(self, feeds: dict[str, Any]) -> list[Any] | None:
        arrays: list[Any] = []
        form: list[Any] = []
        for name in self._names:
            array = feeds.get(name)
            if type(array) is not ndarray or not array.flags.c_contiguous:
                return None
            arrays.append(array)
            form += array.dtype, array.shape
        key = tuple(form)
        found = self._table.get(key)
        if found is None or self._resting:
            self._resting = False
            return None
        segment, call = found
        self._used.add(id(segment))
        if call is not None:
            with self._lock:
                self._last = (segment, call) if self._table.get(key) is found else None
        return segment.run(arrays)

    def learn(self, arrays: Sequence[Any], bound: BoundPlan) -> None:
        """Remember the form of feeds that a bound plan answered, if its steps are one run of kernels over the inputs alone."""
        if not self._limit or len(bound.steps) != 1:
            return
        from hotfuse.runtime.segment import Segment

        (step,) = bound.steps
        segment = step.function
        fresh = bound.outputs == tuple((place, False) for place in step.outputs)
        if isinstance(segment, Segment) and step.inputs == bound.inputs and fresh:
            form = tuple(part for a in arrays for part in (a.dtype, a.shape))
            if form in self._table:  # the call was only looked at
                return
            made = segment, segment.array_call(arrays)
            with self._lock:
                while self._table and len(self._table) >= self._limit:  # the oldest: a plan that was dropped meanwhile
                    self._remove(next(iter(self._table)))
                if self._limit:
                    self._table[form] = made

    def used(self, bound: BoundPlan) -> bool:
        """Whether a bound plan answered a call since somebody asked."""
        mine = {id(step.function) for step in bound.steps}
        with self._lock:
            if self._last is not None and id(self._last[0]) in mine:  # nobody counts its calls: the next one has to look
                self._used.add(id(self._last[0]))
                self._last = None
            was_used = not mine.isdisjoint(self._used)
            self._used.difference_update(mine)
        return was_used

    def drop(self, bound: BoundPlan) -> None:
        """Forget a bound plan."""
        mine = {id(step.function) for step in bound.steps}
        with self._lock:
            for form in [form for form, (segment, _) in self._table.items() if id(segment) in mine]:
                self._remove(form)

    def _remove(self, form: Form) -> None:
        segment, _ = self._table.pop(form)
        self._used.discard(id(segment))
        if self._last is not None and self._last[0] is segment:
            self._last = None

    def rest(self) -> None:
        """Leave one of the next calls to the long way, where it can be looked at. Costs the others nothing."""
        with self._lock:
            self._last, self._resting = None, True

    def forget(self) -> None:
        with self._lock:
            self._table, self._used, self._last = {}, set(), None

    def close(self) -> None:
        """Forget, and learn nothing any more, whoever is still calling."""
        with self._lock:
            self._table, self._used, self._last, self._limit = {}, set(), None, 0
