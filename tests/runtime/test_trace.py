"""Traces: what a call ran, in order, what it took and what it cost, and a call that is none the wiser."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hotfuse
from hotfuse.errors import InputError
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.session import Session
from hotfuse.runtime.trace import Trace
from hotfuse.runtime.tracer import Outlines, Tracer

MIXED = """<ir_version: 10, opset_import: ["": 21]>
    mixed (float[n, 64] x) => (float[n, 8] y)
    <float[64, 32] w, int64[1] k = {8}> { h = MatMul(x, w)  s, i = TopK(h, k)  y = Exp(s) }"""
TABLE = """<ir_version: 10, opset_import: ["": 21]>
    table (int64[n] x) => (float[n, 64] y) <float[1000, 64] w> { h = Gather(w, x)  y = Exp(h) }"""


def load(text: str, **sizes: tuple[int, ...]) -> Session:
    """At tier 1, with random weights of these sizes."""
    model = onnx.parser.parse_model(text)
    for name, shape in sizes.items():
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return hotfuse.load(model, tier=1, wait=True, strict=True)


def executor_of(session: Session) -> Executor:
    return session._best.executor


def traced(session: Session, feeds: dict[str, Any]) -> tuple[list[Any], Trace]:
    session.run(None, feeds)
    found: list[Tracer] = []
    executor_of(session).watch_next(Tracer(executor_of(session), found.append))
    session.look_at_next()
    results = session.run(None, feeds)
    (tracer,) = found
    return results, tracer.trace("plan", Outlines().of(tracer))


@pytest.fixture(scope="module")
def mixed() -> Session:
    return load(MIXED, w=(64, 32))


def rows(n: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)}


def test_units_and_tier_0_s_nodes_are_there_in_order(mixed: Session) -> None:
    results, trace = traced(mixed, rows(48))
    np.testing.assert_array_equal(results[0], mixed.run(None, rows(48))[0])
    assert [piece.kind for piece in trace.pieces] == ["kernels", "topk", "kernels"]
    assert len(set(trace.units)) == 3
    assert trace.form == "((48, 64),)"
    assert all(time.seconds > 0 and time.busy_s > 0 and time.threads >= 1 for time in trace.times)
    assert trace.inside_s < trace.seconds
    assert 0 < trace.outside_cpu_s < trace.seconds
    assert 0 < trace.inside_cpu_s < trace.seconds


@pytest.mark.parametrize("n", [3, 200])
def test_flops_and_bytes_are_those_of_the_sizes_at_hand(mixed: Session, n: int) -> None:
    _, trace = traced(mixed, rows(n))
    product, _, last = trace.pieces
    assert product.flops == 2 * n * 64 * 32
    assert product.bytes_moved == 4 * (n * 64 + 64 * 32 + n * 32)
    assert last.bytes_moved == 2 * 4 * n * 8  # what stays inside of a unit is not moved
    assert product.kernels == last.kernels == 1


def test_of_a_table_only_the_rows_that_are_read_are_moved() -> None:
    for config in ({"tier": 1, "wait": True}, {"tier": 0}):
        model = onnx.parser.parse_model(TABLE)
        values = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
        _, trace = traced(hotfuse.load(model, **config), {"x": np.arange(5)})
        moved = sum(piece.bytes_moved for piece in trace.pieces)
        assert 4 * 64 * 5 * 2 <= moved <= 4 * 64 * 5 * 4 + 8 * 5


def test_one_call_is_watched_and_no_other(mixed: Session) -> None:
    found: list[Tracer] = []
    executor = executor_of(mixed)
    executor.watch_next(Tracer(executor, found.append))
    executor.watch_next(Tracer(executor, found.append))
    for _ in range(3):
        mixed.run(None, rows(4))
    assert len(found) == 1
    executor.watch_next(Tracer(executor, found.append))
    executor.watch_next(None)
    mixed.run(None, rows(4))
    assert len(found) == 1


def test_of_many_callers_one_is_watched(mixed: Session) -> None:
    executor, found, feeds = executor_of(mixed), [], rows(16)
    (expected,) = mixed.run(None, feeds)
    wrong: list[int] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            if not np.array_equal(mixed.run(None, feeds)[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for asked in range(1, 20):
            executor.watch_next(Tracer(executor, found.append))
            deadline = time.monotonic() + 10
            while len(found) < asked and time.monotonic() < deadline:
                time.sleep(1e-4)
            assert len(found) == asked
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(found) == 19
    outlines = Outlines()
    assert {tracer.trace("p", outlines.of(tracer)).units for tracer in found} == {traced(mixed, feeds)[1].units}


def test_a_call_that_fails_is_not_reported() -> None:
    session, found = load(TABLE, w=(1000, 64)), []
    session.run(None, {"x": np.arange(5)})
    executor = executor_of(session)
    executor.watch_next(Tracer(executor, found.append))
    session.look_at_next()
    with pytest.raises((InputError, hotfuse.errors.HotfuseError)):
        session.run(None, {"x": np.array([5000])})
    session.run(None, {"x": np.arange(5)})
    assert found == []


def test_an_outline_is_made_once_and_never_taken_from_another_plan(mixed: Session) -> None:
    found: list[Tracer] = []
    executor, outlines = executor_of(mixed), Outlines()
    for n in (6, 6, 7):
        executor.watch_next(Tracer(executor, found.append))
        mixed.run(None, rows(n))
    first, again, other = map(outlines.of, found)
    assert first is again
    assert other.form == "((7, 64),)"

    class Gone:
        pass

    outlines._known[id(found[0].bound)] = weakref.ref(Gone()), other  # type: ignore[assignment]
    assert outlines.of(found[0]).form == "((6, 64),)"


def test_a_tracer_that_waits_does_not_hold_its_executor() -> None:
    session = load(MIXED, w=(64, 32))
    session.run(None, rows(4))
    executor = executor_of(session)
    executor.watch_next(Tracer(executor, lambda tracer: None))
    gone = weakref.ref(executor)
    session.close()
    del session, executor
    assert gone() is None
