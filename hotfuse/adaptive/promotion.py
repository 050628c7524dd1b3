"""Promotion: which target is begun next, and what speaks against the others. The machine asks, and so do reports.

A target is worth the time that it could save. It is built when that exceeds the budget, which rises with the queue of the
pool; one at a time, so that what is worth most comes first and background work stays small. `Generic` is always first, and
what lies in the cache costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from hotfuse.adaptive.hotness import Heat
from hotfuse.adaptive.state import Live, State, show_time, spent_s, worth_s
from hotfuse.adaptive.target import Baked, Edit, Generic, Target, base_of, form_of


def next_target(state: State) -> Target | None:
    """What to build, or to prove if it is built."""
    return next((target for target in _wanted(state) if not objection(state, target)), None)


def _wanted(state: State) -> list[Target]:
    """What could be begun, worth most first. Nothing new while something that is built waits: what is made stays bounded."""
    if not state.serves(Generic()):
        return [Generic()]
    found = [live.target for live in state.live if live.stage == "built"]
    if not found:
        found = [target for target in (*_hot(state, state.fused), *_hot(state, state.spotted)) if state.find(target) is None]
    return sorted(found, key=lambda target: -worth_s(state, target))


def _hot(state: State, heat: Heat) -> list[Target]:
    """What of a table is worth the budget: of many that are known a few, and they come first."""
    budget = budget_s(state)
    return list(takewhile(lambda target: worth_s(state, target) > budget, heat.targets))


def objection(state: State, target: Target) -> str:
    """Why a target is not begun now; "" if nothing speaks against it."""
    rules, live = state.rules, state.find(target)
    tier = 2 if isinstance(target, Baked) else 1
    if rules.tier < tier:
        return f"it is of tier {tier}, and tier {rules.tier} is the highest allowed"
    if is_spent(state):
        return f"all {rules.fuel} decisions that the fuel allows were made"
    if not isinstance(target, Generic) and not state.serves(base_of(target)):
        return f"the {base_of(target)} that it stands on do not serve"
    making = in_the_making(state)
    if making is not None and not _gives_way(state, making, target):
        return f"{making.target}: {making.stage}"
    if live is None:
        return _against_building(state, target)
    if live.stage == "serving":
        return "it serves"
    return "" if state.quiet.is_over(state.now_s) else f"the model changed {state.quiet.times} times of late"


def is_spent(state: State) -> bool:
    """Whether nothing may be published any more."""
    rules = state.rules
    return 0 <= rules.fuel <= state.published + state.elsewhere


def in_the_making(state: State) -> Live | None:
    return next((live for live in state.live if live.stage in ("building", "proving", "shadowing")), None)


def _gives_way(state: State, making: Live, target: Target) -> bool:
    """Whether what is in the making has waited for too long: its calls may never come again. A build cannot be called back."""
    late = making.stage != "building" and state.now_s >= making.since_s + state.rules.patience_s
    hotter = worth_s(state, target) > state.rules.hotter * worth_s(state, making.target)
    return late and hotter and not isinstance(making.target, Generic)


def _against_building(state: State, target: Target) -> str:
    rules, worth, spent = state.rules, worth_s(state, target), spent_s(state, target)
    lesson = state.memory.of(target)
    if lesson.barred:
        return f"it never serves again: {lesson.reason}"
    if not lesson.backoff.is_over(state.now_s):
        left_s = lesson.backoff.until_s - state.now_s
        return f"it failed {lesson.backoff.times} times, and rests for {left_s:.3g} s more: {lesson.reason}"
    if state.memory.is_full:
        return f"{rules.lessons} others failed for good: nothing is built any more"
    if target in state.kept:
        return ""
    if worth <= budget_s(state):
        return f"it could save {show_time(worth)}; it takes {show_time(budget_s(state))}, with {state.queue} jobs waiting"
    if not isinstance(target, Generic) and worth < rules.build_share * spent:
        return f"it could save {show_time(worth)} of {show_time(spent)}, less than {rules.build_share:.1%}"
    leaving = rivals(state, target)
    if worth <= rules.hotter * sum(worth_s(state, live.target) for live in leaving):
        names = ", ".join(str(live.target) for live in leaving)
        return f"it is worth {show_time(worth)}, not {rules.hotter:g} times as much as what it would replace ({names})"
    return ""


def budget_s(state: State) -> float:
    """What a target must be able to save to be built."""
    return state.rules.budget_s * (1 + state.queue)


def rivals(state: State, target: Target) -> list[Live]:
    """What leaves when a target is published: edits of the same units, and the least worth where there would be too many, or
    too much code."""
    crowd = _crowd(state, target)
    return [*crowd, *_surplus(state, target, crowd)]


def surplus(state: State, target: Target) -> list[Live]:
    """What leaves for the sake of a target's code alone."""
    return _surplus(state, target, _crowd(state, target))


def _crowd(state: State, target: Target) -> list[Live]:
    kin = [live for live in _special(state, target) if isinstance(live.target, Baked) == isinstance(target, Baked)]
    touching = [live for live in kin if _share_units(live.target, target)]
    others = sorted((live for live in kin if live not in touching), key=lambda live: worth_s(state, live.target))
    most = state.rules.baked if isinstance(target, Baked) else state.rules.edits
    return [*touching, *others[: max(0, len(others) + 1 - most)]]


def _surplus(state: State, target: Target, crowd: Sequence[Live]) -> list[Live]:
    """The least worth of what stays, as much of it as must leave so that the code of the rest and of a target has room."""
    others = [live for live in _special(state, target) if live not in crowd]
    mine = state.find(target)
    room = state.rules.special_bytes - (0 if mine is None else mine.code_bytes) - sum(live.code_bytes for live in others)
    leaving: list[Live] = []
    for live in sorted(others, key=lambda live: worth_s(state, live.target)):
        if room >= 0:
            break
        if live.code_bytes and live.target != base_of(target):  # it would go with what it stands on
            leaving.append(live)
            room += live.code_bytes
    return leaving


def _special(state: State, target: Target) -> list[Live]:
    """What stands on the generic kernels, beside a target that does."""
    if isinstance(target, Generic):
        return []
    return [live for live in state.live if live.target != target and not isinstance(live.target, Generic)]


def _share_units(one: Target, other: Target) -> bool:
    """Whether two are edits of the same units: those for all sizes are others than those for one form."""
    if not isinstance(one, Edit) or not isinstance(other, Edit) or form_of(one) != form_of(other):
        return False
    return not set(one.units).isdisjoint(other.units)
