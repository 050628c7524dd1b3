"""Stories on the command line: a model is called until nothing more is decided, then those of its subgraphs are told."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from hotfuse.cli.view import make_table, show_ms, show_quantity
from hotfuse.events import plain
from hotfuse.runtime.story import Chapter, Story, tell

QUIET_S = 2.0  # without a decision, while calls go on: more will hardly come


def call_until_settled(console: Console, session: Any, feeds: Mapping[str, Any], limit_s: float) -> bool:
    """Call a model again and again until nothing is decided any more; False if that takes longer than `limit_s`."""
    started = changed = time.monotonic()
    events = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("calling the model until it is settled", total=limit_s)
        while True:
            session.run(None, feeds)
            now, found = time.monotonic(), len(session.events)
            if found != events:
                changed, events = now, found
                last = list(session.events)[-1]
                progress.update(task, description=f"{last.kind} {last.subject}".strip())
            progress.update(task, completed=now - started)
            if now - changed > QUIET_S and session.settle(0.0):
                return True
            if now - started > limit_s:
                return False


def told_stories(session: Any) -> tuple[Story, ...]:
    """The stories of all subgraphs of a session or an exported program."""
    return tell(session.report().source)


def story_data(story: Story) -> dict[str, Any]:
    """A story for `--json`."""
    data: dict[str, Any] = plain(story.json())
    return data


def show_list(console: Console, stories: Iterable[Story]) -> None:
    """A line for each."""
    rows = []
    for s in stories:
        part = s.subgraph
        ran = "?" if s.executions is None else s.executions
        became = f"became {', '.join(s.became)}" if s.became else s.chapters[-1].reason if s.chapters else ""
        operators = " + ".join(part.operators)
        rows.append((s.id, part.kind, operators, s.state, ran, show_quantity(part.flops, "flop"), became))
    console.print(make_table("Subgraphs", ("id", "kind", "operators", "state", ">calls", ">flops", "last of its story"), rows))


def show_story(console: Console, story: Story) -> None:
    """All of one."""
    part = story.subgraph
    facts: list[tuple[str, Any]] = [
        ("state", story.state),
        ("operators", " + ".join(part.operators)),
        ("nodes", ", ".join(part.nodes)),
        ("in the model", "\n".join(part.origins)),
        ("reads", ", ".join(part.inputs)),
        ("writes", ", ".join(part.outputs)),
        ("made for", part.form or "all sizes"),
        ("ran in", "an unknown number of calls" if story.executions is None else f"{story.executions} calls"),
        ("time of a call", _show_time(story)),
        ("achieved", _show_achieved(story)),
        ("arithmetic", show_quantity(part.flops, "flop")),
        ("bytes moved", show_quantity(part.bytes_moved, "B")),
        ("kernels", part.kernels),
        ("instructions", part.instructions),
        ("object code", show_quantity(part.code_bytes, "B")),
        ("made from", ", ".join(story.made_from)),
        ("became", ", ".join(story.became)),
    ]
    rows = [(what, value) for what, value in facts if value not in ("", 0, "0 B")]
    console.print(make_table(f"Subgraph {story.id}, {part.kind}", ("what", ""), rows))
    if story.chapters:
        console.print()
        console.print(make_table("What happened", (">after", ">calls", "event", "why"), _show_life(story.chapters)))


def _show_time(story: Story) -> str:
    if story.seconds is None:
        return "not profiled"
    return f"{show_ms(story.seconds)}{'' if story.share is None else f', {story.share:.1%} of all'}"


def _show_achieved(story: Story) -> str:
    """What was measured while it was proved."""
    found = story.achieved
    if found is None:
        return ""
    rates = f"{found.gflops_per_s:.3g} GFLOP/s and {found.gbytes_per_s:.3g} GB/s in {show_ms(found.seconds)}"
    return f"{rates}, bound by {found.by} ({found.share:.0%} of the time)"


def _show_life(chapters: Sequence[Chapter]) -> list[tuple[Any, ...]]:
    begun, rows = chapters[0].time_s, []
    for chapter in chapters:
        figures = ", ".join(f"{name} {value:g}" for name, value in chapter.figures.items() if name != "attempt")
        why = "; ".join(text for text in (chapter.reason, figures) if text)
        rows.append((f"{chapter.time_s - begun:.2f} s", chapter.calls, f"{chapter.kind} {chapter.target}", why))
    return rows
