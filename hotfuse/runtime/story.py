"""Stories: every part of a model that ever ran as one, what it is made of, and what became of it.

    graph: original subgraphs, a node each     builds: fused ones, and baked ones for some sizes only
                      \\                            /
                       events in order: built, proved, shadowed, published, withdrawn, ...  ->  Story of each

An event whose data has `fusions` tells what there is of a target (its subject, or `target` in its data); those after it are
about these, or about those that `units` names. A story is a pure function of its `Source`, and told when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any

from hotfuse.errors import InputError
from hotfuse.events import Event
from hotfuse.ir.graph import Graph
from hotfuse.records import dataclass
from hotfuse.runtime.subgraph import BAKED, FUSED, ORIGINAL, Fusion, Served, Subgraph, describe_subgraph, served_by, subgraph_id

if TYPE_CHECKING:
    from hotfuse.hardware.achieved import Achieved
    from hotfuse.runtime.executor import Executor

# of an event's data, that a chapter keeps
FIGURES = ("attempt", "cpu_s", "kernels", "compiled", "seconds", "base_seconds", "before_s", "after_s", "spread_s", "reward")
_MADE = "native.made"  # before the first answer, with no target
_TOLD = ("tier.", "plan.", "policy.")
_BEGINS = ("tier.publish", _MADE)
_ENDS = {"tier.withdraw": "withdrawn", "tier.retire": "retired", "tier.quarantine": "quarantined"}


@dataclass(frozen=True)
class Chapter:
    """One event of a subgraph's life, and how many calls the model had answered by then."""

    time_s: float
    calls: int
    kind: str
    target: str
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """A subgraph and its life. `state` is serves, replaced, absorbed (kernels look through it, or it is computed before the
    calls), built, withdrawn, retired or quarantined. `executions` counts the calls that were answered while it served, None
    where sizes decide whether it ran and nobody counted; `seconds` and `share` are of a call's time, None where it was not
    profiled. `made_from` and `became` are ids; `achieved` is what it did while it was proved, and what bound it."""

    subgraph: Subgraph
    state: str
    executions: int | None
    seconds: float | None
    share: float | None
    made_from: tuple[str, ...]
    became: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    achieved: Achieved | None = None

    @property
    def id(self) -> str:
        return self.subgraph.id

    def json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)

    def __str__(self) -> str:
        part = self.subgraph
        ran = "" if self.executions is None else f", ran in {self.executions} calls"
        time = "" if self.share is None else f", {self.share:.1%} of the time"
        return f"{part.id}  {part.kind} {' + '.join(part.operators)}: {self.state}{ran}{time}"


@dataclass(frozen=True, eq=False)
class Source:
    """What stories are told from: the original graph, the one that native code was made of, what runs of that natively, and
    events. `seconds` are those of a call, by the name or id of a subgraph, where it was profiled, and `baked_calls` those that
    each target for some sizes answered, where they were counted. Nothing of it keeps constants, code or scratch memory."""

    graph: Graph
    main: Graph
    served: Served
    events: tuple[Event, ...]
    calls: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    baked_calls: Mapping[str, int] = field(default_factory=dict)


def make_source(
    graph: Graph,
    executor: Executor,
    events: Iterable[Event],
    calls: int,
    seconds: Mapping[str, float] | None = None,
    baked_calls: Mapping[str, int] | None = None,
) -> Source:
    """Of a graph, and what answers its calls now."""
    main = replace(executor.plan.graph, constants={})
    wanted = tuple(e for e in events if e.kind == _MADE or e.kind.startswith(_TOLD))
    return Source(replace(graph, constants={}), main, served_by(executor), wanted, calls, seconds or {}, baked_calls or {})


def tell(source: Source) -> tuple[Story, ...]:
    """The stories of all subgraphs: those that serve first, then those that wait, then the rest."""
    life = _Life(source)
    if not source.events:  # it was made before anybody could tell
        life.publish("", [fusion.id for fusion in source.served.fusions])
    for event in source.events:
        life.take(event)
    life.pass_calls(source.calls)
    found = life.stories()
    whole = sum(story.seconds or 0.0 for story in found)
    if whole:
        found = [s if s.seconds is None else replace(s, share=s.seconds / whole) for s in found]
    order = {"serves": 0, "built": 1}
    return tuple(sorted(found, key=lambda s: (order.get(s.state, 2), s.subgraph.kind == ORIGINAL)))


def find_story(stories: Iterable[Story], id: str) -> Story:
    """By its id or the beginning of it, or by a node in it: of several, the first, which serves if any does."""
    kept = list(stories)
    by_id = [s for s in kept if id and s.id.startswith(id)]
    by_node = [s for s in kept if id in s.subgraph.nodes]
    if by_node or len(by_id) == 1:
        return (by_node or by_id)[0]
    fits = ", ".join(s.id for s in (by_id or kept)[:8])
    problem = f"{id!r} is the beginning of several ids" if by_id else f"there is no subgraph {id!r}"
    raise InputError(f"{problem}; there are {fits}{', ...' if len(by_id or kept) > 8 else ''} (`report().subgraphs` has all)")


def calls_by_tier(events: Iterable[Event], calls: int) -> dict[int, int]:
    """How many calls were answered by original operators (0) and by generated code (1): by the former until something is
    published, and while nothing is."""
    tiers, seen = [0, 0], 0
    serving: set[str] = set()
    for event in events:
        if event.kind in _BEGINS or (event.kind in _ENDS and not event.data.get("units")):
            tiers[bool(serving)] += max(0, event.calls - seen)
            seen = max(seen, event.calls)
            (serving.add if event.kind in _BEGINS else serving.discard)(_target_of(event))
    tiers[bool(serving)] += max(0, calls - seen)
    return dict(enumerate(tiers))


def _target_of(event: Event) -> str:
    return str(event.data.get("target", event.subject))


class _Life:
    """State: what is known of each subgraph after the events that were taken so far."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known = {fusion.id: fusion for fusion in source.served.fusions}
        self._built: dict[str, tuple[str, ...]] = {}  # what there is of each target
        self._serving: dict[str, tuple[str, ...]] = {}  # what is published of it, in the order of first publication
        self._early: dict[str, list[Chapter]] = {}  # of targets that are not built yet
        self._chapters: dict[str, list[Chapter]] = {}
        self._ends: dict[str, str] = {}
        self._made_from: dict[str, tuple[str, ...]] = {}
        self._became: dict[str, dict[str, None]] = {}
        self._executions: dict[str, int] = {}
        self._achieved: dict[str, Achieved] = {}
        self._calls = 0
        self._originals = {node.id: subgraph_id(ORIGINAL, "", (node.id,)) for node in source.graph.nodes}
        self._by_origin: dict[str, list[str]] = {}
        for node in source.graph.nodes:
            self._by_origin.setdefault(str(node.origin), []).append(self._originals[node.id])
        if not any("fusions" in event.data for event in source.events):  # nobody told what is made of what: this serves now
            first = next((_target_of(event) for event in source.events if event.kind in _BEGINS), "")
            self._built[first] = tuple(self._known)

    def take(self, event: Event) -> None:
        target = _target_of(event)
        new: tuple[Fusion, ...] = tuple(event.data.get("fusions", ()))
        if new:
            self._known |= {fusion.id: fusion for fusion in new}
            ids = self._built[target] = tuple(fusion.id for fusion in new)
            early = self._early.pop(target, [])
            for id in ids:
                self._chapters.setdefault(id, []).extend(early)
        figures = {name: event.data[name] for name in FIGURES if name in event.data}
        chapter = Chapter(event.time_s, event.calls, event.kind, target, event.reason, figures)
        if target not in self._built:
            self._early.setdefault(target, []).append(chapter)
        for id in self._built.get(target, ()):
            achieved = event.data.get("achieved", {}).get(self._known[id].name)
            if achieved is not None:
                self._achieved[id] = achieved
        units = set(event.data.get("units", ()))
        alive = [id for id in self._built.get(target, ()) if self._ends.get(id) != "quarantined"]  # that is for good
        concerned = tuple(id for id in alive if not units or units & {id, self._known[id].name})
        for id in concerned:
            self._chapters.setdefault(id, []).append(chapter)
        if event.kind in _BEGINS:
            self.pass_calls(event.calls)
            self.publish(target, concerned)
        elif event.kind in _ENDS:
            self.pass_calls(event.calls)
            self._end(target, concerned, _ENDS[event.kind])

    def publish(self, target: str, ids: Sequence[str]) -> None:
        cover = self._cover()
        for id in ids:
            self._ends.pop(id, None)
            if id not in self._made_from:
                self._made_from[id] = tuple(dict.fromkeys(p for p in self._parents(id, cover) if p != id))
                for parent in self._made_from[id]:
                    self._became.setdefault(parent, {})[id] = None
        self._serving[target] = tuple(ids)

    def _parents(self, id: str, cover: Mapping[str, str]) -> Iterator[str]:
        """What ran the nodes of a fusion before: another one, or original ones."""
        for node in self._known[id].nodes:
            if node in cover:
                yield cover[node]
            else:
                yield from self._behind(node)

    def _behind(self, node: str) -> Sequence[str]:
        """The original subgraphs that a node stands for: of the same name, or from the same place in the model."""
        if node in self._originals:
            return (self._originals[node],)
        found = self._source.main.by_id.get(node)
        return self._by_origin.get(str(found.origin), ()) if found is not None and found.origin else ()

    def _end(self, target: str, ids: Sequence[str], how: str) -> None:
        self._serving[target] = tuple(id for id in self._serving.get(target, ()) if id not in ids)
        self._ends |= dict.fromkeys(ids, how)

    def _cover(self) -> dict[str, str]:
        """Which fusion, made for all sizes, runs each node; the target that came last counts: edits follow what they edit."""
        serving = [self._known[id] for ids in self._serving.values() for id in ids]
        return {node: fusion.id for fusion in serving if fusion.kind == FUSED for node in fusion.nodes}

    def pass_calls(self, calls: int) -> None:
        """Calls up to this many were answered by what serves."""
        passed, self._calls = max(0, calls - self._calls), max(calls, self._calls)
        for id in self._running() if passed else ():
            self._executions[id] = self._executions.get(id, 0) + passed

    def _running(self) -> set[str]:
        """The subgraphs that a call runs, as far as its sizes do not decide."""
        cover = self._cover()
        if not cover:
            return set(self._originals.values())
        fused = {node for fusion in self._known.values() if fusion.kind == FUSED for node in fusion.nodes}
        left = [self._originals[id] for id in self._source.served.left if id in self._originals and id not in fused]
        return {*cover.values(), *left, *(id for node in fused if node not in cover for id in self._behind(node))}

    def stories(self) -> list[Story]:
        graph, main, running = self._source.graph, self._source.main, self._running()
        parts = [describe_subgraph(graph, [node]) for node in graph.nodes]
        for fusion in self._known.values():
            parts.append(describe_subgraph(main, [main.by_id[id] for id in fusion.nodes if id in main.by_id], fusion))
        return [self._story(part, part.id in running) for part in parts]

    def _story(self, part: Subgraph, runs: bool) -> Story:
        source, id = self._source, part.id
        name = id if part.kind == BAKED else part.nodes[-1]  # events and profiles name what is for all sizes by a node
        return Story(
            part,
            self._state(part, runs),
            self._counted(id) if part.kind == BAKED else self._executions.get(id, 0),
            source.seconds.get(id, source.seconds.get(name) if runs else None),
            None,
            self._made_from.get(id, ()),
            tuple(self._became.get(id, ())),
            tuple(self._chapters.get(id, ())),
            self._achieved.get(id),
        )

    def _counted(self, id: str) -> int | None:
        """Calls that were answered by what sizes decide about; None if nobody counted."""
        counted = [self._source.baked_calls[t] for t, ids in self._built.items() if id in ids and t in self._source.baked_calls]
        return sum(counted) if counted else None

    def _state(self, part: Subgraph, runs: bool) -> str:
        if runs:
            return "serves"
        if part.kind == ORIGINAL:
            return "replaced" if part.id in self._became else "absorbed"
        is_published = any(part.id in ids for ids in self._serving.values())
        if is_published:
            return "serves" if part.kind == BAKED else "replaced"
        return self._ends.get(part.id, "built")
