"""ONNX nodes that nobody here knows: kept whole, as a model of one node, for onnx's reference evaluator.

Their types come from onnx's own inference, which may only see nodes that onnx's checker accepts.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from hotfuse.errors import UnsupportedModel
from hotfuse.frontends.onnx_context import OnnxImport
from hotfuse.frontends.onnx_node import OnnxNode
from hotfuse.frontends.onnx_tensor import embed_external
from hotfuse.frontends.onnx_types import type_from_proto, type_to_proto
from hotfuse.ir.graph import Value
from hotfuse.ir.types import ANY, Type


def import_opaque(n: OnnxNode, domain: str, reason: str, context: OnnxImport) -> Sequence[Value]:
    """Keep the node as it is, for onnx's reference evaluator."""
    if not domain.startswith("ai.onnx") and domain != "":
        raise UnsupportedModel(f"operator {n.op_type} of domain {domain!r} is not known; register a function body for it")
    try:
        onnx.defs.get_schema(n.op_type, n.version, domain)
    except onnx.defs.SchemaError:
        raise UnsupportedModel(
            f"ONNX has no operator {n.op_type!r} in opset {n.version} of domain {domain or 'ai.onnx'!r}; check the opset import"
        ) from None
    model = _single_node_model(n, domain, context)
    types = _opaque_types(model, n, context)
    given = [v for v in n.inputs if v is not None]
    context.opaque.append((str(n.builder.origin), n.op_type, reason))
    return n.builder.add_node(
        "onnx_op",
        given,
        {"op_type": n.op_type, "domain": domain, "version": n.version, "reason": reason, "proto": model.SerializeToString()},
        outputs=n.num_outputs,
        types=types,
    )


def _single_node_model(n: OnnxNode, domain: str, context: OnnxImport) -> onnx.ModelProto:
    node = onnx.NodeProto()
    node.CopyFrom(n.proto)
    del node.input[:], node.output[:]
    for attribute in node.attribute:
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            embed_external(tensor, context.files)
    infos = []
    for i, value in enumerate(n.inputs):
        node.input.append(f"x{i}" if value is not None else "")
        if value is not None:
            infos.append(onnx.ValueInfoProto(name=f"x{i}", type=type_to_proto(value.type)))
    node.output.extend(f"y{i}" for i in range(n.num_outputs))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "opaque", infos, outputs)
    opsets = [helper.make_opsetid(d, v) for d, v in {**context.opsets, domain: n.version}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _opaque_types(model: onnx.ModelProto, n: OnnxNode, context: OnnxImport) -> list[Type]:
    unknown: list[Type] = [ANY] * n.num_outputs
    if not _safe_to_infer(model):
        return unknown
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # onnx raises many kinds; without its answer the node still runs, untyped
        return unknown
    return [type_from_proto(o.type, context.fresh) for o in inferred.graph.output]


def _safe_to_infer(model: onnx.ModelProto) -> bool:
    """Whether onnx's inference may see this node. It reads through null where an input has no type, or an attribute is missing
    or of another kind (EyeLike, LabelEncoder, RegexFullMatch, TreeEnsemble and others of onnx 1.23), which ends the process."""
    if any(info.type.WhichOneof("value") is None for info in model.graph.input):
        return False
    rules = onnx.checker.C.CheckerContext()
    rules.ir_version = model.ir_version
    rules.opset_imports = {o.domain: o.version for o in model.opset_import}
    try:
        onnx.checker.check_node(model.graph.node[0], rules)
    except Exception:  # ValidationError, and whatever the decoding of the node raises
        return False
    return True
