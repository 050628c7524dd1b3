"""ONNX graphs become IR graphs, one node at a time, in one pass that infers types as it goes.

A node is imported by the first of these that knows it:
  1. an importer of ours (`onnx_ops/*`), or an operator record that names it in `onnx`;
  2. onnx's own function body for it, imported node by node;
  3. nobody: the node stays opaque and onnx's reference evaluator runs it; the report names it and says why.

ONNX's nested graphs read outer values by name. Ours are closed: what a nested graph reads becomes a further input, and
constants are declared again (by reference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

import hotfuse.frontends.onnx_ops  # noqa: F401  (fills IMPORTERS)
from hotfuse.errors import HotfuseError, InvalidModel, LimitExceeded
from hotfuse.frontends.onnx_body import bind_attributes, function_body
from hotfuse.frontends.onnx_context import OnnxImport
from hotfuse.frontends.onnx_node import IMPORTERS, Decline, Imported, OnnxNode
from hotfuse.frontends.onnx_opaque import import_opaque
from hotfuse.frontends.onnx_schema import check_node
from hotfuse.frontends.onnx_tensor import sparse_constant, tensor_constant
from hotfuse.frontends.onnx_types import check_declared, type_from_proto
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Constant, Graph, Origin, Value
from hotfuse.ir.op import OPS
from hotfuse.ir.types import ANY, TensorType, Type

DIRECT = {name: op.name for op in OPS.values() for name in op.onnx}
Env = dict[str, Value | None]
UNTYPED = "the type of an input is not known before it runs"
# what importers, and onnx's own helpers, stumble over in a node that breaks its operator's rules
MALFORMED = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError)


def import_model(proto: onnx.ModelProto, context: OnnxImport) -> Graph:
    """The main graph of a model whose local functions are inlined already."""
    builder = GraphBuilder(proto.graph.name or "main", context.fresh)
    env: Env = {}
    _declare_constants(proto.graph, builder, env, context, context.initializers, context.overridden)
    for info in proto.graph.input:
        if info.name not in builder.constants:
            if not isinstance(info.name, str):
                raise InvalidModel(f"graph input {info.name!r} has a name that is not text (UTF-8)")
            env[info.name] = builder.input(info.name, type_from_proto(info.type, context.fresh, info.name))
    outputs = _import_nodes(proto.graph, builder, env, context)
    for info, value in zip(proto.graph.output, outputs, strict=True):
        check_declared(f"graph output {info.name!r}", type_from_proto(info.type, context.fresh, info.name), value.type)
    return builder.build(outputs)


def _declare_constants(
    graph: onnx.GraphProto,
    builder: GraphBuilder,
    env: Env,
    context: OnnxImport,
    ready: Mapping[str, Constant],
    without: frozenset[str] = frozenset(),
) -> None:
    for name, constant in ready.items():
        if name not in without:
            env[name] = builder.constant(constant, name)
    for tensor in graph.initializer:
        if tensor.name in env:
            raise InvalidModel(f"initializer {tensor.name!r} is defined twice; give each value a name of its own")
        env[tensor.name] = builder.constant(tensor_constant(tensor, context.files), tensor.name)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        env[name] = builder.constant(sparse_constant(sparse, context.files, context.config.max_value_bytes), name)


def _import_nodes(graph: onnx.GraphProto, builder: GraphBuilder, env: Env, context: OnnxImport) -> list[Value]:
    context = replace(context, declared={info.name: info.type for info in (*graph.value_info, *graph.output)})
    for node in graph.node:
        for name in node.input:
            if name and name not in env:
                raise InvalidModel(_undefined(graph, node, name))
        values = import_node(node, [env[n] if n else None for n in node.input], builder, env, context)
        _bind_outputs(node, values, env)
    outputs = []
    for info in graph.output:
        found = env.get(info.name)
        if found is None:
            raise InvalidModel(f"graph output {info.name!r} is computed by no node")
        outputs.append(found)
    return outputs


def _bind_outputs(node: onnx.NodeProto, values: Sequence[Value | None], env: Env) -> None:
    for name, value in zip(node.output, values, strict=False):
        if not name:
            continue
        if name in env:
            raise InvalidModel(f"value {name!r} is defined twice, again by {_shown(node)}")
        env[name] = value


def _undefined(graph: onnx.GraphProto, node: onnx.NodeProto, name: str) -> str:
    later = any(name in other.output for other in graph.node)
    where = f"{_shown(node)} reads {name!r}"
    if later:
        return f"{where} before it is computed: the nodes form a cycle or are not in order"
    return f"{where}, which nothing defines; check the name, or add it as a graph input"


def _layer(node: onnx.NodeProto) -> Any:
    """What a node is called: its name, or that of its first result. Protobuf hands out bytes where it is no text."""
    return node.name or (node.output[0] if node.output else "")


def _shown(node: onnx.NodeProto) -> str:
    """A node in a message, as its origin reads."""
    return f"{_layer(node)} {node.op_type}".strip()


def import_node(
    node: onnx.NodeProto, inputs: Sequence[Value | None], builder: GraphBuilder, env: Env, context: OnnxImport
) -> Sequence[Value | None]:
    """The values of one ONNX node, written to `builder`."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = context.opsets.get(domain)
    if version is None:
        if domain == "":
            raise InvalidModel(f"{_shown(node)}: the model imports no opset of domain 'ai.onnx'")
        version = 1
    layer = _layer(node)
    if not (isinstance(layer, str) and isinstance(node.op_type, str) and isinstance(domain, str)):  # protobuf hands out bytes
        raise InvalidModel(f"node {layer!r} of type {node.op_type!r}, domain {domain!r} has a name that is not text (UTF-8)")
    origin = Origin(layer, f"{domain + '.' if domain else ''}{node.op_type}")
    before, builder.origin = builder.origin, (builder.origin if builder.origin.layer and context.depth else origin)

    def nested(protos: Sequence[onnx.GraphProto], types: Sequence[Sequence[Type]]) -> tuple[list[Graph], list[Value]]:
        return import_nested(protos, types, env, builder, context)

    try:
        check_node(node, version, domain)
        attributes = {a.name: attribute_value(a, context) for a in node.attribute}
        seen = OnnxNode(node, version, builder, list(inputs), attributes, nested, context.depth)
        return _import(seen, domain, context)
    except HotfuseError as error:
        if getattr(error, "located", False):
            raise
        located = type(error)(f"{origin}: {error}")
        located.located = True  # type: ignore[attr-defined]
        raise located from error
    except MALFORMED as error:
        raise InvalidModel(
            f"{origin}: its inputs or attributes are not what {node.op_type} takes: {type(error).__name__}: {error}; "
            "onnx.checker.check_model may say more"
        ) from error
    finally:
        builder.origin = before


def _import(n: OnnxNode, domain: str, context: OnnxImport) -> Sequence[Value | None]:
    mark = n.builder.mark()
    try:
        return _import_known(n, domain, context)
    except HotfuseError:
        if not _has_untyped(n):
            raise
        n.builder.undo(mark)
        return import_opaque(n, domain, UNTYPED, context)


def _has_untyped(n: OnnxNode) -> bool:
    return any(v is not None and v.type is ANY for v in n.inputs)


def _import_known(n: OnnxNode, domain: str, context: OnnxImport) -> Sequence[Value | None]:
    reason = "no operator here corresponds to it"
    importer = IMPORTERS.get((domain, n.op_type))
    if importer is not None:
        result = importer(n)
        if not isinstance(result, Decline):
            return _as_sequence(result)
        reason = result.reason
    elif domain == "" and n.op_type in DIRECT:
        if _direct_fits(n):
            return (n.add(DIRECT[n.op_type], *n.inputs),)
        reason = UNTYPED if _has_untyped(n) else "its inputs or attributes are not those of the operator here"
    body = function_body(n, domain)
    if body is not None:
        return _import_function(body, n, domain, context)
    return import_opaque(n, domain, reason, context)


def _direct_fits(n: OnnxNode) -> bool:
    """Records that name an ONNX operator take its inputs as they are: tensors, and no attribute that means anything."""
    plain = all(v is not None and isinstance(v.type, TensorType) for v in n.inputs)
    return plain and n.attributes.keys() <= {"consumed_inputs"}


def _as_sequence(result: Imported) -> Sequence[Value | None]:
    if result is None or isinstance(result, Value):
        return (result,)
    assert not isinstance(result, Decline)
    return result


def attribute_value(attribute: onnx.AttributeProto, context: OnnxImport) -> Any:
    """An attribute as a Python value; bytes that are text become str, tensors become arrays."""
    kind = attribute.type
    A = onnx.AttributeProto
    if kind == A.TENSOR:
        return tensor_constant(attribute.t, context.files).numpy()
    if kind == A.GRAPH:
        return attribute.g
    if kind == A.GRAPHS:
        return list(attribute.graphs)
    if kind == A.STRING:
        return _text(attribute.s)
    if kind == A.STRINGS:
        return [_text(s) for s in attribute.strings]
    if kind == A.TENSORS:
        return [tensor_constant(t, context.files).numpy() for t in attribute.tensors]
    if kind == A.SPARSE_TENSOR:
        return sparse_constant(attribute.sparse_tensor, context.files, context.config.max_value_bytes).numpy()
    if kind == A.TYPE_PROTO:
        return attribute.tp
    return helper.get_attribute_value(attribute)


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# function bodies


def _import_function(body: onnx.FunctionProto, n: OnnxNode, domain: str, context: OnnxImport) -> Sequence[Value | None]:
    if context.depth >= context.config.max_nesting:
        raise LimitExceeded(f"functions are nested deeper than {context.config.max_nesting}")
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import} or context.opsets
    inner = replace(context, opsets={**context.opsets, **opsets}, depth=context.depth + 1, declared={})
    env: Env = dict(zip(body.input, (*n.inputs, *[None] * len(body.input)), strict=False))
    given = {a.name: a for a in n.proto.attribute}
    declared = onnx.defs.get_schema(n.op_type, n.version, domain).attributes.values()
    defaults = {a.name: a.default_value for a in declared if a.default_value.type != onnx.AttributeProto.UNDEFINED}
    bindings = {**defaults, **{a.name: a for a in body.attribute_proto}, **given}
    for node in body.node:
        bound = bind_attributes(node, bindings)
        missing = [name for name in bound.input if name and name not in env]
        if missing:
            raise InvalidModel(f"the function body of {n.op_type} reads {missing[0]!r}, which it does not define")
        values = import_node(bound, [env[i] if i else None for i in bound.input], n.builder, env, inner)
        _bind_outputs(bound, values, env)
    return [env.get(name) for name in body.output]


# nested graphs


def free_names(graph: onnx.GraphProto) -> dict[str, None]:
    """The outer values a nested graph reads, in order of use."""
    defined = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    found: dict[str, None] = {}
    for node in graph.node:
        for name in node.input:
            if name and name not in defined:
                found[name] = None
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found.update((name, None) for name in free_names(inner) if name not in defined)
        defined.update(node.output)
    found.update((o.name, None) for o in graph.output if o.name not in defined)
    return found


def import_nested(
    protos: Sequence[onnx.GraphProto], types: Sequence[Sequence[Type]], env: Env, builder: GraphBuilder, context: OnnxImport
) -> tuple[list[Graph], list[Value]]:
    """Nested graphs whose own inputs have the given types, closed over the same outer values, which are returned too."""
    if context.depth >= context.config.max_nesting:
        raise LimitExceeded(f"graphs are nested deeper than {context.config.max_nesting}")
    names = dict.fromkeys(name for proto in protos for name in free_names(proto))
    for name in names:
        if name not in env:
            raise InvalidModel(f"a nested graph reads {name!r}, which nothing around it defines")
    shared = {name: value for name in names if (value := env[name]) is not None and value.name not in builder.constants}
    captured = list({v.name: v for v in shared.values()}.values())
    inner = replace(context, depth=context.depth + 1, initializers={})
    graphs = []
    for proto, given in zip(protos, types, strict=True):
        nested = GraphBuilder(proto.name or "nested", context.fresh)
        scope: Env = {}
        for name in names:
            value = env[name]
            if value is None:
                scope[name] = None
            elif value.name in builder.constants:
                if value.name not in nested.values:
                    nested.constant(builder.constants[value.name], value.name)
                scope[name] = nested.values[value.name]
        _declare_constants(proto, nested, scope, inner, {})
        own = [info.name for info in proto.input]
        if len(own) != len(given):
            raise InvalidModel(f"nested graph {proto.name!r} takes {len(own)} inputs, {len(given)} are passed")
        for name, type in zip(own, given, strict=True):
            scope[name] = nested.input(name if name not in nested.values else nested.unique(name), type)
        inputs = {v.name: nested.input(nested.unique(v.name), v.type) for v in captured}
        for name, value in shared.items():
            scope.setdefault(name, inputs[value.name])
        outputs = _import_nodes(proto, nested, scope, inner)
        graphs.append(nested.build(outputs))
    return graphs, captured
