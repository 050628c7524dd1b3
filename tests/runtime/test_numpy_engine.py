"""Tier 0 in numpy: weights where products can read them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import hotfuse
from hotfuse.runtime import numpy_blas, numpy_engine


def saved(folder: Path, count: int = 6, shift: int = 0) -> tuple[Path, list[np.ndarray[Any, Any]]]:
    """A model of products whose weights lie in the file as they come, some not aligned."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((512, 512)).astype(np.float32) / 23 for _ in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}{'_' * (shift + i)}"], [f"x{i + 1}"]) for i in range(count)]
    owned = [numpy_helper.from_array(w, f"w{i}{'_' * (shift + i)}") for i, w in enumerate(weights)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 512]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], owned)
    path = folder / f"deep{shift}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path, weights


@pytest.mark.parametrize("much", [1 << 20, 1 << 40])
def test_weights_that_are_not_aligned_are_copied_by_threads_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, much: int
) -> None:
    monkeypatch.setattr(numpy_engine, "MUCH", much)
    monkeypatch.setattr(numpy_blas, "find_sgemm", lambda: None)
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self.name) or start(self))
    for shift in range(4):  # whatever is aligned by chance
        path, weights = saved(tmp_path, shift=shift)
        session = hotfuse.load(path, tier=0)
        x = np.ones((2, 512), np.float32)
        wanted = x
        for weight in weights:
            wanted = wanted @ weight
        np.testing.assert_array_equal(session.run(None, {"x0": x})[0], wanted)
    assert ("hotfuse-weights" in started) == (much == 1 << 20)
    assert not [t for t in threading.enumerate() if t.name == "hotfuse-weights"]


def test_threads_end_where_a_model_turns_out_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_engine, "MUCH", 1 << 20)
    monkeypatch.setattr(numpy_blas, "find_sgemm", lambda: None)
    monkeypatch.setattr("hotfuse.entry.optimize", lambda *args, **kwargs: 1 / 0)
    path, _ = saved(tmp_path, shift=1)
    with pytest.raises(ZeroDivisionError):
        hotfuse.load(path, tier=0)
    assert not [t for t in threading.enumerate() if t.name == "hotfuse-weights"]
