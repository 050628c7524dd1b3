"""Hostile models: each is refused with a clear error within one second and 256 MB, measured in a process of its own.

Time counts from the call of `hotfuse.load`, imports excluded; memory is the whole process's peak.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

MAX_SECONDS = 1.0
MAX_BYTES = 256 << 20
I64, F32 = TensorProto.INT64, TensorProto.FLOAT

PROBE = """
import json, sys, time
import numpy as np
import onnx
import hotfuse, hotfuse.entry, hotfuse.frontends.onnx_model

path, feeds = sys.argv[1], json.loads(sys.argv[2])
feeds = {name: np.array(value, dtype=kind) for name, (value, kind) in feeds.items()}
start, error = time.perf_counter(), None
try:
    hotfuse.load(path).run(None, feeds)
except BaseException as caught:
    error = caught
seconds = time.perf_counter() - start
(peak,) = (int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([type(error).__name__, str(error), isinstance(error, hotfuse.HotfuseError), seconds, peak]))
"""


def probe(path: Path, feeds: dict[str, tuple[Any, str]]) -> tuple[str, str, bool, float, int]:
    """Load and run a model in a fresh interpreter: the error's kind and text, whether it is ours, seconds, peak bytes.

    The peak is VmHWM, which starts anew with the program; getrusage would carry over the memory of the process that starts it,
    and a forked copy would leave out the libraries it shares.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path), json.dumps(feeds)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"the process died: {done.stderr[-2000:]}"
    kind, message, ours, seconds, peak = json.loads(done.stdout)
    return kind, message, ours, seconds, peak


@dataclass(frozen=True)
class Attack:
    """A way to write a hostile model file, the error it must meet, and what to feed if the model only bites when it runs."""

    write: Callable[[], bytes]
    error: str
    says: str
    feeds: dict[str, tuple[Any, str]] | None = None


def info(name: str, kind: int = F32, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    constants: dict[str, Any] | None = None,
    opset: int = 21,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    outputs = [info("y")] if outputs is None else outputs
    graph = helper.make_graph(nodes, "hostile", inputs or [], outputs, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)


def file(*args: Any, **options: Any) -> Callable[[], bytes]:
    return lambda: model(*args, **options).SerializeToString()


node = helper.make_node
X = [info("x", F32, [4])]
SHAPE = [info("n", I64, [2])]
HUGE = np.array([10**6, 10**7])


def delimited(number: int, payload: bytes) -> bytes:
    """A protobuf field with a length."""
    head = bytearray([number << 3 | 2] if number < 16 else [(number << 3 | 2) & 0x7F | 0x80, number >> 4])
    size = len(payload)
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(head) + bytes([size]) + payload


OPSET = delimited(8, b"\x10\x15")


def ten_million_nodes() -> bytes:
    return delimited(7, delimited(1, node("Relu", ["x"], ["y"]).SerializeToString()) * 10**7) + OPSET


def ten_million_nested_nodes() -> bytes:
    """The outer graph is small; the nodes are in a branch."""
    inner = delimited(1, b"") * 10**7
    outer = delimited(1, delimited(5, delimited(6, inner)))
    return delimited(7, outer) + OPSET


def ten_million_attributes() -> bytes:
    return delimited(7, delimited(1, delimited(5, b"") * 10**7)) + OPSET


def ten_million_input_sizes() -> bytes:
    shape = delimited(1, b"") * 10**7
    return delimited(7, delimited(11, delimited(2, delimited(1, delimited(2, shape))))) + OPSET


def nested(depth: int) -> bytes:
    graph = b""
    for _ in range(depth):
        graph = delimited(1, delimited(4, b"If") + delimited(5, delimited(6, graph)))
    return delimited(7, graph) + OPSET


def nested_types(depth: int) -> bytes:
    kind = b""
    for _ in range(depth):
        kind = delimited(4, delimited(1, kind))  # a sequence of sequences of ...
    return delimited(7, delimited(11, delimited(1, b"x") + delimited(2, kind))) + OPSET


def initializer(**fields: Any) -> bytes:
    made = model([node("Identity", ["w"], ["y"])])
    made.graph.initializer.append(TensorProto(name="w", **fields))
    return made.SerializeToString()


def functions(count: int, calls: int, closed: bool = False) -> list[onnx.FunctionProto]:
    """f0 is an operator; each further function calls the one before it `calls` times; `closed` makes f0 call the last one."""
    made = []
    for i in range(count):
        target = f"f{i - 1}" if i else f"f{count - 1}"
        op = (target, "local") if i or closed else ("Relu", "")
        body = [node(op[0], [f"v{k}"], [f"v{k + 1}"], domain=op[1]) for k in range(calls)]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        made.append(helper.make_function("local", f"f{i}", ["v0"], [f"v{calls}"], body, opsets))
    return made


def calling(made: list[onnx.FunctionProto]) -> Callable[[], bytes]:
    return file([node(made[-1].name, ["x"], ["y"], domain="local")], X, functions=made)


def squared(steps: int, start: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **options: Any) -> Callable[[], bytes]:
    """Arithmetic on sizes that squares its expression at every step; then an impossible reshape, so that there is an error."""
    chain = [node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(steps)]
    end = [node("Expand", ["x", f"s{steps}"], ["e"]), node("NoSuchOperator", ["e"], ["y"])]
    return file([*start, *chain, *end], inputs, **options)


def many_symbols() -> bytes:
    """A product of sixty sums of sizes: 8^60 terms, if written out."""
    inputs, nodes = [], []
    for i in range(60):
        inputs += [info(f"i{i}_{k}", F32, [f"d{i}_{k}"]) for k in range(8)]
        nodes += [node("Concat", [f"i{i}_{k}" for k in range(8)], [f"c{i}"], axis=0), node("Shape", [f"c{i}"], [f"s{i}"])]
    nodes.append(node("Concat", [f"s{i}" for i in range(60)], ["shape"], axis=0))
    nodes.append(node("ConstantOfShape", ["shape"], ["big"]))
    nodes.append(node("Flatten", ["big"], ["flat"]))
    nodes.append(node("NoSuchOperator", ["flat"], ["y"]))
    return model(nodes, inputs).SerializeToString()


def sparse_bomb() -> bytes:
    made = model([node("Identity", ["w"], ["y"])])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    made.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[10**6, 10**7]))
    return made.SerializeToString()


def duplicate_function() -> bytes:
    made = functions(1, 1)
    return model([node("f0", ["x"], ["y"], domain="local")], X, functions=[*made, *made]).SerializeToString()


def duplicate_initializer() -> bytes:
    made = onnx.ModelProto.FromString(initializer(data_type=F32, dims=[1], float_data=[1]))
    made.graph.initializer.append(made.graph.initializer[0])
    return made.SerializeToString()


def cut() -> bytes:
    made = model([node("Add", ["x", "w"], ["y"])], X, constants={"w": np.zeros(10**5, np.float32)}).SerializeToString()
    return made[: len(made) // 2]


def in_branch(inner: list[onnx.NodeProto]) -> Callable[[], bytes]:
    then = helper.make_graph(inner, "then", [], [info("r")], [numpy_helper.from_array(HUGE, "huge")])
    other = helper.make_graph([node("Identity", ["x"], ["r"])], "else", [], [info("r")])
    outer = node("If", ["b"], ["y"], then_branch=then, else_branch=other)
    return file([outer], [*X, info("b", TensorProto.BOOL, [])])


BIG_FEED = {"n": ([10**6, 10**7], "int64")}
X_FEED = {"x": ([1.0, 2.0, 3.0, 4.0], "float32")}
FOLDED = [
    node("ConstantOfShape", ["small"], ["ones"], value=numpy_helper.from_array(np.array([10**6], np.int64))),
    node("ConstantOfShape", ["ones"], ["big"]),
    node("ReduceMax", ["big"], ["y"], keepdims=0),
]

ATTACKS: dict[str, Attack] = {
    # files that are no models
    "empty file": Attack(lambda: b"", "InvalidModel", "is empty"),
    "random bytes": Attack(lambda: np.random.default_rng(0).bytes(10**6), "InvalidModel", "damaged"),
    "zeros": Attack(lambda: bytes(10**7), "InvalidModel", "not part of an ONNX model"),
    "cut off": Attack(cut, "InvalidModel", "cut off or damaged"),
    "no graph": Attack(lambda: OPSET, "InvalidModel", "no graph"),
    "no opset": Attack(lambda: delimited(7, b""), "InvalidModel", "no opset import"),
    # too many, too deep
    "10^7 nodes": Attack(ten_million_nodes, "LimitExceeded", "more than 500,000 nodes"),
    "10^7 nodes in a branch": Attack(ten_million_nested_nodes, "LimitExceeded", "more than 500,000 nodes"),
    "10^7 attributes": Attack(ten_million_attributes, "LimitExceeded", "fields"),
    "10^7 constants": Attack(lambda: delimited(7, delimited(5, b"") * 10**7) + OPSET, "LimitExceeded", "fields"),
    "10^7 sizes of an input": Attack(ten_million_input_sizes, "LimitExceeded", "fields"),
    "nesting of 33": Attack(lambda: nested(33), "LimitExceeded", "nested deeper than 32"),
    "nesting of 10^4": Attack(lambda: nested(10**4), "LimitExceeded", "nested deeper than 32"),
    "nested types": Attack(lambda: nested_types(10**4), "LimitExceeded", "nested deeper than 100"),
    "recursive function": Attack(calling(functions(1, 1, closed=True)), "InvalidModel", "calls itself"),
    "mutually recursive functions": Attack(calling(functions(3, 1, closed=True)), "InvalidModel", "calls itself"),
    "2^30 nodes by functions": Attack(calling(functions(30, 2)), "LimitExceeded", "1,073,741,824 nodes"),
    "functions nested 10^3": Attack(calling(functions(1000, 1)), "LimitExceeded", "deeper than 32"),
    "function defined twice": Attack(duplicate_function, "InvalidModel", "defined twice"),
    # sizes
    "overflowing dims": Attack(
        lambda: initializer(data_type=F32, dims=[2**33, 2**33], raw_data=b"1234"),
        "InvalidModel",
        "more elements than can be counted",
    ),
    "huge dims, no data": Attack(lambda: initializer(data_type=F32, dims=[2**40]), "InvalidModel", "tensor 'w'"),
    "huge dims, packed, no data": Attack(
        lambda: initializer(data_type=TensorProto.INT4, dims=[2**40]), "InvalidModel", "tensor 'w'"
    ),
    "huge string tensor": Attack(
        lambda: initializer(data_type=TensorProto.STRING, dims=[2**40], string_data=[b"a"]),
        "InvalidModel",
        "1 strings instead of",
    ),
    "negative dims": Attack(lambda: initializer(data_type=F32, dims=[-4], raw_data=b""), "InvalidModel", "negative size"),
    "negative input dims": Attack(file([node("Relu", ["x"], ["y"])], [info("x", F32, [-4])]), "InvalidModel", "negative size"),
    "sparse bomb": Attack(sparse_bomb, "LimitExceeded", "max_value_bytes"),
    # bombs that are known when the model is loaded
    "ConstantOfShape bomb": Attack(
        file([node("ConstantOfShape", ["n"], ["y"])], constants={"n": HUGE}), "LimitExceeded", "would make"
    ),
    "Expand bomb": Attack(
        file([node("Expand", ["x", "n"], ["y"])], [info("x", F32, [1])], constants={"n": HUGE}), "LimitExceeded", "would make"
    ),
    "Tile bomb": Attack(
        file([node("Tile", ["x", "n"], ["y"])], [info("x", F32, [1, 1])], constants={"n": HUGE}), "LimitExceeded", "would make"
    ),
    "Tile bomb of integers": Attack(
        file(
            [node("Tile", ["c", "n"], ["y"])],
            outputs=[info("y", I64)],
            constants={"c": np.ones(1, np.int64), "n": np.array([10**13])},
        ),
        "LimitExceeded",
        "would make",
    ),
    "Range bomb": Attack(
        file([node("Range", ["a", "b", "c"], ["y"])], outputs=[info("y", I64)], constants={"a": 0, "b": 10**13, "c": 1}),
        "LimitExceeded",
        "would make",
    ),
    "Pad bomb": Attack(
        file([node("Pad", ["x", "n"], ["y"])], X, constants={"n": np.array([0, 10**13])}), "LimitExceeded", "would make"
    ),
    "broadcast bomb": Attack(
        file([node("Add", ["x", "z"], ["y"])], [info("x", F32, [10**7, 1]), info("z", F32, [1, 10**7])]),
        "LimitExceeded",
        "would make",
    ),
    "MatMul bomb": Attack(
        file([node("MatMul", ["x", "z"], ["y"])], [info("x", F32, [10**7, 1]), info("z", F32, [1, 10**7])]),
        "LimitExceeded",
        "would make",
    ),
    "bomb in a branch": Attack(in_branch([node("ConstantOfShape", ["huge"], ["r"])]), "LimitExceeded", "would make"),
    "bomb through constant folding": Attack(file(FOLDED, constants={"small": np.array([2])}), "LimitExceeded", "would make"),
    # bombs that only the data reveals
    "ConstantOfShape at run": Attack(
        file([node("ConstantOfShape", ["n"], ["y"])], SHAPE), "LimitExceeded", "would make", BIG_FEED
    ),
    "Expand at run": Attack(
        file([node("Expand", ["x", "n"], ["y"])], [info("x", F32, [1]), *SHAPE]),
        "LimitExceeded",
        "would make",
        {**BIG_FEED, "x": ([1.0], "float32")},
    ),
    "Tile at run": Attack(
        file([node("Tile", ["x", "n"], ["y"])], [info("x", F32, [1, 1]), *SHAPE]),
        "LimitExceeded",
        "would make",
        {**BIG_FEED, "x": ([[1.0]], "float32")},
    ),
    "Range at run": Attack(
        file([node("Range", ["a", "b", "c"], ["y"])], [info("b", I64, [])], [info("y", I64)], {"a": 0, "c": 1}),
        "LimitExceeded",
        "would make",
        {"b": (10**13, "int64")},
    ),
    "Range of floats at run": Attack(
        file(
            [node("Range", ["a", "b", "c"], ["y"])], [info("b", F32, [])], constants={"a": np.float32(0), "c": np.float32(1e-6)}
        ),
        "LimitExceeded",
        "would make",
        {"b": (1e7, "float32")},
    ),
    "OneHot at run": Attack(
        file(
            [node("OneHot", ["x", "b", "v"], ["y"])],
            [info("x", I64, [4]), info("b", I64, [])],
            constants={"v": np.float32([0, 1])},
        ),
        "LimitExceeded",
        "would make",
        {"x": ([1, 2, 3, 4], "int64"), "b": (10**12, "int64")},
    ),
    "Pad at run": Attack(
        file([node("Pad", ["x", "n"], ["y"])], [*X, *SHAPE]),
        "LimitExceeded",
        "would make",
        {**X_FEED, "n": ([0, 10**13], "int64")},
    ),
    # size arithmetic
    "squared sizes": Attack(
        squared(
            60,
            [node("Shape", ["x"], ["a"]), node("Shape", ["z"], ["b"]), node("Add", ["a", "b"], ["s0"])],
            [info("x", F32, ["n"]), info("z", F32, ["m"])],
        ),
        "UnsupportedModel",
        "NoSuchOperator",
    ),
    "squared numbers": Attack(
        squared(60, [], [info("x", F32, [1])], constants={"s0": np.array([3])}), "UnsupportedModel", "NoSuchOperator"
    ),
    "product of sums of sizes": Attack(many_symbols, "DimError", "terms"),
    # graphs that are no graphs
    "cycle": Attack(
        file([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])], X),
        "InvalidModel",
        "cycle",
    ),
    "node reads itself": Attack(file([node("Add", ["x", "y"], ["y"])], X), "InvalidModel", "cycle"),
    "duplicate values": Attack(
        file([node("Relu", ["x"], ["y"]), node("Tanh", ["x"], ["y"])], X), "InvalidModel", "'y' is defined twice"
    ),
    "value named as an input": Attack(
        file([node("Relu", ["x"], ["x"])], X, [info("x")]), "InvalidModel", "'x' is defined twice"
    ),
    "duplicate inputs": Attack(file([node("Relu", ["x"], ["y"])], [*X, *X]), "InvalidModel", "'x' is defined twice"),
    "duplicate initializers": Attack(duplicate_initializer, "InvalidModel", "'w' is defined twice"),
    "undefined input": Attack(file([node("Add", ["x", "ghost"], ["y"])], X), "InvalidModel", "'ghost', which nothing defines"),
    "undefined output": Attack(file([node("Relu", ["x"], ["z"])], X), "InvalidModel", "'y' is computed by no node"),
    "undefined in a branch": Attack(in_branch([node("Relu", ["ghost"], ["r"])]), "InvalidModel", "'ghost'"),
    "missing operand": Attack(file([node("Add", ["x"], ["y"])], X), "InvalidModel", "Add"),
    # nodes that break their operator's rules; onnx's own inference ends the process on the first two
    "RegexFullMatch of nothing known": Attack(
        file(
            [node("RegexFullMatch", ["x"], ["b"], pattern="a"), node("Cast", ["b"], ["y"], to=1)],
            [onnx.ValueInfoProto(name="x")],
        ),
        "ExecutionError",
        "RegexFullMatch",
        X_FEED,
    ),
    "EyeLike of nothing": Attack(file([node("EyeLike", [""], ["y"], dtype=1)]), "InvalidModel", "EyeLike"),
    "attribute of another kind": Attack(
        file([node("LeakyRelu", ["x"], ["y"], alpha=[1, 2])], X), "InvalidModel", "'alpha' must be FLOAT, not INTS"
    ),
    "axis that is not there": Attack(file([node("Transpose", ["x"], ["y"], perm=[7])], X), "InvalidModel", "Transpose"),
    "branch that is no graph": Attack(file([node("If", ["x"], ["y"], then_branch=1, else_branch=2)], X), "InvalidModel", "If"),
    "node name that is no text": Attack(
        lambda: model([node("Relu", ["x"], ["y"], name="name")], X).SerializeToString().replace(b"name", b"\xff\xfe\xfd\xfc"),
        "InvalidModel",
        "not text",
    ),
    "input name that is no text": Attack(
        lambda: (
            model([node("Relu", ["long"], ["y"])], [info("long", F32, [4])])
            .SerializeToString()
            .replace(b"long", b"\xff\xfe\xfd\xfc")
        ),
        "InvalidModel",
        "not text",
    ),
    "size name that is no text": Attack(
        lambda: (
            model([node("Relu", ["x"], ["y"])], [info("x", F32, ["long"])])
            .SerializeToString()
            .replace(b"long", b"\xff\xfe\xfd\xfc")
        ),
        "InvalidModel",
        "not text",
    ),
    "operator that nothing runs": Attack(
        file([node("Gradient", ["x"], ["y"], domain="ai.onnx.preview.training", xs=["x"], y="x")], X),
        "UnsupportedModel",
        "Gradient",
        X_FEED,
    ),
    # languages nobody speaks
    "opset 0": Attack(file([node("Relu", ["x"], ["y"])], X, opset=0), "InvalidModel", "opset 0"),
    "opset 9999": Attack(file([node("Relu", ["x"], ["y"])], X, opset=9999), "UnsupportedModel", "Upgrade onnx"),
    "unknown operator": Attack(file([node("NoSuchOperator", ["x"], ["y"])], X), "UnsupportedModel", "NoSuchOperator"),
    "unknown domain": Attack(file([node("Relu", ["x"], ["y"], domain="nobody.knows")], X), "UnsupportedModel", "nobody.knows"),
    "unknown element type": Attack(lambda: initializer(data_type=99, dims=[1]), "InvalidModel", "unknown element type 99"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_refused_in_time_and_memory(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    path = tmp_path / "hostile.onnx"
    path.write_bytes(attack.write())
    kind, message, ours, seconds, peak = probe(path, attack.feeds or {})
    path.unlink()  # some are large, and pytest keeps its folders
    print(f"{name:32} {kind:18} {seconds:6.3f} s {peak >> 20:5} MB  {message[:150]}")
    assert ours, f"{kind}: {message}"
    assert kind == attack.error
    assert attack.says in message
    assert seconds <= MAX_SECONDS
    assert peak <= MAX_BYTES


def test_the_probe_sees_what_a_model_allocates(tmp_path: Path) -> None:
    """The measure itself: a model that is fine is no refusal, and its 512 MB are noticed."""
    path = tmp_path / "fine.onnx"
    path.write_bytes(model([node("ConstantOfShape", ["n"], ["y"])], SHAPE).SerializeToString())
    kind, _, ours, _, peak = probe(path, {"n": ([2**13, 2**14], "int64")})
    assert (kind, ours) == ("NoneType", False)
    assert peak > 512 << 20
    path.write_bytes(model([node("Relu", ["x"], ["y"])], X).SerializeToString())
    assert (
        40 << 20 < probe(path, X_FEED)[4] < 128 << 20
    )  # an interpreter with numpy and onnx, and nothing of pytest's own memory
