"""Capture off the request path: skeletons, traces and their shape classes, and a child process that may die at any time."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import hotfuse
from hotfuse.errors import CaptureError
from hotfuse.frontends import torch_code_record
from hotfuse.frontends.torch_attempt import attempts
from hotfuse.frontends.torch_code_record import CodeRecord
from hotfuse.frontends.torch_program import Trace
from hotfuse.frontends.torch_request import TraceRequest
from hotfuse.frontends.torch_skeleton import SMALL_BYTES, load_skeleton, make_skeleton
from hotfuse.frontends.torch_trace import trace
from hotfuse.passes import optimize
from hotfuse.rank import NICE
from hotfuse.runtime import torch_capture
from hotfuse.runtime.torch_guard import call_structure, describe_leaves, read_call

# skeletons


def rebuilt(content: Any) -> Any:
    return load_skeleton(make_skeleton(content)[0])


def test_a_skeleton_has_no_weights_but_small_values() -> None:
    large, small = torch.randn(SMALL_BYTES // 4), torch.randn(3, 4).t()
    data, tensors = make_skeleton([large, small])
    assert len(data) < 4000
    assert tensors == [large, small]
    got_large, got_small = load_skeleton(data)
    assert got_large.shape == large.shape
    torch.testing.assert_close(got_small, small)
    assert got_small.stride() == small.stride()


def test_ties_views_and_flags_survive() -> None:
    base = torch.randn(6)
    parameter = torch.nn.Parameter(torch.randn(2))
    frozen = torch.nn.Parameter(torch.randn(2), requires_grad=False)
    view, again, a, b, c, expanded = rebuilt([base[2:5], base, parameter, parameter, frozen, base[:1].expand(4)])
    assert a is b
    assert isinstance(a, torch.nn.Parameter)
    assert (a.requires_grad, c.requires_grad) == (True, False)
    assert view.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    torch.testing.assert_close(view, base[2:5])
    torch.testing.assert_close(expanded, base[:1].expand(4))


def test_lambdas_local_classes_and_recurrent_modules_can_be_sent() -> None:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = lambda x: x + 1
            self.rnn = torch.nn.LSTM(2, 2)

    assert rebuilt(Local()).act(1) == 2


def test_a_graph_that_make_fx_wrote_can_be_read_in_a_fresh_process() -> None:
    module = make_fx(lambda x: torch.relu(x) + 1)(torch.ones(2, 3))
    code = (
        "import sys; from hotfuse.frontends.torch_skeleton import load_skeleton; import torch;"
        "print(load_skeleton(sys.stdin.buffer.read())(-torch.ones(2)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=make_skeleton(module)[0], capture_output=True, timeout=120)
    assert done.stdout.decode().strip() == "[1.0, 1.0]", done.stderr.decode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (threading.Lock(), "cannot be sent"),
        (torch.zeros(2).to_sparse(), "layout"),
        (torch.zeros(2).as_subclass(type("Odd", (torch.Tensor,), {})), "type Odd"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "conjugated"),
    ],
)
def test_what_cannot_be_sent_is_refused(content: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        make_skeleton([content])


# traces and their shape classes


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.table = torch.nn.Parameter(torch.zeros(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.table[: x.shape[1]]


class EvenIsSpecial(Positions):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + 1 if x.shape[1] % 2 == 0 else y


class OneIsSpecial(Positions):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + 1 if x.shape[0] == 1 else y


class Squeezing(Positions):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).squeeze(0)


class AtLeastTwo(Positions):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * max(2, x.shape[0])


def traced(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Trace:
    leaves = describe_leaves(read_call(args, kwargs).leaves)
    request = TraceRequest(module.eval(), leaves, call_structure(args, kwargs), False, torch.float32)
    return trace(lambda: rebuilt(request), optimize)


@pytest.mark.parametrize(
    ("module", "example", "inside", "outside"),
    [
        (Positions, (1, 8, 4), [(1, 8, 4), (7, 32, 4), (2, 3, 4)], [(1, 33, 4), (0, 8, 4), (1, 8, 5), (1, 8)]),
        (Positions, (1, 1, 4), [(1, 1, 4), (5, 1, 4), (5, 9, 4)], [(5, 33, 4)]),
        (EvenIsSpecial, (3, 8, 4), [(2, 6, 4)], [(2, 7, 4), (1, 6, 4)]),
        (EvenIsSpecial, (3, 5, 4), [(2, 7, 4)], [(2, 6, 4)]),
        (OneIsSpecial, (1, 8, 4), [(1, 9, 4)], [(2, 8, 4)]),
        (OneIsSpecial, (3, 8, 4), [(2, 9, 4)], [(1, 8, 4)]),
        (Squeezing, (1, 8, 4), [(1, 9, 4)], [(2, 8, 4)]),
        (AtLeastTwo, (1, 8, 4), [(1, 9, 4), (2, 8, 4)], [(2, 33, 4)]),
    ],
)
def test_shape_classes(module: type, example: Any, inside: Any, outside: Any) -> None:
    found = traced(module(), torch.zeros(example)).shapes
    for shape in (example, *inside):
        assert found.check([shape]) == "", f"{shape} should be in {found}"
    for shape in outside:
        assert found.check([shape]), f"{shape} should not be in {found}"


@pytest.mark.parametrize("module", [Positions, EvenIsSpecial, OneIsSpecial, Squeezing, AtLeastTwo])
def test_every_shape_gets_eagers_answer_whatever_was_captured_first(module: type) -> None:
    model = module().eval()
    fast = hotfuse.compile(model, wait=True, capture="blocking")
    with torch.no_grad():
        for shape in ((1, 8, 4), (3, 8, 4), (1, 7, 4), (2, 7, 4), (1, 1, 4), (4, 1, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), model(x))
    assert fast.report().answered == 6


class Intricate(Positions):
    """Its answer depends on the second size in a way that takes long to reason about."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[1]
        for i in range(2, 40):
            size = (size * i + x.shape[1]) // (i + 1) + size % i
        return super().forward(x) * size


@pytest.mark.parametrize(("rows", "expected"), [(3, "[s77, 8, 4] where 2 <= s77"), (1, "[s77, 8, 4] where 1 <= s77")])
def test_sizes_that_take_too_long_to_reason_about_are_fixed(monkeypatch: pytest.MonkeyPatch, rows: int, expected: str) -> None:
    monkeypatch.setattr(torch_code_record, "SIZE_CALLS", 100_000)
    monkeypatch.setattr(torch_code_record, "SIZE_CALLS_EACH", 100)
    found = traced(Intricate(), torch.zeros(rows, 8, 4))
    assert str(found.shapes) == expected
    assert found.note.count("IntricateSizes") == 1, found.note  # other attempts that vary this size are not made
    assert sys.getprofile() is None


@pytest.mark.parametrize("unheard_s", [-1.0, 0.0])  # every call is heard, or all but those of the first torch function
def test_reasoning_about_sizes_that_never_ends_leaves_the_sizes_of_the_call(
    monkeypatch: pytest.MonkeyPatch, unheard_s: float
) -> None:
    monkeypatch.setattr(torch_code_record, "UNHEARD_S", unheard_s)
    monkeypatch.setattr(torch_code_record, "UNHEARD_EACH_S", 0.0)
    monkeypatch.setattr(torch_code_record, "SIZE_CALLS", 10)
    monkeypatch.setattr(torch_code_record, "SIZE_CALLS_EACH", 0)
    found = traced(Positions(), torch.zeros(3, 8, 4))
    assert str(found.shapes) == "[3, 8, 4]"


def test_what_cannot_be_traced_at_fixed_sizes_is_given_up_at_once() -> None:
    class Branching(Positions):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    with pytest.raises(CaptureError) as raised:
        traced(Branching(), torch.zeros(1, 1, 4))
    attempts_made = re.findall(r"^([a-z ]+): GuardOnDataDependentSymNode: ", raised.value.details, re.M)
    assert attempts_made == ["widened", "static"]


def test_attempts_go_from_general_to_special() -> None:
    def names(*tensors: torch.Tensor) -> list[str]:
        return [a.name for a in attempts(describe_leaves(tensors))]

    assert names(torch.zeros(1, 1, 4)) == ["widened", "batch widened", "dynamic", "batch", "static"]
    assert names(torch.zeros(1, 4)) == ["batch widened", "dynamic", "batch", "static"]
    assert names(torch.zeros(3, 4)) == ["dynamic", "batch", "static"]
    assert names(torch.zeros(3)) == ["batch", "static"]
    assert names(torch.zeros(())) == names(torch.zeros(0, 2)) == names() == ["static"]


def test_an_input_with_gaps_is_traced_as_it_is() -> None:
    found = traced(Positions(), torch.zeros(2, 8, 8)[..., ::2])
    assert str(found.shapes) == "[2, 8, 4]"


def test_a_weight_reached_around_its_module_is_refused() -> None:
    class Listed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.kept = [self.linear.weight]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) @ self.kept[0]

    module = Listed().eval()
    fast = hotfuse.compile(module, wait=True, capture="blocking")
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        module.linear.weight.mul_(2)
        torch.testing.assert_close(fast(x), module(x))


# the child process


class Misbehaving(torch.nn.Module):
    """Does what it is told when it is traced, and nothing when it is called."""

    def __init__(self, deed: str) -> None:
        super().__init__()
        self.deed = deed
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            if self.deed == "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif self.deed == "exit":
                os._exit(3)
            elif self.deed == "hang":
                time.sleep(1000)
            elif self.deed == "eat":
                kept = []
                while True:
                    kept.append(bytearray(os.urandom(1 << 20)))
            elif self.deed == "raise":
                raise SystemExit(5)
            elif self.deed == "print":
                print("noise" * 100, flush=True)
                os.write(1, b"more noise")
        return self.linear(x)


X = torch.randn(1, 4)


def call(deed: str, **options: Any) -> Any:
    module = Misbehaving(deed).eval()
    fast = hotfuse.compile(module, wait=True, **options)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), module(X))
    return fast.report()


@pytest.mark.parametrize("capture", ["background", "spawn"])
def test_a_capture_that_dies_hangs_or_eats_memory_costs_one_answer_nothing(
    capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_capture, "_workers", {})
    monkeypatch.setattr(torch_capture, "_lost", [])
    assert call("nothing", capture=capture).answered == 1
    ((kind, worker),) = torch_capture._workers.items()
    assert worker.process is not None
    assert kind.copy == (capture == "background")
    limit = torch_capture.resident_bytes(worker.process.pid) - worker.process._inherited_bytes + (300 << 20)
    cases = {
        "print": ({}, "forward prints: print in forward"),
        "raise": ({}, "SystemExit"),
        "hang": ({"capture_timeout_s": 3.0}, "capture_timeout_s"),
        "eat": ({"max_capture_bytes": limit}, "max_capture_bytes"),
        "die": ({}, "died"),
    }
    for deed, (options, reason) in cases.items():
        report = call(deed, capture=capture, **options)
        assert reason in report.failed["Misbehaving"], report
        assert report.events["capture.failed"] >= 1
        assert ("worker.died" in report.events) == (deed in ("hang", "eat", "die"))
    assert call("nothing", capture=capture).answered == 1
    assert bool(torch_capture._lost) == (capture == "background")


def children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def gone(pid: int, timeout_s: float = 20.0) -> bool:
    import psutil

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


SERVING = """
    import os, sys, time, torch, hotfuse
    model = torch.nn.Linear(4, 4).eval()
    fast = hotfuse.compile(model, wait=True)
    with torch.no_grad():
        fast(torch.randn(2, 4))
    assert fast.report().answered == 1, fast.report()
"""


def start(extra: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(SERVING) + textwrap.dedent(extra)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "end",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long), pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_no_orphan_is_left(end: signal.Signals) -> None:
    process = start("print('ready', flush=True); time.sleep(1000)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (child,) = children_of(process.pid)
    process.send_signal(end)
    process.wait(60)
    assert gone(child)


def test_a_forked_child_drops_the_capture_process() -> None:
    process = start("""
        pid = os.fork()
        if pid == 0:
            other = hotfuse.compile(torch.nn.Linear(2, 2).eval(), wait=True)
            with torch.no_grad():
                other(torch.randn(2, 2))
            os._exit(0 if other.report().answered == 1 else 1)
        _, status = os.waitpid(pid, 0)
        again = hotfuse.compile(torch.nn.Linear(3, 3).eval(), wait=True)
        with torch.no_grad():
            again(torch.randn(2, 3))
        print(os.waitstatus_to_exitcode(status), again.report().answered, flush=True)
    """)
    output, _ = process.communicate(timeout=240)
    assert output == "0 1\n"


def test_the_capture_process_runs_at_low_priority_and_nobody_waits_for_it() -> None:
    import psutil

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    fast = hotfuse.compile(model)
    with torch.no_grad():
        started = time.perf_counter()
        fast(X)
        assert time.perf_counter() - started < 0.5
    assert fast.settle(120)
    (worker,) = [w.process for kind, w in torch_capture._workers.items() if not kind.urgent]
    assert worker is not None
    assert psutil.Process(worker.pid).nice() == min(os.nice(0) + NICE, 19)
    assert len(fast.report().classes) == 1


class Drawing(torch.nn.Module):
    """Adds a number that comes from outside of torch."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import random
        import time

        import numpy as np

        return x + {"random": random.random, "numpy": lambda: float(np.random.rand()), "clock": time.time}[self.source]()


@pytest.mark.parametrize(("source", "message"), [("random", "random numbers"), ("numpy", "random numbers"), ("clock", "clock")])
def test_numbers_from_outside_of_torch_are_never_baked_in(source: str, message: str) -> None:
    fast = hotfuse.compile(Drawing(source), wait=True, capture="blocking")
    x = torch.zeros(2)
    with torch.no_grad():
        assert not torch.equal(fast(x), fast(x)) or source == "clock"
    assert fast.report().answered == 0
    assert any(message in event.reason for event in fast._hotfuse.events.of("capture.failed"))
    fast.close()


def test_hooks_of_the_garbage_collector_are_no_part_of_a_forward_pass() -> None:
    seen = []

    def times_collections(phase: str, _: object) -> None:
        seen.append((phase, time.perf_counter()))

    def forward() -> None:
        gc.collect()
        time.sleep(0)

    gc.callbacks.append(times_collections)
    try:
        with CodeRecord() as record:
            forward()
    finally:
        gc.callbacks.remove(times_collections)
    assert len(seen) == 2
    assert record.outside == ""
    codes = record.keys()
    names = {name.rpartition(".")[2] for _, name, _ in codes}
    assert "forward" in names
    assert "times_collections" not in names


def test_torchs_own_functions_are_not_listened_to_and_what_they_are_given_to_call_is() -> None:
    x = torch.zeros(2, 3)

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        time.time()
        return (a - b).sum(-1)

    def mine(a: torch.Tensor) -> torch.Tensor:
        return a + 1

    loss = torch.nn.functional.triplet_margin_with_distance_loss
    with CodeRecord() as record:
        record.run(torch.nn.functional.softmax, (), (x,), {"dim": -1})
        record.run(torch.add, (), (x, x), {})
        assert sys.getprofile() is not None
        assert torch.nn.functional.softmax.__code__ not in record._codes.values()
        record.run(mine, (), (x,), {})
        assert record.outside == ""
        record.run(loss, (), (x, x, x), {"distance_function": distance})
    codes = record.keys()
    names = {name.rpartition(".")[2] for _, name, _ in codes}
    assert {"mine", "distance"} <= names
    assert record.outside.startswith("reads the clock")
