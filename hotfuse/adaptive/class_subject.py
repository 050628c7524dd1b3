"""A captured class of a PyTorch module as a subject.

The module itself answers until kernels are proved. Then a class that stands for them takes the place of the captured one, after
a call that both answered alike.

State: a real call, until something is proved on it; the class that is in the table now; the shadow, the audit and the duel that
wait for calls, each beside the others.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotfuse.adaptive.controller import Controller
from hotfuse.adaptive.samples import Sample
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.subject import Array, Audited
from hotfuse.errors import ExecutionError
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.pace import Pace
from hotfuse.records import dataclass
from hotfuse.runtime.torch_class import ServedClass
from hotfuse.runtime.torch_classes import ClassTable
from hotfuse.runtime.torch_family import Family
from hotfuse.runtime.torch_guard import Call
from hotfuse.runtime.torch_trial import keep_leaves
from hotfuse.runtime.turns import SAMPLE_BYTES, Duel, Judged, Report, Shadow, Timed

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.build_request import BuildRequest
    from hotfuse.runtime.executor import Executor
    from hotfuse.runtime.workers import Job


@dataclass(frozen=True, eq=False)
class _Taken:
    """Copies of a call's leaves, and of them the graph's inputs, by name."""

    leaves: list[Any]
    inputs: dict[str, Array]


class ClassSubject:
    """Watches the calls of one class for the controller, and does to it what that decides."""

    def __init__(self, name: str, family: Family, table: ClassTable, served: ServedClass, rules: Rules) -> None:
        # The family holds this, and this holds nothing of it: a model that nobody holds any more goes at once.
        self.name, self.config, self.events = f"{name}: {served.guard.shapes}", family.config, family.events
        self.fuel, self.is_known = family.fuel, served.kept
        self._family, self._table = weakref.proxy(family), weakref.proxy(table)
        self._captured = self._serving = served
        self._sample: Sample[_Taken] = Sample()
        self._last: Hashable = None  # form that somebody looked at
        self._refused = False  # a call whose inputs nothing can be proved on was met, and told
        self._ready: ServedClass | None = None  # has prepared weights for the next candidate
        self._waiting: dict[str, Shadow | Duel] = {}  # by what asked for it
        self.controller = Controller(self, rules)
        served.watcher = weakref.proxy(self)

    # what calls tell, in callers' threads

    def called(self, call: Call, served: ServedClass, seconds: float, count: int = 1) -> None:
        duel, self._last = self._waiting.get("duel"), call.shapes
        self._sample.offer(call.shapes, math.inf if served.tier else seconds, lambda: self._take(call))
        self.controller.note(call.shapes, served.tier, seconds, count)
        if isinstance(duel, Duel) and duel.takes(call.shapes):
            duel.note(served, seconds)

    def adapts(self, served: ServedClass) -> bool:
        """Whether this is about a class: as it was captured, or with kernels."""
        return served is self._captured or served is self._serving

    def changed(self, reason: str) -> None:
        self.controller.changed(reason)

    def unit_seconds(self) -> Mapping[str, float]:
        return self.controller.watch.unit_seconds()

    def baked_calls(self) -> Mapping[str, int]:
        return dict(self.controller.baked_calls)

    def why(self) -> str:
        return self.controller.why()

    def settled(self, timeout_s: float) -> bool:
        return self.controller.settled(timeout_s)

    def close(self) -> None:
        self.controller.close()
        self.forget_sample()
        self.forget_prepared()

    def _take(self, call: Call) -> _Taken | None:
        leaves = keep_leaves(call)
        if leaves is None:
            self._refuse()
            return None
        return _Taken(leaves, self._captured.inputs(leaves))

    def _refuse(self) -> None:
        """Say why calls prove nothing. Once: all of them may be so."""
        if not self._refused:
            self._refused = True
            reason = f"inputs of a call are too large: a proof needs tensors, of {SAMPLE_BYTES >> 20} MiB at most"
            self.events.emit("sample.refused", self.name, reason)

    # what the controller asks, in the background

    def request(self) -> BuildRequest:
        from hotfuse.runtime.build_request import BuildRequest

        program = self._captured.runner.captured
        return BuildRequest(program.graph, self.config, tuple(m.name for m in program.mutations if m.name))

    def look_at_next(self) -> None:
        """Have the next call go the long way, and hear of it; some are looked at anyway."""
        self._serving.curious = True
        self._serving.runner.rest()

    def sample(self, form: Hashable | None) -> Mapping[str, Array] | None:
        taken = self._sample.get(form)
        return None if taken is None else taken.inputs

    def forget_sample(self) -> None:
        self._sample.forget()

    def weight(self, name: str) -> Array:
        tensors = self._captured.weights()
        if isinstance(tensors, str):
            raise ExecutionError(tensors)
        return np.asarray(to_numpy(tensors[name].detach()))

    def weight_part(self, name: str) -> None:
        """They are in memory."""

    def release_weights(self) -> None:
        """They are the module's."""

    def prepare(self, build: Build, kernels: Kernels, pace: Pace) -> None:
        if self._ready is None or self._ready.runner.hoisted is not build.hoisted:
            made = self._captured.with_kernels(build, kernels, self._serving)
            made.prepare(pace)
            self._ready = made

    def forget_prepared(self) -> None:
        self._ready = None

    def make(self, build: Build, kernels: Kernels, pace: Pace) -> ServedClass:
        like, self._ready = self._ready or self._serving, None
        made = self._captured.with_kernels(build, kernels, like)
        made.watcher = weakref.proxy(self)
        taken = self._sample.taken
        if taken is not None:
            made.make_ready(taken.leaves, pace)
        made.runner.bind_as(self._serving.runner, pace)
        return made

    def keep_call(self) -> None:
        """What a module answers is its caller's, who may write into it: calls are shadowed when they come."""

    def shadow(self, candidate: ServedClass, form: Hashable | None, report: Report) -> None:
        def told(judged: Judged) -> None:
            self._over("shadow", shadow)
            report(judged)

        shadow = Shadow(candidate, form, told, self.controller.later)
        self._await("shadow", shadow)

    def duel(self, form: Hashable, other: ServedClass | None, report: Timed) -> None:
        def told(times: Any) -> None:
            self._over("duel", duel)
            report(times)

        duel = Duel(self._serving, other or self._captured, form, told, outsider=other is None)
        self._await("duel", duel)

    def end_duel(self) -> None:
        self._waiting.pop("duel", None)
        self._show()

    def audit(self, submit: Callable[[Job], None], report: Audited) -> None:
        """The module answers the next call, and what serves does when the caller has gone on. Where it answers otherwise the
        module alone answers from that call on."""
        serving, form = self._serving, self._last
        if serving is self._captured:
            return

        def told(judged: Judged) -> None:
            self._over("audit", audit)
            if judged.reason:
                self.publish(None)
            report(form, judged)

        audit = Shadow(serving, form, told, self.controller.later)
        self._await("audit", audit)

    def _await(self, what: str, special: Shadow | Duel) -> None:
        """Have calls answered for it. Shadows and audits are one call each: a duel goes on behind them."""
        self._waiting[what] = special
        self._show()

    def _over(self, what: str, special: Shadow | Duel) -> None:
        """It takes no calls any more. Called by any thread."""

        def forget() -> None:
            if self._waiting.get(what) is special:
                self._waiting.pop(what, None)
                self._show()

        self.controller.later(forget)

    def _show(self) -> None:
        found = map(self._waiting.get, ("shadow", "audit", "duel"))
        self._serving.specials = tuple(special for special in found if special is not None)

    @property
    def executor(self) -> Executor | None:
        return None if self._serving is self._captured else self._serving.runner.executor

    def publish(self, candidate: ServedClass | None) -> None:
        chosen = candidate or self._captured
        if candidate is not None:
            candidate.proven = True  # each of its parts was: it was shadowed, or is what is left of one that was
        self._waiting.clear()
        with self._table.lock:
            self._serving.specials = ()
            if self._family.open and chosen is not self._serving:
                self._table.replace(self._serving, chosen)
            self._serving = chosen
