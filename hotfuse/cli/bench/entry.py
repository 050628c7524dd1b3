"""The command `hotfuse bench`."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hotfuse.cli.bench.contest import Result, Rules, Say, as_json, hold, overall
from hotfuse.cli.bench.engines import ENGINES, Settings
from hotfuse.cli.bench.kernels import CHAIN_BYTES, CHAINS, gemm_triples
from hotfuse.cli.bench.models import CPU_SUITE, LIGHT, MODELS, Case, check_case
from hotfuse.cli.bench.plot import check_path, save_plot
from hotfuse.cli.bench.table import kernel_rates, kernel_share, show_contest, show_kernels, show_overall
from hotfuse.cli.view import json_option, make_console, write_json
from hotfuse.errors import HotfuseError
from hotfuse.hardware.machine import read_machine

SCHEMA = 1
PEERS = "eager,inductor,inductor-max,onnxruntime,openvino"
PATHS = {"torch": ("hotfuse-torch",), "onnx": ("hotfuse-onnx",), "both": ("hotfuse-torch", "hotfuse-onnx")}
KERNEL_ENGINES = ("hotfuse", "numpy", "torch")
QUICK: Mapping[str, Any] = {"rounds": 3, "seconds": 0.05, "least": 2}
QUICK_KERNELS = 2
COPIES_HELD = 12  # of the input, by all engines of a chain together: inputs, answers, temporaries


@click.command(
    "bench",
    epilog=f"""\b
Models: a path to an .onnx or .pt2 file, or one of
  {", ".join(MODELS)},
  {", ".join(LIGHT[:5])},
  {", ".join(LIGHT[5:])}

\b
Examples:
  hotfuse bench bert-base
  hotfuse bench model.onnx --against onnxruntime,openvino --batch 8
  hotfuse bench --suite cpu --json cpu.json --plot cpu.png
  hotfuse bench mlp --quick --against eager,my_package.engines:mine""",
)
@click.argument("models", nargs=-1)
@click.option(
    "--suite", type=click.Choice(["cpu", "gemm", "pointwise", "lengths"]), help="A fixed set of models, or of single kernels."
)
@click.option("--against", default=PEERS, show_default=True, metavar="ENGINES", help="Peers, separated by commas.")
@click.option(
    "--hotfuse", "path", type=click.Choice(list(PATHS)), default="both", show_default=True,
    help="Which of our front ends runs; of both, the faster one with a right answer is compared, and named.",
)  # fmt: skip
@click.option("--tier", type=click.IntRange(0, 2), default=1, show_default=True, help="The highest tier of ours.")
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1), help="Threads of every engine.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Turns of every engine.")
@click.option("--seconds", default=1.0, show_default=True, type=click.FloatRange(0), help="Length of a turn.")
@click.option("--batch", type=click.IntRange(1), help="Batch size, where it is not the model's own.")
@click.option("--seq", "sequence", type=click.IntRange(1), help="Sequence length, where it is not the model's own.")
@click.option("--quick", is_flag=True, help="A few short turns: shows that all works, claims nothing.")
@click.option(
    "--timeout", "limit_s", default=600.0, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Seconds that an engine may take to open, and for one turn.",
)  # fmt: skip
@click.option("--plot", "plot_path", metavar="FILE", help="Draw the medians into a .png, .svg or .pdf file.")
@json_option
def command(
    models: Sequence[str],
    suite: str | None,
    against: str,
    path: str,
    tier: int,
    threads: int,
    rounds: int,
    seconds: float,
    batch: int | None,
    sequence: int | None,
    quick: bool,
    limit_s: float,
    plot_path: str | None,
    json_path: str | None,
) -> None:
    """Time hotfuse against other engines on MODELS, and check every answer against float64.

    Each engine has a process of its own and they take turns; while one runs, the others are stopped. A ratio with a ~ is one
    that this run cannot tell from 1. The exit code is 1 if an answer is wrong or could not be checked.
    """
    if bool(models) == bool(suite):
        raise click.UsageError("give models or --suite, one of them")
    if suite and (batch or sequence):
        raise click.UsageError("a suite has sizes of its own; --batch and --seq go with models")
    if suite == "lengths":
        raise HotfuseError(
            "the suite `lengths` compares a shape-generic build with builds baked for each length, which this version has not; "
            "measure single lengths with --seq"
        )
    if plot_path:
        check_path(plot_path)
    rules = Rules(Settings(threads, tier), rounds, seconds, limit_s=limit_s)
    rules = replace(rules, **QUICK) if quick else rules
    console = make_console(json_path)
    report: dict[str, Any] = {"schema": SCHEMA, "suite": suite, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    report |= {"machine": asdict(read_machine()), "versions": _versions(), "rules": asdict(rules)}
    if suite in ("gemm", "pointwise"):
        results = _kernels(console, suite, rules, quick, report)
    else:
        cases = CPU_SUITE if suite else [Case(model, batch, sequence) for model in models]
        for case in cases:
            check_case(case)
        results = _models(console, cases, (*PATHS[path], *_engines(against)), rules, report, json_path)
    write_json(json_path, report)
    if plot_path:
        console.print(save_plot(results, plot_path) or f"the picture is in {plot_path}", markup=False)
    _complain(results)


def _engines(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in ENGINES and ":" not in name:
            raise click.UsageError(f"there is no engine {name!r}; engines are {', '.join(ENGINES)}, or package.module:function")
    return names


def _models(
    console: Console,
    cases: Sequence[Case],
    engines: Sequence[str],
    rules: Rules,
    report: dict[str, Any],
    json_path: str | None,
) -> list[Result]:
    results: list[Result] = []
    for case in cases:
        with _progress(console, case.label, 2 + len(engines) * (1 + rules.rounds)) as say:
            results.append(hold(case, engines, rules, say))
        show_contest(console, results[-1])
        report |= {"models": [as_json(r) for r in results], "geometric_mean": overall(results)}
        if json_path != "-":
            write_json(json_path, report)  # what is measured stays, whatever happens to the rest
    show_overall(console, results)
    return results


def _kernels(console: Console, suite: str, rules: Rules, quick: bool, report: dict[str, Any]) -> list[Result]:
    """Every kernel of the suite: products on one thread and on all, chains on all."""
    is_product = suite == "gemm"
    if is_product:
        triples = sorted(gemm_triples(), key=math.prod) if quick else gemm_triples()
        names = [f"gemm:{m}x{n}x{k}" for m, n, k in triples]
    else:
        names = [f"chain:{chain}:{size}" for size in CHAIN_BYTES for chain in CHAINS]
    names = names[:QUICK_KERNELS] if quick else names
    counts = dict.fromkeys((1, rules.settings.threads)) if is_product else (rules.settings.threads,)
    everything: list[Result] = []
    report["kernels"] = []
    for threads in counts:
        one = replace(rules, settings=replace(rules.settings, threads=threads), copies=not is_product)
        results = []
        for name in names:
            with _progress(console, name, 2 + len(KERNEL_ENGINES) * (1 + rules.rounds)) as say:
                results.append(_lack_of_memory(name) or hold(Case(name), KERNEL_ENGINES, one, say))
        show_kernels(console, f"{suite} on {threads} thread{'s' * (threads > 1)}", results, is_product)
        for r in results:
            extra = {"threads": threads, "rates_s": kernel_rates(r, is_product), "share": kernel_share(r, is_product)}
            report["kernels"].append({**as_json(r), **extra})
        everything += results
    return everything


def _lack_of_memory(name: str) -> Result | None:
    """A chain that all engines together cannot hold is not begun."""
    if not name.startswith("chain:"):
        return None
    need = COPIES_HELD * CHAIN_BYTES[name.rpartition(":")[2]]
    free = int(psutil.virtual_memory().available)
    if need <= free:
        return None
    return Result(name, (), failed=f"needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} GB are free; nothing was run")


@contextmanager
def _progress(console: Console, title: str, steps: int) -> Iterator[Say]:
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


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("hotfuse", "numpy", "torch", "onnx", "onnxruntime", "openvino", "transformers", "llvmlite"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _complain(results: Sequence[Result]) -> None:
    """Exit with code 1 where an answer is wrong or unchecked, or a model could not be built."""
    said = [
        f"{r.model}: {row.engine} is {row.status}" for r in results for row in r.rows if row.status in ("wrong", "unchecked")
    ]
    said += [f"{r.model}: {r.failed}" for r in results if r.failed]
    if said:
        raise click.ClickException("; ".join(said))
