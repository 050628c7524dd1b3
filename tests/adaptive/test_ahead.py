"""What is imported ahead of a model's first kernels, in pieces."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

import pytest

from hotfuse.adaptive import ahead
from hotfuse.pace import hurry


def test_modules_are_imported_one_by_one_and_others_come_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("colorsys", "this_module_is_missing", "cmd")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(ahead, "MODULES", names)
    posted: deque[Callable[[], None]] = deque()
    ahead.import_between(hurry, posted.append)
    assert "colorsys" not in sys.modules  # not by who posts
    posted.popleft()()
    assert "colorsys" in sys.modules
    posted.popleft()()  # what cannot be imported says so where it is needed, and ends it
    assert not posted
    assert "cmd" not in sys.modules


def test_the_end_is_the_version_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.runtime import build_cache

    asked: list[bool] = []
    monkeypatch.setattr(ahead, "MODULES", ("cmd",))
    monkeypatch.setattr(build_cache, "version", lambda: asked.append(True) or "")
    posted: deque[Callable[[], None]] = deque()
    ahead.import_between(hurry, posted.append)
    turns = 0
    while posted:
        assert not asked
        posted.popleft()()
        turns += 1
    assert (turns, asked) == (2, [True])
    ahead.import_ahead(hurry)
    assert asked == [True, True]
