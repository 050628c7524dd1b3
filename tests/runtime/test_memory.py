"""Arena planning: no two values that live together share a byte, and memory is reused."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.ir.arena import ALIGNMENT, Interval, plan_arena
from hotfuse.runtime.memory import Arena, ArenaPool, Placement

intervals = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 5000)).map(lambda t: Interval(t[0], t[0] + t[1], t[2])),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(intervals)
def test_values_that_live_together_do_not_overlap(found: list[Interval]) -> None:
    offsets, total = plan_arena(found)
    for i, (a, start) in enumerate(zip(found, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.size <= total
        for b, other in list(zip(found, offsets, strict=True))[:i]:
            if a.first <= b.last and b.first <= a.last and a.size and b.size:
                assert start + a.size <= other or other + b.size <= start


def test_a_chain_needs_two_buffers() -> None:
    chain = [Interval(i, i + 1, 1000) for i in range(50)]
    _, total = plan_arena(chain)
    assert total == 2 * 1024


def test_views_are_aligned_and_distinct() -> None:
    arena = Arena(4096)
    arena.lay_out(1, [Placement(0, (3,), np.dtype("f4")), Placement(64, (2, 2), np.dtype("f8"))])
    assert all(view.ctypes.data % ALIGNMENT == 0 for view in arena.views)
    arena.views[0][:] = 1
    arena.views[1][:] = 2
    assert arena.views[0].tolist() == [1, 1, 1]


def laid_out(size: int) -> list[Placement]:
    return [Placement(0, (size,), np.dtype("u1"))]


def test_shapes_share_an_arena_as_large_as_the_largest_needs() -> None:
    pool = ArenaPool(1 << 20)
    for size in (1000, 4000, 100, 4000, 2000):
        arena = pool.take(size, owner=size, placements=laid_out(size))
        assert arena.views[0].shape == (size,)
        assert arena.bytes == (1000 if size == 1000 else 4000)
        pool.give(arena)
        assert pool.held_bytes == arena.bytes


def test_calls_at_a_time_have_an_arena_each_and_find_their_own_again() -> None:
    pool = ArenaPool(1 << 20)
    first, second = (pool.take(500, owner, laid_out(500)) for owner in (1, 2))
    assert first.block is not second.block
    pool.give(first)
    pool.give(second)
    views = first.views
    again = pool.take(500, 1, laid_out(500))
    assert again is first
    assert again.views is views


def test_what_does_not_fit_into_the_limit_is_not_kept() -> None:
    pool = ArenaPool(1000)
    first, second = pool.take(800), pool.take(300)
    pool.give(first)
    pool.give(second)
    assert pool.held_bytes == 800
    pool.clear()
    assert pool.held_bytes == 0
    assert pool.take(10) not in (first, second)


def test_another_owner_with_the_same_id_finds_no_views_of_the_first() -> None:
    pool = ArenaPool(1 << 20)
    pool.give(pool.take(64, 7, laid_out(64)))
    pool.drop(7)
    assert pool.take(64, 7, laid_out(32)).views[0].shape == (32,)


FREED = """
import os
import numpy as np
from hotfuse.runtime.child import resident_bytes
from hotfuse.runtime.memory import give_back
pairs = [(np.ones(60_000, np.uint8), np.ones(2_000, np.uint8)) for _ in range(2_000)]  # too small to be mapped one by one
kept = [small for _, small in pairs]
del pairs
before = resident_bytes(os.getpid())
give_back()
print((before - resident_bytes(os.getpid())) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back what is freed, or never do")
def test_what_is_free_between_what_is_not_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 60  # of 114 MiB: parts of pages stay


KEEPS = """
import ctypes, os, sys
import numpy as np
from hotfuse.runtime.child import own_bytes
from hotfuse.runtime.memory import keep_freed
if sys.argv[1] == "keep":
    keep_freed()
blocks = [np.ones(24 << 20, np.uint8) for _ in range(4)]
held = own_bytes(os.getpid())
del blocks
print((held - own_bytes(os.getpid())) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the parameters are glibc's")
def test_a_worker_keeps_what_it_frees() -> None:
    for mode, least, most in (("keep", 0, 8), ("leave", 88, 100)):
        done = subprocess.run([sys.executable, "-c", KEEPS, mode], capture_output=True, text=True, check=True)
        assert least <= int(done.stdout) <= most, mode
