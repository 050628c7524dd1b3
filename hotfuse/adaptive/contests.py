"""Contests: whether targets pay, measured on traffic.

A target is timed against what would answer without it, both in turn (`Duel`). Without the generic kernels that is the original:
they are judged by all that serves, since all of it stands on them. They need no duel where they are so much faster than tier 0
was that nobody can doubt it.

A duel whose form is not called any more makes room for others, and is begun again when there is a call of that form.

State: the measurements that were asked for and not begun, the one that is under way, and how many calls of other forms came
since one of its form did; the forms that were waited for in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from hotfuse.adaptive.message import Measure
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.tally import Tally
from hotfuse.adaptive.target import Generic, Target
from hotfuse.runtime.turns import Times

FIRST_CALLS = 8  # of what was published: the original's threads are awake still, and hold it up
TIMED_CALLS = 5  # of a form after those, before it is judged whether the generic kernels pay
ELSEWHERE = 1024  # calls of other forms in a row: a form with a hundredth of the calls stays away for so long once in 30,000
CLEAR = 1.5  # times faster than before publication: no duel is needed to see it


class Contests:
    def __init__(self, subject: Subject, tally: Tally, candidate: Callable[[Collection[Target]], Any]) -> None:
        self._subject, self._tally, self._candidate = subject, tally, candidate
        self._asked: list[Measure] = []
        self._under_way: Measure | None = None
        self._elsewhere = 0
        self._in_vain: set[str] = set()

    @property
    def wait(self) -> bool:
        """Whether one is to begin with the next look at calls."""
        return any(measure.form not in self._in_vain for measure in self._asked)

    def ask(self, measure: Measure) -> None:
        """One for each target: of two the later counts, unless the same is under way."""
        under_way = self._under_way
        if under_way is None or _question(under_way) != _question(measure):
            self._asked = [*(asked for asked in self._asked if asked.target != measure.target), measure]

    def drop(self, target: Target) -> None:
        """A target does not serve any more."""
        self._asked = [measure for measure in self._asked if measure.target != target]
        if self._under_way is not None and self._under_way.target == target:
            self._under_way = None

    def restart(self) -> None:
        """Something else serves: a duel that was under way is begun again, with what serves now."""
        again, self._under_way = self._under_way, None
        if again is not None and all(asked.target != again.target for asked in self._asked):
            self._asked.append(again)

    def count(self, calls: Mapping[str, int]) -> None:
        """So many calls of each form came since the last look."""
        self._in_vain -= calls.keys()
        measure = self._under_way
        if measure is None:
            return
        self._elsewhere = 0 if measure.form in calls else self._elsewhere + sum(calls.values())
        if self._elsewhere > ELSEWHERE:
            self._subject.end_duel()
            self._in_vain.add(measure.form)
            self.restart()

    def end(self, measure: Measure) -> None:
        if self._under_way == measure:
            self._under_way = None

    def begin(
        self, forms: Mapping[str, Hashable], serving: Collection[Target], report: Callable[[Measure, Times], None]
    ) -> None:
        """Answer what can be answered of the measurements, and begin the next duel. `report` may be called by any thread."""
        self._in_vain &= {measure.form for measure in self._asked}
        for measure in sorted(self._asked, key=lambda m: isinstance(m.target, Generic)):  # they are judged last
            form, may_begin = forms.get(measure.form), self._under_way is None and measure.form not in self._in_vain
            if form is None or measure.target not in serving:
                self._asked.remove(measure)
            elif isinstance(measure.target, Generic) and (known := self._compared(form)) is not None:
                if known.without_s > CLEAR * known.with_s:
                    self._asked.remove(measure)
                    report(measure, known)
                elif may_begin:
                    self._duel(measure, form, None, report)
            elif not isinstance(measure.target, Generic) and may_begin:
                self._duel(measure, form, self._candidate([t for t in serving if t != measure.target]), report)

    def _compared(self, form: Hashable) -> Times | None:
        """Calls since publication against those before."""
        after = self._tally.timed(form, 1, TIMED_CALLS, skipped=FIRST_CALLS)
        before = self._tally.timed(form, 0, 1)
        if after is None:
            return None
        if before is None:  # of this form there were none
            return Times(after.seconds, 0.0, after.spread_s)
        return Times(after.seconds, before.seconds, before.spread_s + after.spread_s)

    def _duel(self, measure: Measure, form: Hashable, other: Any, report: Callable[[Measure, Times], None]) -> None:
        self._asked.remove(measure)
        self._under_way, self._elsewhere = measure, 0
        self._subject.duel(form, other, lambda times: report(measure, times))


def _question(measure: Measure) -> tuple[Target, int, str]:
    """What is to be measured, whyever."""
    return measure.target, measure.attempt, measure.form
