"""Nodes that break the schema of their operator are refused, and declared outputs that contradict the graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import hotfuse
from hotfuse.errors import InvalidModel, UnsupportedModel
from hotfuse.frontends.onnx_schema import node_rules
from tests.frontends.oracle import by_onnxruntime

X = np.array([[-1.5, 0.25, 3.0], [2.0, -0.5, 0.0]], np.float32)


def model(body: str, signature: str = "(float[2, 3] x) => (y)", opset: int = 20) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "custom": 1]> g {signature} {{ {body} }}')


def runtime_refuses(proto: onnx.ModelProto) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return True
    return False


# attributes, inputs and outputs

WRONG = {
    "y = Softmax <axes = 0> (x)": "y Softmax: Softmax of opset 20 has no attribute 'axes': it has axis; check the spelling",
    "y = Concat(x, x)": "y Concat: the attribute 'axis' is missing; Concat of opset 20 needs it",
    "y = ReduceSum <axes = [0]> (x)": "no attribute 'axes': it has keepdims, noop_with_empty_axes",
    "y = Clip <min = 0.0, max = 1.0> (x)": "no attribute 'min': it has none",
    "y = Pad <pads = [0, 0, 1, 1]> (x)": "no attribute 'pads': it has mode",
    "y = Dropout <ratio = 0.3> (x)": "no attribute 'ratio': it has seed",
    "y = Gemm <broadcast = 1> (x, x)": "no attribute 'broadcast': it has alpha, beta, transA, transB",
    "y = Relu <foo = 1> (x)": "y Relu: Relu of opset 20 has no attribute 'foo'",
    "y = Transpose <perm = 1> (x)": "y Transpose: attribute 'perm' must be INTS, not INT",
    "y = Relu(x, x)": r"takes 1 input, the node has 2: \['x', 'x'\]",
    "y = Where(x, x)": "takes 3 inputs, the node has 2",
    "y = Clip(x, x, x, x)": "takes 1 to 3 inputs, the node has 4",
    "y = Concat <axis = 0> ()": "takes at least 1 inputs, the node has 0",
    'y = Relu("")': "needs input 0, which is left out",
    "y, z = Relu(x)": r"y Relu: Relu of opset 20 gives 1 output, the node has 2: \['y', 'z'\]",
    "y, z = Relu(x) w = Abs(z)": "y Relu: Relu of opset 20 gives 1 output, the node has 2",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_node_that_breaks_its_schema_is_refused(body: str) -> None:
    proto = model(body)
    assert runtime_refuses(proto)
    with pytest.raises(InvalidModel, match=WRONG[body]):
        hotfuse.load(proto)


def test_attributes_of_nodes_in_branches_are_checked_too() -> None:
    branch = "() => (float[2, 3] r) { r = Softmax <axes = 0> (x) }"
    proto = model(
        f"y = If <then_branch = t {branch}, else_branch = e {branch}> (b)", "(float[2, 3] x, bool b) => (float[2, 3] y)"
    )
    assert runtime_refuses(proto)
    with pytest.raises(InvalidModel, match="r Softmax: Softmax of opset 20 has no attribute 'axes'"):
        hotfuse.load(proto)


def test_gelu_approximates_in_known_ways_only() -> None:
    with pytest.raises(InvalidModel, match="y Gelu: attribute 'approximate' must be 'none' or 'tanh', not 'bogus'"):
        hotfuse.load(model('y = Gelu <approximate = "bogus"> (x)'))


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = Softmax <axis = 0> (x)", 20),
        ("y = Concat <axis = 0> (x, x, x, x, x)", 20),
        ("y = ReduceSum <axes = [0]> (x)", 11),
        ("y = Clip <min = 0.0, max = 1.0> (x)", 10),
        ("y = Pad <pads = [0, 0, 1, 1]> (x)", 10),
        ("y = Dropout <ratio = 0.3> (x)", 11),
        ('y, "" = Dropout(x)', 20),
        ("y = Sum(x)", 20),
        ("m = Constant <value_float = 1.0> () y = Clip(x, \"\", m)", 20),
    ],
)  # fmt: skip
def test_what_the_version_has_is_taken(body: str, opset: int) -> None:
    proto = model(body, opset=opset)
    (found,), (expected,) = hotfuse.load(proto).run(None, {"x": X}), by_onnxruntime(proto, {"x": X})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("body", ['y = Clip(x, "", "")', 'y = Relu(x, "")', "y = LeakyRelu <alpha = 1> (x)"])
def test_empty_names_at_the_end_and_whole_numbers_are_let_pass(body: str) -> None:
    (found,) = hotfuse.load(model(body)).run(None, {"x": X})
    np.testing.assert_array_equal(found, np.maximum(X, 0) if "Relu(x" in body and "Leaky" not in body else X)


def test_operators_without_a_schema_are_not_checked() -> None:
    assert node_rules("Relu", 1, "custom") is None
    with pytest.raises(UnsupportedModel, match=r"custom\.Relu"):
        hotfuse.load(model("y = custom.Relu <foo = 1> (x, x, x)"))


# declared outputs


@pytest.mark.parametrize(
    ("signature", "body", "message"),
    [
        ("(float[3] x) => (int64[3] y)", "y = Relu(x)", r"output 'y' is declared as i64\[3\], but the graph computes f32\[3\]"),
        ("(float[3] x) => (float[7] y)", "y = Relu(x)", r"declared as f32\[7\]"),
        ("(float[3] x) => (float[3, 1] y)", "y = Relu(x)", r"declared as f32\[3, 1\]"),
        ("(float[N, 3] x) => (float[N, 4] y)", "y = Relu(x)", r"declared as f32\[N, 4\]"),
        ("(float[3] x) => (float[3] y)", "y = SequenceConstruct(x)", "declared as f32"),
        ("(float[3] x) => (seq(float[3]) y)", "y = Relu(x)", "declared as seq"),
        ("(float[3] x) => (seq(int64[3]) y)", "y = SequenceConstruct(x)", "declared as seq"),
    ],
)
def test_a_declared_output_that_contradicts_the_graph_is_refused(signature: str, body: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        hotfuse.load(model(body, signature))


@pytest.mark.parametrize("shape", ["[]", "[3]", "[N]", "[?]"])
@pytest.mark.parametrize("fed", ["[3]", "[M]", "[?]"])
def test_declarations_that_say_less_or_something_else_by_name_are_taken(shape: str, fed: str) -> None:
    session = hotfuse.load(model("y = Relu(x)", f"(float{fed} x) => (float{shape} y)"))
    np.testing.assert_array_equal(session.run(None, {"x": X[0]})[0], np.maximum(X[0], 0))
