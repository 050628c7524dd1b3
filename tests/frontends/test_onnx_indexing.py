"""ONNX gathers, scatters, sorts and selections against ONNX Runtime, bit by bit; refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import parser

import hotfuse
from hotfuse.errors import ExecutionError, HotfuseError, InvalidModel
from hotfuse.ir.op import OPS
from hotfuse.ir.verify import verify
from hotfuse.runtime.session import Session
from tests.frontends.node_case import WAYS, Case, check

X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
UPDATES = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
REPEATS = np.array([[1, 0, 1], [1, 0, 1], [2, 3, 2]], np.float32)
TIES = np.array([[3, 1, 3, 2, 1], [0, 0, 9, 9, 9]], np.float32)


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


def flags(*values: bool) -> Any:
    return np.array(values, bool)


CASES = [
    Case("Gather", 1, [X, ints([0, 1], [2, 0])]),
    Case("Gather", 11, [X, ints(-1, 0)], {"axis": -1}),
    Case("Gather", 13, [X, np.array(1, np.int32)], {"axis": 1}, note="scalar"),
    Case("Gather", 13, [X, ints()], {"axis": 1}, note="nothing"),
    Case("GatherElements", 11, [X, ints([[0, 1], [-1, 0]])], {"axis": 1}),
    Case("GatherElements", 13, [X[0], ints([0, -1, 2, 1, 1])], {"axis": 0}),
    Case("GatherND", 11, [X, ints([0, 1], [-1, -1])]),
    Case("GatherND", 13, [X, ints([[1]], [[0]], [[3]])], {"batch_dims": 1}),
    Case("GatherND", 13, [X, ints([[[1], [4]]] * 4, [[[0], [0]]] * 4, [[[3], [-1]]] * 4)], {"batch_dims": 2}),
    Case("Scatter", 9, [X, ints([[0, 1, 2, 0, 1]]), UPDATES[:1, :1]], {"axis": 1}),
    Case("ScatterElements", 11, [X, ints([[0, 1, -1, 0, 1]]), UPDATES[:1, :1]], {"axis": 0}),
    *(
        Case("ScatterElements", 18, [X, ints([[0, 1, 1, 0, 0], [0, 1, -1, 0, 2]]), UPDATES[:1, :2]],
             {"axis": 2, "reduction": r}, note=r)
        for r in ("add", "mul", "max", "min")
    ),
    Case("ScatterND", 11, [X, ints([0, 1], [-1, -1]), UPDATES[0, :2]]),
    Case("ScatterND", 13, [X, ints([2], [0]), UPDATES[:2]], note="slices"),
    *(
        Case("ScatterND", 18, [X, ints([2], [0], [2]), UPDATES], {"reduction": r}, note=r)
        for r in ("add", "mul", "max", "min")
    ),
    *(
        Case("TensorScatter", 24, [X, UPDATES[:, :2], start], {"axis": 1, "mode": mode}, oracle="onnx", note=mode)
        for mode, start in (("linear", ints(0, 2, 1)), ("circular", ints(3, 2, 7)), ("linear", None))
    ),
    *(
        Case("OneHot", 11, [ints([0, 2, -1], [9, -9, 1]), np.array(4, np.int64), np.array([2, 5], np.float32)],
             {"axis": a}, note=f"axis{a}")
        for a in (-1, 0, 1)
    ),
    Case("OneHot", 9, [np.array(v, np.float32) for v in ([0, 2], [3], [0, 7])], note="float places"),
    Case("NonZero", 13, [np.array([[1, 0, 2], [0, 0, 3]], np.float32)]),
    Case("NonZero", 13, [np.zeros((2, 3), bool)], note="nothing"),
    Case("Compress", 9, [X, flags(False, True, True)], {"axis": 1}),
    Case("Compress", 11, [X, flags(False, True, False, True)], {"axis": -2}),
    Case("Compress", 11, [X, flags(False, True, False, True, True)], note="flat"),
    Case("TopK", 1, [X], {"k": 2}, outputs=2),
    Case("TopK", 10, [TIES, ints(3)], outputs=2, note="ties"),
    Case("TopK", 11, [TIES, ints(4)], {"largest": 0}, outputs=2, note="least"),
    Case("TopK", 11, [X, ints(2)], {"axis": 1, "sorted": 1}, outputs=2),
    Case("TopK", 11, [np.array([[-(2**63), 5, 2**63 - 1]]), ints(3)], outputs=2, note="extremes"),
    Case("TopK", 11, [X, ints(0)], outputs=2, note="none"),
    Case("Unique", 11, [np.array([2, 1, 1, 3, 4, 3], np.float32)], outputs=4),
    Case("Unique", 11, [np.array([2, 1, 1, 3, 4, 3], np.float32)], {"sorted": 0}, outputs=4, note="as they come"),
    Case("Unique", 11, [REPEATS], {"axis": 0}, outputs=4, note="rows"),
    Case("Unique", 11, [REPEATS], {"axis": 1, "sorted": 0}, outputs=4, note="columns"),
    Case("Where", 16, [flags(True, False, True), X[0, 0, :3], X[0, 1, :3]]),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle(case: Case, way: str) -> None:
    verify(check(case, way).graph)


@pytest.mark.parametrize("dtype", ["float16", "uint8", "bool", "int64", "float64"])
def test_topk_orders_as_torch_does(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 200, (4, 50)).astype(dtype)
    for largest in (True, False):
        values, _ = OPS["topk"].reference(x, np.array(50), axis=-1, largest=largest)  # type: ignore[misc]
        wanted = torch.sort(torch.from_numpy(x), descending=largest, stable=True)
        _, order = OPS["sort"].reference(x, axis=-1, descending=largest)  # type: ignore[misc]
        assert np.array_equal(values, wanted.values.numpy())
        assert np.array_equal(order, wanted.indices.numpy())


def test_nan_counts_as_the_greatest_element() -> None:
    x = np.array([1.0, np.nan, 3.0], np.float32)
    _, order = OPS["sort"].reference(x, axis=0, descending=True)  # type: ignore[misc]
    assert order.tolist() == torch.sort(torch.from_numpy(x), descending=True).indices.tolist()


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_in_bfloat16(reduction: str) -> None:
    x, updates = (np.array(v, ml_dtypes.bfloat16) for v in ([1.0, 2.0, 4.0], [0.5, 8.0]))
    found = OPS["scatter_elements"].reference(x, np.array([2, 0]), updates, axis=0, reduction=reduction)  # type: ignore[misc]
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    tensor, values = (torch.tensor(v.astype(np.float32)).bfloat16() for v in (x, updates))
    places = torch.tensor([2, 0])
    wanted = (
        tensor.scatter(0, places, values) if reduction == "none" else tensor.scatter_reduce(0, places, values, names[reduction])
    )
    assert found.astype(np.float32).tolist() == wanted.float().tolist()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_in_bfloat16(mode: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    found = OPS["pad"].reference(x, np.array([1, 2, 0, 1]), mode=mode)  # type: ignore[misc]
    wanted = np.pad(x.astype(np.float32), ((1, 0), (2, 1)), mode=mode)  # type: ignore[call-overload]
    assert found.dtype == x.dtype
    assert np.array_equal(found.astype(np.float32), wanted)


def test_nonzero_of_a_scalar_has_no_rows() -> None:
    for value in (0.0, 2.0):
        found = OPS["nonzero"].reference(np.array(value))  # type: ignore[misc]
        assert found.shape == tuple(torch.nonzero(torch.tensor(value)).T.shape)


def load(text: str) -> Session:
    return hotfuse.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 24]> {text}'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2, 3] x) => (y) <int64[1] i = {5}> { y = Gather(x, i) }", "place 5 is outside of 2"),
        ("g (float[2, 3] x, float[1] i) => (y) { y = Gather(x, i) }", "places must be integers"),
        ("g (float x, int64[1] i) => (y) { y = Gather(x, i) }", "rank 0"),
        ("g (float[2, 3] x, int64[1] i) => (y) { y = GatherElements(x, i) }", "places of rank 1"),
        ("g (float[2, 3] x, float[1, 1] i) => (y) { y = GatherElements(x, i) }", "places must be integers"),
        ("g (float[3] x) => (y) <int64[1] i = {3}> { y = GatherElements(x, i) }", "place 3 is outside of 3"),
        ("g (float[2, 3] x, int64[1, 3] i) => (y) { y = GatherND(x, i) }", "places of 3 numbers"),
        ("g (float[2] x, int64[1] i, float[2] u) => (y) { y = ScatterElements(x, i, u) }", r"places for \[1\]"),
        ("g (float[2] x, int64[1] i, int64[1] u) => (y) { y = ScatterElements(x, i, u) }", "updates are i64"),
        ("g (float[2] x, float[1] i, float[1] u) => (y) { y = ScatterElements(x, i, u) }", "places must be integers"),
        ("g (float[2] x, int64[1] i, float[1] u) => (y) { y = ScatterElements <reduction = 'odd'> (x, i, u) }", "no reduction"),
        ("g (float[2] x, int64[1, 2] i, float[1] u) => (y) { y = ScatterND(x, i, u) }", "places of 2 numbers"),
        ("g (float[2] x, int64[1, 1] i, float[2] u) => (y) { y = ScatterND(x, i, u) }", r"places for \[1\]"),
        ("g (float[2, 3] x, float[2, 1] u) => (y) { y = TensorScatter <axis = 0> (x, u) }", "axis 0 is the batch"),
        ("g (float[2, 3] x, int64[2, 1] u) => (y) { y = TensorScatter <axis = 1> (x, u) }", "the update is i64"),
        ("g (float[2, 3] x, float[2, 1] u) => (y) { y = TensorScatter <mode = 'odd'> (x, u) }", "no mode 'odd'"),
        ("g (int64[2] i, float[2] v) => (y) <int64 d = {-1}> { y = OneHot(i, d, v) }", "negative"),
        ("g (float[2] x) => (y, i) <int64[1] k = {3}> { y, i = TopK(x, k) }", "3 elements are asked for"),
        ("g (float[2] x, int64[2] c) => (y) { y = Compress(x, c) }", "flags must be bool"),
        ("g (float[2] x) => (y, i) { y, i = TopK(x) }", "takes 2 inputs, the node has 1"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_right_is_refused_when_it_loads(text: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        load(text.replace("'", '"'))


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        ("g (float[3] x, int64[1] i) => (y) { y = Gather(x, i) }", {"i": ints(-4)}),
        ("g (float[3] x, int64[1] i) => (y) { y = GatherElements(x, i) }", {"i": ints(3)}),
        ("g (float[3] x, int64[1, 1] i) => (y) { y = GatherND(x, i) }", {"i": ints([3])}),
        ("g (float[3] x, int64[1] i, float[1] u) => (y) { y = ScatterElements(x, i, u) }", {"i": ints(3), "u": X[0, 0, :1]}),
        ("g (float[3] x, int64[1, 1] i, float[1] u) => (y) { y = ScatterND(x, i, u) }", {"i": ints([3]), "u": X[0, 0, :1]}),
        ("g (float[3] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }", {"k": ints(4)}),
    ],
)
def test_places_outside_are_refused_when_it_runs(text: str, feeds: dict[str, Any]) -> None:
    session = load(text)
    with pytest.raises((ExecutionError, HotfuseError), match=r"y (Gather|Scatter|TopK)"):
        session.run(None, {"x": np.zeros(3, np.float32), **feeds})


def test_a_scatter_does_not_change_its_input() -> None:
    x = np.zeros(3, np.float32)
    session = load("g (float[3] x, int64[1] i, float[1] u) => (y) { y = ScatterElements(x, i, u) }")
    (y,) = session.run(None, {"x": x, "i": ints(1), "u": np.ones(1, np.float32)})
    assert y.tolist() == [0.0, 1.0, 0.0]
    assert x.tolist() == [0.0, 0.0, 0.0]
