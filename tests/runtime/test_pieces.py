"""Costly operators in pieces: the same numbers, whoever computes them, and no thread that is waited for in vain."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotfuse.ir.op import OPS
from hotfuse.runtime import pieces
from hotfuse.runtime.pieces import COSTLY, FEWEST, PIECE, in_pieces

Array = np.ndarray[Any, Any]
LARGE = FEWEST * PIECE + 77


@pytest.fixture(autouse=True)
def _helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "team_size", lambda spec: 2)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(dtype)


@pytest.mark.parametrize("name", sorted(COSTLY))
def test_pieces_are_the_whole(name: str) -> None:
    reference: Any = OPS[name].reference
    x = numbers(3, LARGE // 3 + 1) + (1 if name == "acosh" else 0)
    for dtype in (np.float32, np.float64, np.float16):
        given = x.astype(dtype)
        got, want = in_pieces(reference)(given), reference(given)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == np.float16 else 1e-6)


def test_every_costly_operator_takes_one_array_and_keeps_its_type() -> None:
    for name in COSTLY:
        assert OPS[name].pattern.name == "ELEMENTWISE"
        assert not OPS[name].many


def counted(seen: list[tuple[int, str]]) -> Callable[..., Any]:
    def run(x: Array, out: Array | None = None) -> Array:
        seen.append((x.size, threading.current_thread().name))
        time.sleep(0.002)
        return np.negative(x, out=out)

    return run


def test_a_helper_takes_pieces_of_large_arrays() -> None:
    seen: list[tuple[int, str]] = []
    x = numbers(20 * PIECE)
    np.testing.assert_array_equal(in_pieces(counted(seen))(x), -x)
    assert [size for size, _ in seen] == [PIECE] * 20
    assert {name for _, name in seen} == {threading.current_thread().name, "hotfuse-pieces"}


@pytest.mark.parametrize(
    "x", [numbers(LARGE)[::2], numbers(PIECE), np.arange(LARGE), numbers(2, LARGE).T, np.float32(3)], ids=lambda x: str(x.shape)
)
def test_other_arrays_are_computed_whole(x: Any) -> None:
    seen: list[tuple[int, str]] = []
    np.testing.assert_array_equal(in_pieces(counted(seen))(x), -x)
    assert len(seen) == 1


def test_memory_that_is_given_is_written_to() -> None:
    x = numbers(LARGE)
    for out in (np.empty(LARGE, np.float32), np.empty(2 * LARGE, np.float32)[::2]):
        assert in_pieces(counted([]))(x, out=out) is out
        np.testing.assert_array_equal(out, -x)


def test_an_error_reaches_the_caller_and_helpers_go_on() -> None:
    def fail(x: Array) -> Array:
        if x[0] > 0:
            raise ZeroDivisionError("planted")
        return x

    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="planted"):
            in_pieces(fail)(numbers(LARGE))
    seen: list[tuple[int, str]] = []
    in_pieces(counted(seen))(numbers(20 * PIECE))
    assert len({name for _, name in seen}) == 2


def test_a_helper_that_has_no_time_is_not_waited_for() -> None:
    gate = threading.Event()
    busy = pieces._Ask(lambda: gate.wait(30))  # type: ignore[arg-type, return-value]
    pieces._helpers()
    pieces._WORK.put(busy)
    seen: list[tuple[int, str]] = []
    begun = time.monotonic()
    in_pieces(counted(seen))(numbers(LARGE))
    assert time.monotonic() - begun < 20
    assert {name for _, name in seen} == {threading.current_thread().name}
    gate.set()


def test_callers_at_a_time_do_not_mix_their_pieces() -> None:
    arrays = [numbers(LARGE) + i for i in range(6)]
    found: list[Any] = [None] * 6

    def call(i: int) -> None:
        for _ in range(10):
            found[i] = in_pieces(np.tanh)(arrays[i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, x in zip(found, arrays, strict=True):
        np.testing.assert_allclose(got, np.tanh(x), rtol=1e-6)


def test_who_has_one_thread_for_products_has_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    seen: list[tuple[int, str]] = []
    in_pieces(counted(seen))(numbers(LARGE))
    assert {name for _, name in seen} == {threading.current_thread().name}


def test_a_forked_child_has_helpers_of_its_own() -> None:
    in_pieces(np.tanh)(numbers(LARGE))
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        seen: list[tuple[int, str]] = []
        in_pieces(counted(seen))(numbers(20 * PIECE))
        os._exit(len({name for _, name in seen}))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
