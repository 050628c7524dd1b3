"""Nodes against the schema of their operator: attributes, inputs and outputs that its version does not have are refused.

An importer reads what it knows and would take no notice of the rest: a misspelt attribute would leave a default in force. What
onnx has no schema for (operators of other domains) is left alone. One thing is allowed that onnx's own check is not: absent
inputs and outputs at the end may be written as empty names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx

from hotfuse.errors import InvalidModel
from hotfuse.records import dataclass

A = onnx.AttributeProto
_MANY = 1 << 30  # more than any node has: the last input or output may be repeated


@dataclass(frozen=True)
class NodeRules:
    """What one version of an operator takes and gives."""

    operator: str  # as messages call it
    attributes: Mapping[str, int]  # the kind of each, numbered as in AttributeProto
    required: frozenset[str]  # attributes
    inputs: range  # how many
    outputs: range
    needed: frozenset[int]  # inputs that may not be absent


@functools.lru_cache(maxsize=4096)
def node_rules(op_type: str, version: int, domain: str) -> NodeRules | None:
    """The rules of an operator; None for one that onnx does not know."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return NodeRules(
        f"{op_type} of opset {version}",
        {name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        frozenset(name for name, attribute in schema.attributes.items() if attribute.required),
        range(schema.min_input, schema.max_input + 1),
        range(schema.min_output, schema.max_output + 1),
        frozenset(i for i, parameter in enumerate(schema.inputs) if parameter.option == single),
    )


def check_node(node: onnx.NodeProto, version: int, domain: str) -> None:
    """Refuse a node that is not one of its operator, in the version that its model asks for."""
    rules = node_rules(node.op_type, version, domain)
    if rules is None:
        return
    given = set()
    for attribute in node.attribute:
        _check_attribute(attribute, rules)
        given.add(attribute.name)
    if not rules.required <= given:
        raise InvalidModel(f"the attribute {min(rules.required - given)!r} is missing; {rules.operator} needs it")
    _check_count("input", node.input, rules.inputs, rules.operator)
    _check_count("output", node.output, rules.outputs, rules.operator)
    for i, name in enumerate(node.input):
        if not name and i in rules.needed:
            raise InvalidModel(f"{rules.operator} needs input {i}, which is left out")


def _check_attribute(attribute: onnx.AttributeProto, rules: NodeRules) -> None:
    kind = rules.attributes.get(attribute.name)
    if kind is None:
        known = f"it has {', '.join(sorted(rules.attributes))}" if rules.attributes else "it has none"
        raise InvalidModel(
            f"{rules.operator} has no attribute {attribute.name!r}: {known}; check the spelling and the opset of the model"
        )
    if kind != attribute.type and (kind, attribute.type) != (A.FLOAT, A.INT):  # a whole number will do for a number
        names = A.AttributeType.Name
        raise InvalidModel(f"attribute {attribute.name!r} must be {names(kind)}, not {names(attribute.type)}")


def _check_count(what: str, names: Sequence[str], allowed: range, operator: str) -> None:
    count = len(names)
    while count > allowed.start and not names[count - 1]:
        count -= 1
    if count in allowed:
        return
    least, most = allowed.start, allowed.stop - 1
    how_many = f"{least}" if least == most else f"at least {least}" if most >= _MANY else f"{least} to {most}"
    verb, plural = "takes" if what == "input" else "gives", "" if how_many == "1" else "s"
    raise InvalidModel(f"{operator} {verb} {how_many} {what}{plural}, the node has {count}: {list(names)}")
