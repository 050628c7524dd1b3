"""The story of a session that is adapted while it serves, as it happened."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh

import hotfuse
from hotfuse.runtime.report import make_report
from tests.adaptive.waiting import in_vain

WIDTH = 256
STEPS = ["tier.build", "tier.built", "tier.prove", "tier.proved", "tier.shadow", "tier.shadowed", "tier.publish"]


def model() -> bytes:
    """Hot after some calls."""
    nodes, name = [], "x"
    for i in range(3):
        nodes += [oh.make_node("MatMul", [name, "w"], [f"m{i}"]), oh.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        name = f"t{i}"
    shape = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", WIDTH])
    result = oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", WIDTH])
    weight = onh.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    graph = oh.make_graph(nodes, "told", [shape], [result], [weight])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_the_story_of_a_fusion_that_came_by_itself(tmp_path: Path) -> None:
    x, path = np.ones((64, WIDTH), np.float32), tmp_path / "log"
    with hotfuse.load(model(), tier=1, event_log=str(path)) as session:
        deadline = time.monotonic() + 120
        while not session.kernels:
            assert time.monotonic() < deadline, in_vain(session.events)
            session.run(None, {"x": x})
        before = session.calls
        for _ in range(5):
            session.run(None, {"x": x})
        args = session.graph.name, session.graph, session.opaque, session.best.executor, session.calls, session.events
        report = make_report(*args, closed=False)
        calls = session.calls
    told = report.story("tanh_0")
    kinds = [c.kind for c in told.chapters]
    assert [kind for kind in STEPS if kind in kinds] == STEPS
    published = next(c for c in told.chapters if c.kind == "tier.publish")
    assert 0 < published.calls <= before
    assert (told.state, told.executions) == ("serves", calls - published.calls)
    for node in session.graph.nodes:
        holders = [s for s in report.subgraphs if any(o == str(node.origin) for o in s.subgraph.origins)]
        assert sum(s.executions or 0 for s in holders) == calls
    session.events._file[0].flush()  # type: ignore[index]
    logged = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["kind"] for e in logged if e["kind"] in STEPS][: len(STEPS)] == STEPS
    assert {e["model"] for e in logged} == {"told"}
