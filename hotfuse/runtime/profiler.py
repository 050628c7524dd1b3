"""Where the time of a call goes: each step of a bound plan timed, on the inputs given.

A timed plan is the same plan with a clock around each function. It is run beside the plan that serves, never in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.ir.graph import Node
from hotfuse.records import dataclass
from hotfuse.runtime.binding import BoundPlan
from hotfuse.runtime.executor import Executor


@dataclass(frozen=True, slots=True)
class StepTime:
    """The times of one step, a number for each call, in seconds."""

    node: Node
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 2]


def profile(executor: Executor, inputs: Sequence[Any], calls: int = 10) -> list[StepTime]:
    """Time every step of the plan that `inputs` select, over some calls after one that warms up."""
    bound = executor.bound(tuple(executor.engine.type_of(v) for v in inputs))
    times: list[list[float]] = [[] for _ in bound.steps]
    timed = timed_plan(bound, times)
    for _ in range(calls + 1):
        executor.execute(timed, inputs)
    return [StepTime(step.node, tuple(found[1:])) for step, found in zip(bound.steps, times, strict=True)]


def timed_plan(bound: BoundPlan, times: Sequence[list[float]]) -> BoundPlan:
    """The plan with a clock around each step; step i appends to `times[i]`."""
    steps = tuple(replace(s, function=_timed(s.function, found)) for s, found in zip(bound.steps, times, strict=True))
    return replace(bound, steps=steps)


def _timed(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = function(*args, **kwargs)
        times.append(time.perf_counter() - started)
        return result

    return run
