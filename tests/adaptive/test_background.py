"""The thread that works behind all models: where it cannot be started, and in a forked child."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hotfuse
from hotfuse.adaptive import background as background_module
from hotfuse.adaptive.background import ANSWER_S, AT_ONCE_S, BACKGROUND, Background
from hotfuse.right_of_way import RIGHT_OF_WAY

MODEL = """<ir_version: 8, opset_import: ["": 17]>
    net (float[n, 4] x) => (float[n, 4] y) { y = Tanh(x) }"""


def fail(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_started_nothing_is_kept_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    background, done = Background("hotfuse-test"), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert not background.post(lambda: None)
    assert "can't start new thread" in background.failures[-1]
    assert background.post(done.set)
    assert done.wait(10)


def test_the_first_call_of_a_loaded_model_comes_first() -> None:
    background, done = Background("hotfuse-test"), threading.Event()
    assert background.post_after_answer(done.set)
    assert RIGHT_OF_WAY.active  # calls say when they begin, from now on
    with RIGHT_OF_WAY.call():
        assert not done.wait(10 * AT_ONCE_S)
    assert done.wait(ANSWER_S)


def test_where_nobody_calls_a_loaded_model_nothing_waits_for_it() -> None:
    background, done = Background("hotfuse-test"), threading.Event()
    assert background.post_after_answer(done.set)
    assert done.wait(ANSWER_S)


def test_a_first_call_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "ANSWER_S", 0.05)
    background, done = Background("hotfuse-test"), threading.Event()
    assert background.post_after_answer(done.set)
    with RIGHT_OF_WAY.call():
        assert done.wait(10)


def test_nobody_counts_as_working_for_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background("hotfuse-test")
    working = RIGHT_OF_WAY._threads
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert not background.post_after_answer(lambda: None)
    assert RIGHT_OF_WAY._threads == working


def test_a_model_is_looked_at_again_when_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with hotfuse.load(onnx.parser.parse_model(MODEL), cache="off") as session:
        controller: Any = session.observer.controller  # type: ignore[union-attr]
        with monkeypatch.context() as patched:
            patched.setattr(BACKGROUND, "post", lambda work: False)
            controller.note("form", 0, 1.0)
        assert not controller._posted
        controller.note("form", 0, 1.0)
        await_look(controller)


def test_a_forked_child_looks_at_its_calls() -> None:
    """What was posted before is the parent's, and so is who would have done it."""
    x = np.ones((2, 4), np.float32)
    with hotfuse.load(onnx.parser.parse_model(MODEL), cache="off") as session:
        controller: Any = session.observer.controller  # type: ignore[union-attr]
        controller._posted = True
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            controller.note("form", 0, 1.0)
            session.run(None, {"x": x})
            await_look(controller)
            os._exit(0)
        controller._posted = False
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def await_look(controller: Any) -> None:
    deadline = time.monotonic() + 10
    while not controller.state.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
