"""Reading ONNX files: what is mapped, what is refused, and that nothing is read from outside the model's directory."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
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
from hotfuse.errors import HotfuseError, InvalidModel, LimitExceeded, UnsafeModel
from hotfuse.frontends import onnx_external
from hotfuse.frontends.onnx_external import DataFiles
from hotfuse.frontends.onnx_file import open_model
from hotfuse.frontends.onnx_tensor import MappedArray, embed_external, sparse_constant, tensor_constant
from hotfuse.frontends.onnx_wire import MAPPED_BYTES, strip
from hotfuse.ir.types import type_of

CONFIG = Config()
WEIGHT = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


def add_model(weight: np.ndarray[Any, Any] = WEIGHT) -> onnx.ModelProto:
    """y = x + w."""
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", kind, weight.shape)],
        [helper.make_tensor_value_info("y", kind, weight.shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def external_model(directory: Path, location: str, *, offset: str | None = "0", length: str | None = "16384") -> Path:
    """The same model with its weight in another file."""
    model = add_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path = directory / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def answer(source: Any, **options: Any) -> np.ndarray[Any, Any]:
    x = np.ones((64, 64), np.float32)
    (y,) = hotfuse.load(source, **options).run(None, {"x": x})
    return y


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


def test_external_data_is_embedded_for_other_readers() -> None:
    opened = open_model(add_model().SerializeToString(), CONFIG)
    tensor = opened.proto.graph.initializer[0]
    embed_external(tensor, opened.files)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), WEIGHT)
    before = tensor.SerializeToString()
    embed_external(tensor, opened.files)
    assert tensor.SerializeToString() == before


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


# external data


def test_external_data_is_mapped_not_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(bytes(24) + WEIGHT.tobytes())
    path = external_model(tmp_path, "./sub/weights.bin", offset="24")
    np.testing.assert_array_equal(answer(path), WEIGHT + 1)
    opened = open_model(path, CONFIG)
    with opened.files:
        constant = tensor_constant(opened.proto.graph.initializer[0], opened.files)
    assert isinstance(constant.data, MappedArray)
    assert not constant.numpy().flags.owndata  # aligned, so the mapping itself serves
    assert not constant.numpy().flags.writeable


def test_external_length_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes() + b"more")
    np.testing.assert_array_equal(answer(external_model(tmp_path, "w", offset=None, length=None)), WEIGHT + 1)


def test_external_data_by_onnx_itself(tmp_path: Path) -> None:
    onnx.save_model(add_model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(answer(tmp_path / "m.onnx"), WEIGHT + 1)


def test_external_data_without_a_path_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, "w")
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(InvalidModel, match="the model's path"):
            hotfuse.load(source)


def _symlink(outside: Path, inside: Path) -> str:
    (inside / "w").symlink_to(outside / "secret")
    return "w"


def _symlinked_parent(outside: Path, inside: Path) -> str:
    (inside / "sub").symlink_to(outside)
    return "sub/secret"


def _hard_link(outside: Path, inside: Path) -> str:
    os.link(outside / "secret", inside / "w")
    return "w"


def _pipe(outside: Path, inside: Path) -> str:
    os.mkfifo(inside / "w")
    return "w"


def _socket(outside: Path, inside: Path) -> str:
    before = Path.cwd()
    os.chdir(inside)  # socket paths are short
    try:
        socket.socket(socket.AF_UNIX).bind("w")
    finally:
        os.chdir(before)
    return "w"


def _device(outside: Path, inside: Path) -> str:
    os.mknod(inside / "w", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    return "w"


def _directory(outside: Path, inside: Path) -> str:
    (inside / "w").mkdir()
    return "w"


UNSAFE: dict[str, Callable[[Path, Path], str]] = {
    "dot-dot": lambda outside, inside: "../outside/secret",
    "inner dot-dot": lambda outside, inside: "sub/../../outside/secret",
    "absolute": lambda outside, inside: str(outside / "secret"),
    "device path": lambda outside, inside: "/dev/zero",
    "NUL": lambda outside, inside: "w\0/../../outside/secret",
    "dot": lambda outside, inside: ".",
    "symlink": _symlink,
    "symlinked parent": _symlinked_parent,
    "hard link": _hard_link,
    "pipe": _pipe,
    "socket": _socket,
    "directory": _directory,
}
if os.geteuid() == 0:
    UNSAFE["device file"] = _device


@pytest.mark.parametrize("attack", UNSAFE)
def test_unsafe_external_data_is_refused(attack: str, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(WEIGHT.tobytes())
    path = external_model(inside, UNSAFE[attack](outside, inside))
    with pytest.raises(UnsafeModel, match="tensor 'w'"):
        hotfuse.load(path)


def test_a_file_swapped_between_check_and_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    (tmp_path / "other").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, "w")
    look = os.stat

    def look_then_swap(name: Any, **options: Any) -> os.stat_result:
        status = look(name, **options)
        if name == "w":
            os.replace(tmp_path / "other", tmp_path / "w")
        return status

    monkeypatch.setattr(onnx_external.os, "stat", look_then_swap)
    with pytest.raises(UnsafeModel, match="replaced while it was being opened"):
        hotfuse.load(path)


def test_a_file_swapped_for_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, "w")
    look = os.stat

    def look_then_swap(name: Any, **options: Any) -> os.stat_result:
        status = look(name, **options)
        if name == "w":
            (tmp_path / "w").unlink()
            (tmp_path / "w").symlink_to(tmp_path / "secret")
        return status

    monkeypatch.setattr(onnx_external.os, "stat", look_then_swap)
    with pytest.raises(UnsafeModel, match="without following a link"):
        hotfuse.load(path)


def test_systems_that_cannot_open_safely_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, "w")
    monkeypatch.setattr(onnx_external.os, "supports_dir_fd", set())
    with pytest.raises(UnsafeModel, match="cannot open safely"):
        hotfuse.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": "4"}, "which has 16,384"),
        ({"offset": "-4"}, "not a size"),
        ({"offset": "99999999999999999999999"}, "not a size"),
        ({"offset": "1e3"}, "not a size"),
        ({"length": "16380"}, "takes 16,384 bytes by its shape, but 16,380"),
        ({"length": "9223372036854775807"}, "takes 16,384 bytes by its shape"),
        ({"location": "missing"}, "does not exist"),
        ({"location": ""}, "which has"),
    ],
)
def test_external_ranges_outside_the_file(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, **{"location": "w", **changes})
    with pytest.raises(InvalidModel, match=message):
        hotfuse.load(path)


def test_external_data_needs_a_location_and_no_strings() -> None:
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    with pytest.raises(InvalidModel, match="without a location"):
        tensor_constant(tensor)
    tensor.external_data.add(key="location", value="")
    with pytest.raises(InvalidModel, match="empty location"):
        tensor_constant(tensor)
    tensor.data_type = TensorProto.STRING
    with pytest.raises(InvalidModel, match="strings in external data"):
        tensor_constant(tensor)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(WEIGHT.tobytes())
    path = external_model(tmp_path, "w")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        hotfuse.load(path)
    (tmp_path / "w").unlink()
    with pytest.raises(InvalidModel):
        hotfuse.load(path)
    open_now = [f"/proc/self/fd/{fd}" for fd in set(os.listdir("/proc/self/fd")) - before]
    assert str(tmp_path) not in [os.readlink(link) for link in open_now if os.path.lexists(link)]


# tensors


@pytest.mark.parametrize("kind", sorted(helper.get_all_tensor_dtypes() - {TensorProto.STRING}))
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_tensors_decode_as_onnx_does(kind: int, count: int) -> None:
    from hotfuse.frontends.onnx_node import ONNX_DTYPES

    if kind not in ONNX_DTYPES:
        with pytest.raises(InvalidModel, match="unknown element type"):
            tensor_constant(TensorProto(name="t", data_type=kind, dims=[1]))
        return
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.arange(count).astype(np.float32).astype(dtype) if dtype != np.bool_ else np.arange(count) % 2 == 1
    raw = numpy_helper.from_array(values, "t")
    typed = helper.make_tensor("t", kind, [count], values)
    for tensor in (raw, typed):
        found, expected = tensor_constant(tensor).numpy(), numpy_helper.to_array(tensor)
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
        wrong = TensorProto.FromString(tensor.SerializeToString())
        wrong.dims[0] = count + 9
        with pytest.raises(InvalidModel, match="tensor 't'"):
            tensor_constant(wrong)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([-1], "negative size"),
        ([2**32, 2**32], "more elements than can be counted"),
        ([2**40], "takes 4,398,046,511,104 bytes"),
        ([0, 2**62, 4], "more elements than can be counted"),
        ([1] * 65, "65 dimensions"),
    ],
)
def test_impossible_shapes(dims: list[int], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        tensor_constant(TensorProto(name="t", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"1234"))


def test_strings_must_fill_their_shape() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", "ä".encode()])
    assert tensor_constant(tensor).numpy().tolist() == ["a", "ä"]
    tensor.dims[0] = 2**40
    with pytest.raises(InvalidModel, match="2 strings instead of"):
        tensor_constant(tensor)


def sparse(dims: list[int], indices: np.ndarray[Any, Any]) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(1, len(indices) + 1, dtype=np.float32), "s")
    return onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(indices, "i"), dims=dims)


def test_sparse_tensors() -> None:
    files = DataFiles()
    flat = sparse_constant(sparse([2, 3], np.array([1, 5])), files, 1000).numpy()
    pairs = sparse_constant(sparse([2, 3], np.array([[0, 1], [1, 2]])), files, 1000).numpy()
    for found in (flat, pairs):
        np.testing.assert_array_equal(found, np.array([[0, 1, 0], [0, 0, 2]], np.float32))
    for dims, indices in (([2, 3], [6]), ([2, 3], [-1]), ([2, 3], [[0, 3]]), ([2, 3], [[0, 1, 1]])):
        with pytest.raises(InvalidModel, match="indices that do not fit"):
            sparse_constant(sparse(dims, np.array(indices)), files, 1000)
    with pytest.raises(LimitExceeded, match="max_value_bytes"):
        sparse_constant(sparse([2**20, 2**20], np.array([1])), files, 1 << 30)
