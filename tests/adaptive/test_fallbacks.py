"""What a model falls back to where the usual way is barred: no process, no audit, a decision that cannot be carried out, inputs
that are too large to be kept."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.adaptive import audits, session_subject
from hotfuse.adaptive.message import Measured
from hotfuse.adaptive.session_subject import SessionSubject
from hotfuse.adaptive.target import Generic
from hotfuse.errors import WorkerError
from hotfuse.fusion.engine import Engine
from hotfuse.runtime import build_jobs, build_pool, build_worker
from hotfuse.runtime.child import DIED
from hotfuse.runtime.session import Session
from hotfuse.runtime.workers import Job
from tests.adaptive.test_session_subject import feed, is_fused, lineup, model, rules, serve, want
from tests.adaptive.waiting import in_background, in_vain


@pytest.fixture
def session(tmp_path: Path) -> Any:
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache")) as opened:
        yield opened


def test_where_no_process_can_be_started_a_thread_builds_and_proves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(build_pool, "_pool", None)  # a worker of another test may be there still
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache")) as session:
        serve(session, lambda: is_fused(session))
        assert session.kernels
        serve(session, lambda: True)


class Elsewhere:
    """An executor of another kind: what it is asked goes as bytes to whoever answers it, here a thread for each job. Who works
    on the first jobs is lost."""

    size = 2

    def __init__(self, losses: int) -> None:
        self.labels: list[str] = []
        self._losses = losses

    @property
    def unfinished(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """There is nothing to stop."""

    def submit(self, job: Job) -> None:
        self.labels.append(job.label)
        threading.Thread(target=self._work, args=(job, len(self.labels) <= self._losses), daemon=True).start()

    def _work(self, job: Job, is_lost: bool) -> None:
        try:
            if is_lost:
                raise WorkerError("the machine that worked on it went away", DIED)
            job.finish(job.read(build_worker.answer(job.make(), job.serve or bytes)))
        except BaseException as error:
            job.finish(error)


@pytest.mark.parametrize("losses", [0, 1])
def test_another_executor_does_what_the_pool_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int) -> None:
    """Whoever takes requests and brings answers will do, and no job is lost with who worked on it."""
    executor = Elsewhere(losses)
    monkeypatch.setattr(build_pool, "build_pool", lambda config: executor)
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache")) as session:
        serve(session, lambda: is_fused(session))
        assert len(executor.labels) >= 2 + losses
        assert len(session.events.of("worker.died")) == losses


def test_a_planner_that_fails_leaves_the_rules_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without somebody who waits; what was planned so is not kept for other processes."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    def fail(_: Engine) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(subprocess, "Popen", refuse)  # a thread plans, which sees what is planted
    monkeypatch.setattr(build_pool, "_pool", None)
    monkeypatch.setattr(Engine, "run", fail)
    cache = str(tmp_path / "cache")
    with hotfuse.load(model().SerializeToString(), cache=cache) as session:
        serve(session, lambda: is_fused(session))
        (told,) = session.events.of("plan.failed")
        assert told.reason == "ZeroDivisionError: planted"
    with hotfuse.load(model().SerializeToString(), cache=cache, tier=1, wait=True) as session:
        serve(session, lambda: bool(session.kernels))
        assert [event.reason for event in session.events.of("plan.failed")] == ["ZeroDivisionError: planted"]
    monkeypatch.undo()
    with hotfuse.load(model().SerializeToString(), cache=cache, tier=1, wait=True) as session:
        serve(session, lambda: bool(session.kernels))
        assert not session.events.of("plan.failed")


def test_an_audit_that_nobody_answers_says_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(label: str, request: Any, reply: Any, finish: Any, *rest: Any, **options: Any) -> Any:
        job = original(label, request, reply, finish, *rest, **options)
        if not label.endswith(": audit"):
            return job
        finish(WorkerError("the build worker died (Killed)", "died"))
        return original("nothing", request, reply, lambda result: None, *rest, **options)

    original = build_jobs.worker_job
    monkeypatch.setattr(build_jobs, "worker_job", lost)
    monkeypatch.setattr(audits, "CALLS", 5)
    serve(session, lambda: is_fused(session))
    serve(session, lambda: session.events.of("audit.lost"))
    assert "died" in session.events.of("audit.lost")[0].reason
    assert is_fused(session)
    assert not session.events.of("audit.failed")


def fail_to_publish_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SessionSubject, candidate: Any) -> None:
        if candidate is not None and not failed:
            failed.append(True)
            raise MemoryError("planted")
        original(self, candidate)

    failed: list[bool] = []
    original = SessionSubject.publish
    monkeypatch.setattr(SessionSubject, "publish", fail)


def test_what_cannot_be_published_leaves_the_original(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_publish_once(monkeypatch)
    serve(session, lambda: session.events.of("tier.failed"))
    assert "MemoryError: planted" in session.events.of("tier.failed")[0].reason
    assert not is_fused(session)
    serve(session, lambda: is_fused(session))  # it is proved again, and that one is published


def test_where_something_cannot_be_retired_the_rest_comes_back_too(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rules(session, baked_gain=10.0, judge_s=1e9)
    serve(session, lambda: len(lineup(session)) > 1)
    (_, baked), controller = lineup(session), session.observer.controller  # type: ignore[union-attr]
    fail_to_publish_once(monkeypatch)
    attempt = controller.state.find(baked).attempt
    slower = Measured(time.monotonic(), baked, attempt, str((feed().shape,)), 2.0, 1.0, 0.0)
    in_background(lambda: controller._tell(slower))
    assert "planted" in session.events.of("tier.failed")[0].reason
    assert not controller.state.serves(Generic())  # for it does not
    serve(session, lambda: is_fused(session))


def test_answers_that_are_too_large_to_be_copied_are_judged_at_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are proved on; with its answer the call is too large. It must not be looked at for ever, by the original alone."""
    monkeypatch.setattr(session_subject, "SAMPLE_BYTES", feed().nbytes + 1)
    judged, judge = [], SessionSubject._judge

    def noted(self: SessionSubject, *arguments: Any) -> None:
        judged.append(threading.current_thread())
        judge(self, *arguments)

    monkeypatch.setattr(SessionSubject, "_judge", noted)
    serve(session, lambda: is_fused(session))
    assert judged == [threading.current_thread()]
    assert session.events.of("tier.shadowed")
    assert not session.events.of("sample.refused")


def test_inputs_that_are_too_large_are_not_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_subject, "SAMPLE_BYTES", feed().nbytes - 1)
    serve(session, lambda: session.events.of("tier.prove"))
    for _ in range(50):
        (y,) = session.run(None, {"x": feed()})
    np.testing.assert_allclose(y, want(feed()), rtol=1e-4, atol=1e-7)
    assert not session.events.of("tier.proved")
    assert not is_fused(session)
    (refused,) = session.events.of("sample.refused")
    assert "a proof needs arrays, of" in refused.reason
    small, deadline = feed(3), time.monotonic() + 120  # these can be, and their result with them
    while not is_fused(session) and time.monotonic() < deadline:
        session.run(None, {"x": small})
        time.sleep(0.005)
    assert session.events.of("tier.proved"), in_vain(session.events)
