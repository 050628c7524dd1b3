"""Audits: when one is due, and what becomes of kernels that go wrong while they serve."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hotfuse
from hotfuse.adaptive import audits
from hotfuse.adaptive.audits import CALLS, FIRST_CALLS, LEAST_S, MOST_S, SHARE, Audits
from hotfuse.runtime.session import Session
from tests.adaptive.test_session_subject import feed, is_fused, model, serve, want
from tests.adaptive.waiting import in_vain


def test_an_audit_is_due_after_calls_or_time_and_only_if_it_is_paid_for() -> None:
    due = Audits()
    due.count(10 * CALLS)
    assert not due.is_due(1e9)  # nothing serves that could be wrong
    due.restart(0.0)
    assert not due.is_due(1e9)  # no calls
    due.count(1)
    assert not due.is_due(LEAST_S)
    assert due.is_due(MOST_S)
    due.ask(0.0)
    due.done(0.0, cost_s=0.0)
    due.count(CALLS)
    assert not due.is_due(LEAST_S / 2)
    assert due.is_due(LEAST_S)
    due.ask(LEAST_S)
    assert not due.is_due(2 * LEAST_S)
    assert due.is_due(LEAST_S + MOST_S)  # that call never came
    due.done(1.0, cost_s=3.0)
    due.count(CALLS)
    assert not due.is_due(1.0 + 2.9 / SHARE)
    assert due.is_due(1.0 + 3.1 / SHARE)
    due.stop()
    assert not due.is_due(1e9)


def test_the_first_audit_of_what_serves_is_due_by_calls_alone() -> None:
    due = Audits()
    assert due.first == 0
    due.restart(0.0)
    due.count(FIRST_CALLS - 1)
    assert not due.is_due(0.001)
    assert due.first == 1
    due.count(1)
    assert due.is_due(0.001)  # however fast they are
    due.ask(0.001)
    due.count(10 * CALLS)
    assert (due.first, due.is_due(0.9 * MOST_S)) == (0, False)
    due.done(2.0, cost_s=100.0)
    due.restart(3.0)  # other kernels: what an audit of the last ones cost is no excuse
    assert due.first == FIRST_CALLS
    due.count(FIRST_CALLS)
    assert due.is_due(3.001)


def test_a_process_that_lives_for_a_thousand_calls_has_its_kernels_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast they are: nobody waits for a second to pass."""
    monkeypatch.setattr(audits, "LEAST_S", 1e9)
    monkeypatch.setattr(audits, "MOST_S", 1e9)
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache"), tier=1, fuel=1) as session:
        serve(session, lambda: is_fused(session))
        x = feed(1)
        for _ in range(1000):
            session.run(None, {"x": x})
        deadline = time.monotonic() + 30
        while not session.events.of("audit.passed"):
            assert time.monotonic() < deadline, in_vain(session.events)
            time.sleep(0.01)


def test_what_ran_on_one_thread_when_it_was_shadowed_is_audited_with_its_first_calls() -> None:
    due = Audits()
    due.restart(5.0, soon=True)
    assert not due.is_due(5.0)  # nobody has called
    due.count(1)
    assert due.is_due(5.0)
    due.ask(5.0)
    due.done(5.1, 0.001)
    due.count(1)
    assert not due.is_due(5.2)


def test_kernels_that_go_wrong_while_they_serve_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "CALLS", 5)
    folder = tmp_path / "wrong"
    options: dict[str, Any] = {"cache": str(tmp_path / "cache"), "reproductions": str(folder)}
    with hotfuse.load(model().SerializeToString(), **options) as session:
        serve(session, lambda: is_fused(session))
        serve(session, lambda: session.events.of("audit.passed"))
        spoil(session)
        deadline = time.monotonic() + 120
        while not session.events.of("audit.failed") and time.monotonic() < deadline:
            session.run(None, {"x": feed()})
            time.sleep(0.005)
        assert session.events.of("audit.failed")
        while is_fused(session) and time.monotonic() < deadline:
            time.sleep(0.01)
        np.testing.assert_allclose(session.run(None, {"x": feed()})[0], want(feed()), rtol=1e-4, atol=1e-7)
        assert any("audit" in e.reason for e in session.events.of("tier.quarantine"))
        deadline = time.monotonic() + 60
        while not session.events.of("reproduction") and time.monotonic() < deadline:
            session.run(None, {"x": feed()})
            time.sleep(0.005)
        assert session.events.of("reproduction")


def spoil(session: Session) -> None:
    """A weight that kernels read is another one from now on, as if somebody had written over it."""
    (step,) = next(iter(session.best.executor._bound.values())).steps
    segment: Any = step.function
    largest = max(segment._fixed.values(), key=lambda array: array.nbytes)
    wrong = np.full(1000, 7.0, np.float32)
    ctypes.memmove(largest.ctypes.data, wrong.ctypes.data, wrong.nbytes)


def test_weights_that_an_audit_looked_at_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in a file beside the model are mapped: kernels read packed ones, and nobody else reads these after an audit."""
    monkeypatch.setattr(audits, "CALLS", 5)
    path = tmp_path / "model.onnx"
    onnx.save_model(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    with hotfuse.load(path, cache=str(tmp_path / "cache")) as session:
        session.run(None, {"x": feed()})
        assert mapped_bytes("weights.bin") > 3 << 20
        serve(session, lambda: is_fused(session))
        serve(session, lambda: session.events.of("audit.passed"))
        deadline = time.monotonic() + 30
        while mapped_bytes("weights.bin") > 1 << 18 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mapped_bytes("weights.bin") <= 1 << 18


def mapped_bytes(name: str) -> int:
    """Of a file's mappings, what is in memory."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            here = line.endswith(name)
        elif here and head == "Rss:":
            found += int(line.split()[1]) << 10
    return found
