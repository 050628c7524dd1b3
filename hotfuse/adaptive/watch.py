"""Watch: what the calls of a subject are made of, and which edits of its units that speaks for.

Calls are counted, some are traced (`Sampling`), and where there are new traces the profile is asked (`spotting`). An edit that
serves is spotted by what it was measured to save.

State: the profile, calls of each form since edits were last spotted, and what edits in service save.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from hotfuse.adaptive.profile import Profile
from hotfuse.adaptive.sampling import Sampler
from hotfuse.adaptive.spotting import Found, find_edits
from hotfuse.adaptive.target import Baked, Edit, Revised, Target, form_of
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import TensorType, Type

if TYPE_CHECKING:
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.executor import Executor

NATIVE, ORIGINAL = "native", "tier 0"
TRACES = 3  # of what serves, before anything is said of it
MOST = 4  # edits at a time: those that save most


class Watch:
    def __init__(self, post: Callable[[Callable[[], None]], object]) -> None:
        self.profile = Profile()
        self.sampler = Sampler(self.profile, post)
        self._calls: Counter[str] = Counter()  # by form
        self._seen = 0  # traces
        self._found: tuple[Found, ...] = ()
        self._hottest: Hashable = None
        self._hottest_s = 0.0
        self._gains: dict[Edit, float] = {}

    def count(self, form: Hashable, tier: int, calls: int, seconds: float, now_s: float) -> None:
        self.profile.count(NATIVE if tier else ORIGINAL, str(form), calls, seconds, now_s)
        if tier:
            self._calls[str(form)] += calls
            self._hottest_s *= 0.9
            if form == self._hottest or seconds > self._hottest_s:
                self._hottest, self._hottest_s = form, self._hottest_s * (form == self._hottest) + seconds

    def wants_trace(self, executor: Executor | None) -> bool:
        """Whether one of the next calls is traced: then one must go the long way."""
        return executor is not None and self.sampler.ask(NATIVE, executor)

    @property
    def hottest(self) -> Hashable:
        """The form that most time of late was spent on."""
        return self._hottest

    def gained(self, target: Target, seconds: float) -> None:
        """An edit was measured to save so much of a call."""
        if isinstance(target, Edit):
            self._gains[target] = seconds

    def replaced(self) -> None:
        """Something else answers from now on."""
        self.sampler.forget(NATIVE)
        self._seen, self._found = self.profile.added, ()

    def spot(
        self, build: Build, serving: tuple[Target, ...], isa: str, now_s: float, hoped: Iterable[Found] = ()
    ) -> Iterator[tuple[Found, float]]:
        """The edits that there is evidence for since this was last asked, or that somebody has hope of (`hoped`), and the time
        that each could have saved."""
        counted, self._calls = self._calls, Counter()
        calls = counted.total()
        special = sum(counted[target.form] for target in serving if isinstance(target, Baked))

        def calls_of(edit: Edit) -> int:
            """Calls that run what it edits. Merged and split units were traced in whatever call."""
            if isinstance(edit, Revised):
                return counted[edit.form] if edit.form else calls - special
            return calls

        for edit, gain in list(self._gains.items()):
            if edit not in serving:
                del self._gains[edit]
            elif calls and gain > 0:
                yield Found(edit, gain, "it was measured"), gain * calls_of(edit)
        if not calls:
            return
        if self.profile.added != self._seen:
            self._seen = self.profile.added
            self._found = self._look(build, isa, now_s)
        edited = {(form_of(target), unit) for target in serving if isinstance(target, Edit) for unit in target.units}
        for found in (*self._found, *hoped):
            mine = {(form_of(found.edit), unit) for unit in found.edit.units}
            if edited.isdisjoint(mine):  # of those the traces show something else than the plan made
                yield found, found.saves_s * calls_of(found.edit)

    def _look(self, build: Build, isa: str, now_s: float) -> tuple[Found, ...]:
        """What the traces of what serves speak for."""
        uses = [use for use in self.profile.uses(now_s) if use.plan == NATIVE]
        if max((use.traced for use in uses), default=0) < TRACES:
            return ()
        chains = [chain for chain in self.profile.chains(now_s) if chain.plan == NATIVE]
        sizes = form_sizes(build.main, self._hottest)
        return find_edits(build, uses, chains, sizes, host_spec(isa))[:MOST]

    def unit_seconds(self) -> dict[str, float]:
        """What units of what serves take, by name, as far as they were traced."""
        return {use.unit: use.seconds for use in self.profile.uses(time.monotonic()) if use.plan == NATIVE}


def form_sizes(graph: Graph, form: Hashable) -> dict[str, int] | None:
    """The sizes of a form that is the shapes of a graph's inputs; None if it is not."""
    from hotfuse.runtime.concrete import learned_sizes

    if not isinstance(form, tuple) or len(form) != len(graph.inputs):
        return None
    given: dict[str, Type] = {name: graph.type(name) for name in graph.weights}
    for name, shape in zip(graph.inputs, form, strict=True):
        declared = graph.type(name)
        if not isinstance(declared, TensorType) or shape is None:
            return None
        given[name] = TensorType(declared.dtype, tuple(shape))
    return learned_sizes(graph, given)
