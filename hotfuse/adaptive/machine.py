"""The tier machine: what happened goes in, what to do about it comes out. `step(state, event)` is pure: clocks, threads,
processes and devices belong to the controller, which holds one state for each model and carries out what is decided.

A target is made in one order and no other:

    stage       event                                   next        decisions
    ---------   -------------------------------------   ---------   ---------------------------------------------------
    -           it could save more than the budget      building    Build
    -           Kept                                    building    Build
    building    Built                                   built       (Retire, barred, if there is no kernel in it)
    built       nothing else is in the making           proving     Prove
    proving     Proved                                  shadowing   Shadow
    proving     Disproved, some units                   built       Quarantine the units; it is proved without them
    proving     Disproved, all of it or nothing new     -           Retire, Quarantine
    shadowing   Shadowed, agrees, often enough          serving     Retire what it replaces, Publish, Measure
    shadowing   the same, but no fuel is left           -           Retire
    serving     Measured, pays                          serving
    serving     Measured, does not pay                  -           Retire, Rest (backs off)
    not serving BuildFailed                             -           Retire, Rest (backs off), or barred if that lasts
    not serving it waits too long, another is hotter    -           Retire
    any         Shadowed, differs                       -           Retire, Quarantine
    past built  Changed                                 built       Withdraw if it served, Rest until it is quiet

    "Pays": faster than without it by more than noise explains. What has paid once leaves only when it is slower by more than
    noise. What was retired is built again when it could save more than the budget and its back-off is over; what was
    quarantined, never.

What serves is looked at again when the forms that had most of the time no longer have it, and now and then: what became rare is
retired, one target is measured again. Merges are taken apart that way: a merge that is rare or slower than its parts retires.
Everything stands on the generic kernels: when they retire, so does the rest; and edits of the kernels for a form on these.

Without new evidence there are finitely many decisions, and each event leads to a bounded number of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotfuse.adaptive.memory import Lesson, merged
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Called,
    Changed,
    Decision,
    Disproved,
    Event,
    Kept,
    Measure,
    Measured,
    Prove,
    Proved,
    Publish,
    Quarantine,
    Queue,
    Recalled,
    Rest,
    Retire,
    Shadow,
    Shadowed,
    Spent,
    Spotted,
    Tick,
    Withdraw,
)
from hotfuse.adaptive.promotion import budget_s, in_the_making, is_spent, next_target, rivals, surplus
from hotfuse.adaptive.state import (
    Live,
    Stage,
    State,
    has_shifted,
    hottest_form,
    is_rare,
    regime_of,
    show_time,
    spent_s,
    worth_s,
)
from hotfuse.adaptive.target import Baked, Edit, Generic, Target, base_of, form_of, stands_on
from hotfuse.errors import VerifyError
from hotfuse.runtime.backoff import FRESH

REASON_CHARS = 400  # kept of a reason that comes from outside: a compiler may say a lot

Answer = Built | BuildFailed | Proved | Disproved | Shadowed | Measured
Outcome = tuple[State, list[Decision]]


def step(state: State, event: Event) -> tuple[State, tuple[Decision, ...]]:
    """The state after an event, and what to do, in order."""
    if not math.isfinite(event.now_s):
        raise VerifyError(f"{type(event).__name__} happened at {event.now_s} s; correct the clock that the controller reads")
    state, told = _take(replace(state, now_s=max(state.now_s, event.now_s)), event)
    state, reviewed = _review(state)
    state, begun = _begin(state)
    return state, (*told, *reviewed, *begun)


def _take(state: State, event: Event) -> Outcome:
    """What an event changes by itself."""
    match event:
        case Called():
            return _called(state, event), []
        case Spotted():
            return replace(state, spotted=state.spotted.spend(event.target, event.saves_s, state.now_s), unseen=True), []
        case Built():
            return _built(state, event)
        case BuildFailed():
            return _build_failed(state, event)
        case Proved():
            return _proved(state, event)
        case Disproved():
            return _disproved(state, event)
        case Shadowed():
            return _shadowed(state, event)
        case Measured():
            return _measured(state, event)
        case Queue():
            return replace(state, queue=max(0, event.length)), []
        case Spent():
            return replace(state, elsewhere=event.elsewhere), []
        case Changed():
            return _changed(state, event)
        case Recalled():
            return _recalled(state, event)
        case Kept():
            return replace(state, kept=(*(t for t in state.kept if t != event.target), event.target)), []
        case Tick():
            return state, []


def _attempt(state: State, event: Answer, *stages: Stage) -> Live | None:
    """The target that an event speaks of, if it is in a stage that the event belongs to. Otherwise the event is late."""
    live = state.find(event.target)
    return live if live is not None and live.attempt == event.attempt and live.stage in stages else None


# ---- evidence


def _called(state: State, event: Called) -> State:
    form = Baked(event.form)
    state = replace(state, calls=state.calls + event.count, unseen=True)
    if event.tier == 0:
        return replace(state, unfused=state.unfused.spend(form, event.seconds, state.now_s))
    state = replace(state, fused=state.fused.spend(form, event.seconds, state.now_s))
    return replace(state, regime=state.regime or regime_of(state))


# ---- from nothing to serving


def _begin(state: State) -> Outcome:
    """The next attempt, if there is one to make."""
    state, decisions = _retire_rare(state, "built")
    target = next_target(state)
    if target is None:
        return state, decisions
    making = in_the_making(state)
    if making is not None:
        waited = f"it waited for {state.now_s - making.since_s:.3g} s"
        state, retired = _retire(state, making.target, f"{waited}, and {target} could save more")
        decisions += retired
    attempt, without = state.attempts + 1, state.memory.of(target).units
    live = state.find(target)
    state = replace(state, attempts=attempt)
    if live is None:
        saves, spent, budget = (show_time(s) for s in (worth_s(state, target), spent_s(state, target), budget_s(state)))
        reason = f"{saves} of {spent} could be saved, more than {budget}; {state.calls} calls so far, {state.queue} jobs wait"
        if target in state.kept:
            reason = f"an earlier process made it; {state.calls} calls so far"
            state = replace(state, kept=tuple(other for other in state.kept if other != target))
        return state.put(Live(target, attempt, "building")), [*decisions, Build(target, attempt, without, reason)]
    state = state.put(replace(live, attempt=attempt, stage="proving", agreed=0, since_s=state.now_s))
    return state, [*decisions, Prove(target, attempt, without, live.note)]


def _built(state: State, event: Built) -> Outcome:
    live = _attempt(state, event, "building")
    if live is None:
        return state, []
    if event.kernels == 0:
        reason = f"no kernel came of it, as a build of {event.cpu_s:.2g} s showed"
        return _retire(_bar(state, event.target, reason), event.target, reason)
    if not isinstance(event.target, Generic) and state.find(base_of(event.target)) is None:
        return _retire(state, event.target, f"the {base_of(event.target)} that it stands on were retired while it was built")
    if not isinstance(event.target, Generic) and event.code_bytes > state.rules.special_bytes:
        reason = f"it is too large: {event.code_bytes:,} bytes of code, and all such may take {state.rules.special_bytes:,}"
        return _retire(_bar(state, event.target, reason), event.target, reason)
    base = state.find(base_of(event.target))
    if base is not None and isinstance(base.target, Baked) and base.code_bytes + event.code_bytes > state.rules.special_bytes:
        reason = f"beside the {base.code_bytes:,} bytes of code that it stands on there is no room for {event.code_bytes:,}"
        state, retired = _retire(state, event.target, reason)
        state, rest = _back_off(state, event.target, reason)
        return state, [*retired, *rest]
    note = f"{event.kernels} kernels were built in {event.cpu_s:.2g} s of CPU time"
    state = state.put(replace(live, stage="built", note=note, code_bytes=event.code_bytes))
    leaving = surplus(state, event.target)
    worth, less = worth_s(state, event.target), sum(worth_s(state, other.target) for other in leaving)
    if leaving and worth <= state.rules.hotter * less:
        names = ", ".join(str(other.target) for other in leaving)
        saves = f"worth {show_time(less)} to its {show_time(worth)}"
        reason = f"its {event.code_bytes:,} bytes of code would push out {names}, {saves}"
        state, retired = _retire(state, event.target, reason)
        state, rest = _back_off(state, event.target, reason)
        return state, [*retired, *rest]
    return state, []


def _build_failed(state: State, event: BuildFailed) -> Outcome:
    if _attempt(state, event, "building", "proving", "shadowing") is None:
        return state, []
    state, retired = _retire(state, event.target, f"it could not be made: {event.reason}")
    if event.lasting:
        return _bar(state, event.target, event.reason), retired
    state, rest = _back_off(state, event.target, event.reason)
    return state, [*retired, *rest]


def _proved(state: State, event: Proved) -> Outcome:
    live = _attempt(state, event, "proving")
    if live is None:
        return state, []
    calls = state.rules.shadow_calls
    reason = f"every unit was proved on a real call; {calls} more must agree while the original answers"
    return state.put(replace(live, stage="shadowing")), [Shadow(live.target, live.attempt, calls, reason)]


def _disproved(state: State, event: Disproved) -> Outcome:
    live = _attempt(state, event, "proving")
    if live is None:
        return state, []
    lesson = state.memory.of(event.target)
    new = tuple(unit for unit in dict.fromkeys(event.units) if unit not in lesson.units)
    wrong = (*lesson.units, *new)
    if not new or len(wrong) > state.rules.wrong_units or state.memory.is_full:
        return _quarantine(state, event.target, event.reason)
    state = _learn(state, replace(lesson, units=wrong, reason=event.reason))
    note = f"{len(wrong)} wrong units are left to tier 0, {len(new)} of them from now on"
    decision = Quarantine(event.target, new, f"they are wrong: {event.reason}")
    return state.put(replace(live, stage="built", note=note)), [decision]


def _shadowed(state: State, event: Shadowed) -> Outcome:
    if not event.ok:
        known = state.void < event.attempt <= state.attempts and not state.memory.of(event.target).barred
        return _quarantine(state, event.target, event.reason) if known else (state, [])
    live = _attempt(state, event, "shadowing")
    if live is None:
        return state, []
    live = replace(live, agreed=live.agreed + 1)
    if is_spent(state):  # by other parts of the model, since this was begun
        return _retire(state, event.target, f"all {state.rules.fuel} decisions that the fuel allows were made")
    return _publish(state, live) if live.agreed >= state.rules.shadow_calls else (state.put(live), [])


def _publish(state: State, live: Live) -> Outcome:
    decisions: list[Decision] = []
    too_much, leaving = surplus(state, live.target), rivals(state, live.target)
    mine, theirs = worth_s(state, live.target), sum(worth_s(state, rival.target) for rival in leaving)
    if leaving and mine < theirs:  # they were worth less when it was begun
        names = ", ".join(str(rival.target) for rival in leaving)
        reason = f"it is worth {show_time(mine)} by now, and what it would replace {show_time(theirs)} ({names})"
        state, retired = _retire(state, live.target, reason)
        state, rest = _back_off(state, live.target, reason)
        return state, [*retired, *rest]
    for rival in leaving:
        if state.find(rival.target) is None:  # it stood on one that left before it
            continue
        worth, less = show_time(worth_s(state, live.target)), show_time(worth_s(state, rival.target))
        reason = f"it makes room for {live.target}, worth {worth} to its {less}"
        state, retired = _retire(state, rival.target, reason)
        decisions += retired
        if rival in too_much:  # it may come again, as far as numbers go, and would have no room
            state, rest = _back_off(state, rival.target, reason)
            decisions += rest
    state = replace(state, published=state.published + 1)
    reason = f"it was proved, and {live.agreed} shadowed calls agreed ({live.note})"
    decisions.append(Publish(live.target, live.attempt, reason))
    state, measure = _measure(state, replace(live, stage="serving"), "it was published")
    return state, [*decisions, *measure]


# ---- while it serves


def _measure(state: State, live: Live, why: str) -> Outcome:
    elsewhere = {o.target.form for o in state.live if isinstance(o.target, Baked) and o.stage == "serving"}
    besides = elsewhere if isinstance(live.target, Edit) else set()  # calls of those forms do not run what it edits
    form = form_of(live.target) or hottest_form(state, besides) or hottest_form(state)
    reason = f"{why}: whether it pays is to be measured, after {state.calls} calls"
    return state.put(replace(live, asked_s=state.now_s)), [Measure(live.target, live.attempt, form, reason)]


def _measured(state: State, event: Measured) -> Outcome:
    live = _attempt(state, event, "serving")
    if live is None:
        return state, []
    gain_s = event.base_seconds - event.seconds
    if gain_s > event.spread_s:
        return state.put(replace(live, paid=True)), []
    if (live.paid or isinstance(event.target, Generic)) and gain_s >= -event.spread_s:  # no variant, so no reason to leave
        return state, []
    with_it, without, spread = show_time(event.seconds), show_time(event.base_seconds), show_time(event.spread_s)
    reason = f"it does not pay: a call of form {event.form} takes {with_it}, without it {without}, give or take {spread}"
    state, retired = _retire(state, event.target, reason)
    state, rest = _back_off(state, event.target, reason)
    return state, [*retired, *rest]


def _changed(state: State, event: Changed) -> Outcome:
    """Nothing that was proved before is. Changes that follow each other closely are waited out, for longer and longer."""
    rules = state.rules
    decisions: list[Decision] = []
    quiet = state.quiet if state.now_s < state.quiet.until_s + rules.most_quiet_s else FRESH
    state = replace(state, void=state.attempts, quiet=quiet.longer(state.now_s, rules.quiet_s, rules.most_quiet_s))
    note = f"to be proved again: {event.reason}"[:REASON_CHARS]
    for live in state.live:
        if live.stage == "serving":
            decisions.append(Withdraw(live.target, note))
        if live.stage != "building":
            state = state.put(replace(live, stage="built", note=note, paid=False))
    rest = Rest(state.quiet.until_s, f"change {state.quiet.times} of late; nothing is proved before it is quiet")
    return state, [*decisions, rest] if state.live else []


def _recalled(state: State, event: Recalled) -> Outcome:
    """What is being built is given up where it failed before."""
    state = replace(state, memory=merged(state.memory, event.memory))
    decisions: list[Decision] = []
    for live in state.live:
        lesson = state.memory.of(live.target)
        if live.stage == "building" and (lesson.barred or not lesson.backoff.is_over(state.now_s)):
            state, retired = _retire(state, live.target, f"an earlier process gave it up: {lesson.reason}")
            decisions += retired
    return state, decisions


def _review(state: State) -> Outcome:
    """Look at what serves again: when the mix of forms is another, or when it is time and there was traffic."""
    rules, now_s, shifted = state.rules, state.now_s, has_shifted(state)
    if not state.unseen or not (shifted or state.review.is_over(now_s)):
        return state, []
    review = (FRESH if shifted else state.review).longer(now_s, rules.review_s, rules.most_review_s)
    why = "other forms have most of the time now" if shifted else f"this is review {review.times} of what serves"
    state = replace(state, unseen=False, review=review, regime=regime_of(state))
    state, decisions = _retire_rare(state, "built", "proving", "shadowing", "serving")
    due = [live for live in state.live if live.stage == "serving" and (shifted or now_s - live.asked_s >= rules.review_s)]
    if due:
        state, measure = _measure(state, min(due, key=lambda live: live.asked_s), why)
        decisions += measure
    return state, decisions


# ---- the ways out


def _retire(state: State, target: Target, reason: str) -> Outcome:
    """Without a target, and without what stands on it. What is being built stays, so that it is not asked for twice."""
    gone = [live.target for live in state.live if stands_on(live.target, target) and live.stage != "building"]
    for other in (*gone, target):
        state = state.drop(other)
    upon = f"the {target} that it stands on retire: {reason}"
    return state, [*(Retire(other, upon) for other in gone), Retire(target, reason)]


def _retire_rare(state: State, *stages: Stage) -> Outcome:
    decisions: list[Decision] = []
    for live in state.live:
        if live.stage in stages and state.find(live.target) is not None and is_rare(state, live.target):
            saves, spent = show_time(worth_s(state, live.target)), show_time(spent_s(state, live.target))
            reason = f"it became rare: it saves {saves} of {spent}, less than {state.rules.keep_share:.1%}"
            state, retired = _retire(state, live.target, reason)
            decisions += retired
    return state, decisions


def _quarantine(state: State, target: Target, reason: str) -> Outcome:
    """A target is wrong."""
    decisions: list[Decision] = []
    if state.find(target) is not None:
        state, decisions = _retire(state, target, f"it is wrong: {reason}")
    return _bar(state, target, reason), [*decisions, Quarantine(target, (), f"it is wrong: {reason}")]


def _bar(state: State, target: Target, reason: str) -> State:
    return _learn(state, replace(state.memory.of(target), barred=True, reason=reason))


def _back_off(state: State, target: Target, reason: str) -> Outcome:
    lesson = state.memory.of(target)
    backoff = lesson.backoff.longer(state.now_s, state.rules.back_off_s, state.rules.most_back_off_s)
    why = f"{target}: failed {backoff.times} times, last because {reason}"
    return _learn(state, replace(lesson, backoff=backoff, reason=reason)), [Rest(backoff.until_s, why)]


def _learn(state: State, lesson: Lesson) -> State:
    return replace(state, memory=state.memory.learn(replace(lesson, reason=lesson.reason[:REASON_CHARS])))
