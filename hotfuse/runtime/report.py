"""Reports: what a model is made of, what runs it, and what happened so far. Plain records, printable and JSON-able."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotfuse.ir.graph import Graph
from hotfuse.ir.metadata import Cost, NodeMeta, describe, total_cost


@dataclass(frozen=True)
class OpaqueNode:
    """A node that runs through another library, and why."""

    origin: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Report:
    """The state of one model. `captured_share` is the share of its operators that our IR knows."""

    model: str
    nodes: int
    operators: Mapping[str, int]
    opaque: tuple[OpaqueNode, ...]
    captured_share: float
    cost: Cost
    bound_shapes: int
    arena_bytes: int
    calls: int
    events: Mapping[str, int]

    def json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; symbolic costs are text."""
        found = asdict(self)
        found["cost"] = {k: v if isinstance(v, int) else str(v) for k, v in found["cost"].items()}
        return found

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {self.nodes} nodes, {self.captured_share:.1%} of operators in our IR",
            f"  {self.cost.flops} flops, {self.cost.bytes_moved} bytes moved if nothing is fused",
            f"  {self.bound_shapes} bound shapes, {self.arena_bytes:,} bytes of scratch memory, {self.calls} calls",
        ]
        lines += [f"  opaque: {n.operator} ({n.origin}): {n.reason}" for n in self.opaque]
        lines += [f"  event {kind}: {count}" for kind, count in sorted(self.events.items())]
        return "\n".join(lines)


def make_report(
    model: str,
    graph: Graph,
    opaque: Sequence[tuple[str, str, str]],
    bound_shapes: int,
    arena_bytes: int,
    calls: int,
    events: Mapping[str, int],
    operators: int | None = None,
) -> Report:
    """`operators` is how many the original model has, where that is not the number of nodes."""
    every = [node for g in graph.walk() for node in g.nodes]
    total = operators if operators is not None else len(every)
    return Report(
        model,
        len(every),
        dict(Counter(node.op for node in every).most_common()),
        tuple(OpaqueNode(*found) for found in opaque),
        1.0 if not total else max(0.0, 1.0 - len(opaque) / total),
        total_cost(graph),
        bound_shapes,
        arena_bytes,
        calls,
        dict(events),
    )


def explain_graph(graph: Graph) -> list[NodeMeta]:
    """Every node: operator, shapes, estimated cost, origin and, where it is opaque, why. Nested graphs follow their node."""
    found: list[NodeMeta] = []
    for node in graph.nodes:
        found.append(describe(graph, node))
        for nested in node.graphs:
            found.extend(explain_graph(nested))
    return found


def explain_text(graph: Graph) -> str:
    """One line per node."""
    rows = []
    for meta in explain_graph(graph):
        results = ", ".join(str(t) for t in meta.outputs)
        why = f"  opaque: {meta.opaque}" if meta.opaque else ""
        rows.append(f"{meta.operator:<20} {results:<32} {meta.cost.flops!s:>14} flops  {meta.origin}{why}")
    return "\n".join(rows)
