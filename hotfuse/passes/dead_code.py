"""Dead code: nodes and constants that no result of the graph needs."""

from __future__ import annotations

from dataclasses import replace

from hotfuse.ir.graph import Graph, Node
from hotfuse.passes.nested import on_every_graph


def has_effect(node: Node) -> bool:
    """Whether a node does more than compute its outputs, so that it stays even when nobody reads them."""
    if node.graphs:
        return any(has_effect(inner) for graph in node.graphs for inner in graph.nodes)
    return bool(node.attrs.get("effect"))


def remove_dead_nodes(graph: Graph) -> Graph:
    """One graph without dead code. Inputs and weights stay: callers supply them by place."""
    wanted = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or has_effect(node):
            kept.append(node)
            wanted.update(node.uses)
    constants = {name: c for name, c in graph.constants.items() if name in wanted}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    kept.reverse()
    names = (*graph.inputs, *graph.weights, *constants, *(name for node in kept for name in node.outputs))
    return replace(graph, nodes=tuple(kept), constants=constants, values={name: graph.values[name] for name in names})


remove_dead = on_every_graph(remove_dead_nodes)
