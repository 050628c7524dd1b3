"""Shelves: weights side by side, in the order of their use, on huge pages where the system has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.shelf import HUGE_BYTES, Shelf, in_order_of_use
from hotfuse.runtime.torch_runner import _shelved


def test_arrays_lie_one_after_the_other() -> None:
    arrays = [np.arange(n, dtype=np.float32).reshape(1, n) for n in (7, 16, 1, 100)]
    shelf = Shelf([a.nbytes for a in arrays])
    copies = [shelf.put(i, a) for i, a in enumerate(arrays)]
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.ctypes.data % 64 == 0
    assert [b.ctypes.data - copies[0].ctypes.data for b in copies] == [0, 64, 128, 192]
    assert copies[0].ctypes.data % HUGE_BYTES == 0


def test_nothing_to_shelve() -> None:
    assert Shelf([]).place.__self__ is not None  # type: ignore[attr-defined]
    assert _shelved([], []) == []


def test_an_array_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        Shelf([16]).put(0, np.zeros(5, np.float32))


def test_the_order_is_that_of_the_first_use() -> None:
    b = GraphBuilder()
    x, late, early, unread = (b.input(name, tensor(F32, 4)) for name in ("x", "late", "early", "unread"))
    graph = b.build([b.add("add", b.add("mul", x, early), late)])
    assert in_order_of_use(graph, ("late", "early", "unread")) == ["early", "late", "unread"]
    assert unread.name == "unread"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_keep_their_places_in_the_list(dtype: torch.dtype) -> None:
    tensors = [torch.arange(n).to(dtype).reshape(-1, 2) for n in (6, 4, 10)]
    shelved = _shelved([t.clone() for t in tensors], [2, 0, 1])
    assert all(torch.equal(a, b) for a, b in zip(shelved, tensors, strict=True))
    assert shelved[2].data_ptr() < shelved[0].data_ptr() < shelved[1].data_ptr()
