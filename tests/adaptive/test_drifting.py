"""Drifting: what serves is looked at now and then, by workers; a lasting shift is told, and answered behind calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hotfuse.adaptive.drifting import EVERY_S, PATIENCE_S, TRACES, Drifting
from hotfuse.adaptive.target import Baked, Generic, Split
from hotfuse.config import Config
from hotfuse.errors import WorkerError
from hotfuse.events import EventLog
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.types import F32, TensorType
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime import calibration
from hotfuse.runtime.parcel import unwrap
from hotfuse.runtime.trace import Piece, PieceTime, Trace
from hotfuse.runtime.traffic import TrafficReply, TrafficRequest

FORM = ((4, 8),)


class World:
    """A drifting model, whose traces and workers' answers are made here."""

    def __init__(self) -> None:
        self.events, self.jobs = EventLog(), list[Any]()
        subject: Any = SimpleNamespace(name="mine", config=Config(cache="off"), events=self.events)
        post: Callable[[Callable[[], None]], None] = lambda work: work()  # noqa: E731
        self.drifting = Drifting(subject, post, self.jobs.append)
        builder = GraphBuilder("mine")
        x = builder.input("x", TensorType(F32, (4, 8)))
        graph = builder.build([builder.add("exp", x)])
        self.node = graph.nodes[0].id
        unit = SimpleNamespace(name=self.node, nodes=(self.node,))
        made = SimpleNamespace(build=SimpleNamespace(main=graph), units=(unit,), sizes=())
        self.lineup: Any = SimpleNamespace(serving=(Generic(),), made={Generic(): made, Baked(str(FORM)): made})
        self.watch: Any = SimpleNamespace(hottest=FORM, profile=SimpleNamespace(added=0, traces=()))
        self.now_s = 0.0

    def traced(self, count: int = TRACES, seconds: float = 1e-5) -> None:
        pieces = (Piece(self.node, "kernels", 1, 1, 1, 1),)
        trace = Trace("native", str(FORM), seconds, 0.0, 0.0, pieces, (PieceTime(seconds, seconds, 0.0, 1),))
        self.watch.profile.added += count
        self.watch.profile.traces += (trace,) * count

    def tick(self, passes_s: float = EVERY_S) -> int:
        """How many jobs there are then."""
        self.now_s += passes_s
        self.drifting.tick(self.now_s, self.watch, self.lineup)
        return len(self.jobs)

    def look(self, times: float, **found: Any) -> TrafficRequest:
        """One whole look, at which things take so many times as long as predicted."""
        self.traced()
        assert self.tick() == 1
        job = self.jobs.pop()
        asked = unwrap(job.make())
        job.finish(TrafficReply((1e-5 * times,) * 3, (1e-5,) * 3, **found))
        assert isinstance(asked, TrafficRequest)
        return asked

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def world() -> World:
    return World()


def away(world: World) -> None:
    for _ in range(8):
        world.look(1.0)
    for _ in range(8):
        if not world.drifting.drift.is_away:
            world.look(2.0)
    assert world.drifting.drift.is_away


def test_nothing_is_asked_without_traces_or_while_nothing_serves(world: World) -> None:
    assert world.tick() == 0
    world.traced(TRACES - 1)
    assert world.tick() == 0
    world.traced()
    world.lineup.serving = ()
    assert world.tick() == 0
    world.lineup.serving = (Generic(),)
    assert world.tick() == 1


def test_one_look_at_a_time_and_not_too_often(world: World) -> None:
    world.traced()
    assert world.tick() == 1
    world.traced()
    assert world.tick() == 1  # nobody answered yet
    world.jobs.pop().finish(TrafficReply((1e-5,), (1e-5,)))
    assert world.tick(EVERY_S / 10) == 1
    world.jobs.pop().finish(TrafficReply((1e-5,), (1e-5,)))
    world.traced()
    assert world.tick(EVERY_S / 10) == 0


def test_a_look_tells_what_units_took(world: World) -> None:
    asked = world.look(1.0)
    assert asked.units == ((world.node,),)
    assert asked.seconds == (1e-5,)
    assert not asked.is_baked
    assert not asked.trains


def test_traces_of_other_forms_are_left_out(world: World) -> None:
    world.traced()
    world.watch.hottest = ((9, 8),)
    assert world.tick() == 0


def test_a_lasting_shift_is_told_and_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    monkeypatch.setattr(calibration, "forget_machine", lambda: forgotten.append(1))
    away(world)
    assert world.kinds() == ["model.drift"]
    assert next(iter(world.events)).data["shift"] == pytest.approx(2.0)
    asked = world.look(2.0, before=0.5, after=0.1, is_replaced=True)
    assert asked.trains
    assert world.kinds() == ["model.drift", "model.retrained"]
    assert forgotten == [1]
    assert not world.drifting.drift.is_away
    assert not world.look(1.0).trains


def test_a_forest_that_is_no_better_is_not_asked_for_again_at_once(world: World) -> None:
    away(world)
    assert world.look(2.0, before=0.1, after=0.2).trains
    assert world.drifting.drift.is_away
    assert not world.look(2.0).trains
    world.now_s += PATIENCE_S
    assert world.look(2.0).trains


def test_nothing_is_trained_while_calls_leave_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    away(world)
    monkeypatch.setattr(RIGHT_OF_WAY, "crowded", True)
    assert not world.look(2.0).trains
    monkeypatch.setattr(RIGHT_OF_WAY, "crowded", False)
    assert world.look(2.0).trains


def test_a_worker_that_fails_is_told_and_looked_for_again(world: World) -> None:
    world.traced()
    world.tick()
    world.jobs.pop().finish(WorkerError("planted", "died"))
    assert world.kinds() == ["model.unknown"]
    world.traced()
    assert world.tick() == 0  # it may always die
    assert world.tick(PATIENCE_S) == 1


def test_a_machine_without_a_forest_is_left_alone_for_long(world: World) -> None:
    world.traced()
    world.tick()
    world.jobs.pop().finish(TrafficReply((), (), is_known=False))
    world.traced()
    assert world.tick() == 0
    assert world.tick(PATIENCE_S) == 1


def test_what_replaces_what_serves_settles_anew(world: World) -> None:
    away(world)
    world.drifting.replaced(world.watch)
    assert not world.drifting.drift.is_away


def test_traces_of_what_served_before_say_nothing(world: World) -> None:
    world.traced()
    world.drifting.replaced(world.watch)
    world.traced(TRACES - 1)
    assert world.tick() == 0
    world.traced(1)
    assert world.tick() == 1


def test_units_that_are_edited_say_nothing_of_those_that_were_planned(world: World) -> None:
    world.lineup.serving = (Generic(), Split((world.node,)))
    world.traced()
    world.tick()
    assert unwrap(world.jobs.pop().make()).units == ()
