"""ONNX models: from a path, bytes or a ModelProto to a graph with its signature."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import onnx

from hotfuse.config import Config
from hotfuse.errors import InvalidModel, UnsupportedModel
from hotfuse.frontends.onnx_context import OnnxImport
from hotfuse.frontends.onnx_file import open_model
from hotfuse.frontends.onnx_function import inline_functions
from hotfuse.frontends.onnx_graph import import_model
from hotfuse.ir.graph import Graph
from hotfuse.records import dataclass


@dataclass(frozen=True)
class ImportedModel:
    """A graph with the names users know. `opaque` lists (origin, operator, reason).

    Inputs that have a default are constants of the graph; `overridden(names)` imports the same model with those as inputs."""

    graph: Graph
    output_names: tuple[str, ...]
    opaque: tuple[tuple[str, str, str], ...]
    source: str
    defaults: tuple[str, ...] = ()
    overridden: Callable[[frozenset[str]], ImportedModel] | None = None


def load_onnx(source: str | os.PathLike[str] | bytes | onnx.ModelProto, config: Config) -> ImportedModel:
    """Import a model within the limits of `config`; large tensors stay in the file."""
    opened = open_model(source, config)
    opsets = _opsets(opened.proto, opened.name)
    proto = inline_functions(opened.proto, config)
    imported = _import(proto, OnnxImport(opsets, config, opened.files), opened.name)
    defaults = _defaults(proto)
    if not defaults:
        return imported
    skeleton, constants = _skeleton(proto), {n: imported.graph.constants[n] for n in _initializers(proto)}

    def overridden(names: frozenset[str]) -> ImportedModel:
        """From what was read then: the caller's object, or the files, may have changed since."""
        context = OnnxImport(opsets, config, opened.files, constants, names)
        return _import(skeleton, context, opened.name)

    return replace(imported, defaults=defaults, overridden=overridden)


def _import(proto: onnx.ModelProto, context: OnnxImport, source: str) -> ImportedModel:
    with context.files:
        graph = import_model(proto, context)
    return ImportedModel(graph, tuple(o.name for o in proto.graph.output), tuple(context.opaque), source)


def _initializers(proto: onnx.ModelProto) -> list[str]:
    return [t.name for t in proto.graph.initializer] + [t.values.name for t in proto.graph.sparse_initializer]


def _defaults(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The inputs that have a default: an initializer of their name. Before IR version 4 that was how constants were written."""
    if proto.ir_version < 4:
        return ()
    constant = set(_initializers(proto))
    return tuple(i.name for i in proto.graph.input if i.name in constant)


def _skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model's graph without its initializers."""
    copy = onnx.ModelProto()
    copy.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(copy.graph, field).extend(getattr(proto.graph, field))
    return copy


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
