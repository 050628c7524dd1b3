"""Graphs in native form, with their layouts and the groups that rules make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotfuse.codegen.native_form import native_graph
from hotfuse.fusion.chains import make_chains
from hotfuse.fusion.legality import Legality
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout, layouts
from hotfuse.ir.types import F32, tensor


@dataclass(frozen=True)
class Case:
    graph: Graph
    layouts: dict[str, Layout]

    @property
    def legality(self) -> Legality:
        return Legality(self.graph, self.graph.values, self.layouts)

    def groups(self, cache_bytes: int = 0) -> list[Fused]:
        """Those of the rules but for packing, without chains unless a cache is given."""
        found = fuse(self.graph, self.graph.values, self.layouts)
        found = make_chains(found, self.graph, self.graph.values, self.layouts, cache_bytes)
        return [group for group in found if group.kind != "pack"]


def case(make: Callable[[GraphBuilder], Value | list[Value]]) -> Case:
    builder = GraphBuilder()
    results = make(builder)
    graph = native_graph(builder.build(results if isinstance(results, list) else [results]), host_spec())
    return Case(graph, layouts(graph, graph.values))


def rows(b: GraphBuilder, *shape: Any, name: str = "x") -> Value:
    return b.input(name, tensor(F32, *shape))


def weight(b: GraphBuilder, *shape: int) -> Value:
    return b.weight(b.unique("w"), tensor(F32, *shape))
