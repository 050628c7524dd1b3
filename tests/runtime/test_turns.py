"""Duels: both sides in turn, judged once, whoever calls."""

from __future__ import annotations

import threading

from hotfuse.runtime.turns import DUEL_CALLS, LONG_ROW, Duel, Times


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


def test_against_an_outsider_each_side_has_rows_and_the_first_calls_of_one_do_not_count() -> None:
    found: list[Times] = []
    duel = Duel("new", "old", "form", found.append, outsider=True)
    sides: list[str] = []
    while duel.takes("form"):
        sides.append(duel.turn())
        disturbed = len(sides) < 6 or sides[-6] != sides[-1]
        duel.note(sides[-1], 9.0 if disturbed else 1.0 if sides[-1] == "new" else 2.0)
    assert [*sides, "old"] == (["new"] * LONG_ROW + ["old"] * LONG_ROW) * 2  # it ends when both have enough
    assert found == [Times(1.0, 2.0, 0.0)]


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
