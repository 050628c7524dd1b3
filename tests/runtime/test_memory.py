"""Arena planning: no two values that live together share a byte, and memory is reused."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.runtime.memory import ALIGNMENT, Arena, Interval, Placement, plan_arena

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
    arena = Arena(4096, [Placement(0, (3,), np.dtype("f4")), Placement(64, (2, 2), np.dtype("f8"))])
    assert all(view.ctypes.data % ALIGNMENT == 0 for view in arena.views)
    arena.views[0][:] = 1
    arena.views[1][:] = 2
    assert arena.views[0].tolist() == [1, 1, 1]
