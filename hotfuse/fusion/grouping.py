"""Grouping: the groups that rules and chains make of a graph, edited where traffic showed that other ones pay.

A group is known by its last node. `merged` ones run as one, whatever the model of the cache says; one taken `apart` runs as the
links of its chain, or as its anchor (the node that folds, reads or multiplies) and what is elementwise around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotfuse.errors import IllegalEdit
from hotfuse.fusion.chains import find_joints, make_chains
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.op import OPS, Pattern


@dataclass(frozen=True)
class Grouping:
    """What is to differ from the rules' groups. Groups are named by the ids of their last nodes."""

    merged: tuple[tuple[str, ...], ...] = ()
    apart: tuple[str, ...] = ()


AS_RULED = Grouping()


@dataclass(frozen=True)
class Joint:
    """Two groups that follow each other and could be one: `bytes` is what the first hands to the second, `weights` what both
    have, which is why the rules left them apart: it is more than one part in `fusion.chains.SHARE` of the cache."""

    groups: tuple[str, str]
    bytes: Dim
    weights: int


def name_of(group: Fused) -> str:
    return group.nodes[-1].id


def make_groups(
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    cache_bytes: int,
    grouping: Grouping = AS_RULED,
) -> list[Fused]:
    """The groups, in an order in which they can run. Raises IllegalEdit where the grouping cannot be had."""
    ruled = make_chains(fuse(graph, values, layouts), graph, values, layouts, cache_bytes)
    if grouping == AS_RULED:
        return ruled
    known = {name_of(group): group for group in ruled}
    strangers = sorted({*grouping.apart, *(n for names in grouping.merged for n in names)} - set(known))
    if strangers:
        raise IllegalEdit(f"there is no group {', '.join(strangers)}; it may be part of another one")
    apart = [known[name] for name in grouping.apart]
    whole = [group for group in apart if not group.links]
    loose = {node.id for group in apart if group.links for node in group.nodes}
    tied = [{node.id for name in names for node in known[name].nodes} for names in grouping.merged]
    fused = fuse(graph, values, layouts, {id for group in whole for id in _anchors(group)})
    groups = make_chains(fused, graph, values, layouts, cache_bytes, loose, tied)
    _check(groups, apart, tied)
    return groups


def _check(groups: Sequence[Fused], apart: Sequence[Fused], tied: Sequence[set[str]]) -> None:
    made = [{node.id for node in group.nodes} for group in groups]
    for ids in tied:
        if not any(ids <= nodes for nodes in made):
            raise IllegalEdit(f"{', '.join(sorted(ids))} cannot be one group: they do not hand on the same rows")
    for group in apart:
        if {node.id for node in group.nodes} in made:
            raise IllegalEdit(f"group {name_of(group)} has no parts")


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
