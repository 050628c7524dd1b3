"""Session: a loaded ONNX model, with ONNX Runtime's calling convention.

State: what answers calls (`Serving`), published whole; counts; an observer, where something better may be published later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError, InputError, InvalidModel
from hotfuse.events import EventLog
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import Plan, trivial_plan
from hotfuse.locks import make_lock
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.feeds import Signature, fed_shapes, read_feeds, wanted_places, written
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.overrides import Overrides
from hotfuse.runtime.profiler import StepTime, profile
from hotfuse.runtime.quick import ShortWay
from hotfuse.runtime.serving import Observer, Serving

if TYPE_CHECKING:  # who is served may never ask for a report
    from hotfuse.runtime.report import GraphReport
    from hotfuse.runtime.story import Story


class Session:
    """Runs one model. Any number of threads may call `run` at once."""

    def __init__(
        self,
        graph: Graph,
        output_names: Sequence[str],
        config: Config,
        opaque: Sequence[tuple[str, str, str]] = (),
        overrides: Overrides | None = None,
    ) -> None:
        self.config = config
        self.events = EventLog(config.max_events)
        self.plan: Plan = trivial_plan(graph)
        self.opaque = tuple(opaque)
        self.inputs = [Signature(n, graph.type(n)) for n in graph.inputs]
        self.outputs = [Signature(shown, graph.type(n)) for shown, n in zip(output_names, graph.outputs, strict=True)]
        self.overridable = () if overrides is None else overrides.defaults  # inputs that have a default
        self._overrides = overrides
        self._executor = Executor(self.plan, NUMPY, config)
        self._base = self._best = Serving(self._executor)
        self._compile = config.native
        self.observer: Observer | None = None
        self._lock = make_lock()
        self._calls = 0
        self._closed = False

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        """The named outputs (all of them for None) as arrays; `out` gives arrays to write them into."""
        if RIGHT_OF_WAY.active:
            with RIGHT_OF_WAY.call():
                return self._run(output_names, feeds, out)
        return self._run(output_names, feeds, out)

    def _run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None) -> list[Any]:
        if output_names is None and out is None:
            short = self._best.short
            try:
                results = None if short is None else short(feeds)
                if results is not None:
                    self._calls += 1
                    return results
            except BadIndex:  # tier 0 says where
                pass
        if self._closed:
            raise InputError("the session is closed; load the model again")
        if self._overrides is not None and (other := self._overrides.session(feeds)) is not None:
            answers = other.run(output_names, feeds, out)
            self._calls += 1
            return answers
        given = read_feeds(self.inputs, feeds)
        places = wanted_places(self.outputs, output_names)
        results = self._answer(given)
        self._calls += 1
        chosen = [NUMPY.own(results[p], shared=p in places[:i]) for i, p in enumerate(places)]
        return chosen if out is None else written([self.outputs[p].name for p in places], chosen, out)

    def _answer(self, given: Sequence[Any]) -> list[Any]:
        """The outputs. The model was found valid when it was loaded: sizes that do not fit now are those of the inputs."""
        try:
            return self._compute(given)
        except InvalidModel as error:
            if not getattr(error, "located", False):  # inference says where; anything else is the model's own fault
                raise
            raise InputError(f"these inputs do not fit the model (sizes {fed_shapes(self.inputs, given)}): {error}") from error

    def _compute(self, given: Sequence[Any]) -> list[Any]:
        """By native code where there is some. Inputs that it was not made for are tier 0's, and so are errors."""
        if self._compile:
            self._make_native(given)
        best, observer = self._best, self.observer
        if observer is None:
            return self._answer_by(best, given)[1]
        turn = observer.turn(given)
        started = time.perf_counter()
        by, results = self._answer_by(turn or best, given)
        seconds = time.perf_counter() - started
        self._tell(lambda: observer.called(by, seconds, given, results))
        return results

    def _tell(self, tell: Callable[[], None]) -> None:
        """Let the observer know. What fails there must not fail the call."""
        try:
            tell()
        except Exception as error:
            self.events.emit("observer.failed", self.graph.name, f"{type(error).__name__}: {error}")
            if self.config.strict:
                raise

    def _answer_by(self, serving: Serving, given: Sequence[Any]) -> tuple[Serving, list[Any]]:
        """The answer, and who gave it: tier 0, where native code was not made for these inputs."""
        if serving.tier:
            try:
                results = serving.executor.run(given)
                if serving.short is not None:
                    serving.short.learn(given, serving.executor.bound(tuple(map(NUMPY.type_of, given))))
                return serving, results
            except (BadIndex, DimError) as error:
                self.events.emit("native.missed", self.graph.name, str(error))
        return self._base, self._executor.run(given)

    @property
    def base(self) -> Serving:
        """Tier 0."""
        return self._base

    @property
    def best(self) -> Serving:
        """What was published last."""
        return self._best

    @property
    def calls(self) -> int:
        """How many were answered so far."""
        return self._calls

    def look_at_next(self) -> None:
        """Let the observer see one of the next calls that go the short way."""
        if self._best.short is not None:
            self._best.short.rest()

    def publish(self, serving: Serving | None) -> None:
        """From now on calls are answered by this; None: by tier 0. Calls under way end as they began."""
        if not self._closed:
            self._best = serving or self._base

    def serving(self, executor: Executor, tier: int, label: str) -> Serving:
        """An executor as something that can be published."""
        short = ShortWay(self.graph.inputs, self.config.max_bound_shapes)
        executor.user = short
        return Serving(executor, tier, label, short)

    def _make_native(self, given: Sequence[Any]) -> None:
        with self._lock:
            if not self._compile:
                return
            try:
                self.publish(self._native(given))
                self.events.emit("native.made", self.graph.name)
            except Exception as error:  # no defect of the generator may keep a model from answering
                self.events.emit("native.failed", self.graph.name, f"{type(error).__name__}: {error}")
                if self.config.strict:
                    raise
            finally:
                self._compile = False

    def _native(self, given: Sequence[Any]) -> Serving:
        """Kernels for every size, and where tier 2 is asked for those that are measured to be fastest for a call's own."""
        if self.config.tier == 2 and self.config.fusion == "engine":
            from hotfuse.runtime.subgraph import step_data
            from hotfuse.runtime.tuned import tuned_executor

            def busy(reason: str) -> None:
                self.events.emit("plan.untuned", self.graph.name, reason)

            executor, planned = tuned_executor(self.graph, given, self.config, self.config.tune_s, busy)
            units = [[node.id for node in group.nodes] for group in planned.groups]
            for step in planned.steps:
                self.events.emit("plan.step", self.graph.name, str(step), **step_data(step, units))
            return self.serving(executor, 2, "tier 2")
        from hotfuse.runtime.native import native_executor  # who stays at tier 0 need not wait for it

        return self.serving(native_executor(self.graph, NUMPY, self.config, self.events), 1, "tier 1")

    @property
    def kernels(self) -> int:
        """How many generated kernels a call runs; 0 while there is no native code."""
        return self._best.executor.kernels

    def report(self) -> GraphReport:
        """What the model is made of, what happened so far, and why it is not faster yet."""
        from hotfuse.runtime.report import make_report

        observer = self.observer
        seconds, baked = ({}, {}) if observer is None else (observer.unit_seconds(), observer.baked_calls())
        known = (self.graph.name, self.graph, self.opaque, self._best.executor, self._calls, self.events, self._closed)
        held = next((event.reason for event in self.events.of("tier.never")), "") if observer is None else observer.why()
        found = make_report(*known, seconds=seconds, baked_calls=baked, held=held)
        others = {} if self._overrides is None else self._overrides.sessions()
        reports = {", ".join(sorted(names)): session.report() for names, session in others.items()}
        return replace(found, overridden=reports) if reports else found

    def story(self, id: str) -> Story:
        """What became of one subgraph, known by its id, the beginning of that, or one of its nodes."""
        return self.report().story(id)

    def explain(self) -> str:
        """One line per node: operator, result, cost, origin, and why it is opaque if it is."""
        from hotfuse.runtime.report import explain_text

        return explain_text(self.graph)

    def settle(self, timeout_s: float = 60.0) -> bool:
        """Wait until nothing is compiled, proved or published any more for the calls so far; False if that takes longer."""
        deadline = time.monotonic() + timeout_s
        others = {} if self._overrides is None else self._overrides.sessions()
        own = self.observer is None or self.observer.settled(timeout_s)
        return own and all(other.settle(max(0.0, deadline - time.monotonic())) for other in others.values())

    def refresh(self) -> None:
        """Forget what was derived from the model's constants. ONNX constants do not change, so bound plans are dropped."""
        best = self._best
        if best.short is not None:
            best.short.clear()
        best.executor.clear()
        self._executor.clear()

    def close(self) -> None:
        """Free bound plans and scratch memory. A closed session refuses further calls."""
        self._closed = True
        self._compile = False
        best, self._best = self._best, self._base
        best.close()
        self._executor.clear()
        if self.observer is not None:
            self.observer.close()
        if self._overrides is not None:
            self._overrides.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def profile(self, feeds: Mapping[str, Any], calls: int = 10) -> list[StepTime]:
        """The time of each step over some calls; a session that serves others meanwhile is not disturbed."""
        return profile(self._executor, read_feeds(self.inputs, feeds), calls)
