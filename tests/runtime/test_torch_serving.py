"""Who answers a call: what the module's code sees meanwhile, how many captures there may be, and that nobody waits for ever."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.errors import CaptureError, ExecutionError
from hotfuse.frontends import torch_skeleton
from hotfuse.locks import make_lock
from hotfuse.runtime import torch_capture
from hotfuse.runtime.torch_eager.table import EAGER
from hotfuse.runtime.torch_module import controls

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return hotfuse.compile(model, **{"wait": True, "capture": "blocking", **options})


# what the module's own code sees

HANDLERS: dict[type, Any] = {}


class Registered(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return HANDLERS[type(self)](x)  # type: ignore[no-any-return]


HANDLERS[Registered] = lambda x: x * 2


class AsksForClasses(torch.nn.Module):
    """Cannot be captured as a whole, and looks at the classes of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.registered = Registered()
        self.last: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            x = x + 1
        self.last = [self.linear, type(self)]
        return self.registered(self.linear(x)) if type(self.linear) is torch.nn.Linear else x * 0 - 99


@pytest.mark.parametrize("options", [{"tier": 0}, {"wait": False}, {"wait": False, "capture": "background"}, {"wait": True}])
def test_classes_are_the_models_own_whoever_answers(options: dict[str, Any]) -> None:
    model = AsksForClasses().eval()
    fast = compiled(model, **options)
    for _ in range(3):
        torch.testing.assert_close(fast(X), model(X))
        assert model.last == [model.linear, AsksForClasses]
        assert fast.settle(60)
    registered = compiled(Registered(), **options)
    assert torch.equal(registered(X), X * 2)


def test_with_wait_parts_answer_and_calls_are_left_as_they_were() -> None:
    before = torch.nn.Module.__call__
    model = AsksForClasses().eval()
    fast = compiled(model)
    for _ in range(2):
        fast(X)
    report = fast.report()
    assert {c.module for c in report.classes} == {"AsksForClasses.linear", "AsksForClasses.registered"}
    assert report.answered == 4
    assert 0.0 < report.captured_share < 1.0  # `item` and what goes with it is none of theirs
    assert torch.nn.Module.__call__ is before


class Doubled(torch.nn.Linear):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


def test_a_part_with_a_call_of_its_own_is_left_alone() -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Doubled(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x) if x.sum().item() > 0 else x

    model = Whole().eval()
    fast = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(fast(X), model(X))


def test_while_one_thread_is_routed_others_are_not() -> None:
    from hotfuse.runtime.torch_route import routed

    part, seen = torch.nn.Linear(3, 3), []

    def route(module: torch.nn.Module, own: Any, args: Any, kwargs: Any) -> Any:
        seen.append(threading.current_thread())
        return own(*args, **kwargs)

    with routed(route):
        part(X)
        other = threading.Thread(target=part, args=(X,))
        other.start()
        other.join()
    part(X)
    assert seen == [threading.current_thread()]


# memory that is changed in place


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * 1.0


class Writes(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return self.count * 1.0


class Overlapping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.ones(4))
        self.register_buffer("part", self.whole[:3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.add_(1)
        return x * self.part


@pytest.mark.parametrize("kind", [Counts, Writes])
def test_an_argument_that_is_a_changed_buffer(kind: type) -> None:
    model, twin = kind(), kind()
    fast = compiled(model)
    torch.testing.assert_close(fast(torch.ones(3)), twin(torch.ones(3)))
    for _ in range(3):
        torch.testing.assert_close(fast(model.count[:]), twin(twin.count[:]))
    assert controls(fast).root.answered == 1
    assert len(controls(fast).root.classes) == 1
    assert "shares memory" in controls(fast).root.last_miss


def test_buffers_that_overlap() -> None:
    model, twin = Overlapping(), Overlapping()
    fast = compiled(model)
    for _ in range(3):
        torch.testing.assert_close(fast(torch.ones(3)), twin(torch.ones(3)))


# how many captures there may be


class Uncapturable(torch.nn.Module):
    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return x * step if x.sum().item() > 0 else x


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.mark.parametrize("wait", [True, False])
def test_failed_captures_are_bounded(wait: bool) -> None:
    fast = compiled(Uncapturable(), wait=wait, max_captures=2)
    for step in range(20):
        assert torch.equal(fast(X, step), X * step)
    assert 2 <= fast.report().events["capture.failed"] <= 2 + 5
    assert fast.report().events["capture.failed"] == len(controls(fast).root.failed)
    assert "max_captures" in controls(fast).root.last_miss


def test_classes_that_the_model_moved_away_from_make_room() -> None:
    model = Scaled()
    fast = compiled(model, max_captures=2)
    for factor in range(5):
        model.factor = factor
        assert torch.equal(fast(X), X * factor)
    before = fast.report().answered
    for _ in range(8):
        assert torch.equal(fast(X), X * 4)
    assert fast.report().answered >= before + 4
    assert len(fast.report().classes) == 2
    model.factor = 9
    assert torch.equal(fast(X), X * 9)


def test_refresh_allows_new_captures() -> None:
    fast = compiled(Uncapturable(), max_captures=1)
    fast(X, 1)
    fast.refresh()
    fast(X, 2)
    assert fast.report().events["capture.failed"] == 2


def test_a_capture_that_another_thread_finished_in_between_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(torch.nn.Linear(3, 3).eval())
    controller = controls(fast).root
    original, entered = controller.captures.begin, []

    def slow(*args: Any) -> bool:
        if not entered:
            entered.append(True)
            other = threading.Thread(target=torch.no_grad()(lambda: fast(X)))
            other.start()
            other.join()
        return original(*args)

    monkeypatch.setattr(controller.captures, "begin", slow)
    fast(X)
    assert len(controller.classes) == 1
    assert controller.answered == 2


def test_a_capture_that_ends_after_close_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(torch.nn.Linear(3, 3).eval())
    original = torch_skeleton.make_skeleton

    def closing(content: Any, *_: Any) -> Any:
        fast.close()
        return original(content)

    monkeypatch.setattr(torch_skeleton, "make_skeleton", closing)
    fast(X)
    assert controls(fast).root.classes == ()
    assert fast.report().answered == 0


# nobody waits for ever


def answers_soon(fast: Any) -> bool:
    thread = threading.Thread(target=torch.no_grad()(lambda: fast(X)), daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive() and fast.settle(0.1)


def test_an_interrupted_capture_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(torch.nn.Linear(3, 3).eval())
    with monkeypatch.context() as patch:
        patch.setattr(torch_skeleton, "make_skeleton", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fast(X)
    assert answers_soon(fast)
    assert fast.report().answered == 1


def test_an_interrupt_reaches_the_caller_from_within_a_trace() -> None:
    class Interrupted(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return interrupt() if torch.compiler.is_exporting() else super().forward(x)  # type: ignore[no-any-return]

    fast = compiled(Interrupted(3, 3).eval())
    with pytest.raises(KeyboardInterrupt):
        fast(X)
    assert fast.settle(0.1)


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_error_of_ours_in_a_blocking_capture_leaves_the_model_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(content: Any, *_: Any) -> Any:
        raise ZeroDivisionError("planted")

    model = torch.nn.Linear(3, 3).eval()
    fast = compiled(model)
    monkeypatch.setattr(torch_skeleton, "make_skeleton", broken)
    torch.testing.assert_close(fast(X), model(X))
    assert "ZeroDivisionError: planted" in fast.report().failed["Linear"]
    assert fast.settle(0.1)


def test_settle_gives_all_captures_together_its_timeout() -> None:
    fast = compiled(torch.nn.Linear(3, 3))
    controls(fast).root.captures.pending.update({i: threading.Event() for i in range(4)})
    started = time.monotonic()
    assert not fast.settle(0.2)
    assert time.monotonic() - started < 0.5


def test_a_child_forked_while_a_capture_is_pending_answers() -> None:
    script = """
        import os, signal, threading, time, torch, hotfuse
        from hotfuse.runtime.torch_module import controls
        torch.set_grad_enabled(False)
        fast = hotfuse.compile(torch.nn.Linear(3, 3).eval(), wait=True)
        def first():
            torch.set_grad_enabled(False)
            fast(torch.ones(2, 3))
        waiting = threading.Thread(target=first)
        waiting.start()
        while not controls(fast).root.pending:
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            settled = fast.settle()
            fast(torch.ones(2, 3))
            os._exit(0 if settled and controls(fast).root.answered == 1 else 1)
        _, status = os.waitpid(pid, 0)
        waiting.join()
        print(os.waitstatus_to_exitcode(status), controls(fast).root.answered)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240)
    assert done.stdout == "0 1\n", done.stderr


def test_a_lock_held_at_a_fork_is_free_in_the_child() -> None:
    lock = make_lock()
    with lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            os._exit(0 if lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("copy", [True, False])
def test_pipes_with_high_descriptors_and_odd_import_paths(monkeypatch: pytest.MonkeyPatch, copy: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    monkeypatch.setattr(sys, "path", [*sys.path, object()])
    process = None
    try:
        process = torch_capture.CaptureProcess(torch_capture.Kind(urgent=True, copy=copy))
        assert b"failed" in process.ask(b"no skeleton", 60.0, 1 << 40)
    finally:
        if process is not None:
            process.kill()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_idle_capture_process_is_stopped_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_capture, "IDLE_S", 0.2)
    monkeypatch.setattr(torch_capture, "_workers", {})
    for width in (3, 4):
        fast = hotfuse.compile(torch.nn.Linear(width, 3).eval(), wait=True)
        fast(torch.ones(2, width))
        assert fast.report().answered == 1
        deadline = time.monotonic() + 20
        (worker,) = torch_capture._workers.values()
        while worker.process is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert worker.process is None


# strict, and what the report says


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")


def test_strict_leaves_errors_of_the_model_as_they_are() -> None:
    fast = compiled(Raises(), strict=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            fast(X)


def test_strict_raises_in_every_call_that_could_not_be_captured() -> None:
    fast = compiled(Uncapturable(), strict=True)
    for _ in range(2):
        with pytest.raises(CaptureError, match="Uncapturable"):
            fast(X, 1)


def test_strict_raises_where_a_plan_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("planted")

    fast = compiled(torch.nn.Tanh(), strict=True)
    monkeypatch.setitem(EAGER, "tanh", lambda node, values: broken)
    with pytest.raises(ExecutionError, match="planted"):
        fast(X)


def test_strict_leaves_calls_that_want_gradients_to_the_module() -> None:
    fast = compiled(torch.nn.Linear(3, 3), strict=True)
    with torch.enable_grad():
        assert fast(X).requires_grad
    assert "gradients are enabled" in fast.report().why


def test_the_report_says_who_answers() -> None:
    waiting, default = compiled(torch.nn.Linear(3, 3)), compiled(torch.nn.Linear(3, 3), wait=False)
    waiting(X)
    default(X)
    assert "captured plans answer" in waiting.report().why
    assert "the original answers" in default.report().why
    assert waiting.report().captured_share == 1.0


def test_a_blocking_capture_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compiled(torch.nn.Linear(3, 3))(X)
    assert heard == []
    assert capfd.readouterr() == ("", "")


# good guests


class Aliases(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x[0], x.t(), x * 1


def test_outputs_alias_inputs_as_in_eager() -> None:
    fast = compiled(Aliases())
    for _ in range(2):
        x = torch.zeros(2, 3)
        same, row, turned, own = fast(x)
        assert same is x
        x.fill_(7.0)
        assert row.tolist() == [7.0] * 3
        assert turned.tolist() == [[7.0, 7.0]] * 3
        assert own.tolist() == [[0.0] * 3] * 2
    assert fast.report().answered == 2


def test_the_number_of_threads_stays_the_users() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        fast = compiled(torch.nn.Linear(3, 3).eval())
        fast(X)
        fast(X)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
