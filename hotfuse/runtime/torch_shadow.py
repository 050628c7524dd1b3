"""Shadowed calls of a captured class: the module answers the call, and a candidate does, too; what came of it is told to who
asked, with what the call was given where they differ.

The candidate goes second, when the caller has gone on, unless the call is too large to be kept for so long, or writes into what
it is given. It fails no call, whatever it raises.

State: none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.pace import Unhurried
from hotfuse.runtime.threads import beside_calls
from hotfuse.runtime.torch_guard import Call, Miss
from hotfuse.runtime.torch_trial import begin_trial, can_wait, keep_leaves, own_answer, told, witness
from hotfuse.runtime.turns import Judged, Shadow, judged_of

Later = Callable[[Callable[[], None]], None]
Leaves = Callable[[], Sequence[Any] | None]  # of a call's arguments, where they can still be had
Disown = Callable[[Any], None]  # what was captured, and is wrong


def shadow_call(shadow: Shadow, call: Call, eager: Callable[[], Any], disown: Disown) -> Any:
    """The module's own answer, or a Miss where the candidate cannot be asked and nobody has answered yet."""
    begun_s = time.perf_counter()
    if shadow.later is not None and can_wait(shadow.candidate):
        own = own_answer(eager)
        if shadow.claim():
            _shadow_later(shadow, call, own, shadow.later, disown, begun_s)
        return own
    leaves = keep_leaves(call)
    try:
        trial = begin_trial(shadow.candidate, call)
    except Exception as error:
        if shadow.claim():
            _report(shadow, judged_of(error), lambda: leaves, disown, time.perf_counter() - begun_s)
        return Miss("")
    if isinstance(trial, Miss):
        return trial
    own = own_answer(eager)
    if shadow.claim():
        spent_s = time.perf_counter() - begun_s
        _compare(shadow, lambda: told(shadow.candidate, trial.judge(own)), lambda: leaves, disown, spent_s)
    return own


def _shadow_later(shadow: Shadow, call: Call, own: Any, later: Later, disown: Disown, begun_s: float) -> None:
    """Have a candidate answer a call when its caller has gone on: together both would take twice a call's time. What is too
    large to be kept for so long is judged at once."""

    def answer_too() -> str | None:
        with beside_calls():
            return seen.judge(shadow.candidate)

    def leaves() -> Sequence[Any] | None:
        return seen.call.leaves if seen.is_kept else keep_leaves(call)

    def compare() -> None:
        _compare(shadow, answer_too, leaves, disown, spent_s)

    def compare_later() -> None:
        Unhurried().rest()
        compare()

    try:
        seen = witness(shadow.candidate, call, own)
    except Exception as error:
        _report(shadow, judged_of(error), lambda: keep_leaves(call), disown, time.perf_counter() - begun_s)
        return
    spent_s = time.perf_counter() - begun_s
    if seen.is_kept:
        later(compare_later)
    else:
        compare()


def _compare(shadow: Shadow, judge: Callable[[], str | None], leaves: Leaves, disown: Disown, spent_s: float) -> None:
    """Tell who asked in what a candidate's answer differs. A call that told nothing makes way for the next one."""
    begun_s = time.perf_counter()
    try:
        difference = judge()
    except Exception as error:
        judged = judged_of(error)
    else:
        if difference is None:
            shadow.release()
            return
        judged = Judged(difference)
    _report(shadow, judged, leaves, disown, spent_s + time.perf_counter() - begun_s)


def _report(shadow: Shadow, judged: Judged, leaves: Leaves, disown: Disown, cost_s: float) -> None:
    """What came of a call that was shadowed, which had these leaves."""
    inputs = None
    if judged.reason:
        disown(shadow.candidate.runner.captured)
        kept = leaves()
        inputs = None if kept is None else shadow.candidate.inputs(kept)
    shadow.report(replace(judged, inputs=inputs, cost_s=cost_s))
