"""Weights that lie in a file at any address are read there: by products, and by lookups of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import hotfuse
from hotfuse.frontends import onnx_tensor
from hotfuse.runtime import numpy_blas
from hotfuse.runtime.numpy_blas import find_sgemm, product, rows

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(find_sgemm() is None, reason="numpy's products are another library's here")


def shifted(values: Array, by: int = 1) -> Array:
    """The same values at an address that is no multiple of their size."""
    room = np.empty(values.nbytes + 8, np.uint8)
    first = -room.ctypes.data % 8 + by
    place = room[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    place[...] = values
    assert not place.flags.aligned
    return place


@pytest.mark.parametrize("by", [1, 2, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 4, 33), (2, 3, 17, 65), (130, 257)])
def test_products_are_those_of_aligned_weights(shape: tuple[int, ...], turned: bool, by: int) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    weight = RNG.standard_normal((19, shape[-1]) if turned else (shape[-1], 19)).astype(np.float32)
    y = shifted(weight, by).T if turned else shifted(weight, by)
    exact = x.astype(np.float64) @ (weight.T if turned else weight).astype(np.float64)
    bound = 1e-6 * np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)) + 1e-6
    out = np.full((*shape[:-1], 19), np.nan, np.float32)
    for place in (None, out, np.full((*shape[:-1], 38), np.nan, np.float32)[..., ::2]):
        made = product(x, y, place)
        assert made is not None
        assert place is None or made is place
        assert (np.abs(made - exact) <= bound).all()


def test_the_first_operand_may_be_a_view() -> None:
    x = RNG.standard_normal((6, 8, 10)).astype(np.float32)
    y = shifted(RNG.standard_normal((8, 4)).astype(np.float32))
    view = x.transpose(0, 2, 1)
    np.testing.assert_allclose(product(view, y), view @ np.array(y), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones(4, np.float32), np.ones((4, 2), np.float32)),
        (np.ones((2, 4), np.float64), np.ones((4, 2), np.float64)),
        (np.ones((0, 4), np.float32), np.ones((4, 2), np.float32)),
        (np.ones((2, 4), np.float32), np.ones((4, 4), np.float32)[:, ::2]),
        (np.ones((2, 4), np.float32), np.ones((3, 4, 2), np.float32)),
        (np.ones((2, 4), np.float32), np.ones((3, 2), np.float32)),
    ],
)
def test_what_is_no_plain_product_is_left_to_numpy(x: Array, y: Array) -> None:
    assert product(x, y) is None


def test_rows_of_a_table_are_found_without_a_copy_of_it() -> None:
    table = RNG.standard_normal((9, 6)).astype(np.float32)
    places = np.array([[0, 8], [-1, 3]])
    found = rows(shifted(table), places)
    assert np.array_equal(found, table[places])
    assert found.flags.aligned
    with pytest.raises(IndexError, match="out of bounds"):
        rows(shifted(table), np.array([9]))


def saved(path: Path, name: str, also: bool = False) -> tuple[Array, Array]:
    """x = table[ids] @ table.T, by Gemm's flag for a turned weight; `also` adds a reader that wants aligned numbers."""
    table = (RNG.standard_normal((2048, 1024 if also else 256)) / 16).astype(np.float32)
    weight = (RNG.standard_normal((1024, 1024 if also else 256)) / 16).astype(np.float32)
    nodes = [
        helper.make_node("Gather", [f"t{name}", "ids"], ["rows"]),
        helper.make_node("Gemm", ["rows", f"w{name}"], ["y"], transB=1),
    ]
    info = helper.make_tensor_value_info
    ends = [info("y", onnx.TensorProto.FLOAT, ["n", 1024])]
    if also:
        nodes.append(helper.make_node("Mul", [f"w{name}", "y"], ["z"]))
        ends.append(info("z", onnx.TensorProto.FLOAT, [1024, 1024]))
    graph = helper.make_graph(
        nodes,
        "anywhere",
        [info("ids", onnx.TensorProto.INT64, ["n"])],
        ends,
        [numpy_helper.from_array(table, f"t{name}"), numpy_helper.from_array(weight, f"w{name}")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return table, weight


@pytest.mark.parametrize("also", [False, True])
def test_a_model_is_loaded_without_copies_of_weights_that_are_read_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: bool
) -> None:
    copied: list[int] = []
    decode = onnx_tensor.MappedArray.__array__

    def spy(self: Any, dtype: Any = None, copy: bool | None = None) -> Array:
        made = decode(self, dtype, copy)
        if made.nbytes >= numpy_blas.LARGE:
            copied.append(made.nbytes)
        return made

    monkeypatch.setattr(onnx_tensor.MappedArray, "__array__", spy)
    ids = np.array([3])
    for shift in range(4):  # whatever is aligned by chance
        path = tmp_path / f"{shift}.onnx"
        table, weight = saved(path, "_" * shift, also)
        with hotfuse.load(path, tier=0) as session:
            answers = session.run(None, {"ids": ids})
        np.testing.assert_allclose(answers[0], table[ids] @ weight.T, rtol=1e-4, atol=1e-5)
        if also:
            np.testing.assert_allclose(answers[1], weight * answers[0], rtol=1e-6)
    assert bool(copied) == also


def test_where_the_library_is_another_one_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_blas, "find_sgemm", lambda: None)
    table, weight = saved(tmp_path / "model.onnx", "_")
    ids = np.array([5, 7])
    with hotfuse.load(tmp_path / "model.onnx", tier=0) as session:
        (answer,) = session.run(None, {"ids": ids})
        assert all(constant.numpy().flags.aligned for constant in session.graph.constants.values())
    np.testing.assert_allclose(answer, table[ids] @ weight.T, rtol=1e-4, atol=1e-5)
