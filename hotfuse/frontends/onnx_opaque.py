"""ONNX nodes that nobody here knows: kept whole, as a model of one node, for onnx's reference evaluator.

The type of a result is the most that these tell, in order:
  1. onnx's own inference, which may only see nodes that onnx's checker accepts;
  2. the operator's schema: a fixed type, or that of the inputs with the same type parameter;
  3. what the model declares of the value: element type and rank, no sizes.
The one-node model holds these types too, and they are checked whenever it has run. `ruled` lists the results whose type onnx's
rules tell; that of the others is the model's word alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx
from onnx import helper

from hotfuse.errors import UnsupportedModel
from hotfuse.frontends.onnx_context import OnnxImport
from hotfuse.frontends.onnx_node import ONNX_DTYPES, OnnxNode
from hotfuse.frontends.onnx_tensor import embed_external
from hotfuse.frontends.onnx_types import type_from_proto, type_to_proto
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Value
from hotfuse.ir.types import ANY, OptionalType, SequenceType, TensorType, Type

_ELEMENTS = {onnx.TensorProto.DataType.Name(number).lower(): dtype for number, dtype in ONNX_DTYPES.items()}


def import_opaque(n: OnnxNode, domain: str, reason: str, context: OnnxImport) -> Sequence[Value]:
    """Keep the node as it is, for onnx's reference evaluator."""
    if not domain.startswith("ai.onnx") and domain != "":
        raise UnsupportedModel(f"operator {n.op_type} of domain {domain!r} is not known; register a function body for it")
    try:
        schema = onnx.defs.get_schema(n.op_type, n.version, domain)
    except onnx.defs.SchemaError:
        raise UnsupportedModel(
            f"ONNX has no operator {n.op_type!r} in opset {n.version} of domain {domain or 'ai.onnx'!r}; check the opset import"
        ) from None
    model = _single_node_model(n, domain, context)
    ruled = [_schema_type(i, n, schema) if t is ANY else t for i, t in enumerate(_inferred_types(model, n, context))]
    types = [_with_declared(t, context.declared.get(n.proto.output[i]), context) for i, t in enumerate(ruled)]
    for info, type in zip(model.graph.output, types, strict=True):
        info.type.CopyFrom(type_to_proto(type))
    given = [v for v in n.inputs if v is not None]
    context.opaque.append((str(n.builder.origin), n.op_type, reason))
    attrs = {
        "op_type": n.op_type, "domain": domain, "version": n.version, "reason": reason, "proto": model.SerializeToString(),
        "ruled": tuple(i for i, t in enumerate(ruled) if t is not ANY),
    }  # fmt: skip
    return n.builder.add_node("onnx_op", given, attrs, outputs=n.num_outputs, types=types)


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


def _inferred_types(model: onnx.ModelProto, n: OnnxNode, context: OnnxImport) -> list[Type]:
    unknown: list[Type] = [ANY] * n.num_outputs
    if not _safe_to_infer(model):
        return unknown
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # onnx raises many kinds; without its answer the node still runs, untyped
        return unknown
    return [type_from_proto(o.type, context.fresh) for o in inferred.graph.output]


def _with_declared(found: Type, declared: onnx.TypeProto | None, context: OnnxImport) -> Type:
    if declared is None or not (found is ANY or (isinstance(found, TensorType) and found.shape is None)):
        return found
    told = _without_sizes(type_from_proto(declared, context.fresh), context.fresh)
    if found is ANY:
        return told
    assert isinstance(found, TensorType)
    return told if isinstance(told, TensorType) and told.dtype == found.dtype else found


def _without_sizes(type: Type, fresh: Callable[[], Dim]) -> Type:
    """The type with a symbol of its own for every size: a declaration may name sizes, but nobody checked them."""
    if isinstance(type, TensorType):
        return TensorType(type.dtype, None if type.shape is None else tuple(fresh() for _ in type.shape))
    if isinstance(type, SequenceType | OptionalType):
        return replace(type, element=_without_sizes(type.element, fresh))
    return ANY


def _schema_type(i: int, n: OnnxNode, schema: onnx.defs.OpSchema) -> Type:
    """The type of result i by its formal parameter alone; ANY where that leaves more than one element type."""
    formal = _formal(schema.outputs, i)
    if formal is None:
        return ANY
    parameters = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    allowed = parameters.get(formal.type_str, [formal.type_str])
    if len(allowed) == 1:
        element = allowed[0].removeprefix("tensor(").removesuffix(")")
        return TensorType(_ELEMENTS[element], None) if element in _ELEMENTS and allowed[0] != element else ANY
    for k, value in enumerate(n.inputs):
        same = _formal(schema.inputs, k)
        if same is not None and same.type_str == formal.type_str and value is not None and isinstance(value.type, TensorType):
            return TensorType(value.type.dtype, None)
    return ANY


def _formal(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], i: int) -> onnx.defs.OpSchema.FormalParameter | None:
    """Parameter i; the last may stand for many, which must then be of one type."""
    if i < len(parameters) - 1 or not parameters:
        return parameters[i] if parameters else None
    last = parameters[-1]
    many = last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return last if (i == len(parameters) - 1 and not many) or (many and last.is_homogeneous) else None


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
