"""Making: from the decision to build a target to a candidate that can answer for it.

    Build -> Maker (cache, worker) -> Built      link; what waits for the sizes of a call waits
    Prove -> Maker (cache, worker) -> Proved     on the inputs of a call, unless an earlier process did; Disproved, BuildFailed

What an earlier process made of the model is looked for as soon as there is a model (`Kept`), and what it learned (`Recalled`).
All of this runs in the background's thread.

State: the decision that waits for the inputs of a call; evidence that waits for a call to show it on; proofs on their way into
the cache.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hotfuse.adaptive.ahead import import_ahead
from hotfuse.adaptive.lineup import Lineup, Made
from hotfuse.adaptive.maker import ASKED, Maker, may_find
from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.message import (
    Build,
    BuildFailed,
    Built,
    Disproved,
    Event,
    Kept,
    Prove,
    Proved,
    Recalled,
    Shadow,
)
from hotfuse.adaptive.remembering import Remembering
from hotfuse.adaptive.state import State
from hotfuse.adaptive.subject import Array, Subject
from hotfuse.adaptive.target import Baked, Edit, Generic, Revised, Target, base_of, form_of
from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.pace import Brisk, Pace, Unhurried, imports, make_room
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.runtime.build import Build as BuiltUnits
    from hotfuse.runtime.build import Sizes
    from hotfuse.runtime.build_request import BuildReply, ProveReply, ProveRequest
    from hotfuse.runtime.workers import Job

STUCK_S = 5.0  # without a step of what is put into the cache
MOST_TOLD = 16  # edits of a plan that nobody is sure of: those that may gain most
LINK_S, BIND_S = 0.004, 0.01  # that it takes to link a build, and to make a candidate of it
KILLED = ("died", "memory")  # causes of errors: of a proof they speak against its kernels


@dataclass(frozen=True, eq=False)
class Evidence:
    """A target whose answer to a call was wrong: the inputs of that call, or its form where these could not be kept."""

    made: Made
    form: Hashable | None
    reason: str
    inputs: Mapping[str, Array] | None


class Making:
    """Carries out builds and proofs for one subject. `tell` takes what came of them; `forms` are known by their texts."""

    def __init__(
        self,
        subject: Subject,
        lineup: Lineup,
        forms: Mapping[str, Hashable],
        tell: Callable[[Event], None],
        post: Callable[[Callable[[], None]], object],
    ) -> None:
        self._subject, self._lineup, self._forms = subject, lineup, forms
        self._tell, self._post = tell, post
        self._maker = Maker(subject)
        self._remembering = Remembering(subject)
        self._waiting: Build | Prove | None = None
        self._waits_since_s = 0.0
        self._evidence: Evidence | None = None
        self._keeping: deque[Iterator[None]] = deque()
        self._kept_s = 0.0

    @property
    def queue(self) -> int:
        """Jobs that wait before the next one."""
        return self._maker.queue

    @property
    def waits(self) -> bool:
        """Whether a decision waits for a call."""
        return self._waiting is not None

    @property
    def keeps(self) -> bool:
        """Whether something is on its way into the cache."""
        return bool(self._keeping)

    @property
    def may_find(self) -> bool:
        """Whether earlier processes may have left something."""
        return may_find(self._subject.config)

    def submit(self, job: Job) -> None:
        """Have a job done by a worker."""
        self._maker.submit(job)

    def forget_weights(self) -> None:
        """They are others now."""
        self._maker.forget()

    def remember(self, memory: Memory, now_s: float) -> None:
        self._remembering.keep(memory, now_s)

    def ask_cache(self) -> None:
        """Tell what earlier processes learned of this model, and whether they made kernels for it. Calls lose a little to that,
        where it is likely."""
        self._go_at(Brisk if self._subject.is_known else Unhurried)
        memory = self._remembering.recall()
        if memory is not None:
            self._tell(Recalled(time.monotonic(), memory))
        if self._maker.finds(Generic()):
            self._tell(Kept(time.monotonic(), Generic()))
        else:
            self._go_at(Unhurried)

    def _go_at(self, pace: Callable[[], Pace]) -> None:
        self._maker.pace = self._lineup.pace = self._remembering.pace = pace

    def go_on(self, state: State) -> None:
        """There may have been a call that somebody waits for."""
        waiting = self._waiting
        if waiting is not None and not any(live.attempt == waiting.attempt for live in state.live):
            self._waiting = None
        elif waiting is not None and self._subject.sample(self.form(waiting.target)) is not None:
            self._waiting = None
            work = self.build if isinstance(waiting, Build) else self.prove
            self._attempt(waiting, lambda: work(waiting))  # type: ignore[arg-type]
        elif isinstance(waiting, Build) and self._is_over(waiting, state.rules.patience_s):
            self._waiting = None
            self._tell(failed(waiting, "no call of its form came, whose sizes it is to be made for"))
        self._write_evidence()
        if self._keeping and time.monotonic() - self._kept_s > STUCK_S:  # in a forked child: nobody goes on with it
            self._keep()

    def _is_over(self, waiting: Build, patience_s: float) -> bool:
        """Whether a build need not wait for its call any more: others cannot begin meanwhile, and it may never come again."""
        is_late = time.monotonic() >= self._waits_since_s + patience_s
        return is_late or (isinstance(waiting.target, Baked) and self.form(waiting.target) is None)

    def _wait(self, decision: Build | Prove) -> None:
        self._waiting, self._waits_since_s = decision, time.monotonic()

    def close(self) -> None:
        """Put nothing into the cache any more."""
        self._keeping.clear()

    def was_wrong(self, target: Target, reason: str, inputs: Mapping[str, Array] | None) -> None:
        """An answer of a target was, to these inputs. It is written down; without them, as soon as there is a call to show it
        on."""
        made = self._lineup.made.get(target)
        if made is not None:
            self._evidence = Evidence(made, self.form(target), reason, inputs)
            self._write_evidence()

    def _write_evidence(self) -> None:
        evidence = self._evidence
        if evidence is None:
            return
        inputs = self._subject.sample(evidence.form) if evidence.inputs is None else evidence.inputs
        if inputs is not None:
            self._evidence = None
            self._maker.reproduce(evidence.made.target, self._request(evidence.made, inputs), None, evidence.reason)

    def form(self, target: Target) -> Hashable | None:
        """The form of calls that a target is for; None where it is for all."""
        return self._forms.get(form_of(target))

    def _attempt(self, decision: Build | Prove, work: Callable[[], None]) -> None:
        """Go on with a decision; if that fails, the target has."""
        try:
            work()
        except Exception as error:
            self._tell(failed(decision, f"{type(error).__name__}: {error}"))

    def _later(self, decision: Build | Prove, work: Callable[[], None]) -> None:
        """Called by any thread."""
        self._post(lambda: self._attempt(decision, work))

    # builds

    def build(self, decision: Build) -> None:
        target = decision.target
        sizes: Sizes = ()
        if isinstance(target, Baked):
            found = self._sizes(target)
            if found is None:
                self._wait(decision)
                return
            sizes = found
        elif isinstance(base_of(target), Baked):
            sizes = self._lineup.made[base_of(target)].sizes
        self._maker.build(target, sizes, lambda result: self._later(decision, lambda: self._built(decision, sizes, result)))
        if isinstance(target, Generic):
            self._post(lambda: import_ahead(self._lineup.pace()))

    def _sizes(self, target: Baked) -> Sizes | None:
        """Those of a form; None until there was a call of it."""
        from hotfuse.runtime.build import sizes_of
        from hotfuse.runtime.proof import given_types

        inputs = self._subject.sample(self.form(target))
        if inputs is None:
            return None
        main = self._lineup.made[Generic()].build.main
        return sizes_of(main, given_types(main, inputs, self._subject.weight))

    def _built(self, decision: Build, sizes: Sizes, result: BuildReply | BaseException) -> None:
        if isinstance(result, BaseException):
            is_revised = isinstance(decision.target, Revised)  # of the next plan it may be an edit
            lasting = "IllegalEdit" in str(result) and not is_revised
            self._tell(failed(decision, f"{type(result).__name__}: {result}", lasting))
            return
        with imports(self._lineup.pace()):
            from hotfuse.runtime.kernels import link_kernels
            from hotfuse.runtime.subgraph import fusions_of

        make_room(self._lineup.pace(), LINK_S)
        target, build, generic = decision.target, result.build, self._lineup.generic
        if not isinstance(target, Generic) and generic is not None:
            build = replace(build, hoisted=generic.build.hoisted)
        objects = dict(zip(build.programs, result.objects, strict=True))
        made = Made(target, build, objects, link_kernels(build.programs, result.objects), sizes, decision.without)
        self._lineup.made[target] = made
        units = self._lineup.new_units(made)
        fusions = fusions_of(units, objects, sizes)
        self._subject.events.emit(
            "tier.units", str(target), model=self._subject.name, fusions=fusions, compiled=result.compiled
        )
        self._tell_plan(target, build)
        code = sum(len(objects[program]) for program in {recipe.program for unit in units for recipe in unit.recipes})
        self._tell(Built(time.monotonic(), target, decision.attempt, len(units), result.cpu_s, code))

    def _tell_plan(self, target: Target, build: BuiltUnits) -> None:
        """An event for each edit that led to a plan, and for those that nobody is sure of. An edit of it has but its own."""
        from hotfuse.runtime.build import PLAN_FAILED
        from hotfuse.runtime.subgraph import step_data

        steps = build.steps[-1:] if isinstance(target, Revised) else () if isinstance(target, Edit) else build.steps
        units = [unit.nodes for unit in build.units]
        if build.unplanned:
            self._subject.events.emit(PLAN_FAILED, str(target), build.unplanned, model=self._subject.name)
        for kind, found in (("plan.step", steps), ("plan.unsure", build.unsure[:MOST_TOLD])):
            for step in found:
                self._subject.events.emit(kind, str(target), str(step), model=self._subject.name, **step_data(step, units))

    # proofs

    def prove(self, decision: Prove) -> None:
        """Have a target proved. Before there was a call, only an earlier process may have done so."""
        target = decision.target
        inputs = self._subject.sample(self.form(target))
        made = self._lineup.made[target] = replace(self._lineup.made[target], without=decision.without)
        asked = self._request(made, inputs or {})
        if isinstance(target, Edit):
            new = {unit.nodes for unit in self._lineup.new_units(made)}
            asked = replace(asked, units=tuple(i for i, unit in enumerate(asked.build.units) if unit.nodes in new))

        era = self._maker.era

        def handle(result: ProveReply | BaseException) -> None:
            self._proved(decision, asked, inputs is not None, result)
            if how == ASKED and not isinstance(result, BaseException):
                self._keeping.append(self._maker.keep(era, replace(asked, inputs={}), result))
                self._post(self._keep)

        def done(result: ProveReply | BaseException) -> None:
            self._later(decision, lambda: handle(result))

        how = self._maker.prove(target, asked, inputs is not None, done)
        if not how:
            self._go_at(Unhurried)
            self._wait(decision)
        elif how == ASKED and isinstance(target, Generic):
            self._post(lambda: self._prepare(made))  # beside the worker: most of them are right

    def _keep(self) -> None:
        """A step of what is put into the cache: between two of them others have their turn."""
        if self._keeping:
            self._kept_s = time.monotonic()
            try:
                next(self._keeping[0])
            except Exception:  # it is there, or cannot be: its weights are gone, or no thread can be started
                self._keeping.popleft()
                self._subject.release_weights()
        if self._keeping:
            self._post(self._keep)

    def _drop_prepared(self) -> None:
        if not self._lineup.serving:  # what serves shares it
            self._subject.forget_prepared()

    def _prepare(self, made: Made) -> None:
        if made is self._lineup.generic:
            make_room(self._lineup.pace(), BIND_S)
            with contextlib.suppress(HotfuseError):  # whoever needs it meets it again
                self._subject.prepare(made.build, made.kernels, self._lineup.pace())

    def _request(self, made: Made, inputs: Mapping[str, Array]) -> ProveRequest:
        """For a proof of all units of a target."""
        from hotfuse.runtime.build_request import ProveRequest

        build = replace(made.build, units=made.units, steps=(), unsure=())  # what was predicted of them is not proved
        objects = tuple(made.objects[p] for p in build.programs)
        return ProveRequest(build, objects, inputs, self._subject.config, other_sizes=not made.sizes)

    def _proved(self, decision: Prove, asked: ProveRequest, sampled: bool, result: ProveReply | BaseException) -> None:
        target = decision.target
        if target not in self._lineup.made:
            return
        if isinstance(result, BaseException):
            reason = f"{type(result).__name__}: {result}"
            if isinstance(result, WorkerError) and result.cause in KILLED:
                self._maker.reproduce(target, asked, None, reason)
            self._drop_prepared()
            self._tell(failed(decision, reason))
            return
        wrong = [v for v in result.verdicts if not v.ok]
        if wrong and not any(v.tried for v in result.verdicts):
            self._drop_prepared()
            self._tell(failed(decision, wrong[0].reason))
            return
        if wrong:
            names = tuple(asked.build.units[v.unit].name for v in wrong)
            units = () if isinstance(target, Edit) else names
            for verdict in wrong:
                if verdict.tried and sampled:  # what an earlier process found, that one has written down
                    self._maker.reproduce(target, asked, verdict.unit, verdict.reason)
            self._tell(Disproved(time.monotonic(), target, decision.attempt, units, f"{names[0]}: {wrong[0].reason}"))
            return
        make_room(self._lineup.pace(), BIND_S)
        self._lineup.candidate((*self._lineup.serving, target))
        self._go_at(Unhurried)  # what was found in the cache is there
        self._tell(Proved(time.monotonic(), target, decision.attempt))
        self._post(lambda: self._tell_profile(target, asked, result))  # nobody waits for it

    def _tell_profile(self, target: Target, asked: ProveRequest, result: ProveReply) -> None:
        """What the units of a target achieved while they were proved, and what bound each."""
        if target not in self._lineup.made:
            return
        with imports(Unhurried()):
            from hotfuse.hardware.achieved import judge_run
            from hotfuse.hardware.spec import host_spec
            from hotfuse.runtime.planning import known_model

        config = self._subject.config
        rates = known_model(config, host_spec(config.isa)).rates
        timed = [v for v in result.verdicts if v.tried and v.native_s > 0]
        found = {
            asked.build.units[v.unit].name: judge_run(v.native_s, v.flops, v.steps, v.bytes_moved, rates, v.threads)
            for v in timed
        }
        self._lineup.made[target] = replace(self._lineup.made[target], achieved=found)
        bound = Counter(achieved.by for achieved in found.values())
        reason = ", ".join(f"{count} units are bound by {by}" for by, count in sorted(bound.items()))
        self._subject.events.emit("plan.profiled", str(target), reason, model=self._subject.name, achieved=found)


def failed(decision: Build | Prove | Shadow, reason: str, lasting: bool = False) -> BuildFailed:
    return BuildFailed(time.monotonic(), decision.target, decision.attempt, reason, lasting)
