"""What runs one after the other: models, kernels, lengths, timelines. Each is shown when it is done and goes into the report.

A suite ends with its criteria. `only` keeps the parts whose names begin as given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hotfuse.cli.bench import criteria
from hotfuse.cli.bench import lengths as length_suite
from hotfuse.cli.bench.contest import Result, Rules, Say, as_json, hold, overall
from hotfuse.cli.bench.criteria import Criterion
from hotfuse.cli.bench.kernels import CHAIN_BYTES, CHAINS, gemm_triples
from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.shares import kernel_rates, kernel_share
from hotfuse.cli.bench.table import show_contest, show_criteria, show_kernels, show_lengths, show_overall
from hotfuse.cli.bench.timeline_criteria import judge_timelines
from hotfuse.cli.bench.timeline_runs import Timeline, count_runs, hold_timeline
from hotfuse.cli.bench.timeline_summary import timeline_json
from hotfuse.cli.bench.timeline_view import show_timeline
from hotfuse.cli.view import write_json

KERNEL_ENGINES = ("hotfuse", "numpy", "torch")
QUICK_KERNELS = 2
COPIES_HELD = 12  # of the input, by all engines of a chain together: inputs, answers, temporaries


def choose(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """The names that begin with one of `only`, all of them for none."""
    for start in only:
        if not any(name.startswith(start) for name in names):
            raise click.UsageError(
                f"--only {start}: no part of the suite has a name that begins so; they are {', '.join(names)}"
            )
    return [name for name in names if not only or name.startswith(tuple(only))]


def run_models(
    console: Console,
    cases: Sequence[Case],
    engines: Sequence[str],
    rules: Rules,
    report: dict[str, Any],
    json_path: str | None,
) -> list[Result]:
    results: list[Result] = []
    for case in cases:
        with show_progress(console, case.label, 2 + len(engines) * (1 + rules.rounds)) as say:
            results.append(hold(case, engines, rules, say))
        show_contest(console, results[-1])
        report |= {"models": [as_json(r) for r in results], "geometric_mean": overall(results)}
        if json_path != "-":
            write_json(json_path, report)  # what is measured stays, whatever happens to the rest
    show_overall(console, results)
    return results


def kernel_names(suite: str, quick: bool, only: Sequence[str]) -> list[str]:
    """Of a quick run without `only`, the first and smallest."""
    if suite == "gemm":
        triples = sorted(gemm_triples(), key=math.prod) if quick else gemm_triples()
        names = [f"gemm:{m}x{n}x{k}" for m, n, k in triples]
    else:
        names = [f"chain:{chain}:{size}" for size in CHAIN_BYTES for chain in CHAINS]
    return names[:QUICK_KERNELS] if quick and not only else choose(names, only)


def run_kernels(
    console: Console, suite: str, names: Sequence[str], rules: Rules, report: dict[str, Any]
) -> tuple[list[Result], list[Criterion]]:
    """Every kernel of the suite: products on one thread and on all, chains on all."""
    is_product = suite == "gemm"
    counts = dict.fromkeys((1, rules.settings.threads)) if is_product else (rules.settings.threads,)
    everything: list[Result] = []
    found: list[Criterion] = []
    report["kernels"] = []
    for threads in counts:
        one = replace(rules, settings=replace(rules.settings, threads=threads), copies=not is_product)
        results = []
        for name in names:
            with show_progress(console, name, 2 + len(KERNEL_ENGINES) * (1 + rules.rounds)) as say:
                results.append(lack_of_memory(name) or hold(Case(name), KERNEL_ENGINES, one, say))
        show_kernels(console, f"{suite} on {threads} thread{'s' * (threads > 1)}", results, is_product)
        for r in results:
            extra = {"threads": threads, "rates_s": kernel_rates(r, is_product), "share": kernel_share(r, is_product)}
            report["kernels"].append({**as_json(r), **extra})
        everything += results
        found += criteria.judge_products(results, threads) if is_product else criteria.judge_chains(results)
    return everything, found


def lack_of_memory(name: str) -> Result | None:
    """A chain that all engines together cannot hold is not begun."""
    if not name.startswith("chain:"):
        return None
    need = COPIES_HELD * CHAIN_BYTES[name.rpartition(":")[2]]
    free = int(psutil.virtual_memory().available)
    if need <= free:
        return None
    return Result(name, (), failed=f"needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} GB are free; nothing was run")


def run_lengths(console: Console, quick: bool, rules: Rules, report: dict[str, Any]) -> tuple[list[Result], list[Criterion]]:
    model = length_suite.QUICK_MODEL if quick else length_suite.MODEL
    sizes = length_suite.QUICK_LENGTHS if quick else length_suite.LENGTHS
    repeats = length_suite.QUICK_REPEATS if quick else length_suite.REPEATS
    steps = 1 + repeats * len(sizes) * (3 + 2 * rules.rounds)
    with show_progress(console, model, steps) as say:
        found = length_suite.hold_lengths(model, sizes, repeats, rules, say)
    show_lengths(console, f"{model}: one generic build against one baked for each length", found)
    later = length_suite.compiled_later(found)
    report |= {"model": model, "lengths": length_suite.lengths_json(found), "compiled_later": later}
    return [r for one in found for r in one.results], criteria.judge_lengths(found, later)


def run_timelines(
    console: Console,
    cases: Sequence[Case],
    engines: Sequence[str],
    loads: Sequence[str],
    rules: Rules,
    report: dict[str, Any],
    json_path: str | None,
) -> tuple[list[Timeline], list[Criterion]]:
    found: list[Timeline] = []
    report["timelines"] = []
    for case in cases:
        with show_progress(console, case.label, 1 + count_runs(engines, loads, rules)) as say:
            found.append(hold_timeline(case, engines, loads, rules, say))
        show_timeline(console, found[-1])
        report["timelines"].append(timeline_json(found[-1]))
        if json_path != "-":
            write_json(json_path, report)  # what is measured stays, whatever happens to the rest
    return found, judge_timelines(found)


def finish_suite(console: Console, found: Sequence[Criterion], quick: bool, report: dict[str, Any]) -> None:
    """The criteria, at the end of what is shown and in the report."""
    report["criteria"] = criteria.as_json(found)
    show_criteria(console, found, quick)


@contextmanager
def show_progress(console: Console, title: str, steps: int) -> Iterator[Say]:
    """A bar on a terminal, a line now and then elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    last = time.monotonic()
    quiet = not console.is_terminal
    # drawn between turns only: a bar that redraws itself takes time from whoever is measured
    with Progress(*columns, console=console, transient=True, disable=quiet, auto_refresh=False) as progress:
        bar = progress.add_task(title, total=steps)

        def say(text: str) -> None:
            nonlocal last
            progress.update(bar, advance=1, description=f"{title}: {text}", refresh=True)
            if quiet and time.monotonic() - last > 10:
                last = time.monotonic()
                console.print(f"{title}: {text}", markup=False)

        yield say
