"""Grouping: the groups that a graph has by its plan, edited where traffic showed that other ones pay.

A plan is the engine's, or that of rules and chains alone. A group is known by its last node. `merged` ones run as one, whatever
the model says; one taken `apart` runs as the groups that it was made of, as the links of its chain, or as its anchor (the node
that folds, reads or multiplies) and what is elementwise around it. `revised` edits are those of the engine that it was not sure
of, made nevertheless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotfuse.errors import IllegalEdit
from hotfuse.fusion.chains import find_joints, make_chains
from hotfuse.fusion.engine import Engine, Planned, Planner, Revision
from hotfuse.fusion.legality import Legality, Refusal, Verdict
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.fusion.weaving import unwoven
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.op import OPS, Pattern
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Grouping:
    """What is to differ from the plan's groups. Groups are named by the ids of their last nodes."""

    merged: tuple[tuple[str, ...], ...] = ()
    apart: tuple[str, ...] = ()
    revised: tuple[Revision, ...] = ()


AS_PLANNED = Grouping()


@dataclass(frozen=True)
class Joint:
    """Two groups that follow each other and could be one: `bytes` is what the first hands to the second, `weights` what both
    have, which is why the rules left them apart: it is more than one part in `fusion.chains.SHARE` of the cache."""

    groups: tuple[str, str]
    bytes: Dim
    weights: int


def name_of(group: Fused) -> str:
    return group.nodes[-1].id


def make_plan(
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    cache_bytes: int,
    grouping: Grouping = AS_PLANNED,
    planner: Planner | None = None,
) -> Planned:
    """The groups, in an order in which they can run, and how the engine came to them; without a planner, those of the rules.
    Raises IllegalEdit where the grouping cannot be had."""
    if planner is None:
        if grouping.revised:
            raise IllegalEdit("rules are never unsure: there is nothing to revise")
        planned = Planned(tuple(make_chains(fuse(graph, values, layouts), graph, values, layouts, cache_bytes)))
    else:
        engine = Engine(graph, values, layouts, planner)
        planned = engine.run()
        for revision in grouping.revised:
            groups, step = engine.revise(revision)
            planned = Planned(tuple(groups), (*planned.steps, step))
    if not grouping.merged and not grouping.apart:
        return planned
    return Planned(tuple(_edited(planned.groups, graph, values, layouts, grouping)), planned.steps)


def _edited(
    groups: Sequence[Fused],
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    grouping: Grouping,
) -> list[Fused]:
    """Groups with some of them merged, and others taken apart."""
    known = {name_of(group): group for group in groups}
    named = {*grouping.apart, *(n for names in grouping.merged for n in names)}
    strangers = sorted(named - set(known))
    if strangers:
        raise IllegalEdit(f"there is no group {', '.join(strangers)}; it may be part of another one")
    broken = {known[name].row for name in named}  # what was woven with one that is another now is so no more
    known = {name: unwoven(group) if group.row in broken else group for name, group in known.items()}
    made: dict[str, list[Fused]] = {name: [group] for name, group in known.items()}
    for name in grouping.apart:
        made[name] = _parts(known[name], graph, values, layouts)
    legality = Legality(graph, values, layouts)
    for names in grouping.merged:
        whole = _whole([known[name] for name in names], legality)
        for name in names:
            made[name] = []
        made[names[-1]] = [whole]
    return [group for name in known for group in made[name]]


def _parts(group: Fused, graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> list[Fused]:
    while len(group.parts) == 1:  # the same in other loops
        (group,) = group.parts
    if group.parts or group.links:
        return list(group.parts or group.links)
    ids = {node.id for node in group.nodes}
    found = [g for g in fuse(graph, values, layouts, _anchors(group)) if {node.id for node in g.nodes} <= ids]
    if len(found) < 2:
        raise IllegalEdit(f"group {name_of(group)} has no parts")
    return found


def _whole(groups: Sequence[Fused], legality: Legality) -> Fused:
    """Groups that follow each other as one, in whatever way there is."""
    first, *rest = groups
    for group in rest:
        found: Verdict = legality.join(first, group)
        if isinstance(found, Refusal):
            found = legality.link(first, group)
        if isinstance(found, Refusal):
            raise IllegalEdit(f"{name_of(first)} and {name_of(group)} cannot be one group: {found.reason}")
        first = found
    return first


def joints(
    groups: Sequence[Fused], graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]
) -> tuple[Joint, ...]:
    """Where groups that run one after the other could be merged."""
    return tuple(
        Joint((name_of(first), name_of(second)), size, weights)
        for first, second, size, weights in find_joints(groups, graph, values, layouts)
    )


def _anchors(group: Fused) -> list[str]:
    """The nodes of a group that become groups of their own when it is taken apart."""
    found = [node.id for node in group.nodes if OPS[node.op].pattern is not Pattern.ELEMENTWISE]
    return found or [group.nodes[len(group.nodes) // 2].id]
