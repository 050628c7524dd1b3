"""Splits: where a group comes apart into two, the second of which reads what the first makes from memory.

    rows      behind what is folded down the columns: the elementwise tail goes over all points again, in tasks of its own. Such
              a group has few tasks, often one, and its tail is then done by one thread
    chain     between two links: what they hand on goes through memory, and each part has as many tasks as it likes

What the engine has joined is not taken apart again: its parts were the plan before, and whoever goes back and forth never ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hotfuse.fusion.rules import Fused, is_pointwise
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.types import TensorType

Halves = tuple[Fused, Fused]


def split_refusal(group: Fused) -> str:
    """Why a group cannot be taken apart, whatever its nodes; "" where nothing speaks against it."""
    if group.parts or group.variant:
        return "it is what an edit made"
    if group.placed or group.again:
        return "it computes or writes something in place of others"
    if group.kind == "chain":
        return ""
    if group.kind != "rows" or not group.folded:
        return f"a kernel of kind {group.kind} that folds no rows is in one piece"
    return "there are tasks of rows for all its points" if len(group.domain) - 1 in group.folded else ""


def halves_of(group: Fused, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> Iterator[Halves]:
    """The ways to take a group apart that `split_refusal` has nothing against."""
    if group.kind == "chain":
        for place in range(1, len(group.links)):
            yield _linked(group, group.links[:place]), _linked(group, group.links[place:])
        return
    tail = _tail(group, values, layouts)
    if tail and len(tail) < len(group.nodes):
        first = replace(group, nodes=tuple(node for node in group.nodes if node.id not in tail), grain=0)
        second = Fused("rows", tuple(node for node in group.nodes if node.id in tail), group.domain, team=group.team)
        yield first, second


def _linked(group: Fused, links: tuple[Fused, ...]) -> Fused:
    if len(links) == 1:
        return replace(links[0], team=group.team)
    nodes = tuple(node for link in links for node in link.nodes)
    return Fused("chain", nodes, links[-1].domain, links=links, team=group.team)


def _tail(group: Fused, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> set[str]:
    """Elementwise nodes over all points of which nothing is folded any more. Values of rows stay with those that fold: the tail
    would compute them at every point."""
    readers: dict[str, list[Node]] = {}
    for node in group.nodes:
        for name in node.uses:
            readers.setdefault(_root(name, layouts), []).append(node)
    tail: set[str] = set()
    for node in reversed(group.nodes):
        type = values[node.id].type
        is_whole = isinstance(type, TensorType) and type.shape == group.domain
        if is_whole and is_pointwise(node) and all(reader.id in tail for reader in readers.get(node.id, ())):
            tail.add(node.id)
    return tail


def _root(name: str, layouts: Mapping[str, Layout]) -> str:
    layout = layouts.get(name)
    return name if layout is None else layout.root
