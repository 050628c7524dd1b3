"""`hotfuse demo`: a small real model from fitting to serving, each step shown as it happens.

The answer is checked: scikit-learn, which fitted the model, must give the same digits. If it does not, the exit code is 1.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

import hotfuse
from hotfuse.cli.digits import Digits, fit_digits, write_onnx
from hotfuse.cli.view import make_console, make_table, show_ms
from hotfuse.config import Config
from hotfuse.frontends.onnx_model import load_onnx
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.passes import PIPELINE
from hotfuse.runtime.profiler import StepTime
from hotfuse.runtime.session import Session

BATCHES = (1, 8, 64, 450)
BUDGET_S = 1.0  # for each table that is measured
TOLERANCE = 1e-4  # of a probability; scikit-learn computes in float64, the model in float32
SHADES = " .:-=+*#%@"
Result = TypeVar("Result")


@click.command(
    "demo",
    epilog="""\b
Examples:
  hotfuse demo
  hotfuse demo --save digits.onnx && hotfuse run digits.onnx --dim batch=64 --profile""",
)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the model.")
def command(save: Path | None) -> None:
    """Fit a classifier of handwritten digits, write it as ONNX, and run it with hotfuse."""
    console = make_console()
    console.print("[bold]hotfuse demo[/]: handwritten digits, from data to answers\n")
    digits = _step(
        console, "fit", fit_digits, lambda d: f"convolution + MLP on scikit-learn's digits; {len(d.labels)} held out"
    )
    path = _step(console, "write", lambda: _save(write_onnx(digits), save), lambda p: f"{p} ({p.stat().st_size:,} bytes)")
    _show_pipeline(console, path)
    session = _step(console, "load", lambda: hotfuse.load(path), lambda s: f"hotfuse.load: {len(s.graph.nodes)} nodes, tier 0")
    console.print()
    _show_live(console, _measure_steps(session, digits))
    _show_live(console, _measure_batches(session, digits))
    agrees = _show_answers(console, session, digits)
    console.print(f"\nNext:  hotfuse run {path} --dim batch=64 --profile\n       hotfuse explain {path}", soft_wrap=True)
    if not agrees:
        raise click.ClickException("hotfuse and scikit-learn disagree; please report this with the output of `hotfuse doctor`")


def _step(console: Console, name: str, do: Callable[[], Result], tell: Callable[[Result], str]) -> Result:
    """Do something with a spinner on it, then leave one line: name, time, what came of it."""
    started = time.perf_counter()
    with console.status(name, spinner="line"):
        result = do()
    console.print(f"  {name:<28} {show_ms(time.perf_counter() - started):>10}  {tell(result)}", markup=False, soft_wrap=True)
    return result


def cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("hotfuse"))


def _save(model: bytes, path: Path | None) -> Path:
    """Write the model where it was asked for; else into the cache folder, or a temporary one where that cannot be written."""
    if path is None:
        path = cache_folder() / "digits.onnx"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(model)
            return path
        except OSError:
            path = Path(tempfile.mkdtemp(prefix="hotfuse-demo-")) / "digits.onnx"
    path.write_bytes(model)
    return path


def _show_pipeline(console: Console, path: Path) -> None:
    """What `hotfuse.load` does, stage by stage."""
    imported = _step(
        console, "import", lambda: load_onnx(path, Config()), lambda m: f"{len(m.graph.nodes)} nodes, {len(m.opaque)} opaque"
    )
    graph = imported.graph
    for run in PIPELINE:
        graph = _show_pass(console, run, graph)
    _step(
        console, "plan", lambda: trivial_plan(graph), lambda p: f"{len(p.groups)} groups of one node each: nothing is fused yet"
    )


def _show_pass(console: Console, run: Callable[[Graph], Graph], graph: Graph) -> Graph:
    name = getattr(run, "__name__", str(run))
    return _step(console, f"pass {name}", lambda: run(graph), lambda g: f"{len(graph.nodes)} -> {len(g.nodes)} nodes")


def _show_live(console: Console, tables: Iterator[Table]) -> None:
    """Tables that replace each other on a terminal; elsewhere only the last one is written."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=10) as live:
            for table in tables:
                live.update(table)
    else:
        console.print(list(tables)[-1])
    console.print()


def _measure_steps(session: Session, digits: Digits) -> Iterator[Table]:
    """Where the time of one call goes, measured again and again."""
    feeds = {"image": digits.images[:64]}
    started = time.perf_counter()
    yield _steps_table(session.profile(feeds, calls=5))
    while time.perf_counter() - started < BUDGET_S:
        yield _steps_table(session.profile(feeds, calls=5))


def _steps_table(steps: list[StepTime]) -> Table:
    total = sum(s.median_s for s in steps) or 1.0
    rows = []
    for step in steps:
        share = step.median_s / total
        op = step.node.attrs.get("op_type") or step.node.op
        rows.append((step.node.origin, op, show_ms(step.median_s), f"{share:.0%}", "#" * round(30 * share)))
    return make_table("Where the time goes (batch of 64)", ("layer", "operator", ">time", ">share", ""), rows)


def _measure_batches(session: Session, digits: Digits) -> Iterator[Table]:
    """The same graph for each batch size: the first call of a size binds it, which takes no compiler."""
    rows = []
    for batch in BATCHES:
        feeds = {"image": np.ascontiguousarray(digits.images[:batch])}
        first = _timed(session, feeds)
        times = [_timed(session, feeds)]
        while sum(times) < BUDGET_S / len(BATCHES):
            times.append(_timed(session, feeds))
        median = statistics.median(times)
        rows.append((batch, show_ms(first), show_ms(median), f"{batch / median:,.0f}"))
        yield make_table("One graph, any batch", (">batch", ">first call", ">median", ">images/s"), rows)


def _timed(session: Session, feeds: dict[str, Any]) -> float:
    started = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - started


def _show_answers(console: Console, session: Session, digits: Digits) -> bool:
    """Three images with their answers, the accuracy, and whether scikit-learn says the same."""
    probabilities, chosen = session.run(None, {"image": digits.images})
    for line in zip(*(draw(image[0]) for image in digits.images[:3]), strict=True):
        console.print("  " + "   ".join(line), markup=False)
    console.print(
        "  " + "   ".join(f"{f'{d} ({p.max():.0%} sure)':<16}" for d, p in zip(chosen[:3], probabilities, strict=False))
    )
    difference = float(np.abs(probabilities - digits.probabilities).max())
    same = int((chosen == digits.probabilities.argmax(axis=1)).sum())
    accuracy = float((chosen == digits.labels).mean())
    console.print(f"\n  accuracy on {len(digits.labels)} held-out images: {accuracy:.1%}")
    console.print(
        f"  same digit as scikit-learn: {same} of {len(chosen)}; largest difference of a probability: {difference:.1e}"
    )
    return same == len(chosen) and difference <= TOLERANCE


def draw(image: np.ndarray[Any, Any]) -> list[str]:
    """An image as lines of text, two characters a pixel."""
    return ["".join(SHADES[min(9, int(pixel * 9 / 16))] * 2 for pixel in row) for row in image]
