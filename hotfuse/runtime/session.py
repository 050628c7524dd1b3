"""Session: a loaded ONNX model, with ONNX Runtime's calling convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import InputError
from hotfuse.events import EventLog
from hotfuse.ir.dim import Expr
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import Plan, trivial_plan
from hotfuse.ir.types import STRING, OptionalType, SequenceType, TensorType, Type
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
        names = {s.name for s in self.inputs}
        unknown = [name for name in feeds if name not in names]
        if unknown:
            raise InputError(f"the model has no input {unknown[0]!r}; its inputs are {[s.name for s in self.inputs]}")
        check_shared_sizes(self.inputs, given)
        places = {s.name: i for i, s in enumerate(self.outputs)}
        wanted = list(places) if output_names is None else list(output_names)
        missing = [n for n in wanted if n not in places]
        if missing:
            raise InputError(f"the model has no output {missing[0]!r}; its outputs are {list(places)}")
        results = self._executor.run(given)
        self._calls += 1
        if output_names is not None:
            results = [results[places[n]] for n in wanted]
        return results if out is None else written(wanted, results, out)

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
        """What is fed for one input, if it fits what the model declares."""
        if signature.name not in feeds:
            raise InputError(f"input {signature.name!r} ({signature.type}) is missing; given are {list(feeds)}")
        return fitted(f"input {signature.name!r}", signature.type, feeds[signature.name])


def fitted(name: str, expected: Type, value: Any) -> Any:
    """`value` as a value of the expected type: an array, a list of them for a sequence, None for an empty optional."""
    if isinstance(expected, OptionalType):
        return None if value is None else fitted(name, expected.element, value)
    if isinstance(expected, SequenceType):
        if not isinstance(value, list | tuple):
            raise InputError(f"{name} must be a list of {expected.element}, not {type(value).__name__}")
        return [fitted(f"element {i} of {name}", expected.element, v) for i, v in enumerate(value)]
    if not isinstance(expected, TensorType):
        return value
    array = np.asarray(value)
    if expected.dtype is STRING:
        array = array.astype(object)
    elif array.dtype != expected.dtype.numpy and array.dtype.newbyteorder("=") == expected.dtype.numpy:
        array = array.astype(expected.dtype.numpy)  # the same numbers in the other byte order
    elif array.dtype != expected.dtype.numpy:
        raise InputError(f"{name} must be {expected.dtype.numpy}, not {array.dtype}; convert it with .astype first")
    if expected.shape is not None:
        fits = len(expected.shape) == array.ndim and all(
            not isinstance(d, int) or d == s for d, s in zip(expected.shape, array.shape, strict=True)
        )
        if not fits:
            raise InputError(f"{name} must have shape {Signature('', expected).shape}, not {array.shape}")
    return array


def check_shared_sizes(inputs: Sequence[Signature], given: Sequence[Any]) -> None:
    """Refuse inputs that give one named size two values."""
    seen: dict[Expr, tuple[int, str]] = {}
    for signature, value in zip(inputs, given, strict=True):
        shape = signature.type.shape if isinstance(signature.type, TensorType) else None
        for dim, size in zip(shape or (), np.shape(value) if shape else (), strict=True):
            if isinstance(dim, Expr):
                known, where = seen.setdefault(dim, (size, signature.name))
                if known != size:
                    raise InputError(
                        f"inputs {where!r} and {signature.name!r} share the size {dim}, "
                        f"but it is {known} in one and {size} in the other"
                    )


def written(names: Sequence[str], results: Sequence[Any], out: Sequence[Any]) -> list[Any]:
    """`out` with the results in it. Nothing is written unless everything fits."""
    if len(out) != len(results):
        raise InputError(f"out has {len(out)} arrays for {len(results)} outputs; give one for each of {list(names)}")
    for name, value, target in zip(names, results, out, strict=True):
        if not isinstance(target, np.ndarray) or not isinstance(value, np.ndarray):
            raise InputError(
                f"output {name!r} cannot be written into {type(target).__name__}; out takes numpy arrays, for tensors"
            )
        if target.shape != value.shape or target.dtype != value.dtype:
            raise InputError(f"output {name!r} is {value.dtype}{value.shape}, its array in out is {target.dtype}{target.shape}")
        if not target.flags.writeable:
            raise InputError(f"the array in out for output {name!r} is read-only")
    for value, target in zip(results, out, strict=True):
        np.copyto(target, value)
    return list(out)
