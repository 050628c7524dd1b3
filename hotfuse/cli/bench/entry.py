"""The command `hotfuse bench`."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import click

from hotfuse.cli.bench import suites
from hotfuse.cli.bench.contest import Result, Rules
from hotfuse.cli.bench.criteria import judge_models
from hotfuse.cli.bench.engines import ENGINES, Settings
from hotfuse.cli.bench.models import CPU_SUITE, LIGHT, MODELS, Case, check_case
from hotfuse.cli.bench.plot import check_path, save_plot, save_timelines
from hotfuse.cli.bench.timeline_runs import LOADS, UNFUSED, Timeline
from hotfuse.cli.view import json_option, make_console, write_json
from hotfuse.hardware.machine import read_machine

SCHEMA = 1
PEERS = "eager,inductor,inductor-max,onnxruntime,openvino"
PATHS = {"torch": ("hotfuse-torch",), "onnx": ("hotfuse-onnx",), "both": ("hotfuse-torch", "hotfuse-onnx")}
QUICK: Mapping[str, Any] = {"rounds": 3, "seconds": 0.05, "least": 2}
ROUNDS, SECONDS = 9, 1.0
TIMELINE_PEERS = "eager,inductor"
TIMELINE: Mapping[str, Any] = {"rounds": 3, "seconds": 30.0}
TIMELINE_QUICK: Mapping[str, Any] = {"rounds": 1, "seconds": 8.0}
TIMELINE_CASES = (Case("bert-base"), Case("minilm", sequence=128), Case("vit-base"), Case("gpt2"))
TIMELINE_QUICK_CASES = (Case("bert-tiny"),)
TIMELINE_PATHS = {
    "torch": ("adaptive-torch",), "onnx": ("adaptive-onnx", UNFUSED), "both": ("adaptive-torch", "adaptive-onnx", UNFUSED),
}  # fmt: skip
UNFIT = ("wrong", "unchecked")


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
  hotfuse bench --timeline --plot timeline.png
  hotfuse bench minilm --timeline --load half --seconds 60
  hotfuse bench mlp --quick --against eager,my_package.engines:mine""",
)
@click.argument("models", nargs=-1)
@click.option(
    "--suite", type=click.Choice(["cpu", "gemm", "pointwise", "lengths"]),
    help="A fixed set with criteria of its own: models, matrix products, pointwise and row-reduction chains, or one"
    " shape-generic build over 20 lengths against builds baked for each.",
)  # fmt: skip
@click.option(
    "--timeline", is_flag=True,
    help="Latency over time from cold, with no option set, against eager and Inductor: of MODELS, or of BERT-base, MiniLM,"
    " ViT-base and GPT-2.",
)  # fmt: skip
@click.option(
    "--load", type=click.Choice([*LOADS, "both"]), show_default="both",
    help="The client of a timeline: it never rests, or sleeps as long as its last call took.",
)  # fmt: skip
@click.option("--only", default="", metavar="NAMES", help="Parts of the suite whose names begin so, separated by commas.")
@click.option(
    "--against", metavar="ENGINES", show_default=f"{PEERS}; of a timeline {TIMELINE_PEERS}",
    help="Peers on models, separated by commas.",
)  # fmt: skip
@click.option(
    "--hotfuse", "path", type=click.Choice(list(PATHS)), default="both", show_default=True,
    help="Which of our front ends runs; of both, the faster one with a right answer is compared, and named.",
)  # fmt: skip
@click.option("--tier", type=click.IntRange(0, 2), default=1, show_default=True, help="The highest tier of ours.")
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1), help="Threads of every engine.")
@click.option(
    "--rounds", type=click.IntRange(1), show_default=f"{ROUNDS}; of a timeline {TIMELINE['rounds']}",
    help="Turns of every engine, or its fresh processes.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0), show_default=f"{SECONDS:g}; of a timeline {TIMELINE['seconds']:g}",
    help="Length of a turn, or of a timeline after its first answer.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Batch size, where it is not the model's own.")
@click.option("--seq", "sequence", type=click.IntRange(1), help="Sequence length, where it is not the model's own.")
@click.option("--quick", is_flag=True, help="A few short turns: shows that all works, claims nothing.")
@click.option(
    "--timeout", "limit_s", default=600.0, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Seconds that an engine may take to open, and for one turn.",
)  # fmt: skip
@click.option("--plot", "plot_path", metavar="FILE", help="Draw medians, or latency over time, into a .png, .svg or .pdf file.")
@json_option
def command(
    models: Sequence[str],
    suite: str | None,
    timeline: bool,
    load: str | None,
    only: str,
    against: str | None,
    path: str,
    tier: int,
    threads: int,
    rounds: int | None,
    seconds: float | None,
    batch: int | None,
    sequence: int | None,
    quick: bool,
    limit_s: float,
    plot_path: str | None,
    json_path: str | None,
) -> None:
    """Time hotfuse against other engines on MODELS, and check every answer against float64.

    Each engine has a process of its own and they take turns; while one runs, the others are stopped. A ratio with a ~ is one
    that this run cannot tell from 1. A suite ends with its criteria: what was measured, what is wanted, and whether it is met;
    so does a timeline, whose engines begin in fresh processes with empty caches.
    The exit code is 1 if an answer is wrong or could not be checked; criteria do not change it.
    """
    if bool(suite) + bool(timeline or models) != 1:
        raise click.UsageError("give models or --suite, one of them, or --timeline")
    if not models and (batch or sequence):
        raise click.UsageError(
            f"{'a timeline' if timeline else 'a suite'} has sizes of its own; --batch and --seq go with models"
        )
    if load and not timeline:
        raise click.UsageError("--load is the client of a timeline; it goes with --timeline")
    parts = _split(only)
    if parts and (models or suite not in ("cpu", "gemm", "pointwise", None)):
        raise click.UsageError("--only takes parts of the suites cpu, gemm and pointwise, and models of --timeline")
    if plot_path:
        if suite == "lengths":
            raise click.UsageError("there is no picture of the suite lengths; leave --plot out")
        check_path(plot_path)
    rules = _rules(Settings(threads, tier), timeline, quick, rounds, seconds, limit_s)
    console = make_console(json_path)
    report: dict[str, Any] = {"schema": SCHEMA, "suite": suite, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    report |= {"machine": asdict(read_machine()), "versions": _versions(), "rules": asdict(rules)}
    cases = [Case(model, batch, sequence) for model in models]
    if timeline:
        cases = cases or _chosen(TIMELINE_QUICK_CASES if quick else TIMELINE_CASES, parts)
        _check(cases)
        engines = (*_engines(TIMELINE_PEERS if against is None else against), *TIMELINE_PATHS[path])
        loads = (load,) if load in LOADS else LOADS
        timelines, found = suites.run_timelines(console, cases, engines, loads, rules, report, json_path)
        suites.finish_suite(console, found, quick, report)
        write_json(json_path, report)
        if plot_path:
            console.print(save_timelines(timelines, plot_path) or f"the picture is in {plot_path}", markup=False)
        _complain([*_wrong_runs(timelines)])
        return
    results: list[Result]
    if suite in ("gemm", "pointwise"):
        results, found = suites.run_kernels(console, suite, suites.kernel_names(suite, quick, parts), rules, report)
    elif suite == "lengths":
        results, found = suites.run_lengths(console, quick, rules, report)
    else:
        engines = (*PATHS[path], *_engines(PEERS if against is None else against))
        cases = _chosen(CPU_SUITE, parts) if suite else cases
        _check(cases)
        results = suites.run_models(console, cases, engines, rules, report, json_path)
        found = judge_models(results) if suite else []
    if suite:
        suites.finish_suite(console, found, quick, report)
    write_json(json_path, report)
    if plot_path:
        console.print(save_plot(results, plot_path) or f"the picture is in {plot_path}", markup=False)
    _complain([*_wrong_rows(results)])


def _rules(settings: Settings, timeline: bool, quick: bool, rounds: int | None, seconds: float | None, limit_s: float) -> Rules:
    """What is not given has a default for each kind of run."""
    usual: Mapping[str, Any] = {"rounds": ROUNDS, "seconds": SECONDS}
    if timeline:
        usual = TIMELINE_QUICK if quick else TIMELINE
    given = {name: value for name, value in (("rounds", rounds), ("seconds", seconds)) if value is not None}
    rules = Rules(settings, limit_s=limit_s, **{**usual, **given})
    return replace(rules, **QUICK) if quick and not timeline else rules


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _chosen(cases: Sequence[Case], parts: Sequence[str]) -> list[Case]:
    chosen = suites.choose([case.label for case in cases], parts)
    return [case for case in cases if case.label in chosen]


def _check(cases: Sequence[Case]) -> None:
    for case in cases:
        check_case(case)


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


def _wrong_rows(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        yield from (f"{result.model}: {row.engine} is {row.status}" for row in result.rows if row.status in UNFIT)
    yield from (f"{result.model}: {result.failed}" for result in results if result.failed)


def _wrong_runs(timelines: Sequence[Timeline]) -> Iterator[str]:
    for timeline in timelines:
        yield from dict.fromkeys(
            f"{timeline.model}: {run.engine} is {run.status}" for run in timeline.runs if run.status in UNFIT
        )
    yield from (f"{timeline.model}: {timeline.failed}" for timeline in timelines if timeline.failed)


def _complain(said: Sequence[str]) -> None:
    """Exit with code 1 where an answer is wrong or unchecked, or a model could not be built."""
    if said:
        raise click.ClickException("; ".join(said))
