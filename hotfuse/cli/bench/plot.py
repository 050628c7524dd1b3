"""Pictures: of contests the medians of every engine and each model's roofline, of timelines every call of the first round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotfuse.cli.bench.contest import Result
from hotfuse.cli.bench.timeline import Run
from hotfuse.cli.bench.timeline_runs import Timeline
from hotfuse.errors import InputError

KINDS = (".png", ".svg", ".pdf")
NO_MATPLOTLIB = "matplotlib is not installed, so there is no picture; pip install 'hotfuse[bench]'"
NOTHING = "nothing was measured, so there is no picture"
COLORS = {"adaptive-torch": "tab:orange", "adaptive-onnx": "tab:red", "eager": "tab:blue", "inductor": "tab:green"}
MARKS = ("capture.", "tier.build", "tier.prove", "tier.shadow", "tier.publish", "tier.retire", "tier.withdraw")  # begin so


def check_path(path: str) -> None:
    """Refuse a picture of a kind nobody draws before hours of measuring."""
    if Path(path).suffix not in KINDS:
        raise InputError(f"--plot {path}: a picture ends in {', '.join(KINDS)}")


def save_plot(results: Sequence[Result], path: str) -> str:
    """Write the picture; why there is none, or ""."""
    try:
        import matplotlib
    except ImportError:
        return NO_MATPLOTLIB
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [r for r in results if any(row.timing for row in r.rows)]
    if not drawn:
        return NOTHING
    figure, axes = pyplot.subplots(len(drawn), 1, figsize=(8, 1 + 2.2 * len(drawn)), squeeze=False)
    for axis, result in zip(axes[:, 0], drawn, strict=True):
        rows = [(row, row.timing) for row in result.rows if row.timing]
        names = [row.engine if row.status == "ok" else f"{row.engine} ({row.status})" for row, _ in rows]
        spread = [timing.iqr_s * 500 for _, timing in rows]
        colors = ["tab:orange" if row.engine.startswith("hotfuse") else "tab:blue" for row, _ in rows]
        axis.barh(names, [timing.median_s * 1e3 for _, timing in rows], xerr=spread, color=colors)
        if result.floor_s:
            axis.axvline(result.floor_s * 1e3, color="black", linestyle="--", linewidth=1, label="roofline")
            axis.legend(loc="lower right")
        axis.invert_yaxis()
        axis.set_title(result.model, loc="left")
        axis.set_xlabel("median ms, middle half of the calls")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return ""


def save_timelines(timelines: Sequence[Timeline], path: str) -> str:
    """Write the picture of latency over time, a panel for each model and load; why there is none, or ""."""
    try:
        import matplotlib
    except ImportError:
        return NO_MATPLOTLIB
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(t, load) for t in timelines for load in t.loads if any(r.counts and r.load == load for r in t.runs)]
    if not panels:
        return NOTHING
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(11, 1 + 3.4 * len(panels)), squeeze=False)
    for axis, (timeline, load) in zip(axes[:, 0], panels, strict=True):
        for run in timeline.runs:
            if run.counts and run.load == load and run.round == 0:
                _draw_run(axis, run, COLORS.get(run.engine, "tab:gray"))
        axis.set_yscale("log")
        axis.set_title(f"{timeline.model}, {load} load", loc="left")
        axis.set_xlabel("seconds since construction began")
        axis.set_ylabel("ms")
        axis.legend(loc="upper right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return ""


def _draw_run(axis: Any, run: Run, color: str) -> None:
    """Calls as dots at their ends, so that a first call that compiles stands where its answer came; events as lines."""
    axis.plot(run.starts + run.seconds, run.seconds * 1e3, ".", markersize=2, color=color, label=run.engine)
    for mark in run.marks:
        if mark.kind.startswith(MARKS):
            axis.axvline(mark.at_s, color=color, linewidth=0.6, linestyle=":")
            place = {"xy": (mark.at_s, 0.98), "xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top"}
            axis.annotate(mark.kind, **place, fontsize=5, color=color)
