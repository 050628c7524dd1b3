"""What a timeline must show of each adaptive engine, from cold:

  first call     at most 1.1x eager's
  p99.9          at most max(2x eager's median, 1.2x eager's own p99.9)
  CPU seconds    of capture and compilation: at most half of Inductor's
  half load      p99 until steady state at most 1.2x that of what answers then, alone; the pace of steady state met, and kept,
                 no later than by Inductor, from an ONNX file in a fifth of that time
  closed loop    at most 15 % of the time lost to background work, and steady state reached in every round
  steady state   within 3 % of `Config(tier=1, wait=True)`

First calls and CPU seconds are medians over the rounds of all loads: neither depends on the load.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hotfuse.cli.bench.criteria import Criterion
from hotfuse.cli.bench.timeline import Run, background_cpu_s, show_causes
from hotfuse.cli.bench.timeline_runs import ADAPTIVE, EAGER, INDUCTOR, Timeline
from hotfuse.cli.bench.timeline_summary import Summary, summary_of, undisturbed_p99_s

FIRST_CALL = 1.1
TAIL_OF_MEDIAN, TAIL_OF_TAIL = 2.0, 1.2
CPU_SHARE = 0.5
DISTURBED_P99 = 1.2
STEADY_TIME = {"adaptive-torch": 1.0, "adaptive-onnx": 0.2}
LOST = 0.15
DISTURBED = -0.05  # nobody serves more calls beside work than without: what was alone was held up by others
STEADY = 1.03


def judge_timelines(timelines: Sequence[Timeline]) -> list[Criterion]:
    return [
        criterion
        for timeline in timelines
        for engine in ADAPTIVE
        if engine in timeline.engines or timeline.failed
        for criterion in _judge(timeline, engine)
    ]


def _judge(timeline: Timeline, engine: str) -> list[Criterion]:
    name = f"{timeline.model} {engine.removeprefix('adaptive-')}"
    first_call = _ratio(_over_loads(timeline, engine, _first_call), _over_loads(timeline, EAGER, _first_call))
    cpu, other_cpu = (_over_loads(timeline, e, _background) for e in (engine, INDUCTOR))
    found = [
        _at_most(f"{name}: first call / eager's", first_call, FIRST_CALL, detail=_construction(timeline, engine)),
        _at_most(
            f"{name}: CPU time behind / Inductor's", _ratio(cpu, other_cpu), CPU_SHARE,
            detail="" if cpu is None or other_cpu is None else f"{cpu:.2f} s, {other_cpu:.2f} s",
        ),
    ]  # fmt: skip
    for load in timeline.loads:
        ours = summary_of(timeline, engine, load)
        found.append(_tail(name, ours, summary_of(timeline, EAGER, load)))
        found += _closed(name, timeline, ours) if load == "closed" else _half(name, timeline, ours)
    ratio = timeline.ratio(engine)
    detail = timeline.turns_failed(engine)
    if ratio:
        detail = f"95 % interval {ratio.low:.3f} to {ratio.high:.3f}, {ratio.rounds} turns"
    figure = ratio.value if ratio else None
    return [*found, _at_most(f"{name}: steady / tier=1, wait=True", figure, STEADY, detail=detail)]


def _at_most(what: str, figure: float | None, wanted: float, unit: str = "x", detail: str = "") -> Criterion:
    return Criterion(what, figure, wanted, at_least=False, unit=unit, detail=detail)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _first_call(run: Run) -> float:
    return run.first_call_s


def _construction(timeline: Timeline, engine: str) -> str:
    """How much of a first call is what comes before it: loading a file, or imports."""
    before = _over_loads(timeline, engine, lambda run: run.construct_s)
    alone = _ratio(*(_over_loads(timeline, e, lambda run: float(run.seconds[0])) for e in (engine, EAGER)))
    return "" if before is None or alone is None else f"{1e3 * before:.0f} ms before the call, which is {alone:.2f}x by itself"


def _background(run: Run) -> float:
    return background_cpu_s(run.cpu)


def _over_loads(timeline: Timeline, engine: str, figure: Callable[[Run], float]) -> float | None:
    """The median over all runs of an engine; None where one does not count."""
    runs = [run for run in timeline.runs if run.engine == engine]
    return statistics.median(map(figure, runs)) if runs and all(run.counts for run in runs) else None


def _tail(name: str, ours: Summary, eager: Summary) -> Criterion:
    """Said in medians of eager."""
    what = f"{name}: p99.9 / eager's median, {ours.load}"
    wanted = TAIL_OF_MEDIAN
    if eager.p999_s is not None and eager.median_s:
        wanted = max(wanted, TAIL_OF_TAIL * eager.p999_s / eager.median_s)
    causes = show_causes(ours.outliers)
    detail = f"outliers: {causes or 'none'} (eager: {len(eager.outliers)})"
    return _at_most(what, _ratio(ours.p999_s, eager.median_s), wanted, detail=detail if ours.status == "ok" else "")


def _closed(name: str, timeline: Timeline, ours: Summary) -> list[Criterion]:
    rounds = len(timeline.of(ours.engine, ours.load))
    detail = "more than alone: others used the machine" if ours.lost is not None and ours.lost < DISTURBED else ""
    return [
        _at_most(f"{name}: lost to work behind, closed", ours.lost, LOST, unit="%", detail=detail),
        Criterion(f"{name}: rounds that became steady, closed", ours.reached_rounds, rounds, unit=""),
    ]


def _half(name: str, timeline: Timeline, ours: Summary) -> list[Criterion]:
    alone = undisturbed_p99_s(timeline, ours.engine, ours.load)
    peer = summary_of(timeline, INDUCTOR, ours.load)
    wanted = STEADY_TIME[ours.engine]
    what = f"{name}: p99 until steady / un-fused alone, half"
    return [
        _at_most(what, _ratio(ours.p99_before_s, alone), DISTURBED_P99),
        _sooner(f"{name}: steady pace met after / Inductor's, half", ours.met_s, peer.met_s, wanted),
        _sooner(f"{name}: time to steady / Inductor's, half", ours.reached_s, peer.reached_s, wanted),
    ]


def _sooner(what: str, ours_s: float | None, peers_s: float | None, wanted: float) -> Criterion:
    times = "" if ours_s is None or peers_s is None else f"{ours_s:.2f} s, {peers_s:.2f} s"
    return _at_most(what, _ratio(ours_s, peers_s), wanted, detail=times)
