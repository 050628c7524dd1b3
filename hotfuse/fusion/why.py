"""Why two nodes are one kernel, or are not: what the engine has to say of any two of them, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.errors import InputError
from hotfuse.fusion.draft import Item
from hotfuse.fusion.engine import BESIDE, WOVEN, Engine, Planned, Step
from hotfuse.fusion.legality import Refusal
from hotfuse.fusion.rules import Fused
from hotfuse.hardware.pairs import SAME
from hotfuse.ir.graph import Graph
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Why:
    """`together`: they are one kernel. `lines` say why, each by itself."""

    nodes: tuple[str, str]
    together: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """A graph that the one which is planned came of, and what became of those of its nodes that are not in that."""

    graph: Graph
    fate: str


def find_node(graph: Graph, name: str) -> str:
    """The node of this id, or the first one that comes from a layer or operator of that name."""
    found = _found(graph, name)
    if found is None:
        some = ", ".join(node.id for node in graph.nodes[:8])
        raise InputError(f"there is no node {name!r}; nodes are {some}{' and more' if len(graph.nodes) > 8 else ''}")
    return found


def fate_of(name: str, graph: Graph, before: Sequence[Stage]) -> str:
    """What became of a node that is not in the graph which is planned; "" where it is there. Raises InputError where it never
    was one."""
    if _found(graph, name) is not None:
        return ""
    for stage in before:
        for inner in stage.graph.walk():
            found = _found(inner, name)
            if found is not None:
                return f"{found} {stage.fate if inner is stage.graph else 'is in a nested graph, which runs by itself'}"
    find_node(before[0].graph if before else graph, name)
    raise AssertionError(name)


def _found(graph: Graph, name: str) -> str | None:
    for id in (name, f"panel_{name}"):
        if id in graph.by_id:
            return id
    for node in graph.nodes:
        if name in (node.origin.layer, str(node.origin)) or (node.origin.layer and node.origin.layer.endswith(f"/{name}")):
            return node.id
    return None


def why_by_rules(groups: Sequence[Fused], found: Why) -> Why:
    """Of two nodes where rules alone make the groups, `found` being what the engine has to say of them."""
    together = any({*found.nodes} <= {node.id for node in group.nodes} for group in groups)
    verb = "make one of them" if together else "leave them apart"
    begun = f"fusion is 'rules': rules, which look at who reads what and at nothing measured, {verb}"
    return Why(found.nodes, together, (begun, *(f"the engine would say: {line}" for line in found.lines)))


def why(engine: Engine, planned: Planned, first: str, second: str) -> Why:
    """Of two nodes by id, after the engine planned their graph."""
    items = [_item_of(engine, node) for node in (first, second)]
    missing = [node for node, item in zip((first, second), items, strict=True) if item is None]
    if missing:
        return Why((first, second), False, tuple(f"{node} is a view: whoever reads it looks through it" for node in missing))
    one, other = items
    assert one is not None
    assert other is not None
    if one is other:
        return Why((first, second), True, _story(planned, one))
    lines = _verdicts(engine, one, other)
    beside = [str(step) for step in planned.steps if set(step.made) == {one.name, other.name}]
    return Why((first, second), False, (*lines, *(beside or _unwoven(engine, one, other))))


def _unwoven(engine: Engine, one: Item, other: Item) -> list[str]:
    """Why a product and something else are not woven; nothing of two that nobody would weave."""
    if sum(item.group is not None and item.group.kind == "product" for item in (one, other)) != 1:
        return []
    verdict = engine.weave(one, other)
    if isinstance(verdict, Refusal):
        return [f"{WOVEN}: gains nothing, for {verdict.reason}"]
    gain = f"{WOVEN}: predicted {1e6 * verdict.before_s:.4g} us to {1e6 * verdict.after_s:.4g} us"
    return [f"{gain}; too little, too far apart, or one of both needs the other or is woven already"]


def _item_of(engine: Engine, node: str) -> Item | None:
    for item in engine.draft:
        if item.name == node or (item.group is not None and any(n.id == node for n in item.group.nodes)):
            return item
    return None


def _story(planned: Planned, item: Item) -> tuple[str, ...]:
    """The edits that an item came of, and what the rules had made one before."""
    wanted, found = {item.name}, list[Step]()
    for step in reversed(planned.steps):
        if step.strategy not in (BESIDE, WOVEN) and wanted & set(step.made):
            found.append(step)
            wanted |= set(step.groups)
    begun = "the rules make one of them: each reads the one before it, and nobody else does"
    is_ruled = all(step.strategy in SAME for step in found)
    return (*((begun,) if is_ruled else ()), *map(str, reversed(found)))


def _verdicts(engine: Engine, one: Item, other: Item) -> tuple[str, ...]:
    lines = []
    for strategy, verdict in engine.verdicts(one, other):
        if isinstance(verdict, Refusal):
            lines.append(f"{strategy}: not legal, for {verdict.reason}")
        else:
            sure = "" if verdict.is_sure or not verdict.pays else "; that is not sure, so it is to be measured"
            lines.append(f"{engine.step(verdict)}{sure}")
    return tuple(lines)
