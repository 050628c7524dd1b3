"""A plan while the engine edits it: groups and the nodes that stay with tier 0, in an order in which they can run.

Groups are fused where nothing between them needs the first and feeds the second; what lies between moves to before or behind
the new one, so an edit costs as much as the two are apart. `fusion/engine` says which edits pay.

State: the order, with gaps where groups were; who makes and who reads each value in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hotfuse.fusion.rules import Fused, results_of
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import Layout
from hotfuse.records import dataclass

WINDOW = 128  # places: what lies further apart has left the caches, and looking for cycles would take long


@dataclass(frozen=True, eq=False)
class Item:
    """What runs at one place of a plan. `reads` and `writes` are values with memory of their own."""

    name: str
    group: Fused | None  # None: a node that tier 0 runs
    reads: frozenset[str]
    writes: frozenset[str]


class Draft:
    def __init__(self, graph: Graph, layouts: Mapping[str, Layout], groups: Sequence[Fused]) -> None:
        self._graph, self._layouts = graph, layouts
        self.kept = frozenset(self._root(name) for name in graph.outputs)  # whose memory the model's results are, or see
        self.maker: dict[str, Item] = {}
        self.readers: dict[str, list[Item]] = {}
        self._order: list[Item | None] = []
        self._place: dict[Item, int] = {}
        items = self._items(groups)
        for item in items:
            self._enter(item)
        for item in items:
            self._append(item)

    def _items(self, groups: Sequence[Fused]) -> list[Item]:
        """By their last nodes, in the graph's order. Views have no place: whoever reads one reads its root."""
        inside = {node.id for group in groups for node in group.nodes}
        last = {group.nodes[-1].id: group for group in groups}
        found = []
        for node in self._graph.nodes:
            if node.id in last:
                found.append(self.item(last[node.id]))
            elif node.id not in inside and any(self._root(name) == name for name in node.outputs):
                reads = frozenset(self._root(name) for name in node.uses)
                found.append(Item(node.id, None, reads, frozenset(node.outputs)))
        return found

    def _append(self, item: Item) -> None:
        """At the end of the order, behind all that it needs: of a group with several results, others need the first early."""
        waiting = [item]
        while waiting:
            first = waiting[-1]
            missing = [source for source in self.sources(first) if source not in self._place]
            if missing:
                waiting += missing
            else:
                waiting.pop()
                if first not in self._place:
                    self._place[first] = len(self._order)
                    self._order.append(first)

    def item(self, group: Fused) -> Item:
        inside = {name for node in group.nodes for name in node.outputs}
        reads = {root for node in group.nodes for name in node.uses if (root := self._root(name)) not in inside}
        writes = results_of(group, self._graph, self._layouts)
        return Item(group.nodes[-1].id, group, frozenset(reads), frozenset(writes))

    def _root(self, name: str) -> str:
        layout = self._layouts.get(name)
        return name if layout is None else layout.root

    def _enter(self, item: Item) -> None:
        for root in item.writes:
            self.maker[root] = item
        for root in item.reads:
            self.readers.setdefault(root, []).append(item)

    def _leave(self, item: Item) -> None:
        for root in item.reads:
            self.readers[root].remove(item)
        for root in item.writes:
            if self.maker.get(root) is item:
                del self.maker[root]

    def __iter__(self) -> Iterator[Item]:
        return (item for item in self._order if item is not None)

    def __contains__(self, item: Item) -> bool:
        return item in self._place

    @property
    def groups(self) -> list[Fused]:
        return [item.group for item in self if item.group is not None]

    def sources(self, item: Item) -> Iterable[Item]:
        return (self.maker[root] for root in item.reads if root in self.maker)

    def in_order(self, items: Iterable[Item]) -> list[Item]:
        return sorted(items, key=self._place.__getitem__)

    def is_near(self, first: Item, second: Item) -> bool:
        return abs(self._place[first] - self._place[second]) <= WINDOW

    def between(self, first: Item, second: Item) -> str:
        """Why two items cannot be one: the name of one between them that needs the first and feeds the second; "" where there
        is none."""
        place, needs = self._place[first], {first: True}
        sources = (source for source in self.sources(second) if source is not first)
        return next((source.name for source in sources if self._needs(source, place, needs)), "")

    def _needs(self, item: Item, place: int, known: dict[Item, bool]) -> bool:
        """Whether an item needs, through whatever, one that is known to; none before that `place` does. What an item needs is
        less than all that lies between two."""
        waiting = [item]
        while waiting:
            last = waiting[-1]
            sources = [source for source in self.sources(last) if self._place[source] >= place]
            missing = [source for source in sources if source not in known]
            if last not in known and missing:
                waiting += missing
            else:
                known.setdefault(last, any(known[source] for source in sources))
                waiting.pop()
        return known[item]

    def _behind(self, first: Item, second: Item) -> tuple[set[Item], list[Item]]:
        """Of what lies between two items, what needs the first, as a set and in order."""
        needs: set[Item] = set()
        behind: list[Item] = []
        for item in self._order[self._place[first] + 1 : self._place[second]]:
            if item is not None and any(source is first or source in needs for source in self.sources(item)):
                needs.add(item)
                behind.append(item)
        return needs, behind

    def fuse(self, first: Item, second: Item, group: Fused) -> Item:
        """One item in place of two, the first of which is before the other, with nothing `between` them."""
        start, stop = self._place[first], self._place[second]
        needs, behind = self._behind(first, second)
        window = [item for item in self._order[start + 1 : stop] if item is not None]
        made = self.item(group)
        for item in (first, second):
            self._leave(item)
            del self._place[item]
        self._enter(made)
        moved = [*(item for item in window if item not in needs), made, *behind]
        self._order[start : stop + 1] = [*moved, *[None] * (stop + 1 - start - len(moved))]
        for place, item in enumerate(moved, start):
            self._place[item] = place
        return made

    def dissolve(self, gone: Item, changed: Mapping[Item, Fused]) -> list[Item]:
        """An item goes, and others, behind it, become what does without it."""
        self._order[self._place.pop(gone)] = None
        self._leave(gone)
        return [self.swap(item, group) for item, group in changed.items()]

    def split(self, item: Item, groups: Sequence[Fused]) -> list[Item]:
        """Groups in place of one, in an order in which they can run."""
        place = self._place.pop(item)
        self._leave(item)
        made = [self.item(group) for group in groups]
        for new in made:
            self._enter(new)
        self._order[place : place + 1] = made
        self._place |= {item: at for at, item in enumerate(self._order[place:], place) if item is not None}
        return made

    def swap(self, item: Item, group: Fused) -> Item:
        """Another group at the place of one that reads no less."""
        place = self._place.pop(item)
        self._leave(item)
        new = self._order[place] = self.item(group)
        self._place[new] = place
        self._enter(new)
        return new

    def close_gaps(self) -> None:
        self._order = [item for item in self._order if item is not None]
        self._place = {item: place for place, item in enumerate(self._order) if item is not None}
