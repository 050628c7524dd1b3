"""The ten-second smoke file: the main paths once each. It runs on every supported Python; parts that need torch leave
themselves out where torch is not installed."""

from __future__ import annotations

import importlib.util
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.errors import InputError, InvalidModel

pytestmark = pytest.mark.smoke
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is an extra and is not installed")

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def model() -> onnx.ModelProto:
    """y = relu(x @ W) + 1, over a free batch."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "one"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "smoke",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(WEIGHT, "W"), numpy_helper.from_array(np.float32(1.0).reshape(()), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHT, 0) + 1


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_a_session_serves_any_batch(batch: int) -> None:
    session = hotfuse.load(model())
    x = np.random.default_rng(0).standard_normal((batch, 3)).astype(np.float32)
    for _ in range(2):
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, expected(x), rtol=1e-6, atol=1e-6)


def test_a_model_comes_from_a_file_or_bytes(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    x = np.ones((2, 3), dtype=np.float32)
    for source in (path, str(path), path.read_bytes()):
        (y,) = hotfuse.load(source).run(["y"], {"x": x})
        np.testing.assert_allclose(y, expected(x), rtol=1e-6)


def test_signatures_have_names_types_and_free_sizes() -> None:
    session = hotfuse.load(model())
    assert [(s.name, s.shape, s.dtype) for s in session.inputs] == [("x", ("batch", 3), np.float32)]
    assert [s.name for s in session.outputs] == ["y"]


def test_wrong_feeds_are_refused_with_the_name() -> None:
    session = hotfuse.load(model())
    with pytest.raises(InputError, match="'x'"):
        session.run(None, {})
    with pytest.raises(InputError, match="float32"):
        session.run(None, {"x": np.ones((1, 3))})
    with pytest.raises(InputError, match="shape"):
        session.run(None, {"x": np.ones((1, 4), dtype=np.float32)})


def test_a_broken_model_is_refused() -> None:
    broken = model()
    broken.graph.node[1].input[0] = "nowhere"
    with pytest.raises(InvalidModel, match="nowhere"):
        hotfuse.load(broken)


def test_many_threads_share_a_session() -> None:
    session = hotfuse.load(model())
    wrong: list[int] = []

    def work(seed: int) -> None:
        for batch in range(1, 20):
            x = np.random.default_rng(seed * 100 + batch).standard_normal((batch, 3)).astype(np.float32)
            if not np.allclose(session.run(None, {"x": x})[0], expected(x), rtol=1e-5, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_torch
def test_a_compiled_module_answers_as_the_module_does() -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    fast = hotfuse.compile(module)
    try:
        for batch in (1, 5):
            x = torch.randn(batch, 3)
            with torch.no_grad():
                torch.testing.assert_close(fast(x), module(x))
    finally:
        fast.close()
