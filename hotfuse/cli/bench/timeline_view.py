"""What a person sees of a timeline: a table for each load, what happened when, and what was not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hotfuse.cli.bench.table import show_time
from hotfuse.cli.bench.timeline import Run, show_causes
from hotfuse.cli.bench.timeline_runs import Timeline
from hotfuse.cli.bench.timeline_summary import Summary, summaries
from hotfuse.cli.view import make_table

COLUMNS = (
    "engine", ">first call", ">steady", ">met after", ">kept after", ">p99 until", ">p99 then", ">p99.9", ">CPU behind",
    ">lost", ">outliers", "answers",
)  # fmt: skip
CLIENTS = {"closed": "a client that never rests", "half": "a client that sleeps as long as its last call took"}
MOST_MARKS = 12


def show_timeline(console: Console, timeline: Timeline) -> None:
    console.print()
    if timeline.failed:
        console.print(f"{timeline.model}: {timeline.failed}", markup=False)
        return
    found = summaries(timeline)
    for load in timeline.loads:
        rows = [s for s in found if s.load == load]
        console.print(make_table(f"{timeline.model}, {CLIENTS[load]}", COLUMNS, [_cells(s) for s in rows]))
        for row in rows:
            if row.reason:
                console.print(f"  {row.engine} {row.status}: {row.reason}", markup=False)
            if row.outliers:
                console.print(f"  outliers of {row.engine}: {show_causes(row.outliers)}", markup=False)
            marks = show_marks(next((r for r in timeline.of(row.engine, load) if r.marks), None))
            if marks:
                console.print(f"  {row.engine}: {marks}", markup=False)
    for engine in dict.fromkeys(one.engine for one in timeline.turns):
        ratio = timeline.ratio(engine)
        said = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio else timeline.turns_failed(engine)
        console.print(f"  {engine} at the end over tier=1, wait=True: {said}", markup=False)


def _cells(row: Summary) -> Sequence[str]:
    if row.status != "ok":
        return (row.engine, *("-" for _ in COLUMNS[2:]), "WRONG" if row.status == "wrong" else row.status)
    return (
        row.engine,
        _time(row.first_call_s),
        _time(row.steady_s),
        "never" if row.met_s is None else _time(row.met_s),
        "never" if row.reached_s is None else _time(row.reached_s),
        _time(row.p99_before_s),
        _time(row.p99_after_s),
        _time(row.p999_s),
        _time(row.background_cpu_s),
        "-" if row.lost is None else f"{row.lost:.1%}",
        str(len(row.outliers)),
        f"{row.answers} right",
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else show_time(seconds)


def show_marks(run: Run | None) -> str:
    """What happened when, in one line, of the first round that tells."""
    if run is None:
        return ""
    said = [f"{mark.kind} {mark.at_s:.2f} s" for mark in run.marks[:MOST_MARKS]]
    more = len(run.marks) - len(said)
    return ", ".join(said) + (f", and {more} more" if more else "")
