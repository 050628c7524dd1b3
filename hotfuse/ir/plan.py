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
from dataclasses import replace
from functools import cached_property

from hotfuse.errors import IllegalEdit
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.group import Group
from hotfuse.ir.op import OPS, Pattern
from hotfuse.records import dataclass


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


def check_plan(plan: Plan) -> None:
    """Raise IllegalEdit, naming the rule, unless the plan keeps every rule of the module docstring."""
    seen: set[str] = set()
    for group in plan.groups:
        if not group.nodes:
            raise IllegalEdit(f"group {group.id!r} has no nodes")
        for id in group.nodes:
            if id not in plan.graph.by_id:
                raise IllegalEdit(f"group {group.id!r} names {id!r}, which is no node of the graph")
            if id in seen:
                raise IllegalEdit(f"node {id!r} is in two groups")
            seen.add(id)
        _check_members(plan.graph, group)
    if len(plan.place) != len(plan.groups):
        raise IllegalEdit("two groups have one id")
    left_out = [n.id for n in plan.graph.nodes if n.id not in seen]
    if left_out:
        raise IllegalEdit(f"node {left_out[0]!r} is in no group")
    _check_order(plan)


def _check_members(graph: Graph, group: Group) -> None:
    """One device; transfers, nested graphs and opaque nodes stay alone; the nodes' order respects the data flow."""
    mine = {output: id for id in group.nodes for output in graph.by_id[id].outputs}
    done: set[str] = set()
    for id in group.nodes:
        node = graph.by_id[id]
        if graph.device(node) != group.device:
            raise IllegalEdit(f"node {id!r} runs on {graph.device(node)}, group {group.id!r} on {group.device}")
        pattern = OPS[node.op].pattern
        if len(group.nodes) > 1 and pattern in _ALONE:
            raise IllegalEdit(f"node {id!r} ({node.op}) {_ALONE[pattern]}, so it stays a group of its own")
        for name in node.uses:
            if name in mine and mine[name] not in done:
                raise IllegalEdit(f"in group {group.id!r} node {id!r} comes before {mine[name]!r}, whose result it reads")
        done.add(id)


_ALONE = {
    Pattern.TRANSFER: "moves data between devices",
    Pattern.CONTROL: "runs nested graphs",
    Pattern.OPAQUE: "is known only to another library",
}


def _check_order(plan: Plan) -> None:
    done: set[str] = set()
    producer = plan.graph.producer
    for group in plan.groups:
        for node in plan.nodes(group):
            for name in node.uses:
                source = producer.get(name)
                if source is None or source.id in done:
                    continue
                other = plan.group_of[source.id]
                if other != group.id:
                    raise IllegalEdit(f"group {group.id!r} reads {name!r} before group {other!r} computes it")
        done.update(group.nodes)


def _reads(plan: Plan, group: Group) -> set[str]:
    """The groups whose results `group` reads."""
    producer, group_of = plan.graph.producer, plan.group_of
    names = (name for node in plan.nodes(group) for name in node.uses)
    return {group_of[producer[n].id] for n in names if n in producer} - {group.id}


def fuse(plan: Plan, ids: Sequence[str], reason: str = "") -> Plan:
    """One group in place of several.

    before: groups a, b, ... in any places
    after:  one group with all their nodes; groups between them that need its results now follow it
    requires: one device; no group outside that both needs a member's result and feeds a member (a cycle); no transfer,
              nested graph or opaque node among the members
    """
    chosen = dict.fromkeys(ids)
    if len(chosen) < 2:
        raise IllegalEdit("fusing takes at least two different groups")
    members = sorted((plan.group(id) for id in chosen), key=lambda g: plan.place[g.id])
    devices = {g.device for g in members}
    if len(devices) > 1:
        raise IllegalEdit(f"groups {', '.join(chosen)} are on different devices: {', '.join(sorted(devices))}")
    first, last = plan.place[members[0].id], plan.place[members[-1].id]
    needs_members: set[str] = set()  # groups of the window that depend on a member
    ahead: list[Group] = []
    behind: list[Group] = []
    for group in plan.groups[first : last + 1]:
        sources = _reads(plan, group)
        if group.id in chosen:
            through = sources & needs_members
            if through:
                raise IllegalEdit(
                    f"fusing {', '.join(chosen)} makes a cycle: {sorted(through)[0]!r} needs one of them and feeds {group.id!r}"
                )
        elif sources & needs_members or sources & chosen.keys():
            needs_members.add(group.id)
            behind.append(group)
        else:
            ahead.append(group)
    merged = Group(
        _fused_id(plan, members),
        tuple(n for g in members for n in g.nodes),
        members[0].device,
        tuple(g.id for g in members),
    )
    _check_members(plan.graph, merged)
    groups = (*plan.groups[:first], *ahead, merged, *behind, *plan.groups[last + 1 :])
    return Plan(plan.graph, groups, (*plan.history, Edit("fuse", tuple(g.id for g in members), (merged.id,), reason)))


def _fused_id(plan: Plan, members: Sequence[Group]) -> str:
    return _free_id(plan, f"{members[0].id}+{sum(len(g.nodes) for g in members) - 1}", {g.id for g in members})


def _free_id(plan: Plan, wanted: str, leaving: set[str]) -> str:
    id, number = wanted, 1
    while id in plan.place and id not in leaving:
        number += 1
        id = f"{wanted}~{number}"
    return id


def split(plan: Plan, id: str, parts: Sequence[Sequence[str]], reason: str = "") -> Plan:
    """Several groups in place of one.

    before: a group of nodes n1..nk
    after:  one group per part, at the same place, in the parts' order
    requires: the parts hold each node of the group once, none is empty, and no part reads what a later part computes
    """
    group = plan.group(id)
    if len(parts) < 2:
        raise IllegalEdit(f"splitting {id!r} takes at least two parts")
    flat = [n for part in parts for n in part]
    if sorted(flat) != sorted(group.nodes):
        raise IllegalEdit(f"the parts do not hold each node of group {id!r} exactly once")
    if not all(parts):
        raise IllegalEdit(f"a part of group {id!r} is empty")
    made: list[Group] = []
    taken: set[str] = set()
    for part in parts:
        name = _free_id(plan, part[0], {id})
        while name in taken:
            name += "~"
        taken.add(name)
        made.append(Group(name, tuple(part), group.device, (id,)))
    place = plan.place[id]
    edited = Plan(
        plan.graph,
        (*plan.groups[:place], *made, *plan.groups[place + 1 :]),
        (*plan.history, Edit("split", (id,), tuple(g.id for g in made), reason)),
    )
    _check_parts(edited, made)
    return edited


def _check_parts(plan: Plan, parts: Sequence[Group]) -> None:
    later = {g.id for g in parts}
    for group in parts:
        _check_members(plan.graph, group)
        later.discard(group.id)
        clash = _reads(plan, group) & later
        if clash:
            raise IllegalEdit(f"part {group.id!r} reads a result of part {sorted(clash)[0]!r}, which comes after it")


def reorder(plan: Plan, id: str, place: int, reason: str = "") -> Plan:
    """A group moved to another place.

    before: groups ..., g, ...
    after:  the same groups with g at `place`
    requires: g still follows what it reads and precedes what reads it
    """
    group = plan.group(id)
    if not 0 <= place < len(plan.groups):
        raise IllegalEdit(f"place {place} is outside the plan of {len(plan.groups)} groups")
    before = plan.place[id]
    passed = plan.groups[before + 1 : place + 1] if place > before else plan.groups[place:before]
    if place > before:
        for other in passed:
            if id in _reads(plan, other):
                raise IllegalEdit(f"group {id!r} cannot go behind {other.id!r}, which reads its result")
    else:
        clash = _reads(plan, group) & {g.id for g in passed}
        if clash:
            raise IllegalEdit(f"group {id!r} cannot go before {sorted(clash)[0]!r}, whose result it reads")
    rest = [g for g in plan.groups if g.id != id]
    rest.insert(place, group)
    return replace(plan, groups=tuple(rest), history=(*plan.history, Edit("reorder", (id,), (id,), reason)))
