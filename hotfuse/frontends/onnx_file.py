"""ONNX models from a path, bytes or a ModelProto: a parsed model that holds no large data, and where that data lies.

Paths are mapped, bytes are read in place. Limits are checked on the wire, before the protobuf library spends memory.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hotfuse.config import Config
from hotfuse.errors import InvalidModel, LimitExceeded
from hotfuse.file_map import map_file
from hotfuse.frontends.onnx_external import DataFiles
from hotfuse.frontends.onnx_wire import strip
from hotfuse.records import dataclass


@dataclass(frozen=True)
class OpenedModel:
    """A model as it was read: `files` has the tensor data that `proto` only refers to; `name` is what messages call it."""

    proto: onnx.ModelProto
    files: DataFiles
    name: str


def open_model(source: Any, config: Config) -> OpenedModel:
    """Read a model, within the limits of `config`."""
    if isinstance(source, onnx.ModelProto):
        _check_proto(source, config)
        return OpenedModel(source, DataFiles(), source.graph.name or "model")
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = memoryview(source).cast("B").toreadonly()
        return OpenedModel(_parse(data, "model", config), DataFiles(own=data), "model")
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        name = os.path.basename(path) or str(path)
        data = _map_model(path, config)
        directory = os.path.dirname(os.path.abspath(path))
        return OpenedModel(_parse(data, name, config), DataFiles(data, directory), name)
    raise InvalidModel(f"a model is given as a path, as bytes or as an onnx.ModelProto, not as {type(source).__name__}")


def _map_model(path: Any, config: Config) -> memoryview:
    """A view of the model file. Its own path is the caller's, so links in it are followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise InvalidModel(f"there is no file {path!r}; check the path (the working directory is {os.getcwd()!r})") from None
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path!r} cannot be opened: {error}") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise InvalidModel(f"{path!r} is a directory; give the path of the .onnx file in it")
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModel(f"{path!r} is not a regular file; save the model to disk, or pass its bytes")
        if status.st_size > config.max_model_bytes:
            raise LimitExceeded(
                f"{path!r} has {status.st_size:,} bytes; the limit is {config.max_model_bytes:,} (raise max_model_bytes)"
            )
        return map_file(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _parse(data: memoryview, name: str, config: Config) -> onnx.ModelProto:
    if len(data) == 0:
        raise InvalidModel(f"{name} is empty; an ONNX model has at least a graph and an opset import")
    try:
        return onnx.ModelProto.FromString(strip(data, config.max_nodes, config.max_nesting))
    except DecodeError as error:
        raise InvalidModel(f"{name} is not an ONNX model, or is damaged: {error}") from None
    except (InvalidModel, LimitExceeded) as error:
        raise type(error)(f"{name}: {error}") from None


def _check_proto(proto: onnx.ModelProto, config: Config) -> None:
    """The limits on a model that is already in memory."""
    count = 0
    pending = [(proto.graph.node, 0), *((function.node, 0) for function in proto.functions)]
    while pending:
        nodes, depth = pending.pop()
        count += len(nodes)
        if count > config.max_nodes:
            raise LimitExceeded(f"the model has more than {config.max_nodes:,} nodes; raise max_nodes if it is right")
        if depth > config.max_nesting:
            raise LimitExceeded(f"graphs are nested deeper than {config.max_nesting}; raise max_nesting if the model is right")
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append((attribute.g.node, depth + 1))
                pending.extend((graph.node, depth + 1) for graph in attribute.graphs)
