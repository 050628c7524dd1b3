"""The command `hotfuse bench`."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import click

from hotfuse.cli.bench import suites
from hotfuse.cli.bench.contest import Result, Rules
from hotfuse.cli.bench.criteria import judge_models
from hotfuse.cli.bench.engines import ENGINES, Settings
from hotfuse.cli.bench.models import CPU_SUITE, LIGHT, MODELS, Case, check_case
from hotfuse.cli.bench.plot import check_path, save_plot
from hotfuse.cli.view import json_option, make_console, write_json
from hotfuse.hardware.machine import read_machine

SCHEMA = 1
PEERS = "eager,inductor,inductor-max,onnxruntime,openvino"
PATHS = {"torch": ("hotfuse-torch",), "onnx": ("hotfuse-onnx",), "both": ("hotfuse-torch", "hotfuse-onnx")}
QUICK: Mapping[str, Any] = {"rounds": 3, "seconds": 0.05, "least": 2}


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
  hotfuse bench --suite cpu --only mlp,minilm
  hotfuse bench --suite lengths --seconds 0.2
  hotfuse bench mlp --quick --against eager,my_package.engines:mine""",
)
@click.argument("models", nargs=-1)
@click.option(
    "--suite", type=click.Choice(["cpu", "gemm", "pointwise", "lengths"]),
    help="A fixed set with criteria of its own: models, matrix products, pointwise and row-reduction chains, or one"
    " shape-generic build over 20 lengths against builds baked for each.",
)  # fmt: skip
@click.option("--only", default="", metavar="NAMES", help="Parts of the suite whose names begin so, separated by commas.")
@click.option("--against", default=PEERS, show_default=True, metavar="ENGINES", help="Peers on models, separated by commas.")
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
    only: str,
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
    that this run cannot tell from 1. A suite ends with its criteria: what was measured, what is wanted, and whether it is met.
    The exit code is 1 if an answer is wrong or could not be checked; criteria do not change it.
    """
    if bool(models) == bool(suite):
        raise click.UsageError("give models or --suite, one of them")
    if suite and (batch or sequence):
        raise click.UsageError("a suite has sizes of its own; --batch and --seq go with models")
    parts = _split(only)
    if parts and suite not in ("cpu", "gemm", "pointwise"):
        raise click.UsageError("--only takes parts of the suites cpu, gemm and pointwise")
    if plot_path:
        if suite == "lengths":
            raise click.UsageError("there is no picture of the suite lengths; leave --plot out")
        check_path(plot_path)
    rules = Rules(Settings(threads, tier), rounds, seconds, limit_s=limit_s)
    rules = replace(rules, **QUICK) if quick else rules
    console = make_console(json_path)
    report: dict[str, Any] = {"schema": SCHEMA, "suite": suite, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    report |= {"machine": asdict(read_machine()), "versions": _versions(), "rules": asdict(rules)}
    results: list[Result]
    if suite in ("gemm", "pointwise"):
        results, found = suites.run_kernels(console, suite, suites.kernel_names(suite, quick, parts), rules, report)
    elif suite == "lengths":
        results, found = suites.run_lengths(console, quick, rules, report)
    else:
        engines = (*PATHS[path], *_engines(against))
        cases = _suite_cases(parts) if suite else [Case(model, batch, sequence) for model in models]
        for case in cases:
            check_case(case)
        results = suites.run_models(console, cases, engines, rules, report, json_path)
        found = judge_models(results) if suite else []
    if suite:
        suites.finish_suite(console, found, quick, report)
    write_json(json_path, report)
    if plot_path:
        console.print(save_plot(results, plot_path) or f"the picture is in {plot_path}", markup=False)
    _complain(results)


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _suite_cases(parts: Sequence[str]) -> list[Case]:
    chosen = suites.choose([case.label for case in CPU_SUITE], parts)
    return [case for case in CPU_SUITE if case.label in chosen]


def _engines(text: str) -> list[str]:
    names = _split(text)
    for name in names:
        if name not in ENGINES and ":" not in name:
            raise click.UsageError(f"there is no engine {name!r}; engines are {', '.join(ENGINES)}, or package.module:function")
    return names


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
