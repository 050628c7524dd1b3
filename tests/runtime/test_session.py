"""Sessions: ONNX Runtime's calling convention, every refusal of a wrong call, ownership of arrays, many threads at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.errors import ExecutionError, InputError, LimitExceeded

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def info(name: str, kind: int = F32, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], **constants: Any
) -> bytes:
    initializers = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def linear() -> bytes:
    """y = tanh(x @ w), z = x + s; x and s share their first size."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
        helper.make_node("Add", ["x", "s"], ["z"]),
    ]
    inputs = [info("x", F32, ["batch", 3]), info("s", F32, ["batch", 1])]
    return model(nodes, inputs, [info("y", F32, ["batch", 4]), info("z", F32, ["batch", 3])], w=WEIGHT)


def feeds(batch: int = 2, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((batch, 3)).astype(np.float32),
        "s": random.standard_normal((batch, 1)).astype(np.float32),
    }


# the calling convention


def test_signature() -> None:
    session = hotfuse.load(linear())
    assert [(s.name, s.shape, s.dtype) for s in session.inputs] == [
        ("x", ("batch", 3), np.dtype("float32")),
        ("s", ("batch", 1), np.dtype("float32")),
    ]
    assert [(s.name, s.shape) for s in session.outputs] == [("y", ("batch", 4)), ("z", ("batch", 3))]


@pytest.mark.parametrize("wanted", [None, ["y"], ["z", "y"], ["y", "y"], []])
def test_outputs_by_name_as_onnxruntime_does(wanted: list[str] | None) -> None:
    given = feeds()
    ours = hotfuse.load(linear()).run(wanted, given)
    theirs = onnxruntime.InferenceSession(linear(), providers=["CPUExecutionProvider"])
    expected = dict(zip(("y", "z"), theirs.run(None, given), strict=True))
    assert len(ours) == len(["y", "z"] if wanted is None else wanted)
    for name, found in zip(["y", "z"] if wanted is None else wanted, ours, strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-6, atol=1e-7)
        assert found.dtype == expected[name].dtype


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in feeds().items() if k != name}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "input 'x' .* is missing"),
        (without("s"), "input 's' .* is missing"),
        ({**feeds(), "extra": np.ones(1)}, "no input 'extra'; its inputs are"),
        ({**feeds(), "x": feeds()["x"].astype(np.float64)}, "input 'x' must be float32, not float64; convert"),
        ({**feeds(), "x": np.ones((2, 3), np.int32)}, "input 'x' must be float32, not int32"),
        ({**feeds(), "x": "text"}, r"input 'x' must be float32, not str; give an array: np.asarray\(..., dtype='float32'\)"),
        ({**feeds(), "x": None}, r"input 'x' must be float32, not None; give an array: np.asarray\(..., dtype='float32'\)"),
        ({**feeds(), "x": [[1, 2, 3]] * 2}, "input 'x' must be float32, not a list of int64; give an array: np"),
        ({**feeds(), "x": 1.5}, "input 'x' must be float32, not float; give an array: np"),
        ({**feeds(), "x": np.ones(3, np.float32)}, r"input 'x' must have shape \('batch', 3\), not \(3,\)"),
        ({**feeds(), "x": np.ones((2, 3, 1), np.float32)}, "input 'x' must have shape"),
        ({**feeds(), "x": np.ones((2, 4), np.float32)}, r"input 'x' must have shape \('batch', 3\), not \(2, 4\)"),
        (
            {**feeds(), "s": np.ones((5, 1), np.float32)},
            "'x' and 's' share the size batch, but it is 2 in one and 5 in the other",
        ),
    ],
)
def test_wrong_inputs(given: dict[str, Any], says: str) -> None:
    session = hotfuse.load(linear())
    with pytest.raises(InputError, match=says):
        session.run(None, given)
    assert len(session.run(None, feeds())) == 2  # a refused call leaves no trace


def test_one_name_twice_in_one_shape() -> None:
    session = hotfuse.load(
        model([helper.make_node("Neg", ["x"], ["y"])], [info("x", F32, ["n", "n"])], [info("y", F32, ["n", "n"])])
    )
    assert session.run(None, {"x": np.ones((3, 3), np.float32)})[0].shape == (3, 3)
    with pytest.raises(InputError, match="share the size n"):
        session.run(None, {"x": np.ones((3, 4), np.float32)})


def test_unknown_output() -> None:
    with pytest.raises(InputError, match=r"no output 'nope'; its outputs are \['y', 'z'\]"):
        hotfuse.load(linear()).run(["y", "nope"], feeds())


def test_one_output_twice_is_two_arrays() -> None:
    first, second = hotfuse.load(linear()).run(["y", "y"], feeds())
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_a_string_is_not_a_list_of_names() -> None:
    with pytest.raises(InputError, match=r"must be a list of names or None, not a string; write \['y'\]"):
        hotfuse.load(linear()).run("y", feeds())


def test_closed_sessions_refuse() -> None:
    with hotfuse.load(linear()) as session:
        session.run(None, feeds())
    with pytest.raises(InputError, match="closed"):
        session.run(None, feeds())


def test_a_value_over_the_limit_is_refused_and_the_session_goes_on() -> None:
    session = hotfuse.load(linear(), max_value_bytes=1000)
    with pytest.raises(LimitExceeded, match="max_value_bytes"):
        session.run(None, feeds(1000))
    assert session.run(["y"], feeds(3))[0].shape == (3, 4)


def test_too_little_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("hotfuse.runtime.memory.Arena", fail)
    with pytest.raises(ExecutionError, match="not enough memory"):
        hotfuse.load(linear()).run(None, feeds())


# memory


def test_out_is_written_and_returned() -> None:
    session = hotfuse.load(linear())
    expected = session.run(None, feeds())
    out = [np.full((2, 4), 9, np.float32), np.full((3, 2), 9, np.float32).T]  # the second is not contiguous
    returned = session.run(None, feeds(), out=out)
    assert all(a is b for a, b in zip(returned, out, strict=True))
    for found, right in zip(out, expected, strict=True):
        np.testing.assert_array_equal(found, right)


def frozen(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (np.zeros((2, 4), np.float32), "output 'z' is"),
        (np.zeros((2, 3), np.float64), "output 'z' is"),
        (frozen((2, 3)), "read-only"),
        ([[0.0] * 3] * 2, "cannot be written into list"),
    ],
)
def test_wrong_out_writes_nothing(second: Any, says: str) -> None:
    first = np.full((2, 4), 9, np.float32)
    with pytest.raises(InputError, match=says):
        hotfuse.load(linear()).run(None, feeds(), out=[first, second])
    assert (first == 9).all()
    with pytest.raises(InputError, match="1 arrays for 2 outputs"):
        hotfuse.load(linear()).run(None, feeds(), out=[first])


def test_results_belong_to_the_caller() -> None:
    session = hotfuse.load(linear())
    given = feeds()
    before = {k: v.copy() for k, v in given.items()}
    first = session.run(None, given)
    kept = [v.copy() for v in first]
    second = session.run(None, given)
    for array in second:
        array[...] = -1  # neither earlier results, nor inputs, nor later calls may notice
    for array, right in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, right)
    for name, array in given.items():
        np.testing.assert_array_equal(array, before[name])
    for array, right in zip(session.run(None, given), kept, strict=True):
        np.testing.assert_array_equal(array, right)
    given["x"][...] = 100
    for array, right in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, right)


def identities() -> bytes:
    """An input, the same input again through Identity, a view of it, and a constant, all as outputs."""
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Identity", ["x"], ["b"]),
        helper.make_node("Transpose", ["x"], ["c"], perm=[1, 0]),
        helper.make_node("Identity", ["w"], ["d"]),
        helper.make_node("Reshape", ["x", "shape"], ["e"]),
    ]
    outputs = [
        info("a", F32, [3, 4]),
        info("b", F32, [3, 4]),
        info("c", F32, [4, 3]),
        info("d", F32, [3, 4]),
        info("e", F32, [12]),
    ]
    return model(nodes, [info("x", F32, [3, 4])], outputs, w=WEIGHT, shape=np.array([12]))


def test_identity_models_share_no_memory() -> None:
    session = hotfuse.load(identities())
    x = np.ones((3, 4), np.float32)
    results = session.run(None, {"x": x})
    for i, array in enumerate(results):
        assert array.flags.writeable
        assert not np.shares_memory(array, x)
        assert not any(np.shares_memory(array, other) for other in results[:i])
    for array in results:
        array[...] = 5
    assert (x == 1).all()
    again = session.run(None, {"x": x})
    np.testing.assert_array_equal(again[0], x)
    np.testing.assert_array_equal(again[3], WEIGHT)


@pytest.mark.parametrize("form", ["transposed", "reversed", "strided", "big-endian", "read-only", "list of rows", "torch"])
def test_feeds_of_every_layout(form: str) -> None:
    given = feeds(4)
    x = given["x"]
    expected = hotfuse.load(linear()).run(None, given)
    spread = np.zeros((8, 6), np.float32)
    spread[::2, ::2] = x
    locked = x.copy()
    locked.flags.writeable = False
    if form == "torch":
        value: Any = pytest.importorskip("torch").from_numpy(x.copy())
    else:
        value = {
            "transposed": np.ascontiguousarray(x.T).T,
            "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
            "strided": spread[::2, ::2],
            "big-endian": x.astype(">f4"),
            "read-only": locked,
            "list of rows": list(x),
        }[form]
    for found, right in zip(hotfuse.load(linear()).run(None, {**given, "x": value}), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-7)


def test_the_layout_of_a_feed_changes_no_bit() -> None:
    """numpy multiplies a strided matrix and a vector another way, which rounds otherwise."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 40), (40,)))
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", F32, [5, 40])], [info("y", F32, [5])], w=w)
    session = hotfuse.load(made)
    (plain,) = session.run(None, {"x": x})
    for other in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], np.ascontiguousarray(x[::-1])[::-1]):
        assert np.array_equal(session.run(None, {"x": other})[0], plain)


def test_zero_size_feeds() -> None:
    y, z = hotfuse.load(linear()).run(None, feeds(0))
    assert y.shape == (0, 4)
    assert z.shape == (0, 3)


def looping() -> bytes:
    """y = x after n times tanh(x @ w + x): the work, and so the scratch memory, is in a nested graph."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["a"]),
            helper.make_node("Add", ["a", "h"], ["b"]),
            helper.make_node("Tanh", ["b"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [info("i", I64, []), info("going", TensorProto.BOOL, []), info("h", F32, ["batch", 4])],
        [info("still", TensorProto.BOOL, []), info("next", F32, ["batch", 4])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    weight = np.eye(4, dtype=np.float32) / 2
    return model([loop], [info("n", I64, []), info("x", F32, ["batch", 4])], [info("y", F32, ["batch", 4])], w=weight)


def test_scratch_memory_of_nested_graphs_counts() -> None:
    session = hotfuse.load(looping())
    session.run(None, {"n": np.array(3), "x": np.ones((8, 4), np.float32)})
    report = session.report()
    assert report.arena_bytes >= 8 * 4 * 4
    assert 8 * 4 * 4 <= session._executor._pool.held_bytes <= report.arena_bytes
    bounded = hotfuse.load(looping(), max_arena_bytes=2 * report.arena_bytes)
    for batch in (8, 9, 10, 11):
        bounded.run(None, {"n": np.array(3), "x": np.ones((batch, 4), np.float32)})
    assert 0 < bounded._executor._pool.held_bytes <= 2 * report.arena_bytes
    bounded.close()
    assert bounded._executor._pool.held_bytes == 0


# the report


def test_a_model_that_draws_random_numbers_never_gets_kernels_and_says_so() -> None:
    session = hotfuse.load(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
            g (float[4] x) => (float[4] y) { r = RandomNormalLike(x)  y = Add(x, r) }""")
    )
    (event,) = session.events.of("tier.never")
    assert "draws random numbers" in event.reason
    session.run(None, {"x": np.ones(4, np.float32)})
    assert session.report().why.endswith(event.reason)


def test_the_report_answers_why_it_is_not_faster_yet() -> None:
    session = hotfuse.load(linear())
    assert session.report().why == "it was not called yet"
    session.run(None, feeds())
    none = "no fused kernel exists for it yet: its operators run one by one"
    why = session.report().why
    assert why.startswith(f"{none}; it could save ")
    assert "ms; it takes 50 ms, with " in why  # the budget, which rises with the queue
    session.close()
    assert session.report().why == "it was closed"
    original = hotfuse.load(linear(), tier=0)
    assert original.report().why == "tier=0 allows nothing but the original operators"


# threads


def test_eight_threads_with_several_shapes() -> None:
    """Every answer is that of the same call alone, bit for bit, while arenas and bound plans are shared and evicted."""
    session = hotfuse.load(linear(), max_bound_shapes=3)
    cases = [feeds(batch, seed) for seed, batch in enumerate((1, 2, 3, 5, 8, 13))]
    expected = [session.run(None, given) for given in cases]
    wrong: list[str] = []
    start = threading.Barrier(8)

    def call(number: int) -> None:
        start.wait()
        try:
            for turn in range(60):
                which = (number + turn) % len(cases)
                results = session.run(None, cases[which])
                for found, right in zip(results, expected[which], strict=True):
                    if not np.array_equal(found, right):
                        wrong.append(f"thread {number}, turn {turn}")
                    found[...] = number
        except Exception as error:  # a thread's error would be lost
            wrong.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_loading_leaves_nothing_for_the_first_call_to_read(tmp_path: Path) -> None:
    """Weights lie where products can read them, and the module that computes an error function of float64 is there."""
    wide = helper.make_node("Cast", ["m"], ["d"], to=TensorProto.DOUBLE)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), wide, helper.make_node("Erf", ["d"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, [info("x", F32, ["n", 3])], [info("y", TensorProto.DOUBLE, ["n", 4])], w=WEIGHT))
    code = f"""
import sys, hotfuse
session = hotfuse.load({str(path)!r}, tier=0)
(constant,) = session.graph.constants.values()
print("scipy.special" in sys.modules, constant.numpy() is constant.numpy(), constant.numpy().flags.aligned)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True"] * 3, done.stderr
