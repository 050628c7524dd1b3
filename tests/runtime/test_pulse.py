"""How near the cores of a team are to each other."""

from __future__ import annotations

import pytest

from hotfuse.hardware.rates import Closeness
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.pulse import Pulse
from hotfuse.runtime.threads import find_gomp

SPEC = host_spec()


@pytest.mark.skipif(SPEC.threads < 2 or find_gomp() is None, reason="one thread is near to itself")
def test_it_is_felt_and_nothing_impossible_is() -> None:
    found = [Pulse(SPEC, 2, None).feel() for _ in range(3)]
    assert all(0.1 < close.handed < 5000 for close in found)
    assert all(0.05 < close.together < 4 for close in found)


def test_arrangements_differ_by_more_than_measurements() -> None:
    apart, near, one_core = Closeness(31.0, 1.87), Closeness(71.0, 1.92), Closeness(120.0, 1.05)
    assert apart.is_like(Closeness(29.0, 1.80))
    assert not apart.is_like(near)
    assert not near.is_like(one_core)
