"""Learning: which of the edits that the fusion engine was not sure of are tried on traffic, and what their duels teach.

    builds that serve -> edits they are unsure of -> hope, by the policy (`fusion/strategies`) -> the most hopeful are spotted
    a duel            -> reward of the edit       -> the policy, which is kept on disk for all models of this machine

An edit that is spotted goes the way of every edit: it is built, proved, shadowed and published when it could save more than the
budget, one at a time, and stays only if it pays. Trials that come to nothing make the next one wait, for twice as long each
time, and of one build only so many are made.

The reward is of the groups that are edited, and a duel times whole calls: what is gained of a call is gained of what the groups
took before, by traces where there are any, and what noise explains of the call's time is doubt about the reward.

State: the policy, once it was asked for; what there is hope of, and of each such edit the step and the time of its groups; the
back-off, and how many trials came to nothing. All of it is the background's thread's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from hotfuse.adaptive.spotting import Found
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.target import Revised, Target, form_of
from hotfuse.pace import Unhurried, imports
from hotfuse.runtime.backoff import FRESH
from hotfuse.runtime.turns import Times

if TYPE_CHECKING:
    from hotfuse.fusion.engine import Step
    from hotfuse.fusion.strategies import Policy
    from hotfuse.hardware.achieved import Achieved

REST_S, MOST_REST_S = 1.0, 600.0  # of the clock, after a trial that did not pay, and at most
MOST_TRIALS = 24  # of all builds of a model, that did not pay
LEAST_HOPE = 0.01  # less is not seen in duels
MOST = 4  # edits at a time
MOST_KNOWN = 1024  # edits whose steps are kept: some builds' worth
MISFIT = 0.5  # of the hope is left where an edit is not for what binds: those that are come first
NOTHING: Mapping[str, Mapping[str, Achieved]] = MappingProxyType({})


def binding(target: Revised, achieved: Mapping[str, Achieved]) -> str:
    """What binds the units that an edit is about: that of the one that takes longest; "" where none was profiled."""
    known = [achieved[unit] for unit in target.units if unit in achieved]
    return max(known, key=lambda found: found.seconds).by if known else ""


def helps(strategy: str, by: str) -> bool:
    """Whether a way to edit is made for what binds: one that moves less for memory, and spares steps; others change how work
    is cut and ordered, for arithmetic, and where threads are idle."""
    from hotfuse.hardware.pairs import LAYOUT, RECOMPUTE, REGISTERS, SIBLINGS, TILES
    from hotfuse.hardware.prior import COMPUTE, MEMORY

    moves_less = strategy in (REGISTERS, SIBLINGS, TILES, LAYOUT, RECOMPUTE)
    return moves_less if by == MEMORY else not moves_less if by == COMPUTE else True


class Learning:
    """Of one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._tried: dict[Revised, tuple[Step, float]] = {}
        self._found: list[Found] = []
        self._looked: Hashable = None
        self._rest = FRESH
        self._failed = 0
        self._paid: set[Revised] = set()

    @functools.cached_property
    def _policy(self) -> Policy:
        from hotfuse.hardware.spec import host_spec
        from hotfuse.runtime.planning import known_policy

        config = self._subject.config
        return known_policy(config, host_spec(config.isa))

    def find(
        self,
        unsure: Mapping[str, Sequence[Step]],
        seconds: Callable[[], Mapping[str, float]],
        traces: int,
        closed: Collection[Target],
        now_s: float,
        achieved: Mapping[str, Mapping[str, Achieved]] = NOTHING,
    ) -> list[Found]:
        """The edits to try, the most hopeful first, none of which touches what another does. `unsure` are those of builds that
        serve, by the form that each is for; `seconds` what units take, by name, as far as they were traced, which is looked at
        where there are other `traces` than before. Those in `closed` are not tried now. `achieved` is what units did while they
        were proved, by form and name: edits that do not help what binds them are hoped for less."""
        if not any(unsure.values()) or not self._rest.is_over(now_s) or self._failed >= MOST_TRIALS:
            return []
        looked = traces, tuple((form, id(steps)) for form, steps in unsure.items())
        if looked != self._looked:
            self._looked, self._found = looked, self._look(unsure, seconds(), achieved)
        taken: set[tuple[str, str]] = set()
        chosen: list[Found] = []
        for each in self._found:
            mine = {(form_of(each.edit), unit) for unit in each.edit.units}
            if each.edit not in closed and taken.isdisjoint(mine) and len(chosen) < MOST:
                taken |= mine
                chosen.append(each)
        return chosen

    def _look(
        self,
        unsure: Mapping[str, Sequence[Step]],
        seconds: Mapping[str, float],
        achieved: Mapping[str, Mapping[str, Achieved]],
    ) -> list[Found]:
        """All that there is hope of."""
        with imports(Unhurried()):  # not before there is something to hope for
            import numpy as np

            from hotfuse.fusion.strategies import context_of

        steps = [(form, step) for form, found in unsure.items() for step in found]
        hopes = self._policy.hope(np.array([context_of(step) for _, step in steps]), [step.digest for _, step in steps])
        found = []
        for (form, step), hope in zip(steps, hopes.tolist(), strict=True):
            if hope < LEAST_HOPE:
                continue
            target = Revised(step.strategy, step.groups, form, step.choice)
            timed = [seconds[unit] for unit in target.units if unit in seconds]
            before_s = sum(timed) if len(timed) == len(target.units) else step.before_s
            reason = f"{step}; that is not sure, and may gain {1 - math.exp(-hope):.1%} by what was learned so far"
            by = binding(target, achieved.get(form, {}))
            fits = not by or helps(step.strategy, by)
            reason += f"; what it is about is bound by {by}" if by else ""
            found.append(Found(target, (1.0 if fits else MISFIT) * (1 - math.exp(-hope)) * before_s, reason))
            self._tried.pop(target, None)
            self._tried[target] = step, before_s
        for old in list(self._tried)[:-MOST_KNOWN]:  # of builds that are gone
            del self._tried[old]
        self._paid &= self._tried.keys()
        return sorted(found, key=lambda each: -each.saves_s)

    def lost(self, target: Target, now_s: float) -> None:
        """A trial came to nothing: it does not pay, or could not be made."""
        if isinstance(target, Revised):
            self._failed += 1
            self._rest = self._rest.longer(now_s, REST_S, MOST_REST_S)

    def measured(self, target: Target, times: Times, now_s: float) -> None:
        """A duel about a target is over. What it teaches of an edit is kept on disk."""
        if not isinstance(target, Revised) or target not in self._tried:
            return
        import numpy as np

        from hotfuse.fusion.strategies import context_of, reward
        from hotfuse.hardware.spec import host_spec
        from hotfuse.runtime.planning import keep_policy, known_policy

        step, before_s = self._tried[target]
        gain_s = times.without_s - times.with_s
        before_s = min(before_s, times.without_s)
        # A gain that is more than all of it is noise of the rest of the call: the reward is then the largest there is.
        found = reward(before_s, max(before_s - gain_s, 1e-3 * before_s))
        config = self._subject.config
        spec = host_spec(config.isa)
        known = max(known_policy(config, spec), self._policy, key=lambda policy: policy.seen)  # other models teach it, too
        noise = times.spread_s / max(before_s, 1e-12)
        taken = np.ones(1, bool)
        self._policy = known.learned(context_of(step)[None], np.array([found]), taken, [step.digest], [noise])
        keep_policy(config, spec, self._policy)
        self._looked = None
        pays = gain_s > times.spread_s
        if pays:
            self._paid.add(target)
            self._rest = FRESH
        elif target not in self._paid:  # looked at again, what paid may be lost in noise: that is no trial in vain
            self.lost(target, now_s)
        self._subject.events.emit(
            "policy.learned",
            str(target),
            f"predicted {step.gain_s / max(step.before_s, 1e-12):.1%} of the groups' time, measured {1 - math.exp(-found):.1%}",
            reward=found,
            noise=noise,
            predicted=step.gain_s / max(step.before_s, 1e-12),
            seen=self._policy.seen,
            regret=self._policy.regret,
        )
