"""A compiled module with no option set: it answers itself while its class is captured, built and proved, which then serves."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hotfuse
from hotfuse.adaptive import audits
from hotfuse.adaptive.class_subject import ClassSubject
from hotfuse.adaptive.maker import Maker
from hotfuse.runtime import torch_trial
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.torch_serving import Member
from hotfuse.runtime.torch_trial import Witnessed
from tests.adaptive.waiting import in_background, in_vain

torch.manual_seed(0)


class Net(torch.nn.Module):
    """Large enough that the budget is spent after some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4))
        self.norm = torch.nn.LayerNorm(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)


def serve(fast: Any, model: torch.nn.Module, until: Callable[[], Any], limit_s: float = 120.0, rows: int = 192) -> None:
    """Call, and check every answer, until something is so."""
    x, deadline = torch.randn(rows, 512), time.monotonic() + limit_s
    while not until():
        assert time.monotonic() < deadline, in_vain(controls(fast).events)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        time.sleep(0.005)  # where callers leave no room, what works behind them takes long


@pytest.mark.parametrize("trial", [True, False])
def test_kernels_come_by_themselves(tmp_path: Path, trial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shadowed: list[bool] = []
    shadow = Member._shadow
    monkeypatch.setattr(Member, "_shadow", lambda *given: (shadowed.append(True), shadow(*given))[1])
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), trial=trial)
    events = controls(fast).events
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).family.adapted and not controls(fast).root.pending)
        assert "generic kernels: " in fast.report().why or "it could save " in fast.report().why or events.of("tier.publish")
        serve(fast, model, lambda: events.of("tier.publish"))
        kinds = [e.kind.removeprefix("tier.") for e in events.of("tier") if e.kind != "tier.units"]
        assert kinds[:7] == ["build", "built", "prove", "proved", "shadow", "shadowed", "publish"]
        assert shadowed
        assert "generated kernels answer" in fast.report().why
        answered = controls(fast).root.answered
        for rows in (2, 7, 192, 300):
            x = torch.randn(rows, 512)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        assert controls(fast).root.answered == answered + 4
    fast.close()


@pytest.mark.parametrize("trial", [True, False])
def test_as_many_calls_are_shadowed_as_must_agree(monkeypatch: pytest.MonkeyPatch, trial: bool) -> None:
    judged: list[Any] = []
    judge = Witnessed.judge
    monkeypatch.setattr(Witnessed, "judge", lambda self, served: judged.append(self) or judge(self, served))
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", trial=trial, tier=1)
    events = controls(fast).events

    def ask_for_three() -> None:
        controller._state = replace(controller._state, rules=replace(controller._state.rules, shadow_calls=3))

    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).family.adapted)
        controller: Any = controls(fast).family.adapted[0].controller  # type: ignore[attr-defined]
        in_background(ask_for_three)
        serve(fast, model, lambda: events.of("tier.publish"), 60)
    before = [e.kind for e in events.of("tier")]
    assert before[: before.index("tier.publish")].count("tier.shadowed") == 3
    assert len(judged) >= 3 * trial
    fast.close()


@pytest.mark.parametrize("trial", [True, False])
def test_a_candidate_that_is_wrong_never_serves(tmp_path: Path, trial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda call: torch.zeros(192, 512))
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), trial=trial, reproductions="off")
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).events.of("tier.quarantine"))
        serve(fast, model, lambda: True)
    assert not controls(fast).events.of("tier.publish")
    fast.close()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("error", [MemoryError("planted"), RuntimeError("planted: can't allocate memory")])
def test_memory_that_runs_out_in_a_shadowed_call_speaks_against_no_kernel(
    tmp_path: Path, error: Exception, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: Any) -> Any:
        raise error

    if at_once:  # as if the model wrote into what it is given
        monkeypatch.setattr(torch_trial, "can_wait", lambda served: False)
    plant(monkeypatch, fail)
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"))
    events = controls(fast).events
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.buildfailed"))
        serve(fast, model, lambda: True)
    assert "planted" in events.of("tier.buildfailed")[0].reason
    assert events.of("tier.rest")
    assert not events.of("tier.quarantine")
    fast.close()


def plant(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Any], Any]) -> None:
    """Have candidates answer calls so."""
    make = ClassSubject.make

    def made(self: ClassSubject, *given: Any) -> Any:
        candidate: Any = make(self, *given)
        candidate.answer = answer
        return candidate

    monkeypatch.setattr(ClassSubject, "make", made)


def test_weights_that_change_are_seen(tmp_path: Path) -> None:
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"))
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).events.of("tier.publish"))
        for layer in model.layers:
            layer.weight.mul_(0.5)
        serve(fast, model, lambda: controls(fast).events.of("weights.changed"))
        fast.settle(10)
        serve(fast, model, lambda: True)
    fast.close()


def test_a_model_that_nobody_holds_is_let_go(tmp_path: Path) -> None:
    def serve_for_a_while() -> weakref.ref[Any]:
        model = Net().eval()
        fast = hotfuse.compile(model, cache=str(tmp_path / "cache"))
        with torch.no_grad():
            serve(fast, model, lambda: controls(fast).events.of("tier.publish"))
        return weakref.ref(controls(fast).root.classes[0])

    held = serve_for_a_while()
    deadline = time.monotonic() + 5
    while held() is not None and time.monotonic() < deadline:  # the background may be looking at it
        gc.collect()
        time.sleep(0.01)
    assert held() is None


def test_a_defect_of_the_watcher_fails_no_call_and_closing_ends_it(tmp_path: Path) -> None:
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"))
    events = controls(fast).events
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).family.adapted)
        (subject,) = controls(fast).family.adapted
        subject.called = lambda *_: 1 / 0  # type: ignore[attr-defined]
        serve(fast, model, lambda: events.of("observer.failed"))
    assert "ZeroDivisionError" in events.of("observer.failed")[0].reason
    fast.close()
    assert subject.controller._closed  # type: ignore[attr-defined]
    assert subject.sample(None) is None  # type: ignore[attr-defined]


def test_every_call_counts(tmp_path: Path) -> None:
    """Whoever watches a class hears of one call in some, and of how many it stands for."""
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), tier=1)
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).events.of("tier.publish"))
        (subject,) = controls(fast).family.adapted
        before, calls, x = subject.controller.state.calls, 320, torch.randn(8, 512)  # type: ignore[attr-defined]
        for _ in range(calls):
            fast(x)
    deadline = time.monotonic() + 10
    while subject.controller.state.calls - before < calls - 32 and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.05)
    assert calls - 32 <= subject.controller.state.calls - before <= calls + 32  # type: ignore[attr-defined]
    fast.close()


def test_who_wants_to_hear_of_a_call_hears_of_the_next(tmp_path: Path) -> None:
    """Kernels for a form are built on the inputs of a call: whoever waits for one does not wait for sixteen."""
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), tier=1)
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).events.of("tier.publish"))
        (subject,) = controls(fast).family.adapted
        subject.controller.close()  # type: ignore[attr-defined]  # no tick asks for a call in between
        x = torch.randn(7, 512)
        for _ in range(40):  # a duel may be under way, whose calls are all looked at
            fast(x)
        assert subject.sample((x.shape,)) is None  # type: ignore[attr-defined]
        subject.look_at_next()  # type: ignore[attr-defined]
        fast(x)
        found = subject.sample((x.shape,))  # type: ignore[attr-defined]
    assert found is not None
    assert np.array_equal(next(iter(found.values())), x.numpy())
    fast.close()


def test_kernels_that_become_wrong_are_found_by_an_audit(tmp_path: Path) -> None:
    """What was prepared from weights is overwritten: nobody told of it, and no stamp of a weight shows it."""
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), reproductions="off", tier=1)
    events, x = controls(fast).events, torch.randn(192, 512)
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.publish"))
        served = controls(fast).root.classes[0]
        for value in served.runner.prepared._made.values:  # type: ignore[union-attr]
            value.view(-1)[:4096] = 7.0
        assert not torch.allclose(fast(x), model(x), rtol=1e-2)
        calls, deadline = 0, time.monotonic() + 60
        while not events.of("audit.failed"):
            assert time.monotonic() < deadline
            fast(x)
            calls += 1
            time.sleep(0.002)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert calls <= 1000
    assert events.of("tier.quarantine")
    fast.close()


@pytest.mark.parametrize("found_by", ["shadow", "audit"])
def test_a_call_that_was_answered_otherwise_is_what_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Not the call that something was proved on."""
    asked: list[Any] = []
    monkeypatch.setattr(Maker, "reproduce", lambda self, target, proof, unit, reason: asked.append(proof.inputs))
    monkeypatch.setattr(audits, "CALLS", 1)
    judge = Witnessed.judge
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", tier=1, fuel=1, trial=True)
    events, other = controls(fast).events, torch.randn(192, 512)

    def judge_otherwise(self: Any, served: Any) -> str | None:
        is_other = torch.equal(self.call.leaves[0], other)
        return "output 0: planted" if is_other else None if found_by == "shadow" else judge(self, served)

    monkeypatch.setattr(Witnessed, "judge", judge_otherwise)
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.shadow" if found_by == "shadow" else "tier.publish"))
        deadline = time.monotonic() + 60
        while not events.of("tier.quarantine"):
            assert time.monotonic() < deadline, in_vain(events)
            torch.testing.assert_close(fast(other), model(other), rtol=1e-4, atol=1e-5)
            time.sleep(0.005)
    assert bool(events.of("audit.failed")) == (found_by == "audit"), in_vain(events)
    (inputs,) = asked
    assert [np.array_equal(value, other.numpy()) for value in inputs.values()] == [True]
    fast.close()


def test_the_first_audit_comes_within_a_thousand_calls_and_says_what_it_cost(tmp_path: Path) -> None:
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", tier=1, fuel=1)
    events, x = controls(fast).events, torch.randn(2, 512)
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.publish"))
        for _ in range(1000):
            fast(x)
    deadline = time.monotonic() + 30
    while not events.of("audit.passed"):
        assert time.monotonic() < deadline, in_vain(events)
        time.sleep(0.01)
    assert events.of("audit.passed")[0].data["cost_s"] > 0
    fast.close()


def test_answers_that_are_too_large_to_be_kept_are_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are proved on; with its answer the call is too large."""
    monkeypatch.setattr(torch_trial, "SAMPLE_BYTES", 192 * 512 * 4)
    threads, judge = [], Witnessed.judge

    def noted(self: Witnessed, served: Any) -> str | None:
        threads.append(threading.current_thread())
        return judge(self, served)

    monkeypatch.setattr(Witnessed, "judge", noted)
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", trial=True, tier=1)
    events = controls(fast).events
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.publish"))
    assert threads[0] is threading.current_thread()
    assert not events.of("sample.refused")
    fast.close()


def test_inputs_that_are_too_large_are_not_kept_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trial, "SAMPLE_BYTES", 192 * 512 * 4 - 1)
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", tier=1)
    events = controls(fast).events
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.prove"))
        serve(fast, model, lambda: events.of("sample.refused"))
        assert not events.of("tier.proved")
        serve(fast, model, lambda: events.of("tier.publish"), rows=100)  # these can be
    (refused,) = events.of("sample.refused")
    assert "too large" in refused.reason


def test_a_shadow_an_audit_and_a_duel_that_wait_together_all_end(tmp_path: Path) -> None:
    """None takes another's place: who asked waits for what comes of it. Calls of other forms are no calls of a duel."""
    model = Net().eval()
    fast = hotfuse.compile(model, cache=str(tmp_path / "cache"), tier=1)
    with torch.no_grad():
        serve(fast, model, lambda: controls(fast).events.of("tier.publish"))
        (subject,) = controls(fast).family.adapted
        told: list[str] = []
        x, other = torch.randn(192, 512), torch.randn(3, 512)
        subject.controller.close()  # type: ignore[attr-defined]  # it asks for nothing of its own in between

        def ask() -> None:
            closed: Any = subject
            closed.publish(closed._serving)
            closed.duel((x.shape,), None, lambda times: told.append(f"duel: {times.with_s > 0}"))
            closed.audit(None, lambda form, judged: told.append(f"audit: {judged.reason}"))
            closed.shadow(closed._captured, (x.shape,), lambda judged: told.append(f"shadow: {judged.reason}"))

        fast(x)  # what is audited is a call of the last form
        in_background(ask)
        for _ in range(100):
            fast(x)
            assert not fast(other).isnan().any()
        in_background(lambda: None)  # what was posted before it is done
        in_background(lambda: None)
    assert sorted(told) == ["audit: ", "duel: True", "shadow: "]
    assert controls(fast).root.classes[0].specials == ()
    fast.close()


def test_an_audit_of_weights_that_changed_without_a_trace_blames_no_kernel() -> None:
    """Before anybody's turn comes to look at that weight."""
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", reproductions="off", tier=1, fuel=1, audit_every=1 << 30)
    events, x = controls(fast).events, torch.randn(192, 512)
    with torch.no_grad():
        serve(fast, model, lambda: events.of("tier.publish"))
        next(model.parameters()).numpy()[0] += 1.0
        assert not torch.allclose(fast(x), model(x), rtol=1e-2)
        deadline = time.monotonic() + 60
        while not events.of("weights.changed"):
            assert time.monotonic() < deadline, in_vain(events)
            fast(x)
            time.sleep(0.002)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert not events.of("tier.quarantine"), in_vain(events)
    assert not events.of("audit.failed")
    fast.close()


def test_a_class_that_makes_room_is_not_adapted_any_more() -> None:
    model = Net().eval()
    fast = hotfuse.compile(model, cache="off", trial=True)
    family, root = controls(fast).family, controls(fast).root
    with torch.no_grad():
        serve(fast, model, lambda: family.adapted)
    (served,), (subject,) = root.classes, family.adapted
    other = weakref.ref(subject)
    family.let_go(served)
    assert family.adapted == []
    del subject
    in_background(lambda: None)
    gc.collect()
    assert other() is None
    fast.close()
