"""Work behind calls: in pieces, and only that of the thread that has the time."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hotfuse.ir.ops import panels
from hotfuse.pace import breathe, going_at, hurry, imports
from hotfuse.runtime import shelf


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


def test_a_thread_goes_at_the_pace_that_it_was_given() -> None:
    rests: list[str] = []
    with going_at(lambda: rests.append("slow")):
        breathe()
        with going_at(hurry):
            breathe()
        thread = threading.Thread(target=breathe)
        thread.start()
        thread.join()
        breathe()
    breathe()
    assert rests == ["slow", "slow"]


def test_large_weights_are_packed_and_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((2, 96, 103), np.float32)
    whole = panels.pack(matrix, panel=16, last=16)
    rests: list[int] = []
    monkeypatch.setattr(panels, "PIECE_BYTES", 2 * 96 * 16 * 4)
    monkeypatch.setattr(shelf, "PIECE_BYTES", 1000)
    with going_at(lambda: rests.append(1)):
        np.testing.assert_array_equal(panels.pack(matrix, panel=16, last=16), whole)
        assert len(rests) == 3  # 6 panels, 2 at a time
        rests.clear()
        for array in (matrix, matrix.transpose(2, 0, 1), matrix[:, :, :0], np.float32(3.0).reshape(())):
            np.testing.assert_array_equal(shelf.Shelf([array.nbytes]).put(0, array), array)
        assert len(rests) == -(-matrix.nbytes // 1000) + 1
