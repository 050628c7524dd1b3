"""Tuning: edits that the model is not sure of are measured. What is faster stays.

    groups -> candidates, those first that may gain most (`fusion/strategies`), as many as do not touch each other in one trial
           -> both plans timed in turns, group by group -> edits that gained are kept -> ... until nothing is left to try

One trial answers for many edits: times are those of single groups amid their plan, and of edits that touch nothing in common
each has groups of its own. What gained is held against whole calls, all of it or a half after the other; so is, while there is
time, each edit by itself, for some do nothing to their own groups and much to those around them. It begins with what is
predicted to be fastest, once with the threads that the amount of work speaks for, and once with one of them, or all, where
that may pay: what two threads hand to each other may cost more than the second one gains. What was tried is not tried again,
and once the time is up what was found so far is the plan; the rules' where that is no slower. The time is up as well where
others have the cores for good: what whole calls confirmed until then stays, and so does what the policy learned.

State: what was tried, and whether the time is up before its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hotfuse.errors import NoIdleCores
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Engine, Planned, Planner, Step, Weighed
from hotfuse.fusion.rules import ALL, Fused
from hotfuse.fusion.strategies import Policy, context_of, new_policy, reward
from hotfuse.fusion.weaving import unwoven
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout
from hotfuse.records import dataclass

LEAST_GAIN = 0.015  # of what an edit is about: repeated measurements of the same differ by as much
DOUBT = 0.5  # of how far repeated measurements lie apart is no gain
MOST_TRIED = 24  # edits in one trial
MOST_TRIALS = 12
MOST_OF_THREE = 2
LATE_S = 1.0  # in which whole plans are compared still
TEAM = "team"  # the strategy of a plan's threads
LEAST_TEAM_S = 12e-6  # of a call by one thread: in less a second one has hardly begun
MOST_LOST = 1.3  # times as long as a call may take with other threads, that edits may make up for
MOST_LOOKED = 24  # edits that whole calls decide on, each by itself
LEAST_SHARE = 0.04  # of the time of a call that such an edit is about


@dataclass(frozen=True, slots=True)
class Lap:
    """What the groups of some nodes took, and how far repeated measurements lay apart."""

    nodes: frozenset[str]
    seconds: float
    spread_s: float


@dataclass(frozen=True)
class Race:
    """Two plans, timed in turns: their groups, and whole calls."""

    laps: tuple[Sequence[Lap], Sequence[Lap]]
    call_s: tuple[float, float]


Told = tuple[Weighed, Step]  # an edit, and how it is told
Measure = Callable[[Sequence[Fused], Sequence[Fused]], Race]  # raises NoIdleCores where nothing can be measured any more


def tune(
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    planner: Planner,
    measure: Measure,
    seconds: float,
    policy: Policy | None = None,
) -> tuple[Planned, Policy]:
    """The groups of a graph that were measured to be fastest, of what could be tried in that time; and what the policy, which
    says what to try, learned from it."""
    tuner = _Tuner(graph, values, layouts, planner, measure, time.monotonic() + seconds, policy or new_policy())
    return tuner.run(), tuner.policy


class _Tuner:
    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Value],
        layouts: Mapping[str, Layout],
        planner: Planner,
        measure: Measure,
        deadline: float,
        policy: Policy,
    ) -> None:
        self.policy = policy
        self._graph, self._values, self._layouts, self._planner = graph, values, layouts, planner
        self._measure, self._deadline = measure, deadline
        self._tried: set[tuple[str, tuple[Fused, ...]]] = set()
        self._steps: list[Step] = []
        self._is_over = False

    def _is_on(self, deadline: float) -> bool:
        return not self._is_over and time.monotonic() <= deadline

    def _race(self, first: Sequence[Fused], second: Sequence[Fused]) -> Race | None:
        """None where there is nothing to measure with any more: all ends with what was found so far."""
        try:
            return None if self._is_over else self._measure(first, second)
        except NoIdleCores:
            self._is_over = True
            return None

    def run(self) -> Planned:
        engine = self._engine(None)
        ruled, predicted = list(engine.draft.groups), engine.run()
        planner, found = self._planner, [(list(predicted.groups), predicted.steps)]
        starts = list(self._starts([unwoven(group) for group in predicted.groups]))
        for place, (groups, threads, steps) in enumerate(starts):
            self._planner = replace(planner, model=replace(planner.model, threads=threads))
            self._steps = [*predicted.steps, *steps]
            now = time.monotonic()
            groups = self._climbed(groups, now + max(0.0, self._deadline - now) / (len(starts) - place))
            found += [(groups, tuple(self._steps)), (self._engine(groups).ordered(), tuple(self._steps))]
        self._planner = planner
        return self._fastest(ruled, found)

    def _starts(self, groups: list[Fused]) -> Iterator[tuple[list[Fused], int, tuple[Step, ...]]]:
        """What to begin with, the faster first: the groups with the threads that their amount of work speaks for; and with one
        of them, or all, where whole calls say that this may pay."""
        model = self._planner.model
        mine = groups, model.threads, ()
        if not groups or model.rates.threads == 1 or not self._is_on(self._deadline):
            yield mine
            return
        team, threads = (ALL, model.rates.threads) if model.threads == 1 else (1, 1)
        other = [replace(group, team=team) for group in groups]
        race = self._race(groups, other)
        if race is None:
            yield mine
            return
        before, after = race.call_s
        if (team == ALL and before < LEAST_TEAM_S) or after > MOST_LOST * before:
            yield mine
            return
        names = tuple(group.nodes[-1].id for group in groups)
        theirs = other, threads, (Step(TEAM, names, names, before, after, 0.0, (), is_measured=True),)
        yield from (mine, theirs) if before <= after else (theirs, mine)

    def _climbed(self, groups: list[Fused], deadline: float) -> list[Fused]:
        """The groups with all edits that were measured to pay: many at once by the times of groups, then one by one by whole
        calls, which also tell what an edit does to the groups around it."""
        for _ in range(MOST_TRIALS):
            engine = self._engine(groups)
            chosen = self._chosen(engine) if self._is_on(deadline) else []
            if not chosen:
                break
            groups = self._confirmed(groups, self._trial(engine, groups, chosen))
        looked: set[tuple[str, tuple[Fused, ...]]] = set()
        while self._is_on(deadline) and len(looked) < MOST_LOOKED:
            engine = self._engine(groups)
            weighed = self._next(engine, looked)
            if weighed is None:
                break
            looked.add(_key(weighed))
            groups = self._confirmed(groups, [(weighed, engine.step(weighed))], once_more=True)
        return groups

    def _next(self, engine: Engine, looked: set[tuple[str, tuple[Fused, ...]]]) -> Weighed | None:
        """The edit that is about most of the time, of those nobody looked at alone."""
        found = [w for w in engine.weigh(engine.candidates()) if _key(w) not in looked]
        all_s = sum(engine.seconds(item) for item in engine.draft)
        found = [w for w in found if w.before_s > LEAST_SHARE * all_s]
        return max(found, key=lambda w: w.gain_s + w.spread_s + LEAST_SHARE * w.before_s, default=None)

    def _confirmed(self, groups: list[Fused], kept: Sequence[Told], once_more: bool = False) -> list[Fused]:
        """The groups with those edits that also make whole calls faster: all of them, or of a half what holds. With
        `once_more` a gain must show twice."""
        if not kept:
            return groups
        made = self._edited(groups, [weighed for weighed, _ in kept])
        if made == groups:
            return groups
        for _ in range(1 + once_more):
            race = self._race(groups, made)
            if race is None:  # nothing is known of what was to be held against these groups
                return groups
            before, after = race.call_s
            if after > (1 - LEAST_GAIN / 2 if once_more else 1.0) * before:
                break
        else:
            assert race is not None
            self._steps += [_measured(step, _ids(weighed), race) for weighed, step in kept]
            return made
        if len(kept) == 1:
            return groups
        half = len(kept) // 2
        return self._confirmed(self._confirmed(groups, kept[:half]), kept[half:])

    def _edited(self, groups: list[Fused], edits: Sequence[Weighed]) -> list[Fused]:
        draft = Draft(self._graph, self._layouts, groups)
        items = {item.name: item for item in draft}
        for weighed in edits:
            if all(name in items for name in weighed.candidate.names):
                apply(draft, weighed.candidate.on(items))
        return draft.groups

    def _fastest(self, ruled: list[Fused], found: Sequence[tuple[list[Fused], tuple[Step, ...]]]) -> Planned:
        """The last of some plans that is faster than those before it, in whole calls; the rules' own where none is surely
        faster. Orders that put groups side by side are plans of their own."""
        best: tuple[list[Fused], tuple[Step, ...]] = ruled, ()
        races = 0
        for groups, steps in found:
            if groups != best[0] and self._is_on(self._deadline + LATE_S):
                race = self._race(best[0], groups)
                if race is not None:
                    before, after = race.call_s
                    best = (groups, steps) if after < (1 - LEAST_GAIN / 2) * before else best
                    races += 1
        if not races:  # nothing could be compared: what whole calls confirmed on the way is believed, or else the model
            predicted, climbed, *_ = found
            best = climbed if any(step.is_measured for step in climbed[1]) else predicted
            return Planned(tuple(best[0]), best[1])
        if best[0] != ruled and not self._holds(ruled, best[0]):
            best = ruled, ()
        return Planned(tuple(best[0]), best[1])

    def _holds(self, ruled: list[Fused], groups: list[Fused]) -> bool:
        """Whether a plan is faster than the rules' in most of a few races, for as long as there is time: one of them may fall
        into a moment in which somebody else has a core."""
        faster = slower = 0
        while max(faster, slower) < MOST_OF_THREE and self._is_on(self._deadline + LATE_S):
            race = self._race(ruled, groups)
            if race is None:
                break
            before, after = race.call_s
            gains = after < (1 - LEAST_GAIN / 2) * before
            faster, slower = faster + gains, slower + (not gains)
        return faster >= slower

    def _engine(self, groups: Sequence[Fused] | None) -> Engine:
        return Engine(self._graph, self._values, self._layouts, self._planner, groups)

    def _chosen(self, engine: Engine) -> list[Weighed]:
        """Edits to try at once: the most promising first, none of which touches what another does."""
        found = [w for w in engine.weigh(engine.candidates()) if _key(w) not in self._tried]
        if not found:
            return []
        steps = [engine.step(weighed) for weighed in found]
        hopes = self.policy.hope(np.array([context_of(step) for step in steps]), [step.digest for step in steps])
        worth = hopes * [weighed.before_s for weighed in found]
        taken: set[str] = set()
        chosen: list[Weighed] = []
        for place in np.argsort(-worth, kind="stable"):
            near = {item.name for item in found[place].candidate.gone}
            if worth[place] > 0 and taken.isdisjoint(near):
                taken |= near
                chosen.append(found[place])
        return chosen[:MOST_TRIED]

    def _trial(self, engine: Engine, groups: list[Fused], chosen: Sequence[Weighed]) -> list[Told]:
        """Those edits that gained something."""
        made = [w for w in chosen if apply(engine.draft, w.candidate)]
        self._tried |= {_key(w) for w in chosen}
        race = self._race(groups, engine.draft.groups)
        kept: list[Told] = []
        if race is None:
            return kept
        steps: list[Step] = []
        rewards: list[float] = []
        noises: list[float] = []
        for weighed in made:
            (before, doubt), (after, more) = (sum_of(laps, _ids(weighed)) for laps in race.laps)
            steps.append(engine.step(weighed))
            rewards.append(reward(before, after))
            noises.append((doubt + more) / max(before, 1e-12))
            gain = before - after if after else 0.0  # nobody timed it
            if gain > LEAST_GAIN * before + DOUBT * (doubt + more):
                kept.append((weighed, steps[-1]))
        if steps:
            contexts, taken = np.array([context_of(step) for step in steps]), np.ones(len(steps), bool)
            digests = [step.digest for step in steps]
            self.policy = self.policy.learned(contexts, np.array(rewards), taken, digests, noises)
        return kept


def _key(weighed: Weighed) -> tuple[str, tuple[Fused, ...]]:
    return weighed.candidate.strategy, weighed.candidate.made


def _ids(weighed: Weighed) -> frozenset[str]:
    return frozenset(node.id for item in weighed.candidate.gone if item.group for node in item.group.nodes)


def _measured(step: Step, ids: frozenset[str], race: Race) -> Step:
    """A step with the times that its groups took."""
    (before, doubt), (after, more) = (sum_of(laps, ids) for laps in race.laps)
    return replace(step, before_s=before, after_s=after, spread_s=doubt + more, is_measured=True)


def computing(ids: Iterable[str], layouts: Mapping[str, Layout]) -> frozenset[str]:
    """Of some nodes, those that are no views: by these a group is known, however it looks at what it reads."""
    return frozenset(id for id in ids if id not in layouts or layouts[id].root == id)


def sum_of(laps: Sequence[Lap], ids: frozenset[str]) -> tuple[float, float]:
    """Of all groups of some nodes: their time, and how far off it may be."""
    mine = [lap for lap in laps if lap.nodes <= ids]
    return sum(lap.seconds for lap in mine), sum(lap.spread_s**2 for lap in mine) ** 0.5
