"""Large graphs: time grows with the number of nodes and no faster.

Processor time is measured, not the clock's, so that a busy machine does not fail the test.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_model import load_onnx
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.verify import verify

F32 = TensorProto.FLOAT


@functools.cache
def blocks(count: int, swap: bool = False) -> bytes:
    """About `count` nodes in blocks of ten, with attributes, constants, shape arithmetic and long-range inputs."""
    nodes: list[onnx.NodeProto] = []
    add, last = nodes.append, "x"
    for i in range(count // 10):
        v = [f"b{i}_{k}" for k in range(10)]
        add(helper.make_node("MatMul", [last, "w"], [v[0]], name=f"block{i}/matmul"))
        add(helper.make_node("Add", [v[0], "b"], [v[1]], name=f"block{i}/bias"))
        add(helper.make_node("Relu", [v[1]], [v[2]]))
        add(helper.make_node("Shape", [v[2]], [v[3]], name=f"block{i}/shape"))
        add(helper.make_node("Gather", [v[3], "zero"], [v[4]], axis=0))
        add(helper.make_node("Concat", [v[4], "sizes"], [v[5]], axis=0))
        add(helper.make_node("Reshape", [v[2], v[5]], [v[6]], name=f"block{i}/reshape"))
        add(helper.make_node("Transpose", [v[6]], [v[7]], perm=[0, 2, 1]))
        add(helper.make_node("Reshape", [v[7], "flat"], [v[8]]))
        add(helper.make_node("Add", [v[8], last if i % 3 else "x"], [v[9]], name=f"block{i}/skip"))
        last = v[9]
    if swap:
        nodes[-1], nodes[-2] = nodes[-2], nodes[-1]
    constants = {
        "w": np.eye(8, dtype=np.float32), "b": np.zeros(8, np.float32), "zero": np.array([0]), "sizes": np.array([2, 4]),
        "flat": np.array([0, 8]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", F32, ["batch", 8])],
        [helper.make_tensor_value_info(last, F32, ["batch", 8])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def load_verify_plan(data: bytes) -> tuple[float, Graph]:
    gc.collect()
    start = time.process_time()
    graph = load_onnx(data, Config()).graph
    trivial_plan(verify(graph))
    return time.process_time() - start, graph


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without Python's garbage collector, whose own cost grows faster than what is collected."""
    gc.disable()
    yield
    gc.enable()


def test_ten_thousand_and_a_hundred_thousand_nodes() -> None:
    for count, limit in ((100, 2.0), (10_000, 2.0), (100_000, 12 * 2.0)):
        seconds, graph = load_verify_plan(blocks(count))
        print(f"{count:,} nodes: {seconds:.2f} s")
        assert len(graph.nodes) >= count
        assert seconds <= limit


@pytest.mark.usefixtures("no_collector")
def test_time_grows_with_the_nodes_and_no_faster() -> None:
    load_verify_plan(blocks(100))  # imports and caches
    small = min(load_verify_plan(blocks(10_000))[0] for _ in range(3))
    large = min(load_verify_plan(blocks(100_000))[0] for _ in range(2))
    print(f"ten times the nodes take {large / small:.1f} times as long")
    assert large <= 12 * small


def test_a_large_model_runs() -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    ours = hotfuse.load(blocks(2_000)).run(None, {"x": x})[0]
    theirs = pytest.importorskip("onnxruntime").InferenceSession(blocks(2_000), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(ours, theirs.run(None, {"x": x})[0], rtol=1e-5)


def test_a_fault_at_the_end_of_a_large_model_is_found_quickly() -> None:
    data = blocks(10_000, swap=True)
    start = time.process_time()
    with pytest.raises(InvalidModel, match="before it is computed"):
        load_onnx(data, Config())
    assert time.process_time() - start <= 2.0
