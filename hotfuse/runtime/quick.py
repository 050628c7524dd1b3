"""The short way through a session: for feeds of a form that was answered before, by one run of kernels and nothing else.

A form is the dtypes and shapes of plain contiguous arrays, all inputs given by name. What was checked for a form holds for
every call of it, so such a call is a look into a table and a native call. Where the kernels of the last form are one thread's
work, even the look is native (`array_call`).

State: the runs of kernels by form (`Ways`), the last one, and whether the next call goes the long way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from hotfuse.errors import BadIndex
from hotfuse.runtime.binding import BoundPlan
from hotfuse.runtime.ways import Ways

if TYPE_CHECKING:
    from hotfuse.runtime.array_call import ArrayCall
    from hotfuse.runtime.segment import Segment


class ShortWay(Ways["tuple[Segment, ArrayCall | None]"]):
    def __init__(self, names: Sequence[str], limit: int) -> None:
        super().__init__(limit)
        self._names = tuple(names)
        self._last: tuple[Segment, ArrayCall, BoundPlan] | None = None
        self._resting = False

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
        bound, (segment, call) = found
        self._used.add(id(bound))
        if call is not None:
            with self._lock:
                self._last = (segment, call, bound) if self._table.get(key) is found else None
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
            if form not in self:  # else the call was only looked at
                self.put(form, bound, (segment, segment.array_call(arrays)))

    def used(self, bound: BoundPlan) -> bool:
        with self._lock:
            if self._last is not None and self._last[2] is bound:  # nobody counts its calls: the next one has to look
                self._used.add(id(bound))
                self._last = None
        return super().used(bound)

    def _remove(self, form: Hashable) -> None:
        if self._last is not None and self._last[2] is self._table[form][0]:
            self._last = None
        super()._remove(form)

    def rest(self) -> None:
        """Leave one of the next calls to the long way, where it can be looked at. Costs the others nothing."""
        with self._lock:
            self._last, self._resting = None, True

    def clear(self) -> None:
        super().clear()
        self._last = None
