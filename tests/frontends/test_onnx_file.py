"""Reading ONNX files: from a path, bytes or a proto, what is mapped, and what is refused when a file is damaged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import HotfuseError, InvalidModel, LimitExceeded
from hotfuse.frontends.onnx_file import open_model
from hotfuse.frontends.onnx_tensor import MappedArray, tensor_constant
from hotfuse.frontends.onnx_wire import MAPPED_BYTES, strip
from hotfuse.ir.types import type_of
from tests.frontends.add_model import WEIGHT, add_model, answer

CONFIG = Config()


# the three sources


@pytest.mark.parametrize("form", ["path", "str", "bytes", "bytearray", "memoryview", "proto"])
def test_every_source_gives_the_same_answer(form: str, tmp_path: Path) -> None:
    data = add_model().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    source = {
        "path": path, "str": str(path), "bytes": data, "bytearray": bytearray(data), "memoryview": memoryview(data),
        "proto": add_model(),
    }[form]  # fmt: skip
    np.testing.assert_array_equal(answer(source), WEIGHT + 1)


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(add_model().SerializeToString())
    opened = open_model(path, CONFIG)
    tensor = opened.proto.graph.initializer[0]
    assert opened.proto.ByteSize() < 512
    constant = tensor_constant(tensor, opened.files)
    assert isinstance(constant.data, MappedArray)
    np.testing.assert_array_equal(constant.numpy(), WEIGHT)


@pytest.mark.parametrize("shift", range(8))
def test_mapped_arrays_are_aligned_whatever_the_offset(shift: int) -> None:
    model = add_model(WEIGHT.astype(np.float64))
    model.graph.initializer[0].doc_string = "x" * shift  # moves raw_data by one byte at a time
    opened = open_model(model.SerializeToString(), CONFIG)
    array = tensor_constant(opened.proto.graph.initializer[0], opened.files).numpy()
    assert array.flags.aligned
    np.testing.assert_array_equal(array, WEIGHT)
    assert np.asarray(MappedArray(memoryview(bytes(8)), type_of(np.zeros(1)), "t"), dtype=np.float32).dtype == np.float32


def test_weights_in_nested_graphs_and_constant_nodes_are_mapped_too() -> None:
    inner = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(WEIGHT)),
        helper.make_node("Add", ["x", "c"], ["r"]),
    ]
    out = helper.make_tensor_value_info("r", TensorProto.FLOAT, [64, 64])
    then = helper.make_graph(inner, "then", [], [out])
    other = helper.make_graph(
        [helper.make_node("Sub", ["x", "v"], ["r"])], "else", [], [out], [numpy_helper.from_array(WEIGHT, "v")]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["b"], ["y"], then_branch=then, else_branch=other)],
        "main",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64]),
            helper.make_tensor_value_info("b", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    assert len(strip(memoryview(data), 100, 8)) < 1024 < 2 * WEIGHT.nbytes < len(data)
    session = hotfuse.load(data)
    x = np.ones((64, 64), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "b": np.array(True)})[0], x + WEIGHT)
    np.testing.assert_array_equal(session.run(None, {"x": x, "b": np.array(False)})[0], x - WEIGHT)


def test_strip_leaves_what_the_import_reads() -> None:
    """Small models come back unchanged but for value infos and documentation."""
    model = add_model(np.ones((2, 2), np.float32))
    assert strip(memoryview(model.SerializeToString()), 10, 4) == model.SerializeToString()
    noted = onnx.ModelProto()
    noted.CopyFrom(model)
    noted.graph.value_info.add(name="w").type.CopyFrom(model.graph.input[0].type)
    noted.graph.doc_string = "documentation"
    assert onnx.ModelProto.FromString(strip(memoryview(noted.SerializeToString()), 10, 4)) == model


def test_function_models_keep_their_mapped_weights() -> None:
    body = [helper.make_node("Add", ["a", "b"], ["c"])]
    function = helper.make_function("local", "AddTwo", ["a", "b"], ["c"], body, [helper.make_opsetid("", 21)])
    model = add_model()
    model.graph.node[0].op_type, model.graph.node[0].domain = "AddTwo", "local"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    np.testing.assert_array_equal(answer(model.SerializeToString()), WEIGHT + 1)


SPARSE_LOAD = """
import sys
import numpy as np
import hotfuse
(y,) = hotfuse.load(sys.argv[1]).run(None, {"i": np.array([0, (1 << 29) - 1])})
assert y.tolist() == [0.0, 0.0], y
(peak,) = (int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""


def test_two_gigabytes_of_weights_are_loaded_without_reading_them(tmp_path: Path) -> None:
    with open(tmp_path / "w", "wb") as file:
        file.truncate(1 << 31)  # takes no room on the disk
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "i"], ["y"])],
        "gather",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    tensor = graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1 << 29], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w")
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString())
    done = subprocess.run([sys.executable, "-c", SPARSE_LOAD, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256 << 20


def test_limits_hold_for_models_in_memory_too() -> None:
    two = add_model()
    two.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    with pytest.raises(LimitExceeded, match="more than 1 nodes"):
        open_model(two, Config(max_nodes=1))
    deep = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "innermost", [], [])
    for _ in range(4):
        deep = helper.make_graph([helper.make_node("If", ["b"], ["y"], then_branch=deep)], "around", [], [])
    open_model(helper.make_model(deep), Config(max_nesting=4))
    with pytest.raises(LimitExceeded, match="nested deeper than 3"):
        open_model(helper.make_model(deep), Config(max_nesting=3))
    with pytest.raises(LimitExceeded, match="nested deeper than 3"):
        open_model(helper.make_model(deep).SerializeToString(), Config(max_nesting=3))
    open_model(helper.make_model(deep).SerializeToString(), Config(max_nesting=4))


# damaged files


def test_missing_directory_empty_and_foreign_files(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (tmp_path / "no.onnx", "there is no file"),
        (tmp_path, "is a directory"),
        ("a\0b", "cannot be opened"),
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "damaged|not an ONNX|not part"),
        (b"#!/bin/sh\necho hello world\n", "damaged|not an ONNX|not part|is it an ONNX model"),
        (onnx.ModelProto(), "is it an ONNX model"),
        (42, "not as int"),
        ("/dev/zero", "not a regular file"),
    ]
    (tmp_path / "empty.onnx").write_bytes(b"")
    cases.append((tmp_path / "empty.onnx", "empty.onnx is empty"))
    for source, message in cases:
        with pytest.raises(InvalidModel, match=message):
            hotfuse.load(source)


def test_pipe_as_a_model_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InvalidModel, match="not a regular file"):
        hotfuse.load(tmp_path / "pipe.onnx")


def test_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(add_model().SerializeToString())
    with pytest.raises(LimitExceeded, match="max_model_bytes"):
        hotfuse.load(path, max_model_bytes=1000)


def test_every_truncation_is_noticed() -> None:
    """A model cut anywhere is refused, or is a complete model of fewer fields (a cut between fields)."""
    data = add_model(np.ones((40, 40), np.float32)).SerializeToString()
    refused = 0
    for length in range(len(data)):
        try:
            hotfuse.load(data[:length])
        except HotfuseError:
            refused += 1
    assert refused == len(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(HotfuseError):
        hotfuse.load(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flipped_bytes_never_crash(data: st.DataObject) -> None:
    model = bytearray(add_model(np.ones((2, 2), np.float32)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(HotfuseError):
        hotfuse.load(bytes(model))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3 * MAPPED_BYTES), st.integers(0, 20), st.booleans())
def test_stripping_is_lossless(size: int, padding: int, nested: bool) -> None:
    """A tensor of any size, anywhere, has the same bytes through the walk as through the protobuf library."""
    array = np.arange(size, dtype=np.uint8)
    tensor = numpy_helper.from_array(array, "t")
    tensor.doc_string = "d" * padding
    node = helper.make_node("Constant", [], ["t"], value=tensor)
    graph = helper.make_graph([node] if nested else [], "g", [], [], [] if nested else [tensor])
    data = helper.make_model(graph).SerializeToString()
    opened = open_model(data, CONFIG)
    found = opened.proto.graph.node[0].attribute[0].t if nested else opened.proto.graph.initializer[0]
    np.testing.assert_array_equal(tensor_constant(found, opened.files).numpy(), array)
