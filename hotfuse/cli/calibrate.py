"""`hotfuse calibrate`: what this machine can do, and a model of how long kernels take on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from hotfuse.cli.calls import read_calls
from hotfuse.cli.view import json_option, make_console, make_progress, make_table, write_json
from hotfuse.config import Config
from hotfuse.errors import NoIdleCores
from hotfuse.fusion.strategies import Policy
from hotfuse.hardware.counters import ENERGY, Counts, Meter
from hotfuse.hardware.forest import read_forest
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.retrain import TrainReply
from hotfuse.hardware.samples import Samples
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.records import dataclass
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.calibrating import SPECIMENS, Series, gather, plans_of, retrain
from hotfuse.runtime.calibration import RATIOS, SUBJECTS, TIMES, Calibration, Subject, keep_rates, kept_rates
from hotfuse.runtime.operator_probes import measure_operators
from hotfuse.runtime.planning import known_policy
from hotfuse.runtime.probes import measure_rates
from hotfuse.runtime.quiet import Quiet, in_back_seat
from hotfuse.runtime.threads import team_size

SECONDS = 160.0  # with rates and training, below three minutes
PATIENCE_S = 600.0  # in which others leave the cores, or nothing more is measured


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  hotfuse calibrate                  measure this machine, time kernels, and keep what was found
  hotfuse calibrate --seconds 20     less exactly; the next time goes on where this one ended
  hotfuse calibrate --now            do not wait until nobody else uses the machine
  hotfuse calibrate --show           see what is known; only rates that are not are measured
  hotfuse calibrate --model bert.onnx --inputs call.npz --seconds 30
                                     time the kernels of a model of yours, too, at the sizes of such calls""",
)
@click.option("--show", is_flag=True, help="Show what is known. Only rates that nobody measured are measured.")
@click.option("--seconds", type=click.FloatRange(0), default=SECONDS, show_default=True, help="How long kernels are timed.")
@click.option("--now", is_flag=True, help="Measure even while others use the cores; a model that serves then is slower.")
@click.option("--model", type=click.Path(), help="Time kernels of this model (.onnx) instead of random ones.")
@click.option("--inputs", multiple=True, type=click.Path(), metavar="FILE.npz", help="Inputs of a typical call, by name.")
@json_option
def command(show: bool, seconds: float, now: bool, model: str | None, inputs: Sequence[str], json_path: str | None) -> None:
    """Measure what this machine can do, and learn how long kernels take on it.

    First bandwidth of caches and memory, arithmetic and the cost of threads, for some seconds; then kernels of small random
    models. Nothing else should run meanwhile: while others use the cores it waits, for ten minutes in all at most, and has only
    what they leave. What was found is kept in the cache until the machine, or the share of it that this process may use, is
    another one; who is interrupted goes on where it was.
    """
    if inputs and model is None:
        raise click.UsageError("--inputs are those of a model: name it with --model")
    if show and model is not None:
        raise click.UsageError("--show times nothing: leave it out to time the kernels of a model")
    quiet = None if now else Quiet(PATIENCE_S)
    in_back_seat(lambda: _calibrate(show, seconds, quiet, model, inputs, json_path))


def _calibrate(
    show: bool, seconds: float, quiet: Quiet | None, model: str | None, inputs: Sequence[str], json_path: str | None
) -> None:
    console = make_console(json_path)
    series = SPECIMENS if model is None else plans_of(Path(model).name, read_calls(model, inputs))
    config = dataclasses.replace(Config.from_environment(), tier=1, wait=True)
    spec, cache = host_spec(config.isa), open_cache(config)
    threads = team_size(spec, config.threads)
    rates = kept_rates(spec, threads, cache) if show or model is not None else None
    if rates is None:
        rates = _measured(console, spec, threads, cache, config, quiet)
        if not keep_rates(rates, spec, cache):
            console.print("It could not be kept: see `hotfuse cache stats`.")
    console.print(make_table("Bandwidth in GB/s", (">of a part of", *_heads(threads)), bandwidth_rows(rates, spec)))
    console.print()
    console.print(make_table("Other rates", ("what", ">measured"), other_rows(rates)))
    console.print()
    console.print(make_table("Operators on one thread", ("operator", ">an element", ">a row"), operator_rows(rates)))
    console.print()
    calibration = Calibration(spec, rates, cache)
    meter = Meter()
    told = () if show else _trained(console, calibration, config, seconds, series, quiet)
    counts = meter.read()
    meter.close()
    trained = tuple(each.reply for each in told)
    rows = model_rows(calibration, trained)
    rows += [row for each in told if model is not None for row in own_rows(Path(model).name, each)]
    console.print(make_table("How long kernels take", ("what", ">found"), rows))
    console.print()
    console.print(make_table("Counted meanwhile, on one thread", ("what", ">counted"), counter_rows(counts)))
    console.print()
    policy = known_policy(config, spec)
    console.print(make_table("Edits that were tried", ("what", ">found"), policy_rows(policy)))
    write_json(
        json_path,
        {
            "spec": spec.key,
            "rates": dataclasses.asdict(rates),
            "samples": {subject.samples: len(calibration.samples(subject)) for subject in SUBJECTS},
            "forest": {subject.forest: bool(calibration.forest(subject)) for subject in SUBJECTS},
            "policy": {"rewards": policy.seen, "edits": len(policy.edits), "regret": policy.regret},
            "trained": [{**dataclasses.asdict(reply), "forest": bool(reply.forest)} for reply in trained],
            "counters": {**counts.numbers, "absent": dict(counts.absent)},
        },
    )


def policy_rows(policy: Policy) -> list[tuple[str, str]]:
    """What tuning and traffic taught so far, and what it cost."""
    paid = sum(evidence.mean > 0 for evidence in policy.edits.values())
    lost = f", {policy.regret / policy.seen:.3f} for each" if policy.seen else ""
    return [
        ("measurements of edits that nobody was sure of", f"{policy.seen:,}"),
        ("edits that are remembered, and of those what paid", f"{len(policy.edits):,}, {paid:,}"),
        ("regret: logarithms of time, lost to edits that did not pay", f"{policy.regret:.2f}{lost}"),
    ]


def _measured(
    console: Console, spec: Spec, threads: int, cache: DiskCache | None, config: Config, quiet: Quiet | None
) -> Rates:
    """New rates; where others leave no idle cores, those that were measured before."""
    with make_progress(console) as progress:
        task = progress.add_task("")

        def told(what: str, number: int, of: int) -> None:
            progress.update(task, description=what, completed=number - 1, total=of)

        try:
            rates = measure_rates(spec, threads, cache, told, quiet)
            progress.update(task, description="operators")
            return dataclasses.replace(rates, operators=measure_operators(spec, config))
        except NoIdleCores:
            known = kept_rates(spec, threads, cache)
            if known is None:
                raise
    console.print("Others use the cores: the rates are those that were measured before.")
    return known


@dataclass(frozen=True)
class Trained:
    """What came of training, and how far off predictions of the series that was timed are, by what was known before and now, of
    the sources of it that no forest is trained of: `held` of `count` samples."""

    subject: Subject
    reply: TrainReply
    count: int
    held: int
    before: float | None
    after: float | None


def _trained(
    console: Console, calibration: Calibration, config: Config, seconds: float, series: Series, quiet: Quiet | None
) -> tuple[Trained, ...]:
    with make_progress(console) as progress:
        task = progress.add_task("", total=round(seconds))
        found = gather(
            calibration,
            config,
            seconds,
            lambda passed, count, what: progress.update(task, description=f"{what}, {count} kernels", completed=round(passed)),
            series,
            quiet,
        )
        progress.update(task, description="training", completed=round(seconds))
        return tuple(_retrained(calibration, s, config, subject, series) for s, subject in zip(found, SUBJECTS, strict=True))


def _retrained(calibration: Calibration, samples: Samples, config: Config, subject: Subject, series: Series) -> Trained:
    mine = samples.where((samples.source >= series.first) & (samples.source < series.first + series.most))
    held = mine.where(mine.is_held_out)
    before = _error(calibration, held, subject)
    reply = retrain(calibration, samples, config, subject)
    return Trained(subject, reply, len(mine), len(held), before, _error(calibration, held, subject))


def _error(calibration: Calibration, samples: Samples, subject: Subject) -> float | None:
    """The median of relative errors of the forest in use; None without one."""
    data = calibration.forest(subject)
    if not data or not len(samples):
        return None
    logs, _ = read_forest(data).ask(samples.rows)
    return float(np.median(np.abs(samples.prior_s * np.exp(logs) / samples.seconds - 1)))


def _heads(threads: int) -> tuple[str, ...]:
    team = f"{threads} threads" if threads > 1 else "a team"
    return (">read by one thread", f">by {team}", ">written by one", f">by {team}", "stays in")


def bandwidth_rows(rates: Rates, spec: Spec) -> list[tuple[str, ...]]:
    rows = []
    for place, size in enumerate(rates.read.bytes):
        speeds = (rates.read.one, rates.read.team, rates.write.one, rates.write.team)
        rows.append((f"{size // 1024:,} KiB", *(f"{speed[place]:.1f}" for speed in speeds), _level(size, spec)))
    return rows


def _level(size: int, spec: Spec) -> str:
    """The nearest cache that holds a part of that size."""
    levels = (("L1", spec.l1_bytes), ("L2", spec.l2_bytes), ("L3", spec.l3_bytes))
    return next((name for name, bytes in levels if size <= bytes), "memory")


def other_rows(rates: Rates) -> list[tuple[str, str]]:
    amx = f"{rates.amx.one:,.0f} and {rates.amx.team:,.0f} GFLOP/s" if rates.amx.one else "none"
    return [
        (f"multiply-adds of f32, one thread and {rates.threads}", f"{rates.fma.one:,.0f} and {rates.fma.team:,.0f} GFLOP/s"),
        ("tiles of bf16 (AMX), the same", amx),
        ("a step on one thread", f"{rates.call_s * 1e9:.1f} ns"),
        ("a call of a team", f"{rates.start_s * 1e6:.2f} us"),
        ("a barrier", f"{rates.barrier_s * 1e6:.2f} us"),
        ("memory that nobody used before", f"{rates.touch:.2f} GB/s"),
        ("memory in all", f"{rates.memory_bytes / 2**30:.1f} GiB"),
        ("half of all repeated measurements lie within", f"{rates.spread * 100:.1f} %"),
    ]


def operator_rows(rates: Rates) -> list[tuple[str, str, str]]:
    found = sorted(rates.operators.items(), key=lambda item: item[1])
    return [(op, f"{element_s * 1e12:,.0f} ps", f"{row_s * 1e9:.1f} ns" if row_s else "") for op, (element_s, row_s) in found]


def own_rows(name: str, found: Trained) -> list[tuple[str, str]]:
    """How well a user's own model is known."""
    what = "edits of its plans" if found.subject.are_ratios else "its kernels"
    shown = ["nothing was known" if error is None else f"{error * 100:.1f} %" for error in (found.before, found.after)]
    said = ", ".join(shown) if found.held else "nobody can say: none were held out so far"
    return [(f"{name}: {what}, {found.count} timed: median error on {found.held} held out, before and now", said)]


def counter_rows(counts: Counts) -> list[tuple[str, str]]:
    rows = [(name, f"{number:,.0f} J" if name == ENERGY else f"{number:,.0f}") for name, number in counts.numbers.items()]
    if counts.instructions_per_cycle is not None:
        rows.append(("instructions for each cycle", f"{counts.instructions_per_cycle:.2f}"))
    if counts.watts is not None:
        rows.append(("power", f"{counts.watts:.1f} W"))
    return rows + [(name, f"absent: {reason}") for name, reason in counts.absent.items()]


def model_rows(calibration: Calibration, trained: Sequence[TrainReply]) -> list[tuple[str, str]]:
    """What is known of kernels; how good it is where it was just found out."""
    rows = []
    for subject, what in ((TIMES, "kernels timed"), (RATIOS, "edits of plans timed both ways")):
        rows.append((what, f"{len(calibration.samples(subject)):,}"))
        rows.append((f"a forest of {what}", "there is one" if calibration.forest(subject) else "none: the roofline alone"))
    for subject, reply in zip(SUBJECTS, trained, strict=False):
        rows.append((f"{subject.samples}: half of all repeated measurements lie within", f"{reply.spread * 100:.1f} %"))
        now = "moved from another machine" if reply.is_moved else "trained now"
        for name, found in (("the one before", reply.before), (now, reply.after)):
            if found is not None:
                error, rank = f"{found.median_error * 100:.1f} %", f"{found.rank_correlation:.3f}"
                rows.append((f"{name}: median error, rank correlation on {found.samples} held out", f"{error}, {rank}"))
                if found.right is not None:
                    rows.append((f"{name}: right whether to fuse, of {found.decided} beyond doubt", f"{found.right:.1%}"))
    return rows
