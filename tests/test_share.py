"""Calls that follow each other wait for a share of their time, and no more."""

from __future__ import annotations

import pytest

from hotfuse.share import ALLOWED, KEPT, LEAST_S, MOST_S, PAUSE, Share


def waits(call_s: float, calls: int, share: Share) -> list[float]:
    """How long each of so many calls waits."""
    found = []
    for _ in range(calls):
        pause_s = share.pause_s(call_s)
        share.spend(pause_s)
        share.earn(call_s)
        found.append(pause_s)
    return found


@pytest.mark.parametrize("call_s", [1e-4, 5e-3, 0.02, 0.2, 3.0])
def test_calls_wait_for_a_share_of_their_time(call_s: float) -> None:
    calls = 10_000
    found = waits(call_s, calls, Share())
    assert sum(found) == pytest.approx(ALLOWED * call_s * calls, rel=0.01)
    assert set(found) == {0.0, min(max(LEAST_S, PAUSE * call_s), MOST_S)}


def test_what_was_earned_while_nobody_worked_is_forgotten() -> None:
    share = Share()
    share.earn(1000.0)
    found = waits(0.1, 100, share)
    assert sum(found[: int(KEPT)]) == pytest.approx(KEPT * PAUSE * 0.1)
    assert sum(found) <= KEPT * PAUSE * 0.1 + 100 * ALLOWED * 0.1


def test_who_waited_longer_waits_less_often() -> None:
    share = Share()
    share.spend(1.0)
    assert sum(waits(0.1, int(1.0 / (ALLOWED * 0.1)), share)) == 0.0
    assert sum(waits(0.1, 100, share)) > 0.0
