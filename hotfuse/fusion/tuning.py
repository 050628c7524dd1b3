"""Tuning: edits that the model is not sure of are measured. What is faster stays.

    groups -> candidates, those first that may gain most (`fusion/strategies`), as many as do not touch each other in one trial
           -> both plans timed in turns, group by group -> edits that gained are kept -> ... until nothing is left to try

One trial answers for many edits: times are those of single groups amid their plan, and of edits that touch nothing in common
each has groups of its own. It begins with what is predicted to be fastest, and with as many threads as whole calls of that are
fastest with: one, or all. What was tried is not tried again, and once the time
is up what was found so far is the plan. Where all of it together is no faster than what it began with, or than the rules' plan,
that is the plan.

State: what was tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Engine, Planned, Planner, Step, Weighed
from hotfuse.fusion.rules import ALL, Fused
from hotfuse.fusion.strategies import Array, Policy, context, new_policy, reward
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout

LEAST_GAIN = 0.015  # of what an edit is about: repeated measurements of the same differ by as much
DOUBT = 0.5  # of how far repeated measurements lie apart is no gain
MOST_TRIED = 24  # edits in one trial
MOST_TRIALS = 12
LATE_S = 1.0  # in which whole plans are compared still
TEAM = "team"  # the strategy of a plan's threads
LEAST_TEAM_S = 12e-6  # of a call: in less a second thread has hardly begun
TEAM_GAIN = 0.05  # of a call: threads that sleep take long to wake, which calls in a row do not show


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


Measure = Callable[[Sequence[Fused], Sequence[Fused]], Race]


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

    def run(self) -> Planned:
        ruled = list(self._engine(None).draft.groups)
        predicted = self._engine(None).run()
        self._steps += predicted.steps
        groups = self._with_threads([replace(group, row=0) for group in predicted.groups])
        for _ in range(MOST_TRIALS):
            if time.monotonic() > self._deadline:
                break
            engine = self._engine(groups)
            chosen = self._chosen(engine)
            if not chosen:
                break
            groups = self._trial(engine, groups, chosen)
        return Planned(tuple(self._fastest(ruled, list(predicted.groups), groups)), tuple(self._steps))

    def _with_threads(self, groups: list[Fused]) -> list[Fused]:
        """The groups with one thread or with all, if that is faster than what their amount of work speaks for. Who plans what
        follows knows of it."""
        model = self._planner.model
        team, threads = (ALL, model.rates.threads) if model.threads == 1 else (1, 1)
        other = [replace(group, team=team) for group in groups]
        if not groups or model.rates.threads == 1:
            return groups
        before, after = self._measure(groups, other).call_s
        if before < LEAST_TEAM_S or after > (1 - TEAM_GAIN) * before:
            return groups
        self._planner = replace(self._planner, model=replace(model, threads=threads))
        names = tuple(group.nodes[-1].id for group in groups)
        self._steps.append(Step(TEAM, names, names, before, after, 0.0, (), is_measured=True))
        return other

    def _fastest(self, best: list[Fused], *others: list[Fused]) -> list[Fused]:
        """The last of some plans that is faster than those before it, in whole calls. Orders that put groups side by side are
        plans of their own."""
        if time.monotonic() > self._deadline:  # nothing can be compared: what is predicted is believed
            return others[0]
        for other in others:
            for groups in (other, self._engine(other).ordered()):
                if groups != best and time.monotonic() <= self._deadline + LATE_S:
                    before, after = self._measure(best, groups).call_s
                    best = groups if after < (1 - LEAST_GAIN / 2) * before else best
        return best

    def _engine(self, groups: Sequence[Fused] | None) -> Engine:
        return Engine(self._graph, self._values, self._layouts, self._planner, groups)

    def _chosen(self, engine: Engine) -> list[Weighed]:
        """Edits to try at once: the most promising first, none of which touches what another does."""
        found = [w for w in engine.weigh(engine.candidates()) if (w.candidate.strategy, w.candidate.made) not in self._tried]
        if not found:
            return []
        hopes = self.policy.hope(np.array([_context(engine, weighed) for weighed in found]))
        worth = hopes * [weighed.before_s for weighed in found]
        taken: set[str] = set()
        chosen: list[Weighed] = []
        for place in np.argsort(-worth, kind="stable"):
            near = {item.name for item in found[place].candidate.gone}
            if worth[place] > 0 and taken.isdisjoint(near):
                taken |= near
                chosen.append(found[place])
        return chosen[:MOST_TRIED]

    def _trial(self, engine: Engine, groups: list[Fused], chosen: Sequence[Weighed]) -> list[Fused]:
        """The groups with those edits that gained something."""
        made = [w for w in chosen if apply(engine.draft, w.candidate)]
        self._tried |= {(w.candidate.strategy, w.candidate.made) for w in chosen}
        race = self._measure(groups, engine.draft.groups)
        kept = []
        contexts: list[Array] = []
        rewards: list[float] = []
        for weighed in made:
            ids = frozenset(node.id for item in weighed.candidate.gone if item.group for node in item.group.nodes)
            (before, doubt), (after, more) = (sum_of(laps, ids) for laps in race.laps)
            contexts.append(_context(engine, weighed))
            rewards.append(reward(before, after))
            gain = before - after if after else 0.0  # nobody timed it
            if gain > LEAST_GAIN * before + DOUBT * (doubt + more):
                kept.append(weighed)
                step = replace(engine.step(weighed), before_s=before, after_s=after, spread_s=doubt + more, is_measured=True)
                self._steps.append(step)
        if contexts:
            self.policy = self.policy.learned(np.array(contexts), np.array(rewards))
        if not kept:
            return groups
        draft = Draft(self._graph, self._layouts, groups)
        items = {item.name: item for item in draft}
        for weighed in kept:
            apply(draft, weighed.candidate.on(items))
        return draft.groups


def _context(engine: Engine, weighed: Weighed) -> Array:
    step = engine.step(weighed)
    return context(step.strategy, step.before_s, step.gain_s, step.spread_s, step.scores)


def computing(ids: Iterable[str], layouts: Mapping[str, Layout]) -> frozenset[str]:
    """Of some nodes, those that are no views: by these a group is known, however it looks at what it reads."""
    return frozenset(id for id in ids if id not in layouts or layouts[id].root == id)


def sum_of(laps: Sequence[Lap], ids: frozenset[str]) -> tuple[float, float]:
    """Of all groups of some nodes: their time, and how far off it may be."""
    mine = [lap for lap in laps if lap.nodes <= ids]
    return sum(lap.seconds for lap in mine), sum(lap.spread_s**2 for lap in mine) ** 0.5
