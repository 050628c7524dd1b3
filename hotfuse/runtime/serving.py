"""Serving: one way to answer a session's calls, and what is to be told of each call.

A session has two: tier 0, which is always there, and the best that was published. Publishing is one assignment; a call keeps
what it began with until it ends, and code goes with the last call that is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hotfuse.records import dataclass
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.quick import ShortWay


@dataclass(frozen=True, eq=False)
class Serving:
    """An executor, its tier, and the short way through it, which tier 0 has not. `label` is its name in events and reports."""

    executor: Executor
    tier: int = 0
    label: str = "tier 0"
    short: ShortWay | None = None

    def close(self) -> None:
        """Free what is idle and learn nothing any more; calls under way finish."""
        if self.short is not None:
            self.short.close()
        self.executor.clear()


class Observer(Protocol):
    """Whoever decides what a session's calls are answered by. Its methods run in callers' threads: they return at once."""

    def turn(self, given: Sequence[Any]) -> Serving | None:
        """Who answers a call that goes the long way; None: what serves."""

    def called(self, serving: Serving, seconds: float, given: Sequence[Any], results: Sequence[Any]) -> None:
        """A call was answered the long way."""

    def unit_seconds(self) -> Mapping[str, float]:
        """What units of what serves take, by name, as far as they were traced."""

    def baked_calls(self) -> Mapping[str, int]:
        """How many calls were answered by what was made for some sizes only, by target, as far as they were looked at."""

    def why(self) -> str:
        """What keeps fused kernels from serving now; "" where they do, or nothing does."""

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; False if that takes longer."""

    def close(self) -> None: ...
