"""Passes: pure functions from graph to graph, run in the order of `PIPELINE`."""

from __future__ import annotations

from collections.abc import Callable

from hotfuse.ir.graph import Graph

Pass = Callable[[Graph], Graph]
PIPELINE: tuple[Pass, ...] = ()


def optimize(graph: Graph, passes: tuple[Pass, ...] = PIPELINE) -> Graph:
    """The graph after every pass, in order."""
    for run in passes:
        graph = run(graph)
    return graph
