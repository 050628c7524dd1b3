"""Memory of results: handed out again only when nobody can see it any more."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch

from hotfuse.ir.types import F32, tensor
from hotfuse.runtime import output_pool
from hotfuse.runtime.output_pool import KEPT, OutputPool, fast_address


def test_what_was_dropped_is_used_again() -> None:
    pool = OutputPool(tensor(F32, 5, 1000))
    first, address = pool()
    assert first.shape == (5, 1000)
    assert address % 64 == 0
    assert first.ctypes.data == address
    del first
    again, same = pool()
    assert same == address
    assert again.flags.writeable


def test_what_is_held_in_any_way_is_not() -> None:
    pool = OutputPool(tensor(F32, 4, 100))
    holders = (
        lambda a: a,
        lambda a: a[1:],
        lambda a: a[1:].T[::2],
        lambda a: a.reshape(-1),
        lambda a: torch.from_numpy(a),
        lambda a: torch.from_numpy(a)[2:],
        lambda a: memoryview(a),
        lambda a: a.base,
        lambda a: {"kept": [a.view(np.int32)]},
    )
    for hold in holders:
        array, address = pool()
        array[:] = 7
        kept = hold(array)
        del array
        others = [pool() for _ in range(KEPT + 1)]
        assert address not in [other for _, other in others]
        del kept, others


def test_no_more_than_a_few_are_kept() -> None:
    pool = OutputPool(tensor(F32, 100))
    held = [pool() for _ in range(10)]
    assert len({address for _, address in held}) == 10
    assert len(pool._kept) == KEPT


def test_threads_never_share_an_array() -> None:
    pool = OutputPool(tensor(F32, 64))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(3000):
            array, _ = pool()
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_fast_address_is_the_address() -> None:
    address = fast_address()
    for array in (np.zeros(3), np.zeros((2, 3))[:, 1:], np.arange(10)[::-1], np.zeros(0, np.int8)):
        assert address(array) == array.ctypes.data or not array.size


def test_what_a_caller_did_to_an_array_does_not_come_back() -> None:
    pool = OutputPool(tensor(F32, 4, 2))
    array, address = pool()
    array.shape = (8,)
    array.dtype = np.dtype(np.int32)
    array.setflags(write=False)
    del array
    again, same = pool()
    assert same == address
    assert (again.shape, again.dtype, again.flags.writeable) == ((4, 2), np.float32, True)


def test_of_large_arrays_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pool, "KEPT_BYTES", 500)
    pool = OutputPool(tensor(F32, 100))
    held = [pool() for _ in range(3)]
    assert len(pool._kept) == 1
    del held
    assert pool()[1] == pool._kept[0][2]


def test_all_pools_together_keep_so_much_and_the_last_asked_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pool, "ALL_BYTES", 1000)
    monkeypatch.setattr(output_pool, "RECENT_S", 0.0)
    monkeypatch.setattr(output_pool, "_POOLS", weakref.WeakSet())
    pools = [OutputPool(tensor(F32, 100)) for _ in range(4)]  # 400 bytes each
    for which in (0, 1, 0, 2):
        pools[which]()
    assert [len(pool._kept) for pool in pools] == [1, 0, 1, 0]
    held = pools[2]()[0]
    huge = OutputPool(tensor(F32, 1000))
    array, address = huge()
    assert [len(pool._kept) for pool in pools] == [0] * 4
    del array
    assert huge()[1] == address
    assert pools[2]()[1] != held.ctypes.data  # a caller's stays a caller's


def test_what_was_asked_for_just_now_is_kept_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with many large results asks for all of them again and again."""
    monkeypatch.setattr(output_pool, "ALL_BYTES", 1000)
    monkeypatch.setattr(output_pool, "RECENT_S", 60.0)
    monkeypatch.setattr(output_pool, "_POOLS", weakref.WeakSet())
    pools = [OutputPool(tensor(F32, 200)) for _ in range(4)]
    first = [pool()[1] for pool in pools]
    assert [pool()[1] for pool in pools] == first


def test_a_caller_that_comes_while_room_is_made_gets_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = OutputPool(tensor(F32, 100))
    others: list[tuple[np.ndarray, int]] = []
    monkeypatch.setattr(output_pool, "_make_room", lambda made: len(others) > 4 or others.append(pool()))
    _, address = pool()
    assert others
    assert address not in [other for _, other in others]
