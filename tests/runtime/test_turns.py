"""Duels: both sides in turn, judged once, whoever calls."""

from __future__ import annotations

import threading

from hotfuse.runtime.turns import DUEL_CALLS, Duel, Times


def test_both_sides_answer_in_turn_and_medians_are_told_once() -> None:
    found: list[Times] = []
    duel = Duel("new", "old", "form", found.append)
    assert not duel.takes("other")
    calls = 0
    while duel.takes("form"):
        side = duel.turn()
        calls += 1
        hiccup = 50.0 if calls == 9 else 0.0  # one call that lost its core tells nothing
        duel.note(side, hiccup + (1.0 if side == "new" else 2.0))
    assert calls <= 2 * (DUEL_CALLS + 1)
    (times,) = found
    assert (times.with_s, times.without_s) == (1.0, 2.0)
    assert times.spread_s < 0.5
    duel.note("new", 9.0)
    assert len(found) == 1


def test_many_threads_end_it_once() -> None:
    found: list[Times] = []
    duel = Duel("new", "old", "form", found.append)

    def call() -> None:
        while duel.takes("form"):
            duel.note(duel.turn(), 1.0)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1
