"""Behind a serving module: weights are prepared anew and changed modules captured again, while the module itself answers."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import CaptureError, ExecutionError
from hotfuse.frontends import torch_skeleton, torch_watch
from hotfuse.frontends.torch_skeleton import make_skeleton
from hotfuse.frontends.torch_watch import ModuleWatch, same_state
from hotfuse.pace import REST_S, WORK_S, Unhurried, hurry
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime import build_pool, torch_captures
from hotfuse.runtime.patience import LEAST_CALLS, MOST_CALLS, Patience
from hotfuse.runtime.torch_classes import LOOK_EVERY
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.weight_stamps import CHUNK_BYTES
from hotfuse.runtime.weights import PreparedWeights

X = torch.randn(2, 4)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(model: torch.nn.Module, **options: Any) -> Any:
    """In the default mode, captured by the first call."""
    fast = hotfuse.compile(model, **{"capture": "blocking", **options})
    torch.testing.assert_close(fast(X), model(X))
    assert len(controls(fast).root.classes) == 1
    return fast


# weights


class Tanh(torch.nn.Module):
    """The tanh of its weight is prepared ahead of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, torch.tanh(self.weight))


class Gate:
    """Stands in for the work of a preparation: counts it, and lets it through when it is open."""

    def __init__(self, prepared: PreparedWeights) -> None:
        self.work = prepared._prepare
        self.count = 0
        self.open = threading.Event()
        self.open.set()
        self.also: Any = lambda: None
        prepared._prepare = self

    def __call__(self, sources: Any) -> Any:
        self.count += 1
        assert self.open.wait(30)
        found = self.work(sources)
        self.also()
        return found


def serving(model: torch.nn.Module) -> tuple[Any, Gate]:
    """A model in the default mode whose captured plan answers, as one of a higher tier would."""
    fast = compiled(model, audit_every=4)
    (served,) = controls(fast).root.classes
    served.tier = 1
    gate = Gate(served.runner.prepared)
    prepare(fast, model)
    return fast, gate


def right(fast: Any, model: torch.nn.Module, calls: int = 1) -> int:
    """Call it so often, with a look at each answer; how many the plan gave."""
    before = controls(fast).root.answered
    for _ in range(calls):
        torch.testing.assert_close(fast(X), model(X))
    return int(controls(fast).root.answered - before)


def prepare(fast: Any, model: torch.nn.Module) -> None:
    needed = controls(fast).root.classes[0].runner.prepared._patience.needed
    assert right(fast, model, needed) == 0
    assert fast.settle(30)
    assert right(fast, model) == 1


def test_the_module_answers_while_changed_weights_are_prepared() -> None:
    model = Tanh()
    fast, gate = serving(model)
    right(fast, model, LEAST_CALLS)
    gate.open.clear()
    model.weight.add_(1.0)
    started = time.monotonic()
    assert right(fast, model, 4 * LEAST_CALLS) == 0  # while a preparation hangs
    assert not fast.settle(0.0)
    assert time.monotonic() - started < 10
    gate.open.set()
    assert fast.settle(30)
    assert right(fast, model, 5) == 5
    assert gate.count == 2
    (event,) = controls(fast).events.of("weights.changed")
    assert event.reason == "a weight was changed in place"


def test_weights_that_change_in_every_call_are_not_prepared() -> None:
    model = Tanh()
    fast, gate = serving(model)
    for _ in range(50):
        model.weight.add_(0.01)
        assert right(fast, model) == 0
    assert fast.settle(30)
    assert gate.count == 1


def test_weights_that_change_too_often_are_prepared_ever_more_rarely() -> None:
    model = Tanh()
    fast, gate = serving(model)
    for _ in range(20):
        model.weight.add_(0.01)
        right(fast, model, LEAST_CALLS)
        assert fast.settle(30)
    assert gate.count <= 3
    assert right(fast, model, MOST_CALLS) > 0  # a change that stays is worth it again
    assert right(fast, model, 5) == 5


def test_a_change_without_a_trace_is_prepared_after_its_audit() -> None:
    model = Tanh()
    fast, gate = serving(model)
    right(fast, model, LEAST_CALLS)
    model.weight.detach().numpy()[:] += 1.0
    for _ in range(4 + LEAST_CALLS):  # the audit, and calls that find the weights to stay
        fast(X)
    assert fast.settle(30)
    assert right(fast, model, 5) == 5
    assert gate.count == 2


def test_a_change_during_a_preparation_makes_it_void() -> None:
    model = Tanh()
    fast, gate = serving(model)
    gate.open.clear()
    model.weight.add_(1.0)
    assert right(fast, model, 4 * LEAST_CALLS) == 0  # while a preparation hangs
    gate.also = lambda: model.weight.add_(1.0)
    gate.open.set()
    assert fast.settle(30)
    gate.also = lambda: None
    assert gate.count == 2
    assert controls(fast).root.classes[0].runner.prepared._made is None  # memory for nothing
    prepare(fast, model)


def test_an_optimizer_of_another_model_costs_no_preparation() -> None:
    model, other = Tanh(), torch.nn.Linear(2, 2)
    fast, gate = serving(model)
    right(fast, model, LEAST_CALLS)
    optimizer = torch.optim.AdamW(other.parameters(), fused=True)
    for p in other.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    prepare(fast, model)
    assert gate.count == 1
    mine = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model.weight.grad = torch.ones_like(model.weight)
    right(fast, model, LEAST_CALLS)
    mine.step()
    prepare(fast, model)
    assert gate.count == 2


def test_a_preparation_that_fails_leaves_the_model_eager() -> None:
    model = Tanh()
    fast, gate = serving(model)
    gate.work = lambda sources: 1 / 0
    model.weight.add_(1.0)
    right(fast, model, 4 * LEAST_CALLS)
    assert fast.settle(30)
    assert right(fast, model, 2) == 0
    assert controls(fast).root.classes == ()
    (event,) = controls(fast).events.of("serve.failed")
    assert "ZeroDivisionError" in event.reason


def test_refresh_makes_a_preparation_under_way_void() -> None:
    source = torch.zeros(CHUNK_BYTES)
    prepared = PreparedWeights(lambda sources: [sources[0] + 1], audit_every=1_000_000)
    gate = Gate(prepared)
    gate.open.clear()
    for _ in range(LEAST_CALLS):
        assert prepared.ready([source]) == (None, "")
    while not gate.count:
        time.sleep(0.001)
    source.numpy()[-1] = 5.0  # where the next audits do not look
    prepared.refresh()
    gate.open.set()
    assert prepared.settled(30)
    assert prepared.ready([source])[0] is None


def test_a_forked_child_prepares_what_its_parent_was_preparing() -> None:
    source = torch.zeros(4)
    prepared = PreparedWeights(lambda sources: [sources[0] + 1], audit_every=4)
    gate = Gate(prepared)
    gate.open.clear()
    for _ in range(LEAST_CALLS):
        prepared.ready([source])
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        gate.open.set()
        settled = prepared.settled(10)
        for _ in range(LEAST_CALLS):
            prepared.ready([source])
        prepared.settled(10)
        os._exit(0 if settled and prepared.ready([source])[0] is not None else 1)
    gate.open.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_cannot_be_prepared_is_an_error_of_the_plan() -> None:
    prepared = PreparedWeights(lambda sources: 1 / 0, audit_every=4)  # type: ignore[arg-type, return-value]
    for _ in range(LEAST_CALLS):
        prepared.ready([X])
    assert prepared.settled(30)
    with pytest.raises(ExecutionError, match="ZeroDivisionError"):
        prepared.ready([X])


def test_patience() -> None:
    patience = Patience()
    assert [patience.is_steady(seen) for seen in "abbbb"] == [False, False, False, True, True]
    patience.judge(calls_of_use=0)
    assert [patience.is_steady("b") for _ in range(2 * LEAST_CALLS)] == [False] * (2 * LEAST_CALLS - 1) + [True]
    for _ in range(20):
        patience.judge(calls_of_use=0)
    assert patience.needed == MOST_CALLS
    patience.judge(calls_of_use=MOST_CALLS)
    assert patience.needed == LEAST_CALLS
    assert [patience.is_due(3) for _ in range(6)] == [False, False, True] * 2
    patience.is_steady("a")
    assert patience.is_due(3)


# the module


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.factor = 1.0
        self.register_buffer("table", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor + self.table + getattr(self, "extra", 0.0)


def captures(fast: Any) -> int:
    return int(fast.report().events["capture.done"])


MOVES: dict[str, Any] = {
    "an attribute": lambda m: setattr(m, "factor", 2.0),
    "an attribute that was not there": lambda m: setattr(m, "extra", 2.0),
    "an attribute that is gone": lambda m: (setattr(type(m), "factor", 5.0), delattr(m, "factor")),
    "a submodule": lambda m: setattr(m, "inner", torch.nn.Linear(4, 4, bias=False)),
    "a buffer of another type": lambda m: setattr(m, "table", torch.ones(4, dtype=torch.float64)),
}


@pytest.mark.parametrize("tier", [0, 1])
@pytest.mark.parametrize("move", list(MOVES))
def test_a_module_that_moved_on_is_captured_again(move: str, tier: int) -> None:
    kind = type("Named", (Named,), {})
    model = kind()
    fast = compiled(model)
    controls(fast).root.classes[0].tier = tier
    MOVES[move](model)
    right(fast, model, LOOK_EVERY + LEAST_CALLS)
    assert captures(fast) == 2
    assert controls(fast).root.classes[-1].departure() == ""
    controls(fast).root.classes[-1].tier = 1
    assert right(fast, model, 3) == 3
    right(fast, model, 4 * LOOK_EVERY)
    assert captures(fast) == 2


@pytest.mark.parametrize("tier", [0, 1])
def test_a_module_that_moves_in_every_call_is_not(tier: int) -> None:
    model = Named()
    fast = compiled(model)
    controls(fast).root.classes[0].tier = tier
    for step in range(100):
        model.factor = float(step)
        right(fast, model)
    assert captures(fast) == 1


def test_a_module_that_comes_back_is_not() -> None:
    model = Named()
    fast = compiled(model)
    for step in range(100):
        model.factor = 1.0 + step % 2
        right(fast, model)
    assert captures(fast) == 1


def test_a_module_that_moves_on_again_and_again_is_captured_ever_more_rarely() -> None:
    model = Named()
    fast = compiled(model, max_captures=2)
    for step in range(20):
        model.factor = float(step)
        right(fast, model, LOOK_EVERY + LEAST_CALLS)
    assert 3 <= captures(fast) <= 2 + 9  # 380 calls double 9 times
    assert len(controls(fast).root.classes) == 2


def test_calls_of_two_kinds_in_turn_are_both_looked_at() -> None:
    model = Named()
    fast = compiled(model)
    fast(x := torch.randn(4))
    assert captures(fast) == 2
    model.factor = 2.0
    for _ in range(2 * (LOOK_EVERY + LEAST_CALLS)):
        torch.testing.assert_close(fast(x), model(x))
        right(fast, model)
    assert captures(fast) == 4


def test_states_of_a_watch() -> None:
    model = Named()
    watch = ModuleWatch(model)
    before = watch.state()
    assert same_state(before, watch.state())
    for move in ("an attribute", "a submodule"):
        MOVES[move](model)
        assert watch.changed()
        assert not same_state(before, watch.state())
        assert same_state(watch.state(), watch.state())


def test_a_capture_that_a_change_disturbs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Named()
    fast = hotfuse.compile(model, capture="blocking")

    def disturbed(*_: Any) -> Any:
        model.factor += 1.0
        raise CaptureError("it cannot be sent")

    with monkeypatch.context() as patch:
        patch.setattr(torch_skeleton, "make_skeleton", disturbed)
        fast(X)
    with monkeypatch.context() as patch:
        patch.setattr(torch_watch, "ModuleWatch", growing)
        fast(X)
    assert fast.report().events["capture.postponed"] == 2
    assert fast.report().failed == {}
    right(fast, model)
    assert captures(fast) == 1


def growing(*_: Any, **__: Any) -> Any:
    table = {"a": 1}
    for key in table:
        table[key + "b"] = 2


# the interpreter


class Counted:
    """A pace that notes the processor time of each piece of work."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self._last = time.thread_time()

    def __call__(self) -> None:
        now = time.thread_time()
        self.pieces.append(now - self._last)
        self._last = now


class Configured(Named):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.config = {"place": place, "names": [f"{place}.{i}" for i in range(20)], "inner": {i: [i] for i in range(20)}}


@pytest.mark.parametrize("work", ["watch", "skeleton"])
def test_captures_are_prepared_in_small_pieces(work: str) -> None:
    model = torch.nn.Sequential(*map(Configured, range(200)))
    gc.collect()
    gc.disable()
    try:
        pace = Counted()
        ModuleWatch(model, pace=pace) if work == "watch" else make_skeleton(model, pace)
        pace()
    finally:
        gc.enable()
    assert sum(pace.pieces) > 0.02
    assert max(pace.pieces) < 0.1 * sum(pace.pieces)
    assert sorted(pace.pieces)[len(pace.pieces) // 2] < WORK_S


def test_a_pace_rests_and_haste_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RIGHT_OF_WAY, "active", False)  # nobody knows of calls
    pace = Unhurried()
    started = time.monotonic()
    for _ in range(4):
        busy_until = time.perf_counter() + WORK_S
        while time.perf_counter() < busy_until:
            pass
        pace()
    assert time.monotonic() - started >= 4 * (WORK_S + REST_S)
    started = time.monotonic()
    for _ in range(1000):
        hurry()
    assert time.monotonic() - started < 1000 * REST_S


@pytest.mark.parametrize(("options", "rests"), [({}, True), ({"wait": True}, False), ({"capture": "blocking"}, False)])
def test_only_work_that_nobody_waits_for_rests(options: Any, rests: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch_captures, "Unhurried", lambda: made.append(Counted()) or made[-1])
    fast = hotfuse.compile(torch.nn.Linear(4, 4), **options)
    fast(X)
    assert fast.settle(120)
    assert len(controls(fast).root.classes) == 1
    assert bool(made) == rests
    assert any(pace.pieces for pace in made) == rests


def test_a_build_worker_wakes_while_a_module_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Any] = []
    monkeypatch.setattr(build_pool, "wake_workers", lambda config, most: woken.append(config.adapts))
    fast = hotfuse.compile(torch.nn.Linear(4, 4), cache="off")
    fast(X)
    assert fast.settle(120)
    assert woken == [True]


def test_a_worker_that_is_to_wake_is_there_soon() -> None:
    config = Config(cache="off")
    build_pool.wake_workers(config)
    pool = build_pool.build_pool(config)
    deadline = time.monotonic() + 60
    while pool.unfinished and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pool.pids
    before = pool.pids
    build_pool.wake_workers(config)
    assert pool.unfinished == ()
    assert pool.pids == before
