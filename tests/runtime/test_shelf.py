"""Shelves: weights side by side, in the order of their use, on huge pages where the system has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotfuse.config import Config
from hotfuse.errors import DimError
from hotfuse.frontends.torch_tensor import dtype_from_torch
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Constant
from hotfuse.ir.ops.panels import pack
from hotfuse.ir.types import F32, tensor
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.build import attached
from hotfuse.runtime.shelf import HUGE_BYTES, Shelf, in_order_of_use, without_packing
from hotfuse.runtime.torch_runner import _preparer


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
    assert Shelf([0]).put(0, np.zeros(0, np.float32)).shape == (0,)


def test_an_array_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        Shelf([16]).put(0, np.zeros(5, np.float32))


def test_the_order_is_that_of_the_first_use() -> None:
    b = GraphBuilder()
    x, late, early, unread = (b.input(name, tensor(F32, 4)) for name in ("x", "late", "early", "unread"))
    graph = b.build([b.add("add", b.add("mul", x, early), late)])
    assert in_order_of_use(graph, ("late", "early", "unread")) == ["early", "late", "unread"]
    assert unread.name == "unread"


PACKING = {"panel": 4, "last": 2}


def hoisted(dtype: torch.dtype = torch.float32) -> Hoisted:
    """Of three weights one is packed as it lies, one transposed and packed, and one doubled; the last is read first."""
    b, element = GraphBuilder(), dtype_from_torch(dtype)
    x = b.input("x", tensor(element, 3, 5))
    plain, turned, vector = (b.weight(n, tensor(element, *s)) for n, s in (("p", (5, 10)), ("t", (10, 5)), ("v", (5,))))
    read = b.add("mul", x, b.add("add", vector, vector))
    results = []
    for columns in (plain, b.add("transpose", turned, perm=(1, 0))):
        results.append(b.add("panel_matmul", read, b.add("pack", columns, **PACKING), columns=(10,), **PACKING))
    split = hoist(b.build(results))
    assert len(split.prepared) == 3
    return split


def test_packing_is_left_to_the_shelf() -> None:
    prepare = hoisted().prepare
    assert prepare is not None
    graph, how = without_packing(prepare)
    assert [node.op for node in graph.nodes] == ["add", "transpose"]
    assert sorted(map(str, how)) == sorted(map(str, (None, PACKING, PACKING)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_prepared_lies_on_one_shelf_in_the_order_of_use(dtype: torch.dtype) -> None:
    split = hoisted(dtype)
    assert split.prepare is not None
    weights = {"p": torch.randn(5, 10).to(dtype), "t": torch.randn(10, 5).to(dtype), "v": torch.randn(5).to(dtype)}
    made = _preparer(split, split.prepare, Config())([weights[name] for name in split.sources])
    by_size = sorted(made, key=lambda tensor: tensor.data_ptr())
    assert torch.equal(by_size[0], 2 * weights["v"])
    for tensor_, matrix in zip(by_size[1:], (weights["p"], weights["t"].T), strict=True):
        want = pack(matrix.float().numpy(), **PACKING)
        assert torch.equal(tensor_.float(), torch.from_numpy(want))
    assert [t.data_ptr() - by_size[0].data_ptr() for t in by_size[1:]] == [64, 64 + (256 if dtype.itemsize == 4 else 128)]
    assert by_size[0].data_ptr() % HUGE_BYTES == 0


def test_what_is_prepared_is_nobody_elses_memory() -> None:
    split = hoisted()
    assert split.prepare is not None
    weights = [torch.ones(5, 10), torch.ones(10, 5), torch.ones(5)]
    by_shape = {tuple(w.shape): w for w in weights}
    given = [by_shape[tuple(split.prepare.type(name).sizes)] for name in split.sources]  # type: ignore[union-attr]
    made = _preparer(split, split.prepare, Config())(given)
    before = [tensor.clone() for tensor in made]
    for weight in weights:
        weight.zero_()
    assert all(torch.equal(a, b) for a, b in zip(made, before, strict=True))


@pytest.mark.parametrize("other", [torch.ones(5, 6), torch.ones(5, 10, dtype=torch.float64), torch.ones(4, 10)])
def test_weights_of_another_form_than_was_declared_are_refused(other: torch.Tensor) -> None:
    split = hoisted()
    assert split.prepare is not None
    weights = {"p": other, "t": torch.ones(10, 5), "v": torch.ones(5)}
    with pytest.raises(DimError, match=r"weight p is f.*, and what is prepared from it was made for f32\[5, 10\]"):
        _preparer(split, split.prepare, Config())([weights[name] for name in split.sources])


def test_panels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="panels of"):
        pack(np.ones((5, 8), np.float32), np.empty(50, np.float32), panel=4, last=4)


def test_constants_are_prepared_right_onto_a_shelf() -> None:
    split = hoisted()
    arrays = {
        name: np.random.default_rng(0).standard_normal(s).astype(np.float32) for name, s in (("p", (5, 10)), ("t", (10, 5)))
    }
    arrays["v"] = np.arange(5, dtype=np.float32)
    main = attached(split, {name: Constant.of(array) for name, array in arrays.items()})
    found = sorted((main.constants[name].numpy() for name in split.prepared), key=lambda array: array.ctypes.data)
    for array, want in zip(found, (2 * arrays["v"], pack(arrays["p"], **PACKING), pack(arrays["t"].T, **PACKING)), strict=True):
        np.testing.assert_array_equal(array, want)
    assert [a.ctypes.data - found[0].ctypes.data for a in found[1:]] == [64, 320]
    assert not main.weights
