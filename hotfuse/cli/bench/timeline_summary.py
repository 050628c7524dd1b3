"""What the rounds of one engine at one load come to: medians of rounds, percentiles and outliers of all their calls."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import numpy as np

from hotfuse.cli.bench.timeline import (
    OUTLIER,
    Outlier,
    Run,
    Steady,
    after,
    background_cpu_s,
    before,
    lost,
    outliers,
    percentile,
    pooled,
    published_s,
    steady_state,
)
from hotfuse.cli.bench.timeline_runs import ADAPTIVE, EAGER, Timeline
from hotfuse.records import dataclass

PIECES = 200  # of a run, in the report


@dataclass(frozen=True)
class Summary:
    """Seconds, and CPU seconds. `reached_s` and `met_s` are None unless every round came to a steady state; `lost` is for
    adaptive engines with a client that never rests. `before` and `after` are the calls before and after steady state; `p999_s`
    is of all calls but the first."""

    engine: str
    load: str
    status: str
    reason: str = ""
    notes: str = ""
    calls: int = 0
    answers: int = 0
    first_call_s: float | None = None
    median_s: float | None = None
    p999_s: float | None = None
    p99_before_s: float | None = None
    p99_after_s: float | None = None
    p999_before_s: float | None = None
    p999_after_s: float | None = None
    steady_s: float | None = None
    reached_s: float | None = None
    met_s: float | None = None
    reached_rounds: int = 0
    published_s: float | None = None
    background_cpu_s: float | None = None
    lost: float | None = None
    outliers: tuple[Outlier, ...] = ()


def summaries(timeline: Timeline) -> list[Summary]:
    return [summary_of(timeline, engine, load) for load in timeline.loads for engine in timeline.engines]


def summary_of(timeline: Timeline, engine: str, load: str) -> Summary:
    runs = timeline.of(engine, load)
    if not timeline.good(engine, load):
        bad = next((run for run in runs if not run.counts), None)
        return Summary(engine, load, bad.status if bad else "failed", bad.reason if bad else "there was no run")
    steady = [steady_state(run) for run in runs]
    calls = np.concatenate([run.later for run in runs])
    early = np.concatenate([before(run, s.reached_s) for run, s in zip(runs, steady, strict=True)])
    late = np.concatenate([after(run, s.reached_s) for run, s in zip(runs, steady, strict=True)])
    swaps = [published_s(run) for run in runs]
    return Summary(
        engine,
        load,
        "ok",
        notes=runs[-1].notes,
        calls=len(calls),
        answers=sum(run.answers for run in runs),
        first_call_s=statistics.median(run.first_call_s for run in runs),
        median_s=float(np.median(calls)),
        p999_s=percentile(calls, 99.9),
        p99_before_s=percentile(early, 99),
        p99_after_s=percentile(late, 99),
        p999_before_s=percentile(early, 99.9),
        p999_after_s=percentile(late, 99.9),
        steady_s=statistics.median(s.median_s for s in steady),
        reached_s=_median([s.reached_s for s in steady]),
        met_s=_median([s.met_s for s in steady]),
        reached_rounds=sum(s.reached_s is not None for s in steady),
        published_s=_median(swaps),
        background_cpu_s=statistics.median(background_cpu_s(run.cpu) for run in runs),
        lost=_median([_lost(timeline, run) for run in runs]),
        outliers=_outliers(timeline, runs),
    )


def _median(figures: list[float | None]) -> float | None:
    """None where one of them is: a round without a figure never improves the others'."""
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known and len(known) == len(figures) else None


def _lost(timeline: Timeline, run: Run) -> float | None:
    """Against what answers at first, alone in a process of the same round."""
    if run.engine not in ADAPTIVE or run.load != "closed":
        return None
    alone = [other for other in timeline.good(ADAPTIVE[run.engine][0], run.load) if other.round == run.round]
    return lost(run, float(alone[0].later.mean())) if alone else None


def _outliers(timeline: Timeline, runs: list[Run]) -> tuple[Outlier, ...]:
    eager = timeline.good(EAGER, runs[0].load)
    if not eager:
        return ()
    limit_s = OUTLIER * float(np.median(np.concatenate([run.later for run in eager])))
    return tuple(one for run in runs for one in outliers(run, limit_s))


def undisturbed_p99_s(timeline: Timeline, engine: str, load: str) -> float | None:
    """The p99 of what an adaptive engine answers with at first, alone in its processes."""
    alone = timeline.good(ADAPTIVE[engine][0], load)
    return percentile(np.concatenate([run.later for run in alone]), 99) if alone else None


# the report


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    ratios = {one.engine: timeline.ratio(one.engine) for one in timeline.turns}
    return {
        "model": timeline.model,
        "oracle": timeline.oracle,
        "failed": timeline.failed,
        "summaries": [asdict(summary) for summary in summaries(timeline)],
        "against_waiting": {engine: asdict(ratio) if ratio else None for engine, ratio in ratios.items()},
        "turns": [asdict(one) for one in timeline.turns],
        "runs": [_run_json(run) for run in timeline.runs],
    }


def _run_json(run: Run) -> dict[str, Any]:
    """A run without its calls: `latency` has them in pieces of time, as begin, median, longest and number."""
    found: dict[str, Any] = {"engine": run.engine, "load": run.load, "round": run.round}
    found |= {"status": run.status, "reason": run.reason}
    if not run.counts:
        return found
    steady: Steady = steady_state(run)
    cpu = {name: getattr(run.cpu, name) for name in ("opening_s", "threads_s", "children_s")}
    return found | {
        "construct_s": run.construct_s,
        "first_call_s": run.first_call_s,
        "calls": len(run.seconds),
        "steady": asdict(steady),
        "cpu": {**cpu, "background_s": background_cpu_s(run.cpu)},
        "events": [asdict(mark) for mark in run.marks],
        "latency": pooled(run, PIECES),
    }
