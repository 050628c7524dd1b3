"""External data: mapped, never read, and never from outside the model's directory."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import InvalidModel, UnsafeModel
from hotfuse.frontends import onnx_external
from hotfuse.frontends.onnx_file import open_model
from hotfuse.frontends.onnx_tensor import MappedArray, embed_external, tensor_constant
from tests.frontends.add_model import WEIGHT, add_model, answer, external_model

CONFIG = Config()


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


def test_external_data_is_embedded_for_other_readers() -> None:
    opened = open_model(add_model().SerializeToString(), CONFIG)
    tensor = opened.proto.graph.initializer[0]
    embed_external(tensor, opened.files)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), WEIGHT)
    before = tensor.SerializeToString()
    embed_external(tensor, opened.files)
    assert tensor.SerializeToString() == before
