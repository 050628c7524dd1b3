"""onnx's own function bodies: many operators are defined there in terms of simpler ones."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from hotfuse.frontends.onnx_node import OnnxNode
from hotfuse.frontends.onnx_types import type_to_proto


def function_body(n: OnnxNode, domain: str) -> onnx.FunctionProto | None:
    """onnx's own definition of the node in terms of simpler ones, if it has one."""
    try:
        schema = onnx.defs.get_schema(n.op_type, n.version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= n.version]
        data = schema.get_function_with_opset_version(max(versions)) if versions else None
        return onnx.FunctionProto.FromString(data) if data else None
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= n.version]
        types = [b"" if v is None else type_to_proto(v.type).SerializeToString() for v in n.inputs]
        if versions:
            data = schema.get_context_dependent_function_with_opset_version(max(versions), n.proto.SerializeToString(), types)
            return onnx.FunctionProto.FromString(data) if data else None
    return None


def bind_attributes(node: onnx.NodeProto, bindings: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """The node with attributes that refer to the function's own replaced by what the caller gave, in nested graphs too."""
    if not any(a.ref_attr_name or a.HasField("g") for a in node.attribute):
        return node
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        source = bindings.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is None:
            continue
        copy = bound.attribute.add()
        copy.CopyFrom(source)
        copy.name = attribute.name
        if attribute.HasField("g"):
            del copy.g.node[:]
            copy.g.node.extend(bind_attributes(inner, bindings) for inner in attribute.g.node)
    return bound
