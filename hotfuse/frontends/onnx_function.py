"""Functions that a model defines itself: refused when they never end, written out where they are called otherwise.

Before anything is written out, the nodes each function becomes are counted:

    size(f) = sum over nodes of f:  size(g) if the node calls g, else 1

so that forty functions that call each other twice (2^40 nodes) cost nothing to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx.inliner

from hotfuse.config import Config
from hotfuse.errors import InvalidModel, LimitExceeded

Key = tuple[str, str, str]  # domain, name, overload


def inline_functions(proto: onnx.ModelProto, config: Config) -> onnx.ModelProto:
    """The model without functions of its own."""
    if not proto.functions:
        return proto
    _check_functions(proto, config)
    return onnx.inliner.inline_local_functions(proto)


def _key(domain: str, name: str, overload: str) -> Key:
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _nodes(roots: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs nested in them."""
    pending = list(roots)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                pending.extend(attribute.g.node)
            for graph in attribute.graphs:
                pending.extend(graph.node)


def _calls(nodes: Iterable[onnx.NodeProto], functions: Mapping[Key, onnx.FunctionProto]) -> tuple[int, list[Key]]:
    """How many nodes are no calls, and what the others call."""
    plain, called = 0, []
    for node in _nodes(nodes):
        key = _key(node.domain, node.op_type, node.overload)
        if key in functions:
            called.append(key)
        else:
            plain += 1
    return plain, called


def _check_functions(proto: onnx.ModelProto, config: Config) -> None:
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = _key(function.domain, function.name, function.overload)
        if key in functions:
            raise InvalidModel(f"function {_shown(key)} is defined twice; give each function a name of its own")
        functions[key] = function
    bodies = {key: _calls(function.node, functions) for key, function in functions.items()}
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for start in functions:
        path: list[Key] = [start]  # an explicit stack: a chain of functions may be longer than Python's
        open_: set[Key] = set()
        while path:
            key = path[-1]
            plain, called = bodies[key]
            if key in sizes:
                path.pop()
            elif key not in open_:
                open_.add(key)
                for inner in called:
                    if inner in open_:
                        raise InvalidModel(f"function {_shown(inner)} calls itself, through {_shown(key)}; it would never end")
                path.extend(inner for inner in dict.fromkeys(called) if inner not in sizes)
            else:
                sizes[key] = plain + sum(sizes[inner] for inner in called)
                depths[key] = 1 + max((depths[inner] for inner in called), default=0)
                open_.discard(key)
                path.pop()
    if max(depths.values()) > config.max_nesting:
        raise LimitExceeded(f"functions call each other deeper than {config.max_nesting}; raise max_nesting if that is right")
    plain, called = _calls(proto.graph.node, functions)
    total = plain + sum(sizes[key] for key in called)
    if total > config.max_nodes:
        raise LimitExceeded(
            f"the model has {total:,} nodes once its functions are written out; the limit is {config.max_nodes:,} "
            "(raise max_nodes if it is right)"
        )


def _shown(key: Key) -> str:
    domain, name, overload = key
    return f"{domain or 'ai.onnx'}.{name}{':' + overload if overload else ''}"
