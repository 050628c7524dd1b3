"""Loops of model files that have no end, or that collect without an end: a clear error, in bounded time and memory."""

from __future__ import annotations

import signal
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import hotfuse
from hotfuse.errors import LimitExceeded

FAR = 2**63 - 1
X = np.ones(1000, np.float32)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')


def endless(trip: str = '""') -> onnx.ModelProto:
    return model(
        f"""g (float[1000] x) => (y) <bool yes = {{1}}, int64 far = {{{FAR}}}> {{
            y = Loop ({trip}, yes, x) <body = b (int64 i, bool c, float[1000] v) => (bool c2, float[1000] v2) {{
                c2 = Identity(c)  v2 = Neg(v) }}> }}"""
    )


@pytest.mark.parametrize(("trip", "told"), [('""', "no trip count"), ("far", "a very high trip count")])
def test_a_loop_without_end_is_ended(trip: str, told: str) -> None:
    session = hotfuse.load(endless(trip), max_loop_rounds=200)
    with pytest.raises(LimitExceeded, match=f"Loop.*did not end after 200 rounds.*{told}.*max_loop_rounds"):
        session.run(None, {"x": X})


def test_a_loop_of_as_many_rounds_as_allowed_runs() -> None:
    body = "b (int64 i, bool c, float[1000] v) => (bool c2, float[1000] v2) { c2 = Identity(c)  v2 = Neg(v) }"
    text = f'g (float[1000] x, int64 n) => (y) {{ y = Loop (n, "", x) <body = {body}> }}'
    session = hotfuse.load(model(text), max_loop_rounds=7)
    (y,) = session.run(None, {"x": X, "n": np.array(7)})
    assert np.array_equal(y, -X)
    with pytest.raises(LimitExceeded, match="max_loop_rounds"):
        session.run(None, {"x": X, "n": np.array(8)})


def test_a_loop_without_end_can_be_interrupted() -> None:
    session = hotfuse.load(endless())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": X})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


COLLECTING = {
    "scan outputs": (
        """g (float[1000] x) => (v, y) <bool yes = {1}> {
            v, y = Loop ("", yes, x) <body = b (int64 i, bool c, float[1000] v) => (bool c2, float[1000] v2, float[1000] out) {
                c2 = Identity(c)  v2 = Neg(v)  out = Identity(v) }> }""",
        "collects is more than 1,000,000 bytes after 2",
    ),
    "scalar scan outputs": (
        """g (float[1000] x) => (v, y) <bool yes = {1}> {
            v, y = Loop ("", yes, x) <body = b (int64 i, bool c, float[1000] v) => (bool c2, float[1000] v2, int64 out) {
                c2 = Identity(c)  v2 = Identity(v)  out = Identity(i) }> }""",
        "collects is more than 1,000,000 bytes after 7,",
    ),
    "a growing sequence": (
        """g (float[1000] x) => (y) <bool yes = {1}> { s = SequenceEmpty()
            y = Loop ("", yes, s) <body = b (int64 i, bool c, seq(float[1000]) v) => (bool c2, seq(float[1000]) v2) {
                c2 = Identity(c)  v2 = SequenceInsert(v, x) }> }""",
        "sequence_insert would hold 1,00[0-9],000 bytes",
    ),
    "a growing tensor": (
        """g (float[1000] x) => (y) <bool yes = {1}> {
            y = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c2, float[m] v2) {
                c2 = Identity(c)  v2 = Concat <axis = 0> (v, v) }> }""",
        "concat would make",
    ),
    "a sequence joined anew and again": (
        """g (float[1000] x) => (y) <bool yes = {1}> {
            y = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c2, float[m] v2) {
                c2 = Identity(c)  s = SequenceConstruct(v, v)  v2 = ConcatFromSequence <axis = 0> (s) }> }""",
        "sequence would hold",
    ),
}


@pytest.mark.parametrize("name", COLLECTING)
def test_a_loop_that_collects_without_end_is_refused(name: str) -> None:
    text, told = COLLECTING[name]
    session = hotfuse.load(model(text), max_value_bytes=1_000_000)
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match=f"{told}.*max_value_bytes"):
        session.run(None, {"x": X})
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_a_joined_sequence_has_a_limit() -> None:
    text = "g (seq(float[1000]) s) => (y) { y = ConcatFromSequence <axis = 0> (s) }"
    session = hotfuse.load(model(text), max_value_bytes=1_000_000)
    (y,) = session.run(None, {"s": [X] * 250})
    assert y.shape == (250_000,)
    with pytest.raises(LimitExceeded, match=r"concat_from_sequence would hold 1,004,000 bytes.*max_value_bytes"):
        session.run(None, {"s": [X] * 251})


def test_a_scan_has_the_limit_of_a_loop() -> None:
    text = """g (float[100] x, float[1000] w) => (y, z) { y, z = Scan <num_scan_inputs = 1, body =
        b (float v) => (float[1000] p, float[1000] q) { p = Mul(v, w)  q = Add(v, w) }> (x) }"""
    session = hotfuse.load(model(text), max_value_bytes=500_000)
    with pytest.raises(LimitExceeded, match="scan collects is more than 500,000 bytes"):
        session.run(None, {"x": np.ones(100, np.float32), "w": X})


def test_results_are_not_there_twice_when_they_are_stacked() -> None:
    text = """g (float[1000] x, int64 n) => (y) { v, y = Loop (n, "", x) <body =
        b (int64 i, bool c, float[1000] v) => (bool c2, float[1000] v2, float[1000] out) {
            c2 = Identity(c)  v2 = Neg(v)  out = Abs(v) }> }"""
    session = hotfuse.load(model(text))
    session.run(None, {"x": X, "n": np.array(2)})
    tracemalloc.start()
    (y,) = session.run(None, {"x": X, "n": np.array(5000)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert y.shape == (5000, 1000)
    assert np.array_equal(y, np.ones_like(y))
    assert peak < 2.2 * y.nbytes  # the memory of the result is counted in full before it is touched


def test_a_caller_owns_a_sequence_that_came_out_of_a_loop() -> None:
    text = """g (float[1000] x, int64 n) => (y) { s = SequenceConstruct(x)
        y = Loop (n, "", s) <body = b (int64 i, bool c, seq(float[1000]) v) => (bool c2, seq(float[1000]) v2) {
            c2 = Identity(c)  v2 = SequenceInsert(v, x) }> }"""
    x = X.copy()
    (y,) = hotfuse.load(model(text)).run(None, {"x": x, "n": np.array(3)})
    assert len(y) == 4
    x[:] = 9
    y[0][:] = 7
    assert all(np.array_equal(v, X) for v in y[1:])
