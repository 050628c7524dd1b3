"""Reports: what a model is made of, what runs it, and what happened so far. Plain records, printable and JSON-able.

`Report` is what all of them have. `GraphReport` is on one graph that answers every call (sessions, exported programs);
`torch_report.TorchReport` is on a module whose calls are captured class by class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from hotfuse.config import Config
from hotfuse.events import EventLog, plain
from hotfuse.ir.graph import Graph
from hotfuse.ir.metadata import Cost, NodeMeta, describe, total_cost
from hotfuse.records import dataclass
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.story import Source, Story, find_story, make_source, tell


@runtime_checkable
class Report(Protocol):
    """`captured_share` is the share of the operators that our IR knows; `why` answers "why is it not faster yet?"."""

    @property
    def model(self) -> str: ...
    @property
    def calls(self) -> int: ...
    @property
    def captured_share(self) -> float: ...
    @property
    def events(self) -> Mapping[str, int]: ...
    @property
    def why(self) -> str: ...
    @property
    def subgraphs(self) -> tuple[Story, ...]: ...
    def story(self, id: str) -> Story:
        """That of one subgraph, by its id, the beginning of it, or a node in it."""

    def json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""


@dataclass(frozen=True)
class OpaqueNode:
    """A node that runs through another library, and why."""

    origin: str
    operator: str
    reason: str


@dataclass(frozen=True)
class GeneratedKernel:
    """Operators that became native code together, how many groups of a model are like that, and why it runs as it does."""

    operators: tuple[str, ...]
    groups: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class GraphReport:
    """One graph that answers every call. `nodes` and `operators` count our IR's, those of nested graphs included."""

    model: str
    calls: int
    captured_share: float
    nodes: int
    operators: Mapping[str, int]
    opaque: tuple[OpaqueNode, ...]
    cost: Cost
    bound_shapes: int
    arena_bytes: int
    events: Mapping[str, int]
    why: str
    kernels: tuple[GeneratedKernel, ...] = ()
    source: Source | None = field(default=None, repr=False, compare=False)  # what the stories are told from
    overridden: Mapping[str, GraphReport] = field(default_factory=dict)  # of calls that feed initializers, by their names

    @cached_property
    def subgraphs(self) -> tuple[Story, ...]:
        """Every subgraph there is or was: what it is made of, and what became of it."""
        return () if self.source is None else tell(self.source)

    def story(self, id: str) -> Story:
        others = (story for report in self.overridden.values() for story in report.subgraphs)
        return find_story((*self.subgraphs, *others), id)

    def json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; symbolic costs are text."""
        found = asdict(replace(self, source=None, overridden={}))
        del found["source"]
        found["overridden"] = {names: report.json() for names, report in self.overridden.items()}
        found["cost"] = {k: v if isinstance(v, int) else str(v) for k, v in found["cost"].items()}
        return {**found, "subgraphs": [plain(story.json()) for story in self.subgraphs]}

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {self.nodes} nodes, {self.captured_share:.1%} of operators in our IR",
            f"  {self.cost.flops} flops, {self.cost.bytes_moved} bytes moved if nothing is fused",
            f"  {self.bound_shapes} bound shapes, {self.arena_bytes:,} bytes of scratch memory, {self.calls} calls",
        ]
        lines += [f"  opaque: {n.operator} ({n.origin}): {n.reason}" for n in self.opaque]
        lines += [f"  {k.groups} x {', '.join(k.operators)}: {'; '.join(k.reasons) or 'native'}" for k in self.kernels]
        lines += [f"  event {kind}: {count}" for kind, count in sorted(self.events.items())]
        lines.append(f"  why it is not faster yet: {self.why}")
        return "\n".join([*lines, *(f"calls that feed {names}: {report}" for names, report in self.overridden.items())])


def make_report(
    model: str,
    graph: Graph,
    opaque: Sequence[tuple[str, str, str]],
    executor: Executor,
    calls: int,
    events: EventLog,
    closed: bool,
    share: float | None = None,
    seconds: Mapping[str, float] | None = None,
    baked_calls: Mapping[str, int] | None = None,
    held: str = "",
) -> GraphReport:
    """`share` is the captured share of the original model, where that does not follow from the number of nodes; `seconds` what
    units take, by name, where that was profiled; `baked_calls` how many calls each target for some sizes answered; `held` what
    keeps kernels from serving, where somebody sees to it."""
    every = [node for g in graph.walk() for node in g.nodes]
    found = 1.0 - len(opaque) / len(every) if every else 1.0
    return GraphReport(
        model,
        calls,
        max(0.0, found) if share is None else share,
        len(every),
        dict(Counter(node.op for node in every).most_common()),
        tuple(OpaqueNode(*entry) for entry in opaque),
        total_cost(graph),
        executor.bound_shapes,
        sum(executor.arena_bytes().values()),
        events.counted(),
        _why(executor.config, calls, closed, len(opaque), executor.native, held),
        tuple(GeneratedKernel(ops, count, why) for (ops, why), count in Counter(executor.choices).most_common()),
        make_source(graph, executor, events, calls, seconds, baked_calls),
    )


def _why(config: Config, calls: int, closed: bool, opaque: int, native: str, held: str) -> str:
    if closed:
        return "it was closed"
    if config.disable:
        return "hotfuse is disabled (HOTFUSE_DISABLE or disable=True): the model runs as it was given"
    if config.tier == 0:
        return "tier=0 allows nothing but the original operators"
    if not calls:
        return "it was not called yet"
    if native:
        return f"it is as fast as it gets: {native}" if ";" not in native else native
    slow = f", and {opaque} of them run through another library (see `opaque`)" if opaque else ""
    return f"no fused kernel exists for it yet: its operators run one by one{slow}{held and f'; {held}'}"


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
