"""The invariants of a graph. `verify` raises VerifyError at the first that does not hold.

names      every value is defined exactly once: input, weight, constant or output of a node; no others are in the table
order      a node reads only what is defined before it; the graph's outputs are defined
operators  every operator is in the table; every node has an output
types      what inference finds for a node fits the declared type; a constant has its value's type
contents   known contents have as many elements as the type says, and only integers and booleans have them
devices    a node reads values of its own device; only a transfer reads from another
nesting    nested graphs keep the same invariants and take and return what their operator passes and expects
"""

from __future__ import annotations

from hotfuse.errors import HotfuseError, VerifyError
from hotfuse.ir.builder import infer_node
from hotfuse.ir.facts import NO_FACTS, Facts
from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.op import OPS, FreshSymbols, Pattern
from hotfuse.ir.plan import Plan, check_plan
from hotfuse.ir.types import AnyType, TensorType, Type, numel


def verify(graph: Graph) -> Graph:
    """The graph itself, once every invariant is checked."""
    defined = _check_definitions(graph)
    fresh = FreshSymbols("??")
    for node in graph.nodes:
        for nested in node.graphs:
            verify(nested)
        _check_node(graph, node, defined, fresh)
        for name in node.outputs:
            if name in defined:
                raise VerifyError(f"graph {graph.name!r}: value {name!r} is defined twice, again by {_where(node)}")
            defined.add(name)
    for name in graph.outputs:
        if name not in defined:
            raise VerifyError(f"graph {graph.name!r}: output {name!r} is defined by nothing")
    extra = graph.values.keys() - defined
    if extra:
        raise VerifyError(f"graph {graph.name!r}: value {sorted(extra)[0]!r} is in the table but defined by nothing")
    return graph


def verify_plan(plan: Plan) -> Plan:
    verify(plan.graph)
    check_plan(plan)
    return plan


def _check_definitions(graph: Graph) -> set[str]:
    defined: set[str] = set()
    for kind, names in (("input", graph.inputs), ("weight", graph.weights), ("constant", graph.constants)):
        for name in names:
            if name in defined:
                raise VerifyError(f"graph {graph.name!r}: {kind} {name!r} is defined twice")
            defined.add(name)
            _check_value(graph, name)
    for name, constant in graph.constants.items():
        _check_constant(graph, name, constant)
    return defined


def _check_constant(graph: Graph, name: str, constant: Constant) -> None:
    if graph.values[name].type != constant.type:
        raise VerifyError(
            f"graph {graph.name!r}: constant {name!r} holds {constant.type} but its value is declared {graph.values[name].type}"
        )


def _check_value(graph: Graph, name: str) -> Value:
    value = graph.values.get(name)
    if value is None:
        raise VerifyError(f"graph {graph.name!r}: value {name!r} has no entry in the table")
    if value.name != name:
        raise VerifyError(f"graph {graph.name!r}: the entry of {name!r} is named {value.name!r}")
    if value.contents is not None:
        type = value.type
        if not isinstance(type, TensorType) or type.shape is None or type.dtype.kind not in ("int", "uint", "bool"):
            raise VerifyError(f"graph {graph.name!r}: value {name!r} of type {type} cannot have known contents")
        if NO_FACTS.decide(numel(type.shape), len(value.contents)) is False:
            raise VerifyError(f"graph {graph.name!r}: value {name!r} is {type} but {len(value.contents)} elements are known")
    return value


def _where(node: Node) -> str:
    return f"node {node.id!r} ({node.op})" if node.outputs else f"a node ({node.op})"


def _check_node(graph: Graph, node: Node, defined: set[str], fresh: FreshSymbols) -> None:
    if node.op not in OPS:
        raise VerifyError(f"graph {graph.name!r}: operator {node.op!r} is not defined")
    if not node.outputs:
        raise VerifyError(f"graph {graph.name!r}: {_where(node)} has no output")
    for name in node.uses:
        if name not in defined:
            raise VerifyError(f"graph {graph.name!r}: {_where(node)} reads {name!r} before it is defined")
    outputs = [_check_value(graph, name) for name in node.outputs]
    _check_devices(graph, node, outputs)
    _check_nesting(graph, node)
    inputs = [None if name is None else graph.values[name] for name in node.inputs]
    if OPS[node.op].pattern is Pattern.OPAQUE:
        return
    try:
        found = infer_node(node.op, inputs, node.attrs, node.graphs, fresh, len(outputs))
    except HotfuseError as error:
        raise VerifyError(f"graph {graph.name!r}: {_where(node)} does not fit its inputs: {error}") from error
    for value, inferred in zip(outputs, found, strict=True):
        if not compatible(value.type, inferred.type, graph.facts):
            raise VerifyError(
                f"graph {graph.name!r}: {_where(node)} gives {inferred.type}, {value.name!r} is declared {value.type}"
            )


def compatible(declared: Type, inferred: Type, facts: Facts = NO_FACTS) -> bool:
    """Whether one value can have both types: nothing about them is certain to differ."""
    if isinstance(declared, AnyType) or isinstance(inferred, AnyType):
        return True
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        if declared.dtype != inferred.dtype:
            return False
        if declared.shape is None or inferred.shape is None:
            return True
        return len(declared.shape) == len(inferred.shape) and all(
            facts.decide(a, b) is not False for a, b in zip(declared.shape, inferred.shape, strict=True)
        )
    return type(declared) is type(inferred)


def _check_devices(graph: Graph, node: Node, outputs: list[Value]) -> None:
    device = outputs[0].device
    for value in outputs[1:]:
        if value.device != device:
            raise VerifyError(f"graph {graph.name!r}: {_where(node)} has results on two devices, {device} and {value.device}")
    if node.op == "transfer":
        to = node.attrs.get("to")
        if to != device:
            raise VerifyError(f"graph {graph.name!r}: {_where(node)} moves to {to} but its result is on {device}")
        return
    for name in node.uses:
        if graph.values[name].device != device:
            raise VerifyError(
                f"graph {graph.name!r}: {_where(node)} runs on {device} but reads {name!r} on {graph.values[name].device}; "
                "put a transfer between them"
            )


def _check_nesting(graph: Graph, node: Node) -> None:
    expected = {"if": (2, -1), "loop": (1, 0), "scan": (1, 0), "while": (2, 0)}.get(node.op)
    if expected is None:
        if node.graphs:
            raise VerifyError(f"graph {graph.name!r}: {_where(node)} carries nested graphs but does not run any")
        return
    count, offset = expected
    if len(node.graphs) != count:
        raise VerifyError(f"graph {graph.name!r}: {_where(node)} needs {count} nested graphs, not {len(node.graphs)}")
    for nested in node.graphs:
        if nested.weights:
            raise VerifyError(f"graph {graph.name!r}: nested graph {nested.name!r} has weights; pass them as inputs")
        if len(nested.inputs) != len(node.inputs) + offset:
            raise VerifyError(
                f"graph {graph.name!r}: {_where(node)} passes {len(node.inputs) + offset} values to {nested.name!r}, "
                f"which takes {len(nested.inputs)}"
            )
