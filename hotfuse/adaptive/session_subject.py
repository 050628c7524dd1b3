"""A session as a subject: what its calls tell the controller, and how it comes to be answered by something else.

State: the inputs of one real call, until they are proved on; the candidate that waits for a call to be shadowed by.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotfuse.adaptive.controller import Controller
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.subject import SAMPLE_BYTES, Array, Report
from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError, ExecutionError
from hotfuse.events import EventLog
from hotfuse.numerics import alike
from hotfuse.pace import Pace
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.serving import Serving
from hotfuse.runtime.session import Session

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.build_jobs import BuildRequest


class SessionSubject:
    """Observes a session's calls for the controller, and does to it what that decides."""

    def __init__(self, session: Session, rules: Rules) -> None:
        self._held = weakref.ref(session)  # a model that nobody holds any more goes at once
        self._sample: dict[str, Array] | None = None
        self._shadowing: list[tuple[Serving, Report]] = []  # at most one; its pop is one step, whoever else calls
        self._counted = 0  # calls of the session, when one was last looked at
        self.controller = Controller(self, rules)

    @property
    def _session(self) -> Session:
        session = self._held()
        if session is None:
            raise ExecutionError("the session is gone")
        return session

    # what the session tells, in callers' threads

    def called(self, serving: Serving, seconds: float, given: Sequence[Any]) -> None:
        form = tuple([getattr(value, "shape", None) for value in given])
        if self._sample is None and not serving.tier:
            self._sample = self._copied(given)
        calls = self._session.calls
        count, self._counted = max(1, calls - self._counted), calls
        self.controller.note(form, serving.tier, seconds, count)

    def candidate(self) -> Serving | None:
        try:
            return self._shadowing[0][0]
        except IndexError:
            return None

    def shadowed(
        self, candidate: Serving, given: Sequence[Any], own: Sequence[Any], results: Sequence[Any] | Exception
    ) -> None:
        if isinstance(results, BadIndex | DimError):  # inputs that it was not made for, which tier 0 answers: no evidence
            return
        try:
            _, report = self._shadowing.pop()
        except IndexError:  # another thread was here first
            return
        if isinstance(results, Exception):
            report(False, f"{type(results).__name__}: {results}")
        else:
            report(*_agree(self._session, own, results))

    def settled(self, timeout_s: float) -> bool:
        return self.controller.settled(timeout_s)

    def close(self) -> None:
        self.controller.close()
        self._sample, self._shadowing = None, []

    def _copied(self, given: Sequence[Any]) -> dict[str, Array] | None:
        if any(not isinstance(value, np.ndarray | np.generic) for value in given):
            return None
        arrays = [np.asarray(value) for value in given]
        if sum(a.nbytes for a in arrays) > SAMPLE_BYTES:
            return None
        return {name: array.copy() for name, array in zip(self._session.graph.inputs, arrays, strict=True)}

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
        from hotfuse.runtime.build_jobs import BuildRequest

        return BuildRequest(skeleton(self._session.graph), self.config)

    def look_at_next(self) -> None:
        self._session.look_at_next()

    def sample(self) -> Mapping[str, Array] | None:
        return self._sample

    def forget_sample(self) -> None:
        self._sample = None

    def weight(self, name: str) -> Array:
        return self._session.graph.constants[name].glance()

    def make(self, build: Build, kernels: Kernels, pace: Pace) -> Serving:
        from hotfuse.runtime.build import attached
        from hotfuse.runtime.native import build_executor

        graph = attached(build.hoisted, self._session.graph.constants, pace)
        executor = build_executor(graph, build, kernels, NUMPY, self.config)
        if self._sample is not None:
            executor.bound(tuple(map(NUMPY.type_of, self._sample.values())))
        return self._session.serving(executor, 1, "tier 1")

    def shadow(self, candidate: Serving, report: Report) -> None:
        self._shadowing = [(candidate, report)]

    def publish(self, candidate: Serving | None) -> None:
        self._session.publish(candidate)


def _agree(session: Session, own: Sequence[Any], results: Sequence[Any]) -> tuple[bool, str]:
    for signature, a, b in zip(session.outputs, own, results, strict=True):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            verdict = alike(b, a)
            if not verdict:
                return False, f"{signature.name}: {verdict.reason}"
        elif type(a) is not type(b):
            return False, f"{signature.name}: a {type(b).__name__}, tier 0's is a {type(a).__name__}"
    return True, ""
