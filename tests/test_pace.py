"""Imports behind calls: in pieces, and only those of the thread that has the time."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import pytest

from hotfuse.pace import hurry, imports


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules that import each other in turn, and that nobody has imported yet."""
    names = [f"hotfuse_link_{number}" for number in range(4)]
    for name, after in zip(names, [*names[1:], ""], strict=True):
        (tmp_path / f"{name}.py").write_text(f"import {after}\n" if after else "")
    monkeypatch.syspath_prepend(tmp_path)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return names


def test_there_is_a_rest_before_every_module(chain: list[str]) -> None:
    rests: list[int] = []
    finders = list(sys.meta_path)
    with imports(lambda: rests.append(1)):
        importlib.import_module(chain[0])
    assert len(rests) == len(chain)
    assert all(name in sys.modules for name in chain)
    assert sys.meta_path == finders


def test_other_threads_import_without_rests(chain: list[str]) -> None:
    rests: list[int] = []
    with imports(lambda: rests.append(1)):
        thread = threading.Thread(target=importlib.import_module, args=(chain[0],))
        thread.start()
        thread.join()
    assert chain[0] in sys.modules
    assert rests == []


def test_whoever_hurries_looks_nowhere_else() -> None:
    finders = list(sys.meta_path)
    with imports(hurry):
        assert sys.meta_path == finders


def test_finders_are_as_before_where_an_import_fails() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError), imports(lambda: None):
        importlib.import_module("hotfuse_there_is_no_such_module")
    assert sys.meta_path == finders
