"""Plan: the ordered groups that cover a graph. It is the dynamic compilation graph: `fuse`, `split` and `reorder` return a
new plan or raise `IllegalEdit` with the rule that forbids the edit.

Rules that every plan keeps (`check_plan` states them all):
  - each node is in exactly one group, and each group has a node;
  - the groups run in their order: a group reads only what graph inputs, constants and earlier groups define;
  - inside a group nodes are in an order that respects the data flow;
  - all nodes of a group run on its device; only transfers read from another device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hotfuse.errors import IllegalEdit
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.group import Group
from hotfuse.ir.op import OPS, Pattern


@dataclass(frozen=True, slots=True)
class Edit:
    """One step of a plan's history."""

    kind: str  # fuse, split, reorder
    groups: tuple[str, ...]
    result: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    graph: Graph
    groups: tuple[Group, ...]
    history: tuple[Edit, ...] = ()

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The position of each group."""
        return {group.id: i for i, group in enumerate(self.groups)}

    @cached_property
    def group_of(self) -> Mapping[str, str]:
        """The group of each node."""
        return {node: group.id for group in self.groups for node in group.nodes}

    def group(self, id: str) -> Group:
        if id not in self.place:
            raise IllegalEdit(f"there is no group {id!r} in this plan")
        return self.groups[self.place[id]]

    def nodes(self, group: Group) -> Iterator[Node]:
        by_id = self.graph.by_id
        return (by_id[n] for n in group.nodes)

    def story(self, id: str) -> tuple[Edit, ...]:
        """The edits that led to the group `id`, oldest first."""
        wanted, found = {id}, []
        for edit in reversed(self.history):
            if wanted & set(edit.result):
                found.append(edit)
                wanted |= set(edit.groups)
        return tuple(reversed(found))


def trivial_plan(graph: Graph) -> Plan:
    """Every node a group of its own, in the graph's order."""
    values = graph.values
    return Plan(graph, tuple(Group(n.id, (n.id,), values[n.id].device) for n in graph.nodes))
