"""Which core's cache has the bytes that a kernel touches."""

from __future__ import annotations

import pytest

from hotfuse.fusion.whereabouts import NEAR, SHARED, located
from hotfuse.hardware.work import ALONE, BY_COLUMNS, BY_ROWS, STRIDED, Touch, Work

SIZE = 4000.0  # bytes of a value: 1000 elements


def piece(reads: str, writes: str, lanes: int = BY_ROWS, cut: float = 0.5, access: int = 0, size: float = SIZE) -> Work:
    touched = [tuple(Touch(name, size, 0.0, access=access) for name in names.split()) for names in (reads, writes)]
    points, inner = size / 4, 100.0
    cut = 1.0 if lanes == ALONE else cut
    return Work("rows", points, 1.0, inner, 0.0, points, *touched, 4.0, lanes=lanes, cut=cut)  # type: ignore[arg-type]


def handed(plan: list[Work], outside: str = "x y", bytes: float = SIZE) -> list[tuple[float, ...]]:
    names = {t.name for work in plan for t in (*work.reads, *work.writes)}
    found = located(plan, dict.fromkeys(names, bytes), set(outside.split()))
    return [tuple(touch.handed for touch in (*work.reads, *work.writes)) for work in found]


def test_rows_stay_with_their_thread() -> None:
    assert handed([piece("x", "a"), piece("a", "y")]) == [(0, 0), (0, 0)]


def test_who_cuts_elsewhere_reads_from_the_other() -> None:
    """And then both have it, so that whoever writes it next has to be its only owner first."""
    first, second = handed([piece("x", "a"), piece("a", "y", cut=0.6)])
    assert second[0] == pytest.approx(0.1 * SIZE)
    assert first[1] == pytest.approx(0.1 * SIZE * SHARED)


def test_one_thread_reads_the_half_of_the_other() -> None:
    assert handed([piece("x", "a"), piece("a", "y", lanes=ALONE)])[1][0] == SIZE / 2


def test_columns_after_rows_and_what_is_turned() -> None:
    assert handed([piece("x", "a"), piece("a", "y", lanes=BY_COLUMNS)])[1][0] == SIZE / 2
    assert handed([piece("x", "a"), piece("a", "y", access=STRIDED)])[1][0] == SIZE / 2
    columns = [piece("x", "a", lanes=BY_COLUMNS), piece("a", "y", lanes=BY_COLUMNS)]
    assert handed(columns)[1] == (0, 0)


def test_memory_that_another_value_had_before() -> None:
    """Values that do not live at the same time share memory: here `b` lies where `a` was, which one thread read all of."""
    plan = [piece("x", "a"), piece("a", "y", lanes=ALONE), piece("x", "b"), piece("b", "y")]
    own = handed(plan, outside="x y a b")[2]
    shared = handed(plan)[2]
    assert own[1] == 0
    assert shared[1] == pytest.approx(SHARED * SIZE / 2)  # the second half is in the first thread's cache, too


def test_what_was_touched_long_ago_has_left_the_other_cache() -> None:
    size = 2.0 * NEAR
    assert (
        handed([piece("x", "a", size=size), piece("x", "y", size=size), piece("a", "y", cut=0.9, size=size)], bytes=size)[2][0]
        == 0
    )


def test_nothing_is_touched_of_values_without_elements() -> None:
    assert handed([piece("x", "a", size=0.0)], bytes=0.0) == [(0, 0)]
