"""`hotfuse conformance`: how many tests of a suite that others wrote pass. Every test is counted, none is left out."""

from __future__ import annotations

import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hotfuse.cli.suite_pool import Job, Outcome, run_pool
from hotfuse.cli.suite_worker import SUITES
from hotfuse.cli.view import json_option, make_console, make_table, write_json
from hotfuse.hardware.machine import read_machine

MOST_FAILURES = 40  # shown; the JSON file has all


@click.command(
    "conformance",
    epilog="""\b
Examples:
  hotfuse conformance onnx --json onnx.json
  hotfuse conformance onnx --core --without-reference --expect 1350
  hotfuse conformance onnx --tier 1
  hotfuse conformance opinfo --none-wrong --filter 'softmax|norm'""",
)
@click.argument("suite", type=click.Choice(list(SUITES)))
@click.option("--filter", "pattern", default="", metavar="REGEX", help="Run only the tests whose name matches.")
@click.option("--core", "only_core", is_flag=True, help="Run only the suite's core (onnx: tensors of ordinary numbers).")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Child processes.")
@click.option("--limit", "limit_s", default=300.0, show_default=True, help="Seconds after which a test is stopped and failed.")
@click.option("--without-reference", is_flag=True, help="Make onnx.reference unimportable: count our own operators alone.")
@click.option(
    "--tier", type=click.IntRange(0, 2), help="Highest tier; from 1 on, native code is made before each first answer."
)
@click.option("--expect", default=0, metavar="N", help="Exit with code 1 if fewer tests pass.")
@click.option("--none-wrong", is_flag=True, help="Exit with code 1 if an answer was wrong (opinfo tells these from errors).")
@json_option
def command(
    suite: str,
    pattern: str,
    only_core: bool,
    jobs: int,
    limit_s: float,
    without_reference: bool,
    tier: int | None,
    expect: int,
    none_wrong: bool,
    json_path: str | None,
) -> None:
    """Run SUITE (onnx's backend tests, or torch's OpInfo samples) and count what passes."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise click.UsageError(f"--filter {pattern!r} is not a regular expression: {error}") from error
    if tier is not None:  # the children's default
        os.environ |= {"HOTFUSE_TIER": str(tier), "HOTFUSE_WAIT": str(int(tier > 0))}
    console = make_console(json_path)
    started = time.perf_counter()
    job = Job(suite, without_reference, jobs, limit_s)
    outcomes = _run(console, job, lambda name, core: wanted.search(name) is not None and (core or not only_core))
    summary = summarize(outcomes)
    summary |= {"suite": suite, "filter": pattern, "without_reference": without_reference}
    summary |= {"seconds": time.perf_counter() - started, "versions": _versions(), "processor": read_machine().cpu}
    _show(console, summary, outcomes)
    write_json(json_path, {"summary": summary, "tests": outcomes})
    if summary["passed"] < expect:
        raise click.ClickException(f"{summary['passed']} tests passed, {expect} were expected")
    if none_wrong and summary.get("wrong"):
        raise click.ClickException(f"{summary['wrong']} tests got a wrong answer")


def _run(console: Console, job: Job, wanted: Callable[[str, bool], bool]) -> list[Outcome]:
    """Run the pool with a live view: a bar on a terminal, a line now and then elsewhere."""
    outcomes: list[Outcome] = []
    total, passed, last = 0, 0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"building the {job.suite} suite", total=None)
        for item in run_pool(job, wanted):
            if "tests" in item:
                total = len(item["tests"])
                progress.update(bar, total=total, description="running")
                continue
            outcomes.append(item)
            passed += item["passed"]
            progress.update(bar, advance=1, description=f"{passed} passed, {len(outcomes) - passed} failed")
            if not console.is_terminal and time.monotonic() - last > 10:
                last = time.monotonic()
                console.print(f"{len(outcomes)} of {total}: {passed} passed, {len(outcomes) - passed} failed")
    return sorted(outcomes, key=lambda o: str(o["name"]))


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts over all outcomes. Whatever else they hold is counted by its kind: verdicts, statuses, numbers of nodes."""
    core = [o for o in outcomes if o.get("core")]
    opaque = Counter(op for o in outcomes for op in o.get("opaque", ()))
    fields = sorted(
        {(name, type(value)) for o in outcomes for name, value in o.items()} - {("passed", bool), ("core", bool)}, key=str
    )
    return {
        "tests": len(outcomes),
        "passed": sum(o["passed"] for o in outcomes),
        "core_tests": len(core),
        "core_passed": sum(o["passed"] for o in core),
        **Counter(o["status"] for o in outcomes if "status" in o),
        **{name: sum(o.get(name, 0) for o in outcomes) for name, kind in fields if kind in (bool, int)},
        "with_opaque_nodes": sum(bool(o.get("opaque")) for o in outcomes),
        "opaque_operators": dict(opaque.most_common()),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("hotfuse", "numpy", "onnx", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _show(console: Console, summary: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    failed = [o for o in outcomes if not o["passed"]]
    if failed:
        rows = [(o["name"], " ".join(str(o["reason"]).split())[:160]) for o in failed[:MOST_FAILURES]]
        title = f"Failed, {len(rows)} of {len(failed)}" if len(rows) < len(failed) else "Failed"
        console.print(make_table(title, ("test", "why"), rows))
        console.print()
    hidden = ("suite", "filter", "versions", "processor", "opaque_operators")
    rows = [(key.replace("_", " "), f"{v:,.0f}") for key, v in summary.items() if key not in hidden and not isinstance(v, bool)]
    console.print(make_table(f"Conformance: {summary['suite']}", ("what", ">count"), rows))
    if summary["without_reference"]:
        console.print("onnx.reference was unimportable")
    if summary["opaque_operators"]:
        shown = ", ".join(f"{op} ({count})" for op, count in summary["opaque_operators"].items())
        console.print(f"opaque: {shown}", markup=False)
