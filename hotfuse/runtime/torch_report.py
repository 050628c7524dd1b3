"""Reports on compiled PyTorch models: plain records, printable and JSON-able."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotfuse.events import Event, plain
from hotfuse.records import dataclass
from hotfuse.runtime.story import Source, Story, find_story, make_source, tell

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import CapturedProgram
    from hotfuse.runtime.torch_family import Family
    from hotfuse.runtime.torch_serving import Member


@dataclass(frozen=True)
class ClassReport:
    """One captured class of calls."""

    module: str
    shapes: str
    tier: int
    nodes: int
    operators: int
    captured_share: float
    opaque: tuple[tuple[str, str, str], ...]
    prepared: int


@dataclass(frozen=True)
class TorchReport:
    """`captured_share` is the share of the model's operators that were captured and that our IR knows. Where only submodules
    are captured it is that of one call, counted while it ran (`torch_count` says how, and why it is rather too small); it is 0
    while nothing is captured. `answered` counts the calls that plans answered, and first calls where plan and module agreed.
    `rows` are parts that follow each other, and whether they are joined. `why` answers "why is it not faster yet?"."""

    model: str
    calls: int
    answered: int
    captured_share: float
    classes: tuple[ClassReport, ...]
    failed: Mapping[str, str]
    rows: Mapping[str, str]
    events: Mapping[str, int]
    why: str
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)  # what the stories are told from, by class

    @cached_property
    def subgraphs(self) -> tuple[Story, ...]:
        """Every subgraph there is or was in a captured class: what it is made of, and what became of it."""
        return tuple(story for source in self.sources for story in tell(source))

    def story(self, id: str) -> Story:
        return find_story(self.subgraphs, id)

    def json(self) -> dict[str, Any]:
        found = asdict(replace(self, sources=()))
        del found["sources"]
        return {**found, "subgraphs": [plain(story.json()) for story in self.subgraphs]}

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.calls} calls, {self.answered} answered by captured plans"]
        for c in self.classes:
            lines.append(
                f"  {c.module}: {c.shapes}: tier {c.tier}, {c.nodes} nodes, {c.captured_share:.1%} of operators in our IR"
            )
            lines += [f"    opaque: {operator} ({origin}): {reason}" for origin, operator, reason in c.opaque]
        lines += [f"  {module} stays eager: {reason}" for module, reason in self.failed.items()]
        lines += [f"  {parts}: {state}" for parts, state in self.rows.items()]
        lines += [f"  event {kind}: {count}" for kind, count in sorted(self.events.items())]
        return "\n".join([*lines, f"  why it is not faster yet: {self.why}"])


def make_torch_report(family: Family) -> TorchReport:
    members = family.all()
    root = members[0]
    classes = tuple(_describe(member, served) for member in members for served in member.classes)
    failed = {m.name: reason for m in members for reason in m.failed.values()}
    answered = sum(m.answered for m in members)
    in_parts = family.counted[1] if family.counted and classes else 0.0
    share = _share([served.program for served in root.classes]) if root.classes else in_parts
    why = why_not_faster(family)
    events = tuple(family.events)
    sources = tuple(_source(member, served, events) for member in members for served in member.classes)
    rows = dict(root.parts.joins.told()) if root.parts is not None and root.parts.joins is not None else {}
    return TorchReport(root.name, root.calls, answered, share, classes, failed, rows, family.events.counted(), why, sources)


def _source(member: Member, served: Any, events: Sequence[Event]) -> Source:
    """Of one class. Where events say which class they are about, others' do not count."""
    mine = f"{member.name}: {served.guard.shapes}"
    about = [event for event in events if event.data.get("model") in (None, mine)]
    watcher = served.watcher
    seconds, baked = ({}, {}) if watcher is None else (watcher.unit_seconds(), watcher.baked_calls())
    return make_source(served.runner.captured.graph, served.runner.executor, about, member.calls, seconds, baked)


def _share(programs: Sequence[CapturedProgram]) -> float:
    operators = sum(p.operators for p in programs)
    known = operators - sum(len(p.opaque) for p in programs)
    return known / operators if operators else float(bool(programs))


def _describe(member: Member, served: Any) -> ClassReport:
    program = served.program
    return ClassReport(
        member.name,
        str(served.guard.shapes),
        served.tier,
        len(program.graph.nodes),
        program.operators,
        program.share,
        program.opaque,
        len(served.prepared),
    )


def why_not_faster(family: Family) -> str:
    members = family.all()
    root, captured = members[0], any(member.classes for member in members)
    if not family.open:
        return "it was closed"
    if family.config.tier == 0:
        return "tier=0 allows nothing but the original"
    if not root.calls:
        return "it was not called yet"
    if root.pending:
        return "it is being captured"
    executors = [c.runner.executor for member in members for c in member.classes]
    native = next((executor.native for executor in executors if executor.native), "")
    if captured and native:
        return f"its calls are captured, and {native}"
    if captured:
        answers = "captured plans answer, operator by operator" if family.config.wait else "the original answers"
        held = next(filter(None, (served.held for member in members for served in member.classes)), "")
        return f"its calls are captured, and no fused kernel exists for them yet: {answers}{held and f'; {held}'}"
    return next(iter(root.failed.values()), "") or root.last_miss or "nothing was captured"


def explain_classes(family: Family) -> str:
    """Each captured class: where it serves, what its guard asks for, and its nodes."""
    from hotfuse.runtime.report import explain_text

    parts = []
    for member in family.all():
        for served in member.classes:
            parts.append(f"{member.name}: {served.guard.shapes}\n{explain_text(served.program.graph)}")
        parts += [f"{member.name} stays eager: {reason}" for reason in member.failed.values()]
    return "\n\n".join(parts) or "nothing is captured"
