"""Calls whose inputs are looked at in native code: right for their form, and nothing for any other."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import hotfuse
from hotfuse.runtime import array_call
from hotfuse.runtime.session import Session

Array = np.ndarray[Any, Any]
TABLE = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Rows of a table, scaled: y = table[ids] * x."""
    graph = oh.make_graph(
        [oh.make_node("Gather", ["table", "ids"], ["rows"]), oh.make_node("Mul", ["rows", "x"], ["y"])],
        "small",
        [oh.make_tensor_value_info("ids", 7, ["n"]), oh.make_tensor_value_info("x", 1, ["n", 6])],
        [oh.make_tensor_value_info("y", 1, ["n", 6])],
        [onnx.numpy_helper.from_array(TABLE, "table")],
    )
    path = tmp_path / "small.onnx"
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8), path)
    return hotfuse.load(path, tier=1, wait=True)


def feeds(n: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"ids": rng.integers(0, 20, n), "x": rng.standard_normal((n, 6)).astype(np.float32)}


def want(given: dict[str, Array]) -> Array:
    return np.asarray(TABLE[given["ids"]] * given["x"])


def is_quick(session: Session) -> bool:
    return session._best.short._last is not None


def test_calls_of_one_form_and_of_others_in_turn(session: Session) -> None:
    for seed, n in enumerate((5, 5, 5, 1, 5, 1, 1, 8, 5)):
        given = feeds(n, seed)
        np.testing.assert_array_equal(session.run(None, given)[0], want(given))
    assert is_quick(session) == array_call.heads_are_known()


def test_what_is_no_plain_array_of_the_form_goes_another_way(session: Session) -> None:
    given = feeds(4)
    for _ in range(3):
        session.run(None, given)

    class Own(np.ndarray[Any, Any]):
        pass

    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = given["x"]
    others = (
        {**given, "x": np.asfortranarray(given["x"])},
        {**given, "x": wide[:, ::2]},
        {**given, "x": given["x"].view(Own)},
        {**given, "ids": given["ids"].tolist()},
    )
    for other in others:
        np.testing.assert_array_equal(session.run(None, other)[0], want(given))
    with pytest.raises(hotfuse.HotfuseError):
        session.run(None, {**given, "x": given["x"].astype(np.float64)})
    with pytest.raises(hotfuse.HotfuseError):
        session.run(None, {**given, "x": given["x"][:, :5].copy()})
    with pytest.raises(hotfuse.HotfuseError):
        session.run(None, {"ids": given["ids"], "other": given["x"]})
    with pytest.raises(hotfuse.HotfuseError):
        session.run(None, {"ids": given["ids"], "x": None})
    np.testing.assert_array_equal(session.run(None, given)[0], want(given))


def test_an_index_out_of_range_is_tier_0s_error_and_forgotten(session: Session) -> None:
    given = feeds(4)
    for _ in range(3):
        session.run(None, given)
    for _ in range(2):
        with pytest.raises(hotfuse.HotfuseError, match=r"Gather|gather"):
            session.run(None, {**given, "ids": np.array([0, 1, 20, 2])})
        np.testing.assert_array_equal(session.run(None, given)[0], want(given))


def test_answers_are_the_callers_own(session: Session) -> None:
    given = feeds(4)
    answers = [session.run(None, given)[0] for _ in range(10)]
    for number, answer in enumerate(answers):
        answer[:] = number
    assert [float(a[0, 0]) for a in answers] == [float(n) for n in range(10)]


def test_many_threads_on_one_form(session: Session) -> None:
    session.run(None, feeds(4))
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = feeds(4, seed)
        right = want(given)
        for turn in range(2000):
            if not np.array_equal(session.run(None, given)[0], right):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_counted_twice(session: Session) -> None:
    given = feeds(4)
    for _ in range(10):
        session.run(None, given)
    watched = (True, False, None, given["x"], given["ids"], given["x"].dtype)
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(5000):
        session.run(None, given)
    after = [sys.getrefcount(thing) for thing in watched]
    assert all(abs(b - a) < 50 for a, b in zip(before, after, strict=True))


def test_a_session_that_is_closed_amid_calls(session: Session) -> None:
    given = feeds(4)
    right = want(given)
    session.run(None, given)
    ends: list[str] = []

    def work() -> None:
        try:
            while True:
                assert np.array_equal(session.run(None, given)[0], right)
        except hotfuse.HotfuseError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    session.close()
    for thread in threads:
        thread.join()
    assert all("closed" in end for end in ends)
    assert len(ends) == 4


def test_without_known_heads_the_table_answers(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    import hotfuse.runtime.array_call

    monkeypatch.setattr(hotfuse.runtime.array_call, "heads_are_known", lambda: False)
    given = feeds(4)
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, given)[0], want(given))
    assert not is_quick(session)


def test_first_calls_of_many_threads_at_once() -> None:
    """In a process of its own: the native code must not be there yet."""
    code = """
import sys, threading
import numpy as np, onnx.parser
import hotfuse

sys.setswitchinterval(1e-6)
text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Mul(x, x) }'
sessions = [hotfuse.load(onnx.parser.parse_model(text), tier=1, wait=True) for _ in range(4)]
start = threading.Barrier(16)
wrong = []

def work(number):
    x = np.full(3 + number % 3, number, np.float32)
    start.wait()
    for _ in range(300):
        (y,) = sessions[number % 4].run(None, {"x": x})
        if y.shape != x.shape or not np.array_equal(y, x * x):
            wrong.append(number)

threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "0"), found.stderr


def test_a_closed_session_answers_nobody(session: Session) -> None:
    given = feeds(4)
    threads = [threading.Thread(target=_until_closed, args=(session, given)) for _ in range(4)]
    for thread in threads:
        thread.start()
    session.close()
    for thread in threads:
        thread.join()
    with pytest.raises(hotfuse.HotfuseError, match="closed"):
        session.run(None, given)


def _until_closed(session: Session, given: dict[str, Array]) -> None:
    with contextlib.suppress(hotfuse.HotfuseError):
        while True:
            session.run(None, given)
