"""Feeds that only the call can tell to be wrong: strings that are none, sizes that do not go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import hotfuse
from hotfuse.errors import InputError, InvalidModel


def load(graph: str, **options: Any) -> Any:
    return hotfuse.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {graph}'), **options)


@pytest.mark.parametrize(
    "given",
    [["a", "ä"], np.array(["a", "ä"]), np.array(["a", "ä"], object), np.char.encode(np.array(["a", "ä"]), "utf-8")],
    ids=["list", "text", "objects", "bytes"],
)
def test_text_of_every_kind_becomes_strings(given: Any) -> None:
    (found,) = load("(string[N] x) => (string[N] y) { y = Identity(x) }").run(None, {"x": given})
    assert found.dtype == object
    assert found.tolist() == ["a", "ä"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array(["a", 1], object), "must be strings, but one of its elements is 1, a int"),
        (np.array(["a", None], object), "one of its elements is None, a NoneType"),
        (np.array([b"a", b"b"], object), "one of its elements is b'a', a bytes"),
        (np.array([1, 2]), "must be strings, not int64"),
        (None, "one of its elements is None"),
        (np.array([b"\xff"]), "not text"),
    ],
)
def test_what_is_no_text_is_not_taken_for_strings(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"input 'x' .*{message}"):
        load("(string[N] x) => (string[N] y) { y = Identity(x) }").run(None, {"x": given})


@pytest.mark.parametrize("tier", [0, 1])
@pytest.mark.parametrize(
    ("graph", "shapes", "message"),
    [
        (
            "(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }",
            {"a": (3,), "b": (2,)},
            r"\(sizes a: \(3,\), b: \(2,\)\): y Add: sizes 3 and 2 do not broadcast",
        ),
        (
            "(float[N] a) => (float[K] y, int64[K] i) <int64[1] k = {5}> { y, i = TopK(a, k) }",
            {"a": (3,)},
            r"\(sizes a: \(3,\)\): y TopK: .*5 elements are asked for, axis 0 of f32\[3\] has 3",
        ),
        (
            "(float[A, B] a, float[C, D] b) => (float[E, F] y) { y = MatMul(a, b) }",
            {"a": (2, 3), "b": (4, 5)},
            r"\(sizes a: \(2, 3\), b: \(4, 5\)\): y MatMul: ",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_the_inputs_fault(
    graph: str, shapes: dict[str, tuple[int, ...]], message: str, tier: int
) -> None:
    session = load(graph, tier=tier, wait=True)
    with pytest.raises(InputError, match=message):
        session.run(None, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})


def test_a_number_of_elements_that_is_fed() -> None:
    session = load("(float[N] a, int64[1] k) => (float[K] y, int64[K] i) { y, i = TopK(a, k) }")
    with pytest.raises(InputError, match="7 elements are asked for"):
        session.run(None, {"a": np.ones(3, np.float32), "k": np.array([7])})
    assert session.run(["y"], {"a": np.ones(3, np.float32), "k": np.array([2])})[0].shape == (2,)


def test_pytorch_models_are_sent_to_compile() -> None:
    torch = pytest.importorskip("torch")
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    for model, name in ((torch.nn.ReLU(), "ReLU"), (exported, "ExportedProgram")):
        with pytest.raises(InvalidModel, match=rf"paths to \.pt2 files, not {name}; PyTorch models go to hotfuse\.compile"):
            hotfuse.load(model)
