"""Chains: groups over the same rows that hand them on to each other become one group.

A link is a product with a weight matrix, or rows that fold their last axis. The next link reads the link's one result as it is
and nobody else does. A chain grows while the weights of its products fit the part of the cache that it may count on; see
`codegen/loop_order` for why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hotfuse.fusion.rules import Fused, results_of
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.layout import Layout
from hotfuse.ir.types import TensorType, numel

SHARE = 2  # a chain's weights take at most one part in so many of the second-level cache


def make_chains(
    groups: Sequence[Fused],
    graph: Graph,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    cache_bytes: int,
) -> list[Fused]:
    """The groups, some of them joined, in an order in which they can run."""
    chains: dict[int, list[Fused]] = {}  # by the place of the last link
    made_by = {node.id: place for place, group in enumerate(groups) for node in group.nodes}
    taken: set[int] = set()
    for place, group in enumerate(groups):
        if not _is_link(group, values, layouts):
            continue
        before = _source(group, graph, made_by, groups, values, layouts)
        if before is None:
            continue
        links = [*chains.get(before, [groups[before]]), group]
        if _weights(links, values) * SHARE <= cache_bytes:
            chains[place] = links
            chains.pop(before, None)
            taken.add(before)
    joined = []
    for place, group in enumerate(groups):
        if place in chains:
            links = chains[place]
            nodes = tuple(node for link in links for node in link.nodes)
            joined.append(Fused("chain", nodes, group.domain, links=tuple(links)))
        elif place not in taken:
            joined.append(group)
    return joined


def find_joints(
    groups: Sequence[Fused], graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]
) -> Iterator[tuple[Fused, Fused, Dim, int]]:
    """Pairs of groups, joined or not, that could be one chain; the bytes that pass between them, and those of their weights."""
    owner = {id(link): group for group in groups for link in (group.links or (group,))}
    links = [link for group in groups for link in (group.links or (group,))]
    made_by = {node.id: place for place, link in enumerate(links) for node in link.nodes}
    for link in links:
        before = _source(link, graph, made_by, links, values, layouts) if _is_link(link, values, layouts) else None
        if before is None or owner[id(links[before])] is owner[id(link)]:
            continue
        first, second = owner[id(links[before])], owner[id(link)]
        handed = _type(links[before].nodes[-1].id, values)
        weights = _weights([*(first.links or (first,)), *(second.links or (second,))], values)
        yield first, second, numel(handed.shape or ()) * handed.dtype.bytes, weights


def _is_link(group: Fused, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> bool:
    """Whether a group is a product with a plain matrix, or folds the last axis of its rows, in order, to as many of them."""
    domain = group.domain
    if group.placed or group.again:
        return False
    if len(domain) < 2 or not isinstance(domain[-1], int) or _type(group.nodes[-1].id, values).shape != domain:
        return False
    if group.kind == "product":
        product = _product(group)
        weights = layouts[product.inputs[1] or ""]
        return len(weights.shape) == 1 and isinstance(weights.shape[0], int)
    return group.kind == "rows" and group.folded == (len(domain) - 1,) and not group.reverse


def _source(
    group: Fused,
    graph: Graph,
    made_by: Mapping[str, int],
    groups: Sequence[Fused],
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
) -> int | None:
    """The link whose result this one reads, and nobody else."""
    for name in _wanted(group):
        place = made_by.get(name)
        if place is not None and not _refusal(groups[place], group, name, graph, values, layouts):
            return place
    return None


def link_refusal(first: Fused, second: Fused, graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]) -> str:
    """Why the second group, joined already or not, cannot follow the first in a chain; "" where it can."""
    source, group = (first.links or (first,))[-1], (second.links or (second,))[0]
    if not _is_link(group, values, layouts):
        return "it is no product with a plain matrix, and folds no rows"
    reason = "it does not read the other's last result"
    for name in _wanted(group):
        if name == source.nodes[-1].id:
            reason = _refusal(source, group, name, graph, values, layouts)
            if not reason:
                return ""
    return reason


def _wanted(group: Fused) -> Iterable[str]:
    """What a link may read a few rows at a time."""
    inside = {node.id for node in group.nodes}
    names = [_product(group).inputs[0]] if group.kind == "product" else [n for node in group.nodes for n in node.uses]
    return (name for name in dict.fromkeys(names) if name is not None and name not in inside)


def _refusal(
    source: Fused, group: Fused, name: str, graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout]
) -> str:
    """Why a link cannot hand the value of this name to another one; "" where it can."""
    inside = {node.id for node in group.nodes}
    if not _is_link(source, values, layouts):
        return "the other is no product with a plain matrix, and folds no rows"
    if source.nodes[-1].id != name or layouts[name].root != name or len(results_of(source, graph, layouts)) != 1:
        return "what it reads is not the one result of the other, in order"
    if name in graph.kept or not all(reader.id in inside for reader in graph.consumers.get(name, ())):
        return f"{name} is read by others as well"
    if source.domain[:-1] != group.domain[:-1] or (group.kind != "product" and source.domain != group.domain):
        return "they do not go over the same rows"
    return "" if "product" in (source.kind, group.kind) else "neither is a product"


def _weights(links: Sequence[Fused], values: Mapping[str, Value]) -> int:
    """Bytes of the packed weights."""
    total = 0
    for link in links:
        if link.kind == "product":
            type = _type(_product(link).inputs[1] or "", values)
            assert type.shape is not None
            assert isinstance(type.shape[0], int)
            total += type.shape[0] * type.dtype.bytes
    return total


def _product(group: Fused) -> Node:
    return next(node for node in group.nodes if node.op == "panel_matmul")


def _type(name: str, values: Mapping[str, Value]) -> TensorType:
    type = values[name].type
    assert isinstance(type, TensorType)
    return type
