"""A pass over one graph becomes a pass over it and every graph nested in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from hotfuse.ir.graph import Graph, Node

Pass = Callable[[Graph], Graph]


def on_every_graph(run: Pass) -> Pass:
    """`run` on nested graphs first, innermost first, then on the graph itself."""

    @wraps(run)
    def everywhere(graph: Graph) -> Graph:
        if any(node.graphs for node in graph.nodes):
            nodes = tuple(_with_graphs(node, everywhere) for node in graph.nodes)
            if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)):
                graph = replace(graph, nodes=nodes)
        return run(graph)

    return everywhere


def _with_graphs(node: Node, run: Pass) -> Node:
    after = tuple(run(g) for g in node.graphs)
    return node if all(a is b for a, b in zip(after, node.graphs, strict=True)) else replace(node, graphs=after)
