"""ONNX control flow, sequences, optional values and function bodies against ONNX Runtime and onnx's own evaluator."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

import hotfuse
from hotfuse.errors import ExecutionError, InputError, InvalidModel, LimitExceeded
from hotfuse.frontends.onnx_body import bind_attributes
from hotfuse.ir.types import TensorType
from hotfuse.ir.verify import verify

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def model(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def by_onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds))


def check(proto: onnx.ModelProto, feeds: dict[str, Any], oracle: str = "onnxruntime") -> list[Any]:
    session = hotfuse.load(proto)
    assert not session.opaque
    verify(session.graph)
    found = session.run(None, feeds)
    wanted = by_onnxruntime(proto, feeds) if oracle == "onnxruntime" else ReferenceEvaluator(proto).run(None, feeds)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs)
    return found


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif theirs is None:
        assert ours is None
    else:
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()


# If

BRANCHES = """g (bool c, float[N, 4] x) => (float[M, 4] y) <float one = {1}> {
    y = If <
        then_branch = t () => (float[N, 4] a) { a = Add(x, one) },
        else_branch = e () => (float[K, 4] b) { b = Concat <axis = 0> (x, x) }
    > (c)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_if_takes_one_branch(condition: bool) -> None:
    check(model(BRANCHES), {"c": np.array(condition), "x": X})


def test_both_branches_of_one_shape_keep_the_outer_sizes() -> None:
    text = BRANCHES.replace("Concat <axis = 0> (x, x)", "Sub(x, one)").replace("[K, 4]", "[N, 4]")
    assert hotfuse.load(model(text)).outputs[0].shape == ("N", 4)
    type = hotfuse.load(model(BRANCHES)).outputs[0].type
    assert isinstance(type, TensorType)
    assert type.shape is not None
    assert str(type.shape[0]).startswith("?")


# Loop

GROW = """g (int64 n, bool go, float[K, 4] x) => (y, s) {
    y, s = Loop <body = b (int64 i, bool c, float[?, 4] v) => (bool d, float[?, 4] w, float[4] r) <int64[1] front = {0}> {
        d = Identity(c)
        w = Concat <axis = 0> (v, v)
        r = ReduceMax <keepdims = 0> (v, front)
    }> (n, go, x)
}"""


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_loop_whose_value_grows(rounds: int) -> None:
    proto = model(GROW)
    session = hotfuse.load(proto)
    verify(session.graph)
    found = session.run(None, {"n": np.array(rounds), "go": np.array(True), "x": X})
    assert np.array_equal(found[0], np.concatenate([X] * 2**rounds))
    assert np.array_equal(found[1], np.tile(X.max(0), (rounds, 1)))
    assert found[1].dtype == np.float32


CONSTANT_RESULT = """g (int64 n, bool go, float[0, 4] x, float[5, 4] z) => (y) <float one = {1}> {
    v = Loop <body = b (int64 i, bool c, float[?, 4] v) => (bool d, float[5, 4] w) {
        d = Identity(c)
        w = Identity(z)
    }> (n, go, x)
    y = Add(v, one)
}"""


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_loop_that_may_not_run_has_no_type_of_its_body_alone(rounds: int) -> None:
    z = np.ones((5, 4), np.float32)
    feeds = {"n": np.array(rounds), "go": np.array(True), "x": np.zeros((0, 4), np.float32), "z": z}
    (found,) = hotfuse.load(model(CONSTANT_RESULT)).run(None, feeds)
    assert np.array_equal(found, z + 1 if rounds else np.zeros((0, 4), np.float32))


def test_a_loop_whose_first_size_comes_from_data() -> None:
    # the carried value and `p` start with one size, which only data tells; after a round they differ
    text = """g (int64 n, bool go, float[6] x) => (y) {
        z = NonZero(x)
        p = Squeeze(z)
        y = Loop <body = b (int64 i, bool c, int64[?] v) => (bool d, int64[?] w) {
            d = Identity(c)
            w = Concat <axis = 0> (v, p)
        }> (n, go, p)
    }"""
    x = np.array([0, 1, 0, 2, 3, 0], np.float32)
    (found,) = check(model(text), {"n": np.array(2), "go": np.array(True), "x": x})
    assert found.tolist() == [1, 3, 4] * 3


def test_a_loop_stops_by_its_condition() -> None:
    text = """g (float x) => (y, s) <float limit = {100}> {
        y, s = Loop <body = b (int64 i, bool c, float v) => (bool d, float w, float r) {
            w = Add(v, v)
            d = Less(w, limit)
            r = Identity(w)
        }> ( , , x)
    }"""
    found = hotfuse.load(model(text)).run(None, {"x": np.float32(3)})
    assert found[0] == 192
    assert found[1].tolist() == [6, 12, 24, 48, 96, 192]


def test_invariant_values_keep_their_shape_through_loop_and_scan() -> None:
    text = """g (int64 n, bool go, float[N, 4] x) => (y) <float one = {1}> {
        y = Loop <body = b (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] w) {
            d = Identity(c)
            w = Add(v, one)
        }> (n, go, x)
    }"""
    assert hotfuse.load(model(text)).outputs[0].shape == ("N", 4)


def nested_loops(depth: int) -> onnx.ModelProto:
    """Loops in loops, each of which doubles its value."""
    info = helper.make_tensor_value_info
    inner = [helper.make_node("Concat", ["v", "v"], ["w"], axis=0)]
    for level in range(depth):
        body = helper.make_graph(
            [helper.make_node("Identity", [f"c{level}"], [f"d{level}"]), *inner],
            f"body{level}",
            [info(f"i{level}", TensorProto.INT64, []), info(f"c{level}", TensorProto.BOOL, []),
             info("v" if level == 0 else f"v{level}", TensorProto.FLOAT, [None])],
            [info(f"d{level}", TensorProto.BOOL, []), info("w" if level == 0 else f"w{level}", TensorProto.FLOAT, [None])],
        )  # fmt: skip
        inner = [helper.make_node("Loop", ["n", "go", f"v{level + 1}"], [f"w{level + 1}"], body=body)]
    inputs = [info("n", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info(f"v{depth}", TensorProto.FLOAT, [1])]
    graph = helper.make_graph(inner, "nest", inputs, [onnx.ValueInfoProto(name=f"w{depth}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_importing_loops_in_loops_takes_no_more_than_a_few_passes() -> None:
    started = time.perf_counter()
    session = hotfuse.load(nested_loops(20))
    assert time.perf_counter() - started < 5.0  # one more pass for each level would be 2^20
    (found,) = session.run(None, {"n": np.array(1), "go": np.array(True), "v20": np.ones(1, np.float32)})
    assert found.shape == (2,)
    with pytest.raises(LimitExceeded, match="nested"):
        hotfuse.load(nested_loops(20), max_nesting=19)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (bool c) => (y) { y = If <then_branch = t () => (float a) <float a = {1}> {}> (c) }", "'else_branch' is missing"),
        (
            "g (int64 n, bool go, float x) => (y) "
            "{ y = Loop <body = b (int64 i, bool c, float v) => (bool d, int64 i) { d = Identity(c) }> (n, go, x) }",
            r"f32\[\] before a round of the body and i64\[\] after",
        ),
        (
            "g (int64 n, bool go, float x) => (y) "
            "{ y = Loop <body = b (int64 i, bool c, float v) => (bool d) { d = Identity(c) }> (n, go, x) }",
            "1 values are carried, the body returns 0",
        ),
        (
            "g (float[3] x) => (y) { y = Scan <num_scan_inputs = 2, body = b (float v) => (float w) { w = Identity(v) }> (x) }",
            "of 1 inputs 2 are to be scanned",
        ),
    ],
)
def test_control_flow_that_cannot_be_right_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        hotfuse.load(model(text))


# Scan

SUMS = """g (float[4] first, float[T, 4] x) => (last, sums, backward) {
    last, sums, backward = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1, 0],
        body = b (float[4] s, float[4] a, float[4] z) => (float[4] t, float[4] u, float[4] k) {
            t = Add(s, a)
            u = Identity(t)
            k = Identity(z)
        }> (first, x, x)
}"""


def test_scan_in_both_directions() -> None:
    check(model(SUMS), {"first": np.zeros(4, np.float32), "x": X})
    assert [s.shape for s in hotfuse.load(model(SUMS)).outputs] == [(4,), ("T", 4), ("T", 4)]


def test_scan_along_other_axes() -> None:
    text = """g (float[3] first, float[3, T] x) => (last, sums) {
        last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
            body = b (float[3] s, float[3] a) => (float[3] t, float[3] u) { t = Add(s, a) u = Identity(t) }> (first, x)
    }"""
    check(model(text), {"first": np.zeros(3, np.float32), "x": X})


def test_scan_of_opset_8_runs_each_batch_apart() -> None:
    text = """g (float[B, 4] first, float[B, T, 4] x) => (last, sums) <float two = {2}> {
        k = Mul(two, two)
        last, sums = Scan <num_scan_inputs = 1, directions = [1],
            body = b (float[4] s, float[4] a) => (float[4] t, float[4] u) { t = Add(s, a) u = Mul(t, k) }> ( , first, x)
    }"""
    x = np.random.default_rng(1).integers(-9, 9, (2, 5, 4)).astype(np.float32)
    first = np.ones((2, 4), np.float32)
    last, sums = hotfuse.load(model(text, 8)).run(None, {"first": first, "x": x})
    running = first[:, None] + np.cumsum(x[:, ::-1], axis=1)
    assert np.array_equal(last, running[:, -1])
    assert np.array_equal(sums, 4 * running)


# sequences and optional values


def test_sequences_are_built_and_read() -> None:
    text = """g (float[3, 4] x, float[2, 4] z, int64 k) => (a, n, j, s, rest, whole) <int64[1] where = {-1}, int64 two = {2}> {
        q = SequenceConstruct(x, z)
        r = SequenceInsert(q, z, k)
        a = SequenceAt(r, k)
        n = SequenceLength(r)
        j = ConcatFromSequence <axis = 0> (r)
        s = SplitToSequence <axis = 1> (x, two)
        rest = SequenceErase(r, k)
        e = SequenceEmpty()
        f = SequenceInsert(e, x)
        g2 = SequenceInsert(f, x)
        whole = ConcatFromSequence <axis = -1, new_axis = 1> (g2)
    }"""
    z = np.ones((2, 4), np.float32)
    for k in (0, -1):
        check(model(text), {"x": X, "z": z, "k": np.array(k)}, "onnx")


@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_to_single_slices(keepdims: int) -> None:
    check(model(f"g (float[3, 4] x) => (y) {{ y = SplitToSequence <axis = 1, keepdims = {keepdims}> (x) }}"), {"x": X}, "onnx")
    uneven = "g (float[3, 4] x) => (y) <int64[2] s = {1, 3}> { y = SplitToSequence <axis = 1> (x, s) }"
    check(model(uneven), {"x": X}, "onnx")


def sequence_input() -> onnx.ModelProto:
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("SequenceInsert", ["q", "x"], ["r"]),
        helper.make_node("Identity", ["q"], ["same"]),
        helper.make_node("SequenceAt", ["r", "k"], ["a"]),
    ]
    inputs = [
        helper.make_value_info("q", tensors),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("k", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=n) for n in ("r", "same", "a")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_sequence_may_be_fed_and_returned(length: int) -> None:
    given = [np.full(i + 1, i, np.float32) for i in range(length)]
    session = hotfuse.load(sequence_input())
    found, same, last = session.run(None, {"q": given, "x": np.array([7, 8], np.float32), "k": np.array(-1)})
    assert [f.tolist() for f in found] == [*(g.tolist() for g in given), [7, 8]]
    assert last.tolist() == [7, 8]
    for array in (*found, *same):
        array[...] = 99  # what is returned is the caller's own
    assert [g.tolist() for g in given] == [[i] * (i + 1) for i in range(length)]
    assert last.tolist() == [7, 8]


def test_what_is_fed_for_a_sequence_is_checked() -> None:
    session = hotfuse.load(sequence_input())
    rest = {"x": np.zeros(2, np.float32), "k": np.array(0)}
    with pytest.raises(InputError, match="input 'q' must be a list"):
        session.run(None, {"q": np.zeros(2, np.float32), **rest})
    with pytest.raises(InputError, match="element 1 of input 'q' must be float32"):
        session.run(None, {"q": [np.zeros(2, np.float32), np.zeros(2, np.int64)], **rest})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2] x, int64[2] z) => (y) { y = SequenceConstruct(x, z) }", "must have one type"),
        ("g (float[2] x) => (y) { y = SequenceLength(x) }", "must be a sequence"),
        ("g (int64[2] x) => (y) { e = SequenceEmpty() y = SequenceInsert(e, x) }", "takes no i64"),
        ("g () => (y) { y = SequenceEmpty <dtype = 99> () }", "no element type"),
        ("g () => (y) { y = Optional() }", "type of the value must be given"),
        ("g (float[2] x) => (y) { y = SplitToSequence <axis = 1> (x) }", "axis 1 is out of range"),
        ("g (float[2] x) => (y) { s = SequenceConstruct(x) y = ConcatFromSequence <axis = 1> (s) }", "axis 1 is out of range"),
    ],
)  # fmt: skip
def test_sequences_that_cannot_be_right_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        hotfuse.load(model(text))


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        ("g (float[2] x, int64 k) => (y) { s = SequenceConstruct(x) y = SequenceAt(s, k) }", {"k": np.array(1)}),
        ("g (float[2] x, int64 k) => (y) { s = SequenceConstruct(x) y = SequenceErase(s, k) }", {"k": np.array(-2)}),
        ("g (float[2] x, int64 k) => (y) { s = SequenceConstruct(x) y = SequenceInsert(s, x, k) }", {"k": np.array(2)}),
        ("g (float[2] x, int64 k) => (y) { y = SplitToSequence(x, k) }", {"k": np.array(0)}),
        ("g (float[2] x, int64[2] k) => (y) { y = SplitToSequence(x, k) }", {"k": np.array([1, 2])}),
    ],
)
def test_places_outside_a_sequence_are_refused(text: str, feeds: dict[str, Any]) -> None:
    with pytest.raises(ExecutionError, match=r"place|parts"):
        hotfuse.load(model(text)).run(None, {"x": np.zeros(2, np.float32), **feeds})


def test_an_empty_optional_has_no_element_to_give() -> None:
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    info = helper.make_value_info("o", helper.make_optional_type_proto(element))
    nodes = [helper.make_node("OptionalHasElement", ["o"], ["has"]), helper.make_node("OptionalGetElement", ["o"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info], [onnx.ValueInfoProto(name="has"), onnx.ValueInfoProto(name="y")])
    session = hotfuse.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    x = np.array([1, 2], np.float32)
    has, y = session.run(None, {"o": x})
    assert has
    assert np.array_equal(y, x)
    with pytest.raises(InvalidModel, match="empty optional"):
        session.run(None, {"o": None})


def test_a_sequence_does_not_share_scratch_memory() -> None:
    # each sum is written to the same scratch memory once it is dead; what went into the sequence must not change with it
    steps = " ".join(
        f"a{i} = Add(b{i - 1}, x)  s{i} = SequenceInsert(s{i - 1}, a{i})  b{i} = Mul(a{i}, x)" for i in range(1, 6)
    )
    text = f"g (float[1000] x) => (s5) {{ b0 = Identity(x) s0 = SequenceEmpty() {steps} }}"
    x = np.full(1000, 2, np.float32)
    (found,) = hotfuse.load(model(text)).run(None, {"x": x})
    value, wanted = x, []
    for _ in range(5):
        wanted.append(value + x)
        value = wanted[-1] * x
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.array_equal(ours, theirs)


# function bodies


def test_a_function_body_gets_the_defaults_of_its_operator() -> None:
    proto = model("g (float[3, 4] x) => (y) { y = ThresholdedRelu(x) }", 22)
    check(proto, {"x": X})


def test_attributes_reach_the_graphs_nested_in_a_function_body() -> None:
    function = parser.parse_function(
        """<opset_import: ["": 18], domain: "own"> pick <axis> (c, x) => (y) {
            y = If <then_branch = t () => (a) { a = Concat <axis: int = @axis> (x, x) },
                    else_branch = e () => (b) { b = Identity(x) }> (c)
        }"""
    )
    given = {"axis": helper.make_attribute("axis", 1)}
    bound = bind_attributes(function.node[0], given)
    assert bound.attribute[0].g.node[0].attribute[0].i == 1
    assert function.node[0].attribute[0].g.node[0].attribute[0].ref_attr_name == "axis"


def test_a_function_of_the_model_itself_runs() -> None:
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18, "own": 1]>
        g (bool c, float[3, 4] x) => (y) { y = own.pick <axis = 1> (c, x) }
        <opset_import: ["": 18], domain: "own"> pick <axis> (c, x) => (y) {
            y = If <then_branch = t () => (a) { a = Concat <axis: int = @axis> (x, x) },
                    else_branch = e () => (b) { b = Identity(x) }> (c)
        }"""
    )
    check(proto, {"c": np.array(True), "x": X}, "onnx")
