"""Sampling: what traces cost stays within their share, by the sampler's own reckoning, on paper and on a real session."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hotfuse
from hotfuse.adaptive.profile import Profile
from hotfuse.adaptive.sampling import AIM, GUESS_S, LONG_WAY_S, Sampler, Sampling
from hotfuse.runtime.session import Session

MODEL = """<ir_version: 10, opset_import: ["": 21]>
    two (float[n, 64] x) => (float[n, 64] y) <float[64, 64] w> { h = MatMul(x, w)  y = Relu(h) }"""


@pytest.fixture(scope="module")
def session() -> Session:
    model = onnx.parser.parse_model(MODEL)
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    return hotfuse.load(model, tier=1, wait=True, strict=True)


seconds = st.floats(1e-7, 1e-1)


@given(st.lists(st.tuples(st.integers(1, 10_000), seconds, seconds, st.floats(0, 1e-3)), max_size=60))
def test_what_traces_cost_is_paid_for(rounds: list[tuple[int, float, float, float]]) -> None:
    """Before a trace all of them are paid for, that one included if it costs what was expected."""
    sampling, calls, taken = Sampling(), 0, 0.0
    for count, inside_s, around_s, handling_s in rounds:
        calls, taken = calls + count, taken + count * inside_s
        if not sampling.is_due(calls, taken):
            continue
        assert sampling.cost(calls, taken) <= AIM * sampling.share
        before, expected = sampling, sampling.next_s
        sampling = sampling.after(inside_s, around_s, handling_s)
        cost = sampling.spent_s - before.spent_s
        assert cost >= around_s + LONG_WAY_S + handling_s - 1e-9
        excess = max(0.0, cost - expected)
        assert before.spent_s + cost <= AIM * sampling.share * before._time_s(calls, taken) + excess + 1e-9


def test_one_call_in_so_many() -> None:
    sampling = Sampling(share=0.01)
    assert not sampling.is_due(10**6, GUESS_S / 0.01 / AIM * 0.99)
    assert sampling.is_due(1, GUESS_S / 0.01 / AIM * 1.01)
    sampling = sampling.after(50e-6, 200e-6 - LONG_WAY_S)
    assert sampling.every == 534  # 200 us more than a call of 50 us takes
    assert [sampling.is_due(calls, 1e9) for calls in (1066, 1068)] == [False, True]
    quicker = sampling.after(5e-6, 20e-6)
    assert quicker.every > 5 * sampling.every  # small calls pay for few traces
    assert quicker.next_s == pytest.approx(180e-6)  # the dearest fades


def test_a_real_session_is_traced_within_the_bound(session: Session) -> None:
    """Asked all the time: whenever another trace is due, those before it cost no more than their share of the calls' time. A
    tenth, for a hundredth takes ten times as long to test."""
    profile, work = Profile(), queue.SimpleQueue[Callable[[], None]]()
    sampler = Sampler(profile, work.put, share=0.1)
    feeds = {"x": np.ones((200, 64), np.float32)}
    (expected,) = session.run(None, feeds)
    executor, costs, deadline = session._best.executor, [], time.monotonic() + 60
    while len(costs) < 5 and time.monotonic() < deadline:
        before, begun = session.calls, time.perf_counter()
        for _ in range(50):
            (found,) = session.run(None, feeds)
        np.testing.assert_array_equal(found, expected)
        profile.count("p", "((200, 64),)", session.calls - before, time.perf_counter() - begun, time.monotonic())
        while not work.empty():
            work.get()()
        if sampler.ask("p", executor):
            costs += [sampled.cost for sampled in sampler.sampled()]
            session.look_at_next()
    assert len(costs) == 5
    assert max(costs) <= 0.1
    assert costs[0] == 0 < costs[1]
    (sampled,) = sampler.sampled()
    (use,) = profile.uses(time.monotonic())
    assert use.count == sampled.calls
    assert use.traced == sampled.traces == 4
    assert sampled.every > 10
    sampler.forget("p")
    assert sampler.sampled() == profile.uses(0.0) == ()
    executor.watch_next(None)


def test_a_trace_that_comes_when_its_plan_is_forgotten_is_dropped(session: Session) -> None:
    profile, work = Profile(), queue.SimpleQueue[Callable[[], None]]()
    sampler, feeds = Sampler(profile, work.put), {"x": np.ones((4, 64), np.float32)}
    session.run(None, feeds)
    profile.count("p", "", 1000, 1.0, 0.0)
    assert sampler.ask("p", session._best.executor)
    session.look_at_next()
    session.run(None, feeds)
    sampler.forget("p")
    work.get()()
    assert profile.traces == ()
