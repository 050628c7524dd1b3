"""Session: a loaded ONNX model, with ONNX Runtime's calling convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import InputError
from hotfuse.events import EventLog
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import Plan, trivial_plan
from hotfuse.ir.types import STRING, TensorType, Type
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.profiler import StepTime, profile
from hotfuse.runtime.report import Report, explain_text, make_report


@dataclass(frozen=True)
class Signature:
    """One input or output: its name and its type (symbols where sizes are free)."""

    name: str
    type: Type

    @property
    def shape(self) -> tuple[Any, ...] | None:
        if not isinstance(self.type, TensorType) or self.type.shape is None:
            return None
        return tuple(d if isinstance(d, int) else str(d) for d in self.type.shape)

    @property
    def dtype(self) -> Any:
        return self.type.dtype.numpy if isinstance(self.type, TensorType) else str(self.type)


class Session:
    """Runs one model. Any number of threads may call `run` at once."""

    def __init__(
        self, graph: Graph, output_names: Sequence[str], config: Config, opaque: Sequence[tuple[str, str, str]] = ()
    ) -> None:
        self.config = config
        self.events = EventLog(config.max_events)
        self.plan: Plan = trivial_plan(graph)
        self.opaque = tuple(opaque)
        self.inputs = [Signature(n, graph.type(n)) for n in graph.inputs]
        self.outputs = [Signature(shown, graph.type(n)) for shown, n in zip(output_names, graph.outputs, strict=True)]
        self._executor = Executor(self.plan, NUMPY, config)
        self._calls = 0
        self._closed = False

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        """The named outputs (all of them for None) as arrays; `out` gives arrays to write them into."""
        if self._closed:
            raise InputError("the session is closed; load the model again")
        given = [self._checked(signature, feeds) for signature in self.inputs]
        unknown = [name for name in feeds if name not in {s.name for s in self.inputs}]
        if unknown:
            raise InputError(f"the model has no input {unknown[0]!r}; its inputs are {[s.name for s in self.inputs]}")
        results = self._executor.run(given)
        self._calls += 1
        if output_names is not None:
            places = {s.name: i for i, s in enumerate(self.outputs)}
            missing = [n for n in output_names if n not in places]
            if missing:
                raise InputError(f"the model has no output {missing[0]!r}; its outputs are {list(places)}")
            results = [results[places[n]] for n in output_names]
        if out is not None:
            for target, value in zip(out, results, strict=True):
                np.copyto(target, value, casting="no")
            return list(out)
        return results

    def report(self) -> Report:
        """What the model is made of and what happened so far."""
        arena = sum(self._executor.arena_bytes().values())
        return make_report(
            self.graph.name, self.graph, self.opaque, self._executor.bound_shapes, arena, self._calls, self.events.counts
        )

    def explain(self) -> str:
        """One line per node: operator, result, cost, origin, and why it is opaque if it is."""
        return explain_text(self.graph)

    def settle(self, timeout_s: float = 60.0) -> bool:
        """True when no compilation is pending for the shapes seen so far. Nothing compiles at tier 0."""
        return True

    def refresh(self) -> None:
        """Forget what was derived from the model's constants. ONNX constants do not change, so bound plans are dropped."""
        self._executor.clear()

    def close(self) -> None:
        """Free bound plans and scratch memory. A closed session refuses further calls."""
        self._closed = True
        self._executor.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def profile(self, feeds: Mapping[str, Any], calls: int = 10) -> list[StepTime]:
        """The time of each step over some calls; a session that serves others meanwhile is not disturbed."""
        return profile(self._executor, [self._checked(signature, feeds) for signature in self.inputs], calls)

    def _checked(self, signature: Signature, feeds: Mapping[str, Any]) -> Any:
        """The array fed for one input, if it fits what the model declares."""
        if signature.name not in feeds:
            raise InputError(f"input {signature.name!r} ({signature.type}) is missing; given are {list(feeds)}")
        value = feeds[signature.name]
        if not isinstance(signature.type, TensorType):
            return value
        array = np.asarray(value)
        expected = signature.type
        if expected.dtype is STRING:
            array = array.astype(object)
        elif array.dtype != expected.dtype.numpy:
            raise InputError(
                f"input {signature.name!r} must be {expected.dtype.numpy}, not {array.dtype}; convert it with .astype first"
            )
        if expected.shape is not None:
            fits = len(expected.shape) == array.ndim and all(
                not isinstance(d, int) or d == s for d, s in zip(expected.shape, array.shape, strict=True)
            )
            if not fits:
                raise InputError(f"input {signature.name!r} must have shape {signature.shape}, not {array.shape}")
        return array
