"""ONNX models: from a path, bytes or a ModelProto to a graph with its signature."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner

from hotfuse.config import Config
from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_graph import OnnxImport, import_model
from hotfuse.ir.graph import Graph


@dataclass(frozen=True)
class ImportedModel:
    """A graph with the names users know. `opaque` lists (origin, operator, reason)."""

    graph: Graph
    output_names: tuple[str, ...]
    opaque: tuple[tuple[str, str, str], ...]
    source: str


def load_onnx(source: str | os.PathLike[str] | bytes | onnx.ModelProto, config: Config) -> ImportedModel:
    proto, base_dir, name = _read(source)
    if not proto.opset_import:
        raise InvalidModel(f"{name}: the model imports no opset; is it an ONNX file?")
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
    context = OnnxImport(opsets, config, base_dir)
    graph = import_model(proto, context)
    return ImportedModel(graph, tuple(o.name for o in proto.graph.output), tuple(context.opaque), name)


def _read(source: Any) -> tuple[onnx.ModelProto, str | None, str]:
    if isinstance(source, onnx.ModelProto):
        return source, None, source.graph.name or "model"
    if isinstance(source, (bytes, bytearray, memoryview)):
        return onnx.ModelProto.FromString(bytes(source)), None, "model"
    path = os.fspath(source)
    return onnx.load(path, load_external_data=False), os.path.dirname(os.path.abspath(path)), os.path.basename(path)
