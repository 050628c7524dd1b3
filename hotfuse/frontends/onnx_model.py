"""ONNX models: from a path, bytes or a ModelProto to a graph with its signature."""

from __future__ import annotations

import os
from dataclasses import dataclass

import onnx

from hotfuse.config import Config
from hotfuse.errors import InvalidModel, UnsupportedModel
from hotfuse.frontends.onnx_context import OnnxImport
from hotfuse.frontends.onnx_file import open_model
from hotfuse.frontends.onnx_function import inline_functions
from hotfuse.frontends.onnx_graph import import_model
from hotfuse.ir.graph import Graph


@dataclass(frozen=True)
class ImportedModel:
    """A graph with the names users know. `opaque` lists (origin, operator, reason)."""

    graph: Graph
    output_names: tuple[str, ...]
    opaque: tuple[tuple[str, str, str], ...]
    source: str


def load_onnx(source: str | os.PathLike[str] | bytes | onnx.ModelProto, config: Config) -> ImportedModel:
    """Import a model within the limits of `config`; large tensors stay in the file."""
    opened = open_model(source, config)
    with opened.files:
        opsets = _opsets(opened.proto, opened.name)
        proto = inline_functions(opened.proto, config)
        context = OnnxImport(opsets, config, opened.files)
        graph = import_model(proto, context)
    return ImportedModel(graph, tuple(o.name for o in proto.graph.output), tuple(context.opaque), opened.name)


def _opsets(proto: onnx.ModelProto, name: str) -> dict[str, int]:
    """The operator sets the model is written in, by domain ("" for ONNX's own)."""
    if not proto.opset_import or not proto.HasField("graph"):
        missing = "graph" if proto.opset_import else "opset import"
        raise InvalidModel(f"{name}: there is no {missing} in it; is it an ONNX model?")
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    version = opsets.get("", newest)
    if version < 1:
        raise InvalidModel(f"{name}: opset {version} of domain 'ai.onnx' does not exist; versions are 1 to {newest}")
    if version > newest:
        raise UnsupportedModel(
            f"{name}: it needs opset {version} of domain 'ai.onnx'; the onnx package here knows versions up to {newest}. "
            "Upgrade onnx, or export the model with an older opset"
        )
    return opsets
