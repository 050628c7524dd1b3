"""Calls that follow each other lose a share to work beside them, and no more."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest

from hotfuse.right_of_way import WINDOW_S, RightOfWay
from hotfuse.share import ALLOWED, ALONE, FAST, LEAST, LONGEST_S, Share

TURN_S = 0.5


def played(longer: float, turns: int = 400, call_s: float = 0.02, share: Share | None = None) -> list[bool]:
    """In which turns somebody worked, where calls are so much longer meanwhile."""
    share = share or Share()
    had, now_s = [], 100.0
    for _ in range(turns):
        had.append(share.granted)
        end_s = now_s + TURN_S
        while now_s < end_s:
            now_s += call_s * (1 + longer * share.granted)
            share.ended(now_s)
        share.turn(TURN_S, share.granted)
    return had


def lost(longer: float, had: list[bool]) -> float:
    return sum(had) / len(had) * longer / (1 + longer)


@pytest.mark.parametrize("longer", [0.16, 0.2, 0.3, 0.5])
def test_calls_lose_what_is_allowed(longer: float) -> None:
    had = played(longer)
    assert 0.9 * ALLOWED < lost(longer, had) < 1.1 * ALLOWED
    assert max(len(turns) for turns in "".join(" x"[turn] for turn in had).split()) <= ALONE


@pytest.mark.parametrize("longer", [0.0, 0.05, 0.1])
def test_who_takes_less_has_all_turns_but_those_in_which_calls_are_measured_alone(longer: float) -> None:
    had = played(longer)
    assert sum(had) >= len(had) * (ALONE - 1) / ALONE - 2
    assert sum(had) < len(had)


def test_who_takes_much_is_slow_and_not_starved() -> None:
    had = played(3.0)
    assert sum(had) / len(had) == pytest.approx(1 / (FAST + 1), rel=0.1)


def test_a_turn_goes_on_until_enough_calls_ended_in_it() -> None:
    had = played(0.3, turns=40, call_s=0.24)  # two of them in a turn of its own
    changes = [i for i in range(1, len(had)) if had[i] != had[i - 1]]
    assert changes
    assert all(later - earlier >= LEAST // 3 for earlier, later in itertools.pairwise(changes))


def test_where_no_call_ends_somebody_works() -> None:
    share = Share()
    for _ in range(int(3 * LONGEST_S / TURN_S)):
        share.turn(TURN_S, True)
        assert share.granted


def test_calls_that_get_faster_by_themselves_are_measured_again() -> None:
    share = Share()
    played(0.3, call_s=0.04, share=share)
    had = played(0.05, call_s=0.02, share=share)
    assert lost(0.05, had[100:]) < ALLOWED
    had = played(0.3, call_s=0.02, share=share)
    assert lost(0.3, had[50:]) < 1.1 * ALLOWED


def test_a_process_stands_still_in_turns_that_are_the_calls_own() -> None:
    right = RightOfWay()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process, right.behind(process.pid):
        seen = set()
        until_s = time.monotonic() + 60 * WINDOW_S
        while len(seen) < 2 and time.monotonic() < until_s:
            with right.call():
                time.sleep(0.01)
            right.review()
            if right.crowded:
                with open(f"/proc/{process.pid}/stat") as file:
                    seen.add(file.read().rsplit(")", 1)[1].split()[0] == "T")
        assert seen == {False, True}
        process.kill()
    assert os.WIFSIGNALED(process.returncode) or process.returncode < 0
