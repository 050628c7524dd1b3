"""Initializers that are graph inputs too: constants until a call feeds them, as in ONNX Runtime."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from onnx import parser

import hotfuse
from hotfuse.errors import InputError

X = np.array([1.0, 2.0, 3.0], np.float32)
W = np.array([10.0, 20.0, 30.0], np.float32)


def model(ir_version: int = 10) -> onnx.ModelProto:
    """y = relu(x + w) * c + v, where w and v may be fed and c may not."""
    return parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["": 20]>
        g (float[3] x, float[3] w, float[N] v) => (float[3] y)
        <float[3] w = {{1, -9, 1}}, float[1] v = {{0.5}}, float c = {{2}}> {{
            s = Add(x, w)  r = Relu(s)  t = Mul(r, c)  y = Add(t, v)
        }}""")


def theirs(proto: onnx.ModelProto) -> Any:
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_signature_is_that_of_onnxruntime() -> None:
    session, oracle = hotfuse.load(model()), theirs(model())
    assert [s.name for s in session.inputs] == [i.name for i in oracle.get_inputs()] == ["x"]
    assert [s.name for s in session.overridable] == [i.name for i in oracle.get_overridable_initializers()] == ["w", "v"]


@pytest.mark.parametrize("fed", [{}, {"w": W}, {"v": X}, {"w": W, "v": X}, {"w": W, "v": W[:1]}])
@pytest.mark.parametrize("tier", [0, 1])
def test_fed_values_win(fed: dict[str, Any], tier: int) -> None:
    session, oracle = hotfuse.load(model(), tier=tier, wait=True), theirs(model())
    for feeds in ({"x": X}, {"x": X, **fed}, {"x": X}):  # an override lasts for its call
        np.testing.assert_allclose(session.run(None, feeds)[0], oracle.run(None, feeds)[0], rtol=1e-6)


def test_a_fed_size_reshapes() -> None:
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[2, 3] x, int64[2] s) => (float[A, B] y) <int64[2] s = {3, 2}> { y = Reshape(x, s) }""")
    session, x = hotfuse.load(proto), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert session.run(None, {"x": x})[0].shape == (3, 2)
    np.testing.assert_array_equal(session.run(None, {"x": x, "s": np.array([6, 1])})[0], x.reshape(6, 1))


def test_values_that_do_not_fit_are_refused() -> None:
    session = hotfuse.load(model())
    for feeds, message in (
        ({"w": W}, "input 'x' .* is missing"),
        ({"x": X, "w": W[:2]}, r"input 'w' must have shape \(3,\)"),
        ({"x": X, "w": W.astype(np.float64)}, "input 'w' must be float32"),
        ({"x": X, "c": np.float32(1)}, "no input 'c'"),
    ):
        with pytest.raises(InputError, match=message):
            session.run(None, feeds)
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run(None, {"x": X, "w": W})


def test_before_version_four_initializers_are_constants() -> None:
    old = model(3)
    old.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, []))  # all had to be listed
    session, oracle = hotfuse.load(old), theirs(old)
    assert list(session.overridable) == list(oracle.get_overridable_initializers()) == []
    np.testing.assert_allclose(session.run(None, {"x": X})[0], oracle.run(None, {"x": X})[0])
    with pytest.raises(InputError, match="no input 'w'"):
        session.run(None, {"x": X, "w": W})


def test_the_model_is_the_one_that_was_loaded(tmp_path: Path) -> None:
    """Neither the caller's object nor the path is looked at again."""
    proto, path = model(), tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    expected = theirs(proto).run(None, {"x": X, "w": W})[0]
    sessions = [hotfuse.load(proto), hotfuse.load(path)]
    proto.graph.node[1].op_type = "Neg"
    proto.graph.initializer[2].float_data[:] = [99]
    (tmp_path / "other").write_bytes(proto.SerializeToString())
    (tmp_path / "other").replace(path)
    for session in sessions:
        np.testing.assert_allclose(session.run(None, {"x": X, "w": W})[0], expected)


def test_sessions_for_overrides_are_bounded_and_made_once() -> None:
    names = [f"w{i}" for i in range(12)]
    inputs, values = ", ".join(f"float[1] {n}" for n in names), ", ".join(f"float[1] {n} = {{1}}" for n in names)
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[1] x, {inputs}) => (float[1] y) <{values}> {{ y = Sum(x, {", ".join(names)}) }}""")
    session = hotfuse.load(proto)
    for name in names:
        feeds = {"x": X[:1], name: W[:1]}
        assert session.run(None, feeds)[0].tolist() == [22.0]
    assert len(session._overrides._sessions) == 8
    threads = [threading.Thread(target=session.run, args=(None, {"x": X[:1], "w0": W[:1]})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(session._overrides._sessions) == 8
    assert session.report().calls == 16


def test_what_answers_fed_values_is_settled_and_told() -> None:
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 256] x, float[256] w) => (float[N, 256] y) {
            s = Mul(x, w)  t = Tanh(s)  e = Exp(t)  y = Softmax(e) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(256, np.float32), "w"))
    feeds = {"x": np.ones((64, 256), np.float32), "w": np.full(256, 0.5, np.float32)}
    with hotfuse.load(proto, cache="off") as session:
        deadline = time.monotonic() + 120
        told: tuple[str, ...] = ()
        while "tier.publish" not in told and time.monotonic() < deadline:
            for _ in range(20):
                session.run(None, feeds)
            assert session.settle(60)
            report = session.report()
            told = tuple(report.overridden["w"].events)
        assert "tier.publish" in told
        assert report.overridden["w"].kernels
        assert not report.kernels
        story = report.overridden["w"].subgraphs[0]
        assert report.story(story.id) == story
        assert "calls that feed w: " in str(report)
        assert report.json()["overridden"]["w"]["kernels"]
