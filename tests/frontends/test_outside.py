"""Forward passes that look at Python state which a trace cannot see, or act outside: they answer as the module itself does."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import logging
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hotfuse
from hotfuse.errors import ExecutionError

X = torch.arange(4.0)
LOG = logging.getLogger(__name__)
HERE = pathlib.Path(__file__)


class Asks(torch.nn.Module):
    """Computes something else where a question about anything has another answer."""

    def __init__(self, question: Callable[[torch.nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.question = question
        self.w = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.question(self, x) else x + self.w


def compiled(question: Callable[[Any, Any], Any], **options: Any) -> tuple[torch.nn.Module, Any]:
    module = Asks(question).eval()
    return module, hotfuse.compile(module, wait=True, trial=True, capture="blocking", **options)


def reasons(fast: Any) -> str:
    return " ".join(event.reason for event in fast._hotfuse.events.of("capture.failed"))


# the trial of the first call


SEEN_DIFFERENTLY = {
    "the type of an argument": lambda m, x: type(x) is torch.Tensor,
    "the type of a weight": lambda m, x: type(m.w) is torch.nn.Parameter,
    "whether it is compiled": lambda m, x: not torch.compiler.is_compiling(),
    "whether it is exported": lambda m, x: not torch.compiler.is_exporting(),
}


@pytest.mark.parametrize("what", SEEN_DIFFERENTLY)
def test_a_plan_that_answers_otherwise_never_answers(what: str) -> None:
    module, fast = compiled(SEEN_DIFFERENTLY[what])
    with torch.no_grad():
        for x in (X, X + 1, X):
            torch.testing.assert_close(fast(x), module(x), rtol=0, atol=0)
    report = fast.report()
    assert report.answered == 0, report
    assert report.events.get("capture.differs") == 1 or report.events.get("capture.failed"), report
    fast.close()


def test_strict_raises_where_a_plan_answers_otherwise() -> None:
    _, fast = compiled(SEEN_DIFFERENTLY["the type of an argument"], strict=True)
    with torch.no_grad(), pytest.raises(ExecutionError, match=r"otherwise than the module: output 0: .* elements differ"):
        fast(X)
    fast.close()


def test_the_structure_and_type_of_an_answer_count() -> None:
    class Wraps(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"x": x} if type(x) is torch.Tensor else (x,)

    class Widens(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double() if type(x) is torch.Tensor else x + 0

    for module, message in ((Wraps(), "structure"), (Widens(), "torch.float64")):
        fast = hotfuse.compile(module, wait=True, trial=True, capture="blocking")
        with torch.no_grad():
            assert type(fast(X)) is type(module(X))
        assert message in next(iter(fast.report().failed.values()))
        fast.close()


class Counting(torch.nn.Module):
    """Changes a buffer and an argument in place, and draws random numbers."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        x.mul_(2)
        return x + self.count + torch.rand(4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_the_trial_writes_and_draws_is_written_and_drawn_once(mode: Callable[[], Any]) -> None:
    module, twin = Counting(), Counting()
    fast = hotfuse.compile(module, wait=True, trial=True, capture="blocking")
    with mode():
        x, y = X.clone(), X.clone()
        for seed in range(3):
            torch.manual_seed(seed)
            ours = [fast(x), torch.rand(2)]
            torch.manual_seed(seed)
            torch.testing.assert_close(ours, [twin(y), torch.rand(2)], rtol=0, atol=0)
            torch.testing.assert_close([x, module.count], [y, twin.count], rtol=0, atol=0)
    assert fast.report().answered == 3, fast.report()
    fast.close()


def test_what_is_written_in_place_is_compared() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> int:
            x.mul_(2 if type(x) is torch.Tensor else 3)
            return 1

    fast = hotfuse.compile(Writes(), wait=True, trial=True, capture="blocking")
    with torch.no_grad():
        x = X.clone()
        fast(x)
    assert torch.equal(x, X * 2)
    assert "writes in place" in next(iter(fast.report().failed.values()))
    fast.close()


def test_only_the_first_call_runs_the_module_itself() -> None:
    calls = []

    def eager(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return module(*args, **kwargs)

    module = torch.nn.Linear(4, 4).eval()
    fast = hotfuse.compile(module, wait=True, trial=True, capture="blocking")
    controller = fast._hotfuse.family.all()[0]
    with torch.no_grad():
        for _ in range(3):
            controller.call(eager, (X,), {})
    assert (len(calls), controller.answered) == (1, 3)
    fast.close()


# what is refused when it is traced


def written(m: torch.nn.Module, x: torch.Tensor) -> bool:
    with open(os.devnull, "a") as file:
        return bool(file.write("x"))


OUTSIDE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "now": (lambda m, x: datetime.datetime.now().year > 1, "reads the clock: now"),
    "utcnow": (lambda m, x: datetime.datetime.utcnow().year > 1, "reads the clock: utcnow"),
    "today": (lambda m, x: datetime.date.today().year > 1, "reads the clock: today"),
    "monotonic": (lambda m, x: time.monotonic() > 0, "reads the clock: monotonic"),
    "pid": (lambda m, x: os.getpid() > 0, "asks the operating system: getpid"),
    "directory": (lambda m, x: os.getcwd(), "asks the operating system: getcwd"),
    "listing": (lambda m, x: os.listdir("."), "asks the operating system: listdir"),
    "exists": (lambda m, x: os.path.exists(HERE), "asks the operating system: stat"),
    "path": (lambda m, x: HERE.exists(), "asks the operating system: stat"),
    "open": (lambda m, x: HERE.read_text(), "opens a file: open"),
    "append": (written, "opens a file: open"),
    "print": (lambda m, x: print("here"), "prints: print"),
    "stream": (lambda m, x: sys.stderr.write(""), "uses a file: write"),
    "log": (lambda m, x: LOG.info("here"), "logs: info"),
    "warn": (lambda m, x: warnings.warn("here", stacklevel=2), "warns: warn"),
    "id": (lambda m, x: id(x) % 2, "asks for an object's address: id"),
    "recursion": (lambda m, x: sys.getrecursionlimit() > 1, "state of the process: getrecursionlimit"),
    "collector": (lambda m, x: gc.isenabled(), "state of the process: isenabled"),
    "decimal": (lambda m, x: decimal.getcontext().prec > 1, "state of the process: getcontext"),
    "numpy": (lambda m, x: np.geterr()["over"] == "warn", "state of the process: geterr"),
    "seed": (lambda m, x: torch.initial_seed() % 2, "state of the process: initial_seed"),
    "distributed": (lambda m, x: torch.distributed.is_initialized(), "state of the process: is_initialized"),
    "offset": (lambda m, x: x.storage_offset(), "lies in memory: storage_offset"),
    "storage": (lambda m, x: x.untyped_storage().nbytes() > 16, "lies in memory: untyped_storage"),
    "view": (lambda m, x: x._is_view(), "lies in memory: _is_view"),
    "shared": (lambda m, x: x.is_shared(), "lies in memory: is_shared"),
    "base": (lambda m, x: x._base is not None, "reads _base"),
    "version": (lambda m, x: x._version > 0, "reads _version"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", OUTSIDE)
def test_a_forward_pass_that_looks_or_acts_outside_stays_eager(what: str) -> None:
    question, message = OUTSIDE[what]
    module, fast = compiled(question)
    with torch.no_grad():
        if "address" not in message:
            torch.testing.assert_close(fast(X), module(X), rtol=0, atol=0)
        else:
            fast(X)
    assert fast.report().answered == 0
    assert message in reasons(fast), reasons(fast)
    fast.close()


def test_messages_are_printed_in_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    _, fast = compiled(lambda m, x: print("here"))
    capsys.readouterr()
    with torch.no_grad():
        fast(X)
        capsys.readouterr()  # a capture in this process runs the forward pass, too
        fast(X)
    assert capsys.readouterr().out == "here\n"
    fast.close()


def test_memory_files_and_imports_are_no_part_of_the_outside() -> None:
    def question(m: Any, x: Any) -> bool:
        import colorsys

        return io.StringIO().write("x") == 1 and colorsys.rgb_to_hsv(0, 0, 0) is not None

    sys.modules.pop("colorsys", None)
    module, fast = compiled(question)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), module(X), rtol=0, atol=0)
    assert fast.report().answered == 1, fast.report()
    fast.close()


# guards


def test_attributes_of_tensors_are_not_lost() -> None:
    module, fast = compiled(lambda m, x: getattr(m.w, "scale", 1.0) > 2)
    module.w.scale = 3.0  # type: ignore[union-attr]
    with torch.no_grad():
        torch.testing.assert_close(fast(X), X * 2, rtol=0, atol=0)
        module.w.scale = 1.0  # type: ignore[union-attr]
        torch.testing.assert_close(fast(X), X + 1, rtol=0, atol=0)
    assert "attribute 'scale' of the weight w" in reasons(fast)
    fast.close()

    module, fast = compiled(lambda m, x: getattr(x, "scale", 1.0) > 2)
    marked = X.clone()
    marked.scale = 3.0  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(fast(X), X + 1, rtol=0, atol=0)
        torch.testing.assert_close(fast(marked), X * 2, rtol=0, atol=0)
    assert "attributes of its own (scale)" in fast._hotfuse.events.of("guard.miss")[-1].reason
    fast.close()


def test_attributes_of_weights_that_nobody_reads_do_no_harm() -> None:
    module, fast = compiled(lambda m, x: False)
    module.w._no_weight_decay = True  # type: ignore[union-attr]
    with torch.no_grad():
        fast(X)
    assert fast.report().answered == 1, fast.report()
    fast.close()


@pytest.mark.parametrize("change", ["freeze", "gradient"])
def test_a_weight_that_changes_its_gradient_is_noticed(change: str) -> None:
    question = {"freeze": lambda m, x: m.w.requires_grad, "gradient": lambda m, x: m.w.grad is None}[change]
    module, fast = compiled(question)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), module(X), rtol=0, atol=0)
        if change == "freeze":
            module.w.requires_grad_(False)  # type: ignore[union-attr]
        else:
            module.w.grad = torch.zeros(4)
        torch.testing.assert_close(fast(X), module(X), rtol=0, atol=0)
        torch.testing.assert_close(fast(X), X + 1, rtol=0, atol=0)
    fast.close()


def test_inference_tensors_are_calls_of_their_own() -> None:
    module, fast = compiled(lambda m, x: x.is_inference())
    with torch.inference_mode():
        made = X.clone()
    with torch.no_grad():
        for x in (X, made, X, made):
            torch.testing.assert_close(fast(x), module(x), rtol=0, atol=0)
    assert fast.report().answered >= 1
    fast.close()


def test_the_capture_process_has_the_command_line_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.runtime import capture_worker, torch_capture

    monkeypatch.setattr(sys, "argv", ["serve", "--fast"])
    import json

    hello = json.dumps({**torch_capture._hello(), "parent": os.getppid(), "recursion": 10 * sys.getrecursionlimit()})
    limit, path = sys.getrecursionlimit(), list(sys.path)
    monkeypatch.setattr(sys, "argv", ["worker"])
    try:
        capture_worker._greet(hello.encode())
        assert (sys.argv, sys.getrecursionlimit()) == (["serve", "--fast"], 10 * limit)
    finally:
        sys.setrecursionlimit(limit)
        sys.path[:] = path
