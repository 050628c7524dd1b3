"""The contests as a picture: medians of every engine, and the roofline of each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotfuse.cli.bench.contest import Result
from hotfuse.errors import InputError

KINDS = (".png", ".svg", ".pdf")


def check_path(path: str) -> None:
    """Refuse a picture of a kind nobody draws before hours of measuring."""
    if Path(path).suffix not in KINDS:
        raise InputError(f"--plot {path}: a picture ends in {', '.join(KINDS)}")


def save_plot(results: Sequence[Result], path: str) -> str:
    """Write the picture; why there is none, or ""."""
    try:
        import matplotlib
    except ImportError:
        return "matplotlib is not installed, so there is no picture; pip install 'hotfuse[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [r for r in results if any(row.timing for row in r.rows)]
    if not drawn:
        return "nothing was measured, so there is no picture"
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
