"""A session as a subject: what its calls tell the controller, and how it comes to be answered by something else.

State: the inputs of one real call, until they are proved on; another call, for the next shadow, so that it need not wait for
one; the shadow or duel that waits for calls; the graph with what was
prepared from its weights, which all candidates share.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotfuse.adaptive.calls import Call, bytes_of, copied_call, form_of, plain_bytes, plain_copies
from hotfuse.adaptive.controller import Controller
from hotfuse.adaptive.samples import Sample
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.subject import Array, Audited
from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError, ExecutionError
from hotfuse.events import EventLog
from hotfuse.ir.graph import Graph
from hotfuse.pace import Pace, Unhurried, make_room_for_run
from hotfuse.runtime.difference import difference
from hotfuse.runtime.fuel import Fuel
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.serving import Serving
from hotfuse.runtime.session import Session
from hotfuse.runtime.turns import SAMPLE_BYTES, Duel, Judged, Report, Shadow, Timed, Times, judged_of

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.file_map import FilePart
    from hotfuse.passes.hoist import Hoisted
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.build_request import BuildRequest
    from hotfuse.runtime.executor import Executor
    from hotfuse.runtime.workers import Job


FIRST_CALLS = 16  # of what was published, that are looked at one after the other: whether it pays is to be known soon


class SessionSubject:
    """Observes a session's calls for the controller, and does to it what that decides."""

    def __init__(self, session: Session, rules: Rules) -> None:
        self._held = weakref.ref(session)  # a model that nobody holds any more goes at once
        self.fuel = Fuel(session.config.fuel)
        self._sample: Sample[dict[str, Array]] = Sample()
        self._shadow: Shadow | None = None
        self._kept: Call | None = None  # for the next shadow, so that it need not wait for a call
        self._keeps = False
        self._duel: Duel | None = None
        self._audit: tuple[Callable[[Job], None], Audited] | None = None
        self._attached: tuple[Hoisted, Graph] | None = None
        self.is_known = True  # who asks the cache hears whether it is
        self._refused = False  # a call whose inputs nothing can be proved on was met, and told
        self._curious = 0  # how many of the next calls are looked at
        self._counted = 0  # calls of the session, when one was last looked at
        self.controller = Controller(self, rules)

    @property
    def _session(self) -> Session:
        session = self._held()
        if session is None:
            raise ExecutionError("the session is gone")
        return session

    # what the session tells, in callers' threads

    def turn(self, given: Sequence[Any]) -> Serving | None:
        special = self._special(form_of(given))
        if special is None:
            return None
        return special.turn() if isinstance(special, Duel) else self._session.base

    def _special(self, form: Hashable) -> Shadow | Duel | None:
        """What a call of this form is for. A shadow is one call, and somebody waits for it: a duel goes on behind it."""
        return next((each for each in (self._shadow, self._duel) if each is not None and each.takes(form)), None)

    def called(self, serving: Serving, seconds: float, given: Sequence[Any], results: Sequence[Any]) -> None:
        form, session = form_of(given), self._session
        special = self._special(form)
        self._sample.offer(form, math.inf if serving.tier else seconds, lambda: self._copied(given))
        calls = session.calls
        count, self._counted = max(1, calls - self._counted), calls
        self.controller.note(form, serving.tier, seconds, count)
        audit = self._audit if serving is session.best and serving.tier else None  # of what serves, not of who takes turns
        if audit is not None and (copied := plain_copies(given, results, SAMPLE_BYTES)) is not None:
            self._audit = None
            self.controller.later(lambda: self._send_audit(*copied, *audit))
        if isinstance(special, Shadow) and serving is session.base:
            self._give(special, given, results)
        elif isinstance(special, Duel):
            special.note(serving, seconds)
        elif self._keeps and serving is session.base:
            self._keep(given, results)
        if self._duel is not None:
            session.look_at_next()
        elif self._curious > 0 or self.controller.awaits_audit:  # nobody counts those that are not looked at
            self._curious = max(0, self._curious - 1)
            session.look_at_next()

    def _give(self, shadow: Shadow, given: Sequence[Any], results: Sequence[Any]) -> None:
        """Have a call that the original answered answered by the candidate, too, when the caller has gone on. What is too large
        to be copied is judged at once, while it is still as it was."""
        self._shadow = None
        if bytes_of((*given, *results)) > SAMPLE_BYTES:
            self._judge(shadow, given, results)
            return
        try:
            call = copied_call(given, results)
        except MemoryError as error:
            shadow.report(judged_of(error))
        else:
            self._judge_later(shadow, call)

    def _judge_later(self, shadow: Shadow, call: Call) -> None:
        def judge() -> None:
            pace = Unhurried()
            pace.rest()
            make_room_for_run(pace)
            self._judge(shadow, call.given, call.results)

        self.controller.later(judge)

    def _keep(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        self._keeps = False
        if bytes_of((*given, *results)) <= SAMPLE_BYTES:
            with contextlib.suppress(MemoryError):
                self._kept = copied_call(given, results)

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
        self._shadow = self._duel = self._attached = self._audit = self._kept = None

    def _copied(self, given: Sequence[Any]) -> dict[str, Array] | None:
        copied = self._named(given)
        if copied is None:
            self._refuse(given)
        return copied

    def _named(self, given: Sequence[Any]) -> dict[str, Array] | None:
        """Copies of a call's inputs, by name; None if they are no arrays, or too large."""
        copies = plain_copies(given, (), SAMPLE_BYTES)
        return None if copies is None else dict(zip(self._session.graph.inputs, copies[0], strict=True))

    def _refuse(self, given: Sequence[Any]) -> None:
        """Say why calls prove nothing. Once: all of them may be so."""
        if not self._refused:
            self._refused = True
            what = "are no arrays" if plain_bytes(given) is None else f"take {bytes_of(given) >> 20} MiB"
            reason = f"inputs of a call {what}; a proof needs arrays, of {SAMPLE_BYTES >> 20} MiB at most"
            self.events.emit("sample.refused", self.name, reason)

    # what the controller asks, in the background

    @property
    def name(self) -> str:
        return self._session.graph.name or "model"

    @property
    def config(self) -> Config:
        return self._session.config

    @property
    def events(self) -> EventLog:
        return self._session.events

    def request(self) -> BuildRequest:
        from hotfuse.runtime.build import skeleton
        from hotfuse.runtime.build_request import BuildRequest

        return BuildRequest(skeleton(self._session.graph), self.config)

    def look_at_next(self) -> None:
        self._session.look_at_next()

    def sample(self, form: Hashable | None) -> Mapping[str, Array] | None:
        return self._sample.get(form)

    def forget_sample(self) -> None:
        self._sample.forget()

    def weight(self, name: str) -> Array:
        return self._session.graph.constants[name].glance()

    def weight_part(self, name: str) -> FilePart | None:
        return self._session.graph.constants[name].part()

    def release_weights(self) -> None:
        attached, session = self._attached, self._held()
        if attached is not None and session is not None and session.best is not session.base:
            used = set(map(id, attached[1].constants.values()))
            for constant in session.graph.constants.values():
                if id(constant) not in used:
                    constant.release()

    def prepare(self, build: Build, kernels: Kernels, pace: Pace) -> None:
        self._main_of(build, pace)

    def _main_of(self, build: Build, pace: Pace) -> Graph:
        """The main graph of a build, constants attached; all builds of a model have the same."""
        from hotfuse.runtime.build import attached

        if self._attached is None or self._attached[0] is not build.hoisted:
            self._attached = build.hoisted, attached(build.hoisted, self._session.graph.constants, pace)
        return self._attached[1]

    def forget_prepared(self) -> None:
        self._attached = None

    def make(self, build: Build, kernels: Kernels, pace: Pace) -> Serving:
        from hotfuse.runtime.native import build_executor

        session = self._session
        executor = build_executor(self._main_of(build, pace), build, kernels, NUMPY, self.config)
        executor.bind_as(session.best.executor, pace)
        sample = self._sample.taken
        if sample is not None:
            executor.bound(tuple(map(NUMPY.type_of, sample.values())))
        tier = 2 if build.special else 1
        return session.serving(executor, tier, f"tier {tier}")

    def keep_call(self) -> None:
        self._keeps, self._kept = True, None

    def shadow(self, candidate: Serving, form: Hashable | None, report: Report) -> None:
        shadow, kept = Shadow(candidate, form, report), self._kept
        self._keeps, self._kept = False, None
        if kept is not None and shadow.takes(kept.form):
            self._judge_later(shadow, kept)
            return
        self._shadow = shadow
        self.look_at_next()

    def _judge(self, shadow: Shadow, given: Sequence[Any], own: Sequence[Any]) -> None:
        """Hold a candidate's answer against the original's."""
        from hotfuse.runtime.threads import beside_calls

        try:
            with beside_calls():
                results = shadow.candidate.executor.run(given)
            reason = difference([signature.name for signature in self._session.outputs], results, own)
        except (BadIndex, DimError):  # inputs that it was not made for, which tier 0 answers: no evidence
            if self._shadow is None:  # what was asked for meanwhile comes first
                self.shadow(shadow.candidate, shadow.form, shadow.report)
        except Exception as error:
            judged = judged_of(error)
            shadow.report(replace(judged, inputs=self._named(given)) if judged.reason else judged)
        else:
            shadow.report(Judged(reason, self._named(given) if reason else None))

    def duel(self, form: Hashable, other: Serving | None, report: Timed) -> None:
        session = self._session

        def told(times: Times) -> None:
            self.end_duel()
            report(times)

        self._duel = Duel(session.best, other or session.base, form, told, outsider=other is None)
        self.look_at_next()

    def end_duel(self) -> None:
        self._duel = None

    def audit(self, submit: Callable[[Job], None], report: Audited) -> None:
        self._audit = submit, report
        self.look_at_next()

    def _send_audit(self, given: Sequence[Any], results: Sequence[Any], submit: Callable[[Job], None], report: Audited) -> None:
        """Have a worker hold an answer against tier 0's. Runs in the background, on copies."""
        from hotfuse.runtime.audit import AuditReply, AuditRequest
        from hotfuse.runtime.build import skeleton
        from hotfuse.runtime.build_jobs import worker_job

        session, form = self._session, form_of(given)
        asked = AuditRequest(skeleton(session.graph), tuple(given), tuple(results), self.config)

        def finish(reply: AuditReply | BaseException) -> None:
            self.release_weights()
            if isinstance(reply, AuditReply):
                report(form, Judged(reply.reason, self._named(given) if reply.reason else None, reply.cpu_s))
            else:
                report(form, Judged(untold=f"{type(reply).__name__}: {reply}"))

        label = f"{self.name}: audit"
        submit(
            worker_job(label, lambda: asked, AuditReply, finish, self.config, self.weight, kind="audit", part=self.weight_part)
        )

    @property
    def executor(self) -> Executor | None:
        return self._session.best.executor

    def publish(self, candidate: Serving | None) -> None:
        self._shadow = self._duel = self._audit = self._kept = None  # who serves now is audited anew
        self._session.publish(candidate)
        self._curious = FIRST_CALLS
