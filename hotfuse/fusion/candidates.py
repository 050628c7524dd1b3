"""Candidates: the edits of a plan that are legal around some of its items, by strategy.

    registers   a group takes in one that it reads, at the same points
    siblings    groups over the same points that read the same, side by side in one kernel
    tiles       a group follows another a few rows at a time, through the nearest cache
    layout      a group writes its result where a copy would put it, or reads what would be copied where it lies
    recompute   a cheap group goes, and each of its readers computes it
    split       a group comes apart, behind what it folds or between two links (`fusion/splits`)
    grain       finer tasks, where there are too few for all threads
    across, abreast, strips, heights, sweep      a group in other loops (`fusion/variants`)

A candidate says what would go and what would come; what it costs, the engine asks the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hotfuse.fusion.draft import Draft, Item
from hotfuse.fusion.legality import Legality, Refusal, Verdict
from hotfuse.fusion.rules import Fused, is_pointwise
from hotfuse.hardware.pairs import GRAIN, LAYOUT, RECOMPUTE, REGISTERS, SIBLINGS, SPLIT, TILES, VARIANTS
from hotfuse.records import dataclass

MOST_READERS = 4  # of a value that each of them computes for itself
FINEST = 2  # grain
GRAINED = ("rows", "product", "chain", "copy")
MOST_SIBLINGS = 8  # readers of one value of which pairs are looked at


@dataclass(frozen=True, eq=False)
class Candidate:
    """`gone` are items in the plan's order, `made` the groups in place of them: one, two for `split`, or for `recompute`
    one for each item but the first. `choice` says which of the edits it is that the strategy has for these items."""

    strategy: str
    gone: tuple[Item, ...]
    made: tuple[Fused, ...]
    choice: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.gone)

    def on(self, items: Mapping[str, Item]) -> Candidate:
        """The same edit of another draft, by the names of its items."""
        return replace(self, gone=tuple(items[name] for name in self.names))


def find(draft: Draft, legality: Legality, around: Iterable[Item]) -> Iterator[Candidate]:
    """All that is legal and has to do with one of these items, each once."""
    seen: set[frozenset[Item]] = set()
    for item in around:
        for first, second in _pairs(draft, item):
            key = frozenset((first, second))
            if key not in seen:
                seen.add(key)
                yield from of_pair(draft, legality, first, second)
        if item.group is None:
            continue
        found = None if item.group.folded else _recomputed(draft, legality, item)
        if found is not None:
            yield found
        if item.group.kind in GRAINED and item.group.grain < FINEST:
            yield Candidate(GRAIN, (item,), (replace(item.group, grain=item.group.grain + 1),))
        halves = legality.split(item.group)
        for choice, pair in enumerate(() if isinstance(halves, Refusal) else halves):
            yield Candidate(SPLIT, (item,), pair, choice)
        for variant in VARIANTS:
            varied = legality.vary(item.group, variant)
            if not isinstance(varied, Refusal):
                yield Candidate(variant, (item,), (varied,))


def _pairs(draft: Draft, item: Item) -> Iterator[tuple[Item, Item]]:
    if item.group is None:
        return
    for root in item.writes:
        for reader in draft.readers.get(root, ()):
            if reader.group is not None:
                yield item, reader
    for source in draft.sources(item):
        if source.group is not None:
            yield source, item
    if item.group.kind != "rows":
        return
    for root in item.reads:
        readers = draft.readers.get(root, ())
        if 1 < len(readers) <= MOST_SIBLINGS:
            yield from _neighbours(draft, item, readers)


def _neighbours(draft: Draft, item: Item, readers: Iterable[Item]) -> Iterator[tuple[Item, Item]]:
    """An item with the readers of the same value right before and behind it."""
    mine = draft.in_order(r for r in readers if r.group is not None and r.group.kind == "rows")
    place = mine.index(item)
    for other in mine[max(0, place - 1) : place]:
        yield other, item
    for other in mine[place + 1 : place + 2]:
        yield item, other


def of_pair(draft: Draft, legality: Legality, first: Item, second: Item) -> Iterator[Candidate]:
    """What may become of two items, in whatever order they are given."""
    first, second = draft.in_order((first, second))
    for strategy, verdict in verdicts(draft, legality, first, second):
        if not isinstance(verdict, Refusal):
            yield Candidate(strategy, (first, second), (verdict,))


def verdicts(draft: Draft, legality: Legality, first: Item, second: Item) -> Iterator[tuple[str, Verdict]]:
    """Of each strategy that two items in order might be an opportunity for: the group, or why there is none."""
    a, b = first.group, second.group
    reads = bool(first.writes & second.reads)
    strategy = REGISTERS if reads else SIBLINGS
    if a is None or b is None:
        yield strategy, Refusal(f"{(first if a is None else second).name} has no native code")
        return
    if not draft.is_near(first, second):
        yield strategy, Refusal("they lie far apart: what they share has left the caches by then")
        return
    through = draft.between(first, second)
    if through:
        yield strategy, Refusal(f"{through} needs the first and feeds the second")
        return
    if reads and b.kind == "copy":
        yield LAYOUT, legality.place(a, b)
        return
    if reads and a.kind == "copy":
        yield LAYOUT, legality.through(a, b)
        return
    joined = legality.join(a, b)
    yield strategy, joined
    if reads and isinstance(joined, Refusal):
        yield TILES, legality.link(a, b)


def _recomputed(draft: Draft, legality: Legality, item: Item) -> Candidate | None:
    """A cheap item that all of its readers compute for themselves."""
    if len(item.writes) != 1:
        return None
    (root,) = item.writes
    assert item.group is not None
    if root in draft.kept or item.group.kind != "rows" or not all(map(is_pointwise, item.group.nodes)):
        return None
    readers = draft.in_order(draft.readers.get(root, ()))
    if not 1 < len(readers) <= MOST_READERS:
        return None
    made = []
    for reader in readers:
        verdict = Refusal("") if reader.group is None else legality.repeat(item.group, reader.group)
        if isinstance(verdict, Refusal):
            return None
        made.append(verdict)
    return Candidate(RECOMPUTE, (item, *readers), tuple(made))
