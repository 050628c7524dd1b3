"""The scheduler: which job behind the models is begun next, and which waits, with the reason.

    waiting demands + State  ->  admit  ->  a Decision for each, the first in turn first

    order     by kind, as KINDS has them; every AGE_S seconds of waiting a job counts as the kind before, so that none starves
    cores     what runs and what is begun have no more cores than workers allow and others leave
    crowded   behind calls without a pause one job runs at a time: the pauses that they make are short
    memory    what runs may grow to its limit, and the limit of what is begun has to fit what is left

One job alone is always let in: whatever the machine looks like, there is an end to it. Who waits does not let others pass that
are behind it and would fit: they would keep it waiting.

State: none here. What reads the machine is `Sight`, and has the last look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from hotfuse.hardware.load import Look, available_memory_bytes, cores_of_others, look, usable_cores
from hotfuse.hardware.machine import usable_memory_bytes
from hotfuse.records import dataclass
from hotfuse.right_of_way import RIGHT_OF_WAY

Kind = Literal["build", "prove", "help", "audit", "reproduce", "train"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PATIENT: tuple[Kind, ...] = ("audit", "reproduce", "train")  # what no call gets faster by
AGE_S = 5.0
WINDOW_S = 0.5  # between looks at the cores: Linux counts in hundredths
CORES, CROWDED, MEMORY = "cores", "crowded", "memory"  # causes of waiting


@dataclass(frozen=True)
class Demand:
    """What a job needs: cores, and memory that it may grow to; 0 where it did not say."""

    kind: Kind
    cores: int = 1
    bytes: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True)
class State:
    """What there is: workers, cores that others leave, memory (None: nobody can tell), and whether calls leave moments between
    them. `running` have begun, and hold `resident_bytes` so far."""

    workers: int
    idle_cores: float
    available_bytes: int | None = None
    memory_bytes: int | None = None
    crowded: bool = False
    running: tuple[Demand, ...] = ()
    resident_bytes: int = 0


@dataclass(frozen=True)
class Decision:
    """Of the demand at `place`. Without a cause it is begun."""

    place: int
    cause: str = ""
    reason: str = ""

    @property
    def begins(self) -> bool:
        return not self.cause


def admit(state: State, demands: Sequence[Demand]) -> list[Decision]:
    """What becomes of each demand, in the order of their turns."""
    running, found = list(state.running), list[Decision]()
    for place in in_turn(demands):
        demand = demands[place]
        refused = next((d for d in found if not d.begins), None)
        if refused is not None:
            found.append(Decision(place, refused.cause, "another job is first, which waits"))
            continue
        cause, reason = _refusal(state, running, demand)
        found.append(Decision(place, cause, reason))
        if not cause:
            running.append(demand)
    return found


def in_turn(demands: Sequence[Demand]) -> list[int]:
    """The places of demands, the most urgent first; of those alike the one that has waited longest."""

    def rank(place: int) -> tuple[int, float, int]:
        demand = demands[place]
        return max(0, KINDS.index(demand.kind) - int(demand.waited_s / AGE_S)), -demand.waited_s, place

    return sorted(range(len(demands)), key=rank)


def _refusal(state: State, running: Sequence[Demand], demand: Demand) -> tuple[str, str]:
    """Why a demand has to wait; nothing where it has not."""
    if not running:
        return "", ""
    if state.crowded:
        return CROWDED, "calls follow each other without a pause, and one job runs at a time behind them"
    taken = sum(other.cores for other in running)
    cores = min(state.workers, round(state.idle_cores))
    if taken + demand.cores > cores:
        return CORES, f"{taken} of {state.workers} workers' cores are taken, and others leave {state.idle_cores:.1f} in all"
    limit = _limit(state, demand)
    if state.available_bytes is None:
        return "", ""
    growing = max(0, sum(_limit(state, other) for other in running) - state.resident_bytes)
    left = max(0, state.available_bytes - growing)
    if limit > left:
        return MEMORY, f"it may take {limit:,} bytes, and what runs leaves {left:,} of those that are available"
    return "", ""


def _limit(state: State, demand: Demand) -> int:
    """A limit beyond all memory that there is says nothing of what is needed."""
    return 0 if state.memory_bytes is not None and demand.bytes > state.memory_bytes else demand.bytes


class Sight:
    """What the scheduler sees of the machine. State: the last look at the cores, and what others had before it."""

    def __init__(
        self,
        look: Callable[[Iterable[int]], Look] = look,
        available: Callable[[], int | None] = available_memory_bytes,
        cores: int | None = None,
    ) -> None:
        self._look, self._available = look, available
        self._cores = usable_cores() if cores is None else cores
        self._memory_bytes = usable_memory_bytes()
        self._last: Look | None = None
        self._others = 0.0

    def state(self, workers: int, running: Iterable[Demand], resident_bytes: int, children: Sequence[int]) -> State:
        """Now. `children` are the processes of this one that work behind it: what they have is theirs to have."""
        if self._last is None or time.monotonic() - self._last.at_s >= WINDOW_S:
            now = self._look(children)
            if self._last is not None:
                self._others = cores_of_others(self._last, now) or 0.0
            self._last = now
        idle = max(0.0, self._cores - self._others)
        available = self._available()
        return State(workers, idle, available, self._memory_bytes, RIGHT_OF_WAY.crowded, tuple(running), resident_bytes)
