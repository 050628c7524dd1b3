"""Admission is pure: never beyond cores and memory, in the order of kinds, and nobody starves."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfuse.hardware.load import Look
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime import scheduler
from hotfuse.runtime.job_queue import JobQueue
from hotfuse.runtime.scheduler import AGE_S, CORES, CROWDED, KINDS, MEMORY, WINDOW_S, Demand, Sight, State, admit, in_turn
from hotfuse.runtime.workers import Job

GIB = 1 << 30
FREE = State(workers=4, idle_cores=4.0, available_bytes=8 * GIB, memory_bytes=16 * GIB)

demands = st.builds(
    Demand,
    kind=st.sampled_from(KINDS),
    cores=st.integers(1, 3),
    bytes=st.integers(0, 20 * GIB),
    waited_s=st.floats(0, 100),
)
states = st.builds(
    State,
    workers=st.integers(1, 8),
    idle_cores=st.floats(0, 16),
    available_bytes=st.none() | st.integers(0, 16 * GIB),
    memory_bytes=st.just(16 * GIB),
    crowded=st.booleans(),
    running=st.lists(demands, max_size=3).map(tuple),
    resident_bytes=st.integers(0, 4 * GIB),
)


@given(states, st.lists(demands, max_size=6))
def test_what_is_begun_fits(state: State, waiting: list[Demand]) -> None:
    decisions = admit(state, waiting)
    assert sorted(decision.place for decision in decisions) == list(range(len(waiting)))
    begun = [waiting[decision.place] for decision in decisions if decision.begins]
    running = [*state.running, *begun]
    assert all(decision.begins == (not decision.reason) for decision in decisions)
    if not begun or len(running) == 1:
        return
    assert not state.crowded
    assert sum(demand.cores for demand in running) <= min(state.workers, round(state.idle_cores))
    if state.available_bytes is not None and begun[-1].bytes and begun[-1].bytes <= 16 * GIB:
        limits = [demand.bytes for demand in running if demand.bytes <= 16 * GIB]
        growing = max(0, sum(limits[:-1]) - state.resident_bytes)
        assert begun[-1].bytes <= state.available_bytes - growing


@given(states, st.lists(demands, min_size=1, max_size=6))
def test_one_job_alone_is_always_let_in(state: State, waiting: list[Demand]) -> None:
    assert admit(replace(state, running=()), waiting)[0].begins


@given(states, st.lists(demands, max_size=6))
def test_nobody_passes_who_is_behind(state: State, waiting: list[Demand]) -> None:
    begins = [decision.begins for decision in admit(state, waiting)]
    assert begins == sorted(begins, reverse=True)


@given(st.lists(demands, max_size=8))
def test_kinds_come_in_order(waiting: list[Demand]) -> None:
    fresh = [replace(demand, waited_s=0.0) for demand in waiting]
    ranks = [KINDS.index(fresh[place].kind) for place in in_turn(fresh)]
    assert ranks == sorted(ranks)


@given(st.sampled_from(KINDS), st.lists(demands, max_size=8))
def test_nobody_starves(kind: Any, others: list[Demand]) -> None:
    """Whatever comes later, who has waited for long enough is the next."""
    patient = Demand(kind, waited_s=AGE_S * len(KINDS) + 100.0)
    assert in_turn([*others, patient])[0] == len(others)


@pytest.mark.parametrize(
    ("state", "demand", "cause"),
    [
        (FREE, Demand("build", bytes=GIB), ""),
        (replace(FREE, crowded=True), Demand("build"), CROWDED),
        (replace(FREE, workers=1), Demand("build"), CORES),
        (replace(FREE, idle_cores=1.4), Demand("build"), CORES),
        (replace(FREE, idle_cores=1.6), Demand("build"), ""),
        (FREE, Demand("build", cores=4), CORES),
        (FREE, Demand("build", bytes=7 * GIB), MEMORY),  # the one that runs may take two
        (replace(FREE, resident_bytes=2 * GIB), Demand("build", bytes=7 * GIB), ""),  # it has them already
        (replace(FREE, available_bytes=None), Demand("build", bytes=7 * GIB), ""),
        (FREE, Demand("build", bytes=17 * GIB), ""),  # no limit at all
    ],
)
def test_refusals(state: State, demand: Demand, cause: str) -> None:
    (decision,) = admit(replace(state, running=(Demand("build", bytes=2 * GIB),)), [demand])
    assert decision.cause == cause
    assert bool(decision.reason) == bool(cause)
    (alone,) = admit(state, [demand])
    assert alone.begins


# what is seen of the machine


class Cores:
    """Looks at a machine whose others have so many cores, at a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.others, self.used_s = 100.0, 0.0, 0.0
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: self.now_s)

    def __call__(self, children: Any) -> Look:
        return Look(self.now_s, self.used_s, 0.0)

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += self.others * seconds


def test_sight_sees_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    sight = Sight(cores, lambda: 5 * GIB, cores=2)
    seen = sight.state(2, (), 0, ())
    assert (seen.idle_cores, seen.available_bytes, seen.workers, seen.crowded) == (2.0, 5 * GIB, 2, False)
    cores.others = 1.0
    cores.pass_(WINDOW_S / 2)
    assert sight.state(2, (), 0, ()).idle_cores == 2.0  # too short to tell
    cores.pass_(WINDOW_S / 2)
    assert sight.state(2, (), 0, ()).idle_cores == pytest.approx(1.0)
    cores.others = 5.0
    cores.pass_(WINDOW_S)
    assert sight.state(2, (), 0, ()).idle_cores == 0.0
    monkeypatch.setattr(RIGHT_OF_WAY, "crowded", True)
    assert sight.state(2, (), 0, ()).crowded


# the queue that asks


class Seen(Sight):
    """A machine that looks as a test says."""

    def __init__(self, state: State) -> None:
        self.seen = state

    def state(self, workers: int, running: Any, resident_bytes: int, children: Any) -> State:
        return replace(self.seen, workers=workers, running=tuple(running), resident_bytes=resident_bytes)


def idle_machine() -> Sight:
    """A machine that nobody else uses."""
    return Seen(State(workers=0, idle_cores=64.0))


def job(label: str, told: list[str] | None = None, **options: Any) -> Job:
    waits = (lambda reason: told.append(f"{label}: {reason}")) if told is not None else (lambda reason: None)
    return Job(label, bytes, lambda result: None, 1.0, options.pop("memory_bytes", 0), waits=waits, **options)


def test_a_queue_hands_out_jobs_in_the_order_of_kinds() -> None:
    jobs = JobQueue(8, Seen(replace(FREE, idle_cores=8.0)), lambda: ())
    for kind in ("train", "audit", "build", "prove", "build"):
        jobs.put(job(f"{kind}", kind=kind))
    found = [jobs.get(timeout=1) for _ in range(5)]
    assert [each.label for each in found if each] == ["build", "build", "prove", "audit", "train"]
    with pytest.raises(queue.Empty):
        jobs.get(timeout=0.01)


def test_who_does_not_fit_waits_is_told_once_and_begins_when_it_does() -> None:
    told: list[str] = []
    sight = Seen(FREE)
    jobs = JobQueue(2, sight, lambda: ())
    first, second = job("first", memory_bytes=6 * GIB), job("second", told, memory_bytes=6 * GIB)
    jobs.put(first)
    jobs.put(second)
    assert jobs.get(timeout=1) is first
    with pytest.raises(queue.Empty):
        jobs.get(timeout=0.3)
    assert len(told) == 1
    assert told[0].startswith("second: it may take")
    assert jobs.held_back == {MEMORY: 1}
    sight.seen = replace(FREE, available_bytes=16 * GIB)  # somebody gave memory back
    assert jobs.get(timeout=10) is second


def test_one_that_ends_makes_room() -> None:
    jobs = JobQueue(2, Seen(replace(FREE, crowded=True)), lambda: ())
    first, second = job("first"), job("second")
    jobs.put(first)
    jobs.put(second)
    assert jobs.get(timeout=1) is first
    threading.Timer(0.2, lambda: jobs.done(first)).start()
    begun = time.monotonic()
    assert jobs.get(timeout=10) is second
    assert time.monotonic() - begun > 0.1


def test_an_owner_that_raises_when_told_harms_nobody() -> None:
    def raising(reason: str) -> None:
        raise RuntimeError("mine")

    jobs = JobQueue(2, Seen(replace(FREE, crowded=True)), lambda: ())
    jobs.put(job("first"))
    jobs.put(replace(job("second"), waits=raising))
    assert jobs.get(timeout=1) is not None
    with pytest.raises(queue.Empty):
        jobs.get(timeout=0.05)
    jobs.put(None)
    assert jobs.get(timeout=1) is None
