"""Profiles: every step is timed in every call, and the session that serves is left as it was."""

from __future__ import annotations

import time

import numpy as np
import onnx.parser

import hotfuse
from hotfuse.ir.graph import Node
from hotfuse.runtime.binding import BoundPlan, Step
from hotfuse.runtime.profiler import StepTime, timed_plan

MODEL = """<ir_version: 10, opset_import: ["": 21]>
    two (float[n, 64] x) => (float[n, 64] y) { h = Relu(x)  y = Exp(h) }"""


def test_each_step_is_timed_in_each_call() -> None:
    session = hotfuse.load(onnx.parser.parse_model(MODEL))
    feeds = {"x": np.ones((8, 64), np.float32)}
    (before,) = session.run(None, feeds)
    found = session.profile(feeds, calls=4)
    assert [step.node.op for step in found] == ["relu", "exp"]
    assert all(len(step.seconds) == 4 and min(step.seconds) > 0 for step in found)
    (after,) = session.run(None, feeds)
    np.testing.assert_array_equal(before, after)


def test_the_clock_is_around_the_function_alone() -> None:
    node = Node("relu", ("x",), ("y",))
    plan = BoundPlan((Step(lambda x: time.sleep(0.02) or x, (1,), (2,), (), False, -1, node, False),), (), (), (), (), 0, {})
    times: list[list[float]] = [[]]
    assert timed_plan(plan, times).steps[0].function(5) == 5
    assert 0.02 <= times[0][0] < 0.5
    assert plan.steps[0].function is not timed_plan(plan, times).steps[0].function


def test_the_median_is_the_middle_call() -> None:
    assert StepTime(Node("relu", (), ("y",)), (3.0, 1.0, 100.0)).median_s == 3.0
