"""`hotfuse calibrate`: what this machine can do, and a model of how long kernels take on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click
from rich.console import Console

from hotfuse.cli.view import json_option, make_console, make_progress, make_table, write_json
from hotfuse.config import Config
from hotfuse.fusion.strategies import Policy
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.retrain import TrainReply
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.calibrating import gather, retrain
from hotfuse.runtime.calibration import RATIOS, SUBJECTS, TIMES, Calibration
from hotfuse.runtime.planning import known_policy
from hotfuse.runtime.probes import keep_rates, kept_rates, measure_rates
from hotfuse.runtime.threads import team_size

SECONDS = 150.0


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  hotfuse calibrate                  measure this machine, time kernels, and keep what was found
  hotfuse calibrate --seconds 20     less exactly; the next time goes on where this one ended
  hotfuse calibrate --show           see what is known; only rates that are not are measured""",
)
@click.option("--show", is_flag=True, help="Show what is known. Only rates that nobody measured are measured.")
@click.option("--seconds", type=click.FloatRange(0), default=SECONDS, show_default=True, help="How long kernels are timed.")
@json_option
def command(show: bool, seconds: float, json_path: str | None) -> None:
    """Measure what this machine can do, and learn how long kernels take on it.

    First bandwidth of caches and memory, arithmetic and the cost of threads, for some seconds; then kernels of small random
    models. Nothing else should run meanwhile. What was found is kept in the cache until the machine, or the share of it that
    this process may use, is another one; who is interrupted goes on where it was.
    """
    console = make_console(json_path)
    config = dataclasses.replace(Config.from_environment(), tier=1, wait=True)
    spec, cache = host_spec(config.isa), open_cache(config)
    threads = team_size(spec, config.threads)
    rates = kept_rates(spec, threads, cache) if show else None
    if rates is None:
        rates = _measured(console, spec, threads, cache)
        if not keep_rates(rates, spec, cache):
            console.print("It could not be kept: see `hotfuse cache stats`.")
    console.print(make_table("Bandwidth in GB/s", (">of a part of", *_heads(threads)), bandwidth_rows(rates, spec)))
    console.print()
    console.print(make_table("Other rates", ("what", ">measured"), other_rows(rates)))
    console.print()
    calibration = Calibration(spec, rates, cache)
    trained = () if show else _trained(console, calibration, config, seconds)
    console.print(make_table("How long kernels take", ("what", ">found"), model_rows(calibration, trained)))
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


def _measured(console: Console, spec: Spec, threads: int, cache: DiskCache | None) -> Rates:
    with make_progress(console) as progress:
        task = progress.add_task("")
        return measure_rates(
            spec,
            threads,
            cache,
            lambda what, number, of: progress.update(task, description=what, completed=number - 1, total=of),
        )


def _trained(console: Console, calibration: Calibration, config: Config, seconds: float) -> tuple[TrainReply, ...]:
    with make_progress(console) as progress:
        task = progress.add_task("", total=round(seconds))
        found = gather(
            calibration,
            config,
            seconds,
            lambda passed, count, what: progress.update(task, description=f"{what}, {count} kernels", completed=round(passed)),
        )
        progress.update(task, description="training", completed=round(seconds))
        return tuple(retrain(calibration, s, config, subject) for s, subject in zip(found, SUBJECTS, strict=True))


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


def model_rows(calibration: Calibration, trained: Sequence[TrainReply]) -> list[tuple[str, str]]:
    """What is known of kernels; how good it is where it was just found out."""
    rows = []
    for subject, what in ((TIMES, "kernels timed"), (RATIOS, "edits of plans timed both ways")):
        rows.append((what, f"{len(calibration.samples(subject)):,}"))
        rows.append((f"a forest of {what}", "there is one" if calibration.forest(subject) else "none: the roofline alone"))
    for subject, reply in zip(SUBJECTS, trained, strict=False):
        rows.append((f"{subject.samples}: half of all repeated measurements lie within", f"{reply.spread * 100:.1f} %"))
        for name, found in (("the one before", reply.before), ("trained now", reply.after)):
            if found is not None:
                error, rank = f"{found.median_error * 100:.1f} %", f"{found.rank_correlation:.3f}"
                rows.append((f"{name}: median error, rank correlation on {found.samples} held out", f"{error}, {rank}"))
                if subject.are_ratios:
                    rows.append((f"{name}: right whether to fuse, of {found.decided} beyond doubt", f"{found.right:.1%}"))
    return rows
