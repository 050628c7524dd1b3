"""ONNX data movement against ONNX Runtime, bit by bit; symbolic shapes; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import hotfuse
from hotfuse.errors import HotfuseError, InputError, InvalidModel, LimitExceeded
from hotfuse.ir.dim import evaluate
from hotfuse.ir.types import TensorType
from hotfuse.ir.verify import verify
from tests.frontends.node_case import WAYS, Case, check, model_of

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((2, 8, 4, 6)).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def scalar(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


BIG = 2**63 - 1
CASES = [
    Case("Shape", 13, [X]),
    *(Case("Shape", 15, [X], {"start": s, "end": e}, note=f"{s}:{e}") for s, e in ((1, 3), (-2, -1), (-9, 9), (2, 1))),
    Case("Shape", 15, [X], {"start": 1}, note="1:"),
    Case("Size", 13, [X]),
    Case("Reshape", 1, [X], {"shape": [4, -1]}),
    Case("Reshape", 5, [X, ints(0, -1)]),
    Case("Reshape", 13, [X, ints(4, 0, 2)]),
    Case("Reshape", 14, [np.zeros((0, 3), np.float32), ints(3, 0)], {"allowzero": 1}),
    Case("Reshape", 14, [np.zeros((2, 0, 3), np.float32), ints(0, 0, 3)], note="empty"),
    Case("Reshape", 14, [scalar(2), ints(1, 1)]),
    *(Case("Flatten", v, [X], {"axis": a}, note=f"axis{a}") for v, a in ((1, 1), (9, 0), (11, 3), (13, -1), (13, 2))),
    Case("Flatten", 13, [np.zeros((0, 3), np.float32)], note="empty"),
    Case("Transpose", 1, [X]),
    Case("Transpose", 13, [X], {"perm": [1, 2, 0]}),
    Case("Squeeze", 1, [X[:, :1]], {"axes": [1]}),
    Case("Squeeze", 11, [X[:1, :1]], {"axes": [-2, 0]}),
    Case("Squeeze", 13, [X[:, :1], ints(-2)]),
    Case("Squeeze", 13, [X[:, :1]], note="all"),
    Case("Unsqueeze", 1, [X], {"axes": [0, 4]}),
    Case("Unsqueeze", 13, [X, ints(-1, 0)]),
    Case("Expand", 8, [X[:, :1], ints(2, 3, 1)]),
    Case("Expand", 13, [X, ints(5, 1, 1, 1)]),
    Case("Concat", 4, [X, X[:, :1], X[:, :0]], {"axis": 1}),
    Case("Concat", 13, [X, X], {"axis": -1}),
    Case("Split", 2, [X], {"axis": 2, "split": [1, 3]}, outputs=2),
    Case("Split", 11, [X], {"axis": -1}, outputs=2),
    Case("Split", 13, [X, ints(3, 0, 1)], {"axis": 2}, outputs=3),
    Case("Split", 13, [X, ints(2)], outputs=1),
    Case("Split", 18, [X], {"axis": 1, "num_outputs": 2}, outputs=2, note="uneven"),
    Case("Split", 18, [X], {"axis": 2, "num_outputs": 2}, outputs=2, note="even"),
    Case("Slice", 1, [X], {"starts": [1, -3], "ends": [BIG, -1], "axes": [1, 2]}),
    Case("Slice", 1, [X], {"starts": [0, 1], "ends": [1, 9]}, note="no axes"),
    Case("Slice", 10, [X, ints(0, 3), ints(9, 0), ints(1, 2), ints(2, -1)]),
    Case("Slice", 13, [X, ints(1, 1), ints(2, 3)], note="no axes"),
    Case("Slice", 13, [X, ints(-1), ints(-BIG), ints(-1), ints(-2)], note="backward"),
    Case("Slice", 13, [X, ints(-9), ints(-BIG), ints(2), ints(-1)], note="backward from before the start"),
    Case("Slice", 13, [X, ints(3), ints(1), ints(2), ints(1)], note="nothing"),
    Case("Slice", 13, [X, ints(1), ints(3), ints(-1)], note="no steps"),
    Case("Slice", 13, [X, ints(0), ints(3), None, ints(2)], note="steps without axes"),
    Case("Slice", 13, [X, *(a.astype(np.int32) for a in (ints(1), ints(3), ints(2), ints(1)))], note="int32"),
    Case("Pad", 1, [X], {"paddings": [0, 1, 0, 1, 0, 2], "value": 1.5}, oracle="onnx"),
    Case("Pad", 2, [X], {"pads": [0, 1, 0, 1, 0, 2], "value": 1.5}),
    Case("Pad", 2, [X], {"pads": [0, 2, 1, 1, 0, 2], "mode": "reflect"}, note="reflect"),
    Case("Pad", 13, [X, ints(0, 1, -1, 1, 0, -2), scalar(7)], note="cut"),
    Case("Pad", 18, [X, ints(2, 3, 1, 0), None, ints(-1, 0)], note="axes"),
    *(Case("Pad", 19, [X, ints(1, 2, 1, 0, 2, 3)], {"mode": m}, note=m) for m in ("edge", "reflect", "wrap")),
    Case("Tile", 6, [X, ints(2, 1, 3)]),
    Case("Tile", 13, [X, ints(1, 0, 1)], note="empty"),
    *(Case("Trilu", 14, [X, scalar(k, np.int64)], {"upper": u}, note=f"{u}{k}") for u in (0, 1) for k in (-1, 0, 2, 9)),
    Case("Trilu", 14, [X]),
    Case("ReverseSequence", 10, [X.reshape(4, 3, 2), ints(4, 1, 2)]),
    Case("ReverseSequence", 10, [X.reshape(3, 4, 2), ints(4, 1, 0)], {"batch_axis": 0, "time_axis": 1}, note="batch first"),
    Case("DepthToSpace", 1, [IMAGE], {"blocksize": 2}),
    *(Case("DepthToSpace", 13, [IMAGE], {"blocksize": 2, "mode": m}, note=m) for m in ("DCR", "CRD")),
    Case("SpaceToDepth", 13, [IMAGE], {"blocksize": 2}),
    *(Case("SpaceToDepth", 28, [IMAGE], {"blocksize": 2, "mode": m}, oracle="onnx", note=m) for m in ("DCR", "CRD")),
    Case("ConstantOfShape", 9, [ints(2, 3)]),
    *(
        Case("ConstantOfShape", 20, [ints(2, 0, 1)], {"value": helper.make_tensor("v", t, [1], [3])}, note=str(t))
        for t in (TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE)
    ),
    Case("ConstantOfShape", 9, [ints()], note="scalar"),
    Case("EyeLike", 9, [X[0]], {"k": -1}),
    Case("EyeLike", 9, [X[0]], {"k": 1, "dtype": TensorProto.INT64}),
    Case("Range", 11, [scalar(2, np.int64), scalar(11, np.int64), scalar(3, np.int64)]),
    Case("Range", 11, [scalar(9, np.int32), scalar(2, np.int32), scalar(-3, np.int32)], note="down"),
    Case("Range", 11, [scalar(5, np.int64), scalar(2, np.int64), scalar(3, np.int64)], note="empty"),
    Case("Range", 11, [scalar(0.5), scalar(3.25), scalar(0.25)], note="float"),
    Case("Range", 11, [scalar(1, np.float64), scalar(-1, np.float64), scalar(-0.5, np.float64)], note="double"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle(case: Case, way: str) -> None:
    verify(check(case, way).graph)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "complex64", "object"])
def test_every_kind_of_element_moves(dtype: str) -> None:
    x = np.array([["a", "b", "c"], ["d", "e", "f"]], object) if dtype == "object" else np.arange(6).reshape(2, 3).astype(dtype)
    case = Case("Transpose", 13, [x])
    (found,) = hotfuse.load(model_of(case)).run(None, {"x0": x})
    assert found.tolist() == x.T.tolist()
    assert found.dtype == x.dtype


def test_tile_of_opset_1_repeats_one_axis() -> None:
    text = "g (float[2, 3] x, float tiles) => (y) <float axis = {1}> { y = Tile(x, tiles, axis) }"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = hotfuse.load(text_model(text, 1)).run(None, {"x": x, "tiles": scalar(2)})
    assert np.array_equal(found, np.concatenate([x, x], 1))
    with pytest.raises(InvalidModel, match="axis must be a constant"):
        hotfuse.load(text_model("g (float[2, 3] x, float tiles, float axis) => (y) { y = Tile(x, tiles, axis) }", 1))


# symbolic shapes


def output_shapes(text: str) -> list[tuple[Any, ...] | None]:
    session = hotfuse.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}'))
    verify(session.graph)
    return [s.shape for s in session.outputs]


HEADS = """g (float[batch, seq, 768] x) => (y)
<int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] heads = {12}, int64[1] width = {64}> {
    shape = Shape(x)
    b = Gather(shape, zero)
    s = Gather(shape, one)
    b1 = Unsqueeze(b, front)
    s1 = Unsqueeze(s, front)
    target = Concat <axis = 0> (b1, s1, heads, width)
    split = Reshape(x, target)
    y = Transpose <perm = [0, 2, 1, 3]> (split)
}"""


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (HEADS, ("batch", 12, "seq", 64)),
        (
            """g (float[batch, seq, 768] x) => (y) <int64[1] f = {0}, int64[1] e = {1}, int64[2] rest = {-1, 64}> {
            s = Shape(x)  b = Slice(s, f, e)  t = Concat <axis = 0> (b, rest)  y = Reshape(x, t) }""",
            ("batch", "12*seq", 64),
        ),
        (
            """g (int64[batch, seq] ids) => (y) <int64 zero = {0}, int64 one = {1}, int64[1] front = {0}> {
            s = Shape <start = 1> (ids)  n = Squeeze(s, front)  r = Range(zero, n, one)  u = Unsqueeze(r, front)
            t = Shape(ids)  y = Expand(u, t) }""",
            ("batch", "seq"),
        ),
        (
            """g (float[batch, seq, 8] x) => (y) <int64[1] two = {2}> {
            s = Shape(x)  a, b, c = Split <axis = 0, num_outputs = 3> (s)  d = Mul(b, two)  t = Concat <axis = 0> (a, d)
            y = ConstantOfShape(t) }""",
            ("batch", "2*seq"),
        ),
        (
            "g (float[batch, seq] x) => (y) <int64[2] twice = {1, 2}> { t = Tile(x, twice)  y = Flatten(t) }",
            ("batch", "2*seq"),
        ),
        (
            "g (float[batch, seq] x) => (y) <int64[4] p = {0, 1, 0, 2}> { y = Pad(x, p) }",
            ("batch", "seq + 3"),
        ),
        (
            "g (int64[batch] x) => (y) <int64 depth = {7}, float[2] v = {0, 1}> { y = OneHot(x, depth, v) }",
            ("batch", 7),
        ),
        (
            "g (float[n, c] x) => (y) <int64[1] k = {3}> { y, i = TopK(x, k) }",
            ("n", 3),
        ),
    ],
)  # fmt: skip
def test_sizes_are_followed_through_shape_arithmetic(text: str, shape: tuple[Any, ...]) -> None:
    assert output_shapes(text) == [shape]


def test_a_table_cut_to_the_length_of_a_sequence_leaves_its_size_alone() -> None:
    text = """g (float[batch, seq, 4] x, float[1, 512, 4] table) => (y) <int64[1] start = {0}, int64[1] axis = {1}> {
        n = Shape <start = 1, end = 2> (x)
        rows = Slice(table, start, n, axis)
        y = Add(x, rows)
    }"""
    assert output_shapes(text) == [("batch", "seq", 4)]


def test_the_size_of_a_slice_from_the_end_is_exact() -> None:
    text = """g (float[batch, seq] past, float[batch, 1] now) => (y) <int64[1] start = {-2},
        int64[1] end = {9223372036854775807}, int64[1] axis = {1}> {
            all = Concat <axis = 1> (past, now)
            y = Slice(all, start, end, axis)
        }"""
    type = hotfuse.load(text_model(text)).outputs[0].type
    assert isinstance(type, TensorType)
    assert type.shape is not None
    assert [evaluate(type.shape[1], {"seq": n}) for n in (0, 1, 5)] == [1, 2, 2]


def test_one_graph_serves_all_shapes() -> None:
    session = hotfuse.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {HEADS}'))
    for batch, seq in ((1, 1), (2, 5), (0, 3)):
        x = np.random.default_rng(0).standard_normal((batch, seq, 768)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        assert np.array_equal(y, x.reshape(batch, seq, 12, 64).transpose(0, 2, 1, 3))


# refusals


def text_model(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2, 3] x) => (y) <int64[2] s = {-1, -1}> { y = Reshape(x, s) }", "more than one size open"),
        ("g (float[2, 3] x) => (y) <int64[2] s = {4, -1}> { y = Reshape(x, s) }", "do not fill"),
        ("g (float[2, 3] x) => (y) <int64[1] s = {7}> { y = Reshape(x, s) }", "do not fit"),
        ("g (float[2, 3] x) => (y) <int64[1] s = {-2}> { y = Reshape(x, s) }", "negative size"),
        ("g (float[2, 3] x) => (y) { y = Flatten <axis = 3> (x) }", "axis 3 is out of range"),
        ("g (float[2, 3] x) => (y) { y = Transpose <perm = [0, 0]> (x) }", "not an order of the axes"),
        ("g (float[2, 3] x) => (y) <int64[1] a = {1}> { y = Squeeze(x, a) }", "only axes of size 1"),
        ("g (float[2, 3] x) => (y) { y = Unsqueeze(x) }", "takes 2 inputs, the node has 1"),
        ("g (float[2, 3] x) => (y) <int64[2] a = {0, 0}> { y = Unsqueeze(x, a) }", "named twice"),
        ("g (float[2, 3] x) => (y) <int64[2] s = {-1, 3}> { y = Expand(x, s) }", "negative size"),
        ("g (float[2, 3] x) => (y) <int64[2] s = {5, 3}> { y = Expand(x, s) }", "do not broadcast"),
        ("g (float[2, 3] x, float[3, 3] z) => (y) { y = Concat <axis = 1> (x, z) }", "not the joined one"),
        ("g (float[2, 3] x, float[3] z) => (y) { y = Concat <axis = 0> (x, z) }", "different ranks"),
        ("g (float[2, 3] x, int64[2, 3] z) => (y) { y = Concat <axis = 0> (x, z) }", "different types"),
        ("g (float[2, 3] x) => (y, z) <int64[2] s = {1, 3}> { y, z = Split <axis = 1> (x, s) }", "do not make up"),
        ("g (float[2, 3] x) => (y, z) <int64[2] s = {-1, 4}> { y, z = Split <axis = 1> (x, s) }", "negative size"),
        ("g (float[2, 3] x) => (y, z) <int64[1] s = {3}> { y, z = Split <axis = 1> (x, s) }", "2 outputs"),
        ("g (float[2, 3] x) => (y, z) { y, z = Split <num_outputs = 3> (x) }", "3 parts are asked for"),
        (
            "g (float[2, 3] x) => (y) <int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}, int64[1] t = {0}>"
            "{ y = Slice(x, s, e, a, t) }",
            "never ends",
        ),
        (
            "g (float[2, 3] x) => (y) <int64[2] s = {0, 0}, int64[2] e = {1, 1}, int64[1] a = {0}> { y = Slice(x, s, e, a) }",
            "one place for each",
        ),
        ("g (float[2, 3] x) => (y) <int64[2] p = {1, 1}> { y = Pad(x, p) }", "need 4 numbers"),
        ("g (float[2, 3] x) => (y) <int64[4] p = {-3, 0, 0, 0}> { y = Pad(x, p) }", "negative size"),
        ("g (float[2, 3] x) => (y) <int64[4] p = {1, 0, 0, 0}> { y = Pad <mode = 'odd'> (x, p) }", "no mode 'odd'"),
        ("g (float[0, 3] x) => (y) <int64[4] p = {1, 0, 0, 0}> { y = Pad <mode = 'edge'> (x, p) }", "nothing to fill with"),
        ("g (float[2] x, int64 v) => (y) <int64[2] p = {1, 0}> { y = Pad(x, p, v) }", "the value to fill with"),
        ("g (float[2, 3] x) => (y) { y = Pad(x) }", "takes 2 to 4 inputs, the node has 1"),
        ("g (float[2, 3] x) => (y) <int64[2] r = {1, -1}> { y = Tile(x, r) }", "not all positive"),
        ("g (float[3] x) => (y) { y = Trilu(x) }", "no rows and columns"),
        ("g () => (y) <int64[1] s = {-1}> { y = ConstantOfShape(s) }", "negative size"),
        ("g () => (y) <int64[1] s = {1}> { y = ConstantOfShape <value = float[2] {1, 2}> (s) }", "must be one element"),
        ("g (float[2] x) => (y) { y = EyeLike(x) }", "needs two axes"),
        ("g (float[2, 2] x) => (y) { y = EyeLike <dtype = 99> (x) }", "no element type"),
        ("g () => (y) <int64 a = {0}, int64 b = {1}, int64 c = {0}> { y = Range(a, b, c) }", "never reaches"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_right_is_refused_when_it_loads(text: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        hotfuse.load(text_model(text.replace("'", '"')))


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        ("g (float[2, 3] x, int64[1] s) => (y) { y = Reshape(x, s) }", {"s": ints(7)}),
        ("g (float[2, 3] x, int64[1] a) => (y) { y = Squeeze(x, a) }", {"a": ints(1)}),
        ("g (float[2, 3] x, int64[2] s) => (y, z) { y, z = Split <axis = 1> (x, s) }", {"s": ints(1, 1)}),
        ("g (float[2, 3] x, int64[2] s) => (y) { y = Expand(x, s) }", {"s": ints(5, 3)}),
    ],
)
def test_data_that_does_not_fit_is_refused_when_it_runs(text: str, feeds: dict[str, Any]) -> None:
    session = hotfuse.load(text_model(text))
    with pytest.raises(InputError, match=r"Reshape|Squeeze|Split|Expand"):
        session.run(None, {"x": np.zeros((2, 3), np.float32), **feeds})


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        ("g (int64[2] s) => (y) { y = ConstantOfShape(s) }", {"s": ints(1 << 20, 1 << 20)}),
        ("g (float[4] x, int64[1] s) => (y) { y = Tile(x, s) }", {"x": np.zeros(4, np.float32), "s": ints(1 << 40)}),
        ("g (float[1] x, int64[1] s) => (y) { y = Expand(x, s) }", {"x": np.zeros(1, np.float32), "s": ints(1 << 40)}),
        ("g (float[1] x, int64[2] s) => (y) { y = Pad(x, s) }", {"x": np.zeros(1, np.float32), "s": ints(1 << 40, 0)}),
        ("g (int64 a, int64 b, int64 c) => (y) { y = Range(a, b, c) }",
         {"a": scalar(0, int), "b": scalar(1 << 40, int), "c": scalar(1, int)}),
        ("g (float a, float b, float c) => (y) { y = Range(a, b, c) }", {"a": scalar(0), "b": scalar(1e13), "c": scalar(1)}),
        ("g (int64[2] i, int64 d, float[2] v) => (y) { y = OneHot(i, d, v) }",
         {"i": ints(0, 1), "d": scalar(1 << 40, int), "v": np.zeros(2, np.float32)}),
        ("g (int64[2] s) => (y) { z = ConstantOfShape(s) y = EyeLike(z) }", {"s": ints(1 << 20, 1 << 20)}),
    ],
)  # fmt: skip
def test_a_size_bomb_is_refused_before_it_allocates(text: str, feeds: dict[str, Any]) -> None:
    session = hotfuse.load(text_model(text))
    with pytest.raises(LimitExceeded, match="max_value_bytes"):
        session.run(None, feeds)


def test_a_model_that_is_a_size_bomb_whatever_it_is_fed_never_runs() -> None:
    with pytest.raises(HotfuseError, match="max_value_bytes"):
        hotfuse.load(text_model("g () => (y) <int64[2] s = {1048576, 1048576}> { y = ConstantOfShape(s) }")).run(None, {})


PADS_THROUGH_A_TABLE = """
    <ir_version: 10, opset_import: ["" : 17]>
    padded (float[N, 3, H, W] x) => (float[A, B, C, D] y)
    <int64[4] given = {0, 1, 2, 3}, int64[1] four = {4}, int64[2] pairs = {-1, 2}, int64[1] flat = {-1},
     int64[1] last = {-1}, int64[1] before = {-9223372036854775807}, int64[1] zero = {0}> {
        rest = ConstantOfShape <value = int64[1] {0}> (four)
        all = Concat <axis = 0> (given, rest)
        table = Reshape (all, pairs)
        backwards = Slice (table, last, before, zero, last)
        turned = Transpose <perm = [1, 0]> (backwards)
        pads = Reshape (turned, flat)
        wide = Cast <to = 7> (pads)
        y = Pad (x, wide)
    }
"""


def test_pads_that_an_exporter_computes_keep_sizes_known() -> None:
    """As torch.onnx.export writes F.pad(x, (0, 1, 2, 3))."""
    session = hotfuse.load(parser.parse_model(PADS_THROUGH_A_TABLE), strict=True)
    assert session.outputs[0].shape == ("N", 3, "H + 5", "W + 1")
    assert [node.op for node in session.graph.nodes] == ["pad"]
    x = np.ones((1, 3, 4, 5), np.float32)
    (y,) = session.run(None, {"x": x})
    assert np.array_equal(y, np.pad(x, [(0, 0), (0, 0), (2, 3), (0, 1)]))
