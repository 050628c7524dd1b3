"""The state of one model in the tier machine, and questions about it: what is hot, what is rare, what has changed.

One model is one graph that a session serves, or one captured class of a PyTorch module.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from hotfuse.adaptive.hotness import Heat
from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.target import Baked, Generic, Target
from hotfuse.records import dataclass
from hotfuse.runtime.backoff import FRESH, Backoff


@dataclass(frozen=True)
class Rules:
    """The numbers that decide. Seconds are those of what serves, decayed, unless they say otherwise."""

    tier: int = 2  # the highest allowed
    fuel: int = -1  # decisions allowed to the whole model, to find the first bad one by halving; -1 is any number
    # What a target must be able to save before it is built. A build costs 0.2 s of a core that often idles (BERT-base, README).
    budget_s: float = 0.05
    generic_gain: float = 0.5  # of tier 0's time, expected of tier 1: 0.32 to 0.73 on BERT-base and others (README)
    baked_gain: float = 0.1  # of tier 1's time, expected of tier 2: stated, to be corrected once it is measured
    half_life_s: float = 10.0
    forms: int = 32  # told apart; 1/32 of the time is the largest error of any one's heat
    baked: int = 4  # forms with kernels of their own
    edits: int = 16  # merges and splits in service
    special_bytes: int = 1 << 20  # object code of all of these: BERT-base takes 35 KB (AVX2), a core's cache 0.5 to 2 MiB
    build_share: float = 0.01  # of fused time, that a baked form or an edit must be able to save to be built,
    keep_share: float = 0.004  # and below which it is rare: above 1/32 of the time times `baked_gain`
    judge_s: float = 0.5  # less time than that is no evidence against what serves
    hotter: float = 2.0  # a newcomer takes the place of others that are worth this many times less
    shadow_calls: int = 1  # must agree before a target is published
    back_off_s: float = 30.0  # of the clock, after a failed build or one that did not pay; then twice as long
    most_back_off_s: float = 3600.0
    patience_s: float = 10.0  # of the clock, that a target may wait for calls to be proved on when another is hotter
    quiet_s: float = 0.25  # of the clock, that must pass after a change before anything is proved again
    most_quiet_s: float = 60.0
    review_s: float = 60.0  # of the clock, between looks at what serves; twice as long while nothing changes
    most_review_s: float = 600.0
    lessons: int = 64  # failed targets that are remembered
    wrong_units: int = 16  # of one target; with more, all of it is wrong


Stage = Literal["building", "built", "proving", "shadowing", "serving"]


@dataclass(frozen=True)
class Live:
    """A target that is being made or serves. `note` says how it came to where it is."""

    target: Target
    attempt: int
    stage: Stage
    note: str = ""
    since_s: float = 0.0  # when its proof was asked for
    agreed: int = 0  # shadowed calls
    paid: bool = False  # was measured faster than what served before
    asked_s: float = 0.0  # when its last measurement was decided
    code_bytes: int = 0  # object code that it adds to what it stands on


@dataclass(frozen=True)
class State:
    """`regime` is the forms that had most of the time when what serves was last looked at."""

    rules: Rules
    memory: Memory
    unfused: Heat  # time of tier 0, by form
    fused: Heat  # time of tiers 1 and 2, by form
    spotted: Heat  # time that edits could save
    live: tuple[Live, ...] = ()
    now_s: float = 0.0
    calls: int = 0
    queue: int = 0
    attempts: int = 0
    void: int = 0  # the last attempt before the model changed
    published: int = 0
    elsewhere: int = 0  # what other parts of the model spent of its fuel
    quiet: Backoff = FRESH
    review: Backoff = FRESH
    regime: tuple[str, ...] = ()
    unseen: bool = False  # there was traffic since the last review
    kept: tuple[Target, ...] = ()  # in the cache, and not asked for yet

    def find(self, target: Target) -> Live | None:
        return next((live for live in self.live if live.target == target), None)

    def serves(self, target: Target) -> bool:
        live = self.find(target)
        return live is not None and live.stage == "serving"

    def put(self, live: Live) -> State:
        """With a target added, or in another stage."""
        if self.find(live.target) is None:
            return replace(self, live=(*self.live, live))
        return replace(self, live=tuple(live if other.target == live.target else other for other in self.live))

    def drop(self, target: Target) -> State:
        return replace(self, live=tuple(live for live in self.live if live.target != target))


def start(rules: Rules, memory: Memory | None = None) -> State:
    """The state of a model before its first call, with what is remembered of it."""
    kept = Memory(rules.lessons)
    for lesson in memory.lessons if memory else ():
        kept = kept.learn(lesson)
    heat = Heat(rules.half_life_s, rules.forms)
    return State(rules, kept, heat, heat, heat)


def worth_s(state: State, target: Target) -> float:
    """Time that a target could have saved, or that it does save."""
    if isinstance(target, Generic):
        return state.rules.generic_gain * state.unfused.total(state.now_s)
    if isinstance(target, Baked):
        return state.rules.baked_gain * state.fused.of(target, state.now_s)
    return state.spotted.of(target, state.now_s)


def spent_s(state: State, target: Target) -> float:
    """The time that a target is to make shorter: of tier 0, or of what is fused."""
    return (state.unfused if isinstance(target, Generic) else state.fused).total(state.now_s)


def is_rare(state: State, target: Target) -> bool:
    """Whether a target saves too little to be kept. Shares are compared, so that an idle model loses nothing."""
    spent = spent_s(state, target)
    judged = not isinstance(target, Generic) and spent >= state.rules.judge_s
    return judged and worth_s(state, target) < state.rules.keep_share * spent


def hottest_form(state: State, besides: Collection[str] = ()) -> str:
    """The form that takes most time, besides some; "" before the first call."""
    now_s, known = state.now_s, (*state.fused.targets, *state.unfused.targets)
    forms = [form for form in known if not isinstance(form, Baked) or form.form not in besides]
    target = max(forms, key=lambda form: state.fused.of(form, now_s) + state.unfused.of(form, now_s), default=None)
    return target.form if isinstance(target, Baked) else ""


def regime_of(state: State) -> tuple[str, ...]:
    """The few forms that together have most of the fused time; none where it takes more than could be baked."""
    forms: list[str] = []
    covered_s = 0.0
    for target in state.fused.targets[: state.rules.baked]:
        if isinstance(target, Baked):
            forms.append(target.form)
            covered_s += state.fused.of(target, state.now_s)
        if covered_s > state.fused.total(state.now_s) / 2:
            return tuple(forms)
    return ()


def has_shifted(state: State) -> bool:
    """Whether forms that had most of the time have less than a quarter now: less than half would flicker."""
    spent = state.fused.total(state.now_s)
    covered = sum(state.fused.of(Baked(form), state.now_s) for form in state.regime)
    return bool(state.regime) and spent >= state.rules.judge_s and covered < spent / 4


def show_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
