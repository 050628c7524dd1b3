"""One model, all engines: made ready, opened one by one, timed in turns, judged, and held against the roofline."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.cli.bench.engines import Settings, cold_caches, thread_environment
from hotfuse.cli.bench.judge import judge
from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.roofline import Rates, Work, floor_s
from hotfuse.cli.bench.rounds import Entrant, Failed, Player, take_turns
from hotfuse.cli.bench.subject import Subject, read_subject
from hotfuse.cli.bench.timing import Ratio, Timing, geometric_mean, ratio_of, summarize
from hotfuse.numerics import Verdict
from hotfuse.records import dataclass

OURS = "hotfuse"  # engines whose names begin so are ours, the others are peers
PROBE_S = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Rules:
    """How a contest is run. `limit_s` bounds every answer of a worker: opening an engine, one round."""

    settings: Settings
    rounds: int = 9
    seconds: float = 1.0
    least: int = 3  # calls in a round, however long they take
    limit_s: float = 600.0
    copies: bool = False  # measure a streaming copy as well


@dataclass(frozen=True)
class Row:
    """What one engine did. `status` is ok, wrong, unchecked, failed, or skipped where the engine does not take such models;
    `reason` says why it is not ok."""

    engine: str
    status: str
    reason: str = ""
    notes: str = ""
    facts: Mapping[str, int] = field(default_factory=dict)
    timing: Timing | None = None
    first_call_s: float = 0.0
    compile_s: float = 0.0
    peak_bytes: int = 0
    roofline_share: float | None = None
    ratio: Ratio | None = None  # to our engine: above 1 we are faster

    @property
    def counts(self) -> bool:
        return self.status == "ok" and self.timing is not None


@dataclass(frozen=True)
class Result:
    """A contest's rows. `ours` is our fastest engine with a right answer, `best_peer` the fastest right peer."""

    model: str
    rows: tuple[Row, ...]
    oracle: str = ""
    work: Work | None = None
    rates: Rates | None = None
    floor_s: float | None = None
    ours: str = ""
    best_peer: str = ""
    failed: str = ""

    @property
    def speedup(self) -> Ratio | None:
        """Over the best peer."""
        return next((r.ratio for r in self.rows if r.engine == self.best_peer), None)

    @property
    def is_right(self) -> bool:
        """False where an answer is wrong or was not checked. An engine that gave none is not wrong."""
        return not self.failed and not any(row.status in ("wrong", "unchecked") for row in self.rows)


def hold(case: Case, engines: Sequence[str], rules: Rules, say: Say) -> Result:
    """Run the contest of one model. Whatever an engine does becomes a row."""
    with tempfile.TemporaryDirectory(prefix="hotfuse-bench-") as place:
        folder = Path(place)
        environment = {**thread_environment(rules.settings.threads), **cold_caches(place)}
        say("building the model and its float64 answer")
        maker = Player(environment)
        try:
            maker.ask(rules.limit_s, do="subject", case=asdict(case), folder=str(folder / "subject"))
        except Failed as failed:
            return Result(case.label, (), failed=str(failed))
        finally:
            maker.close()
        subject = read_subject(folder / "subject")
        entrants = [Entrant(engine) for engine in engines]
        prober = Player(environment)
        try:
            for number, entrant in enumerate(entrants):
                entrant.player = Player({**environment, **cold_caches(f"{place}/{number}")})
            return compete(subject, entrants, rules, folder, say, prober)
        finally:
            for entrant in entrants:
                entrant.close()
            prober.close()


def compete(
    subject: Subject, entrants: Sequence[Entrant], rules: Rules, folder: Path, say: Say, prober: Player | None = None
) -> Result:
    """Entrants that have their workers, on a subject that is ready: opened, timed in turns, judged. `folder` is where answers
    are left; without a prober nothing is said of the roofline."""
    for number, entrant in enumerate(entrants):
        say(f"opening {entrant.engine}")
        _open(entrant, subject, rules, folder / str(number))
    rates = _run(entrants, prober, subject.work, rules, say)
    for number, entrant in enumerate(entrants):
        found = entrant.ask(rules.limit_s, do="finish", answer=str(folder / f"{number}-last.npz"))
        entrant.notes, entrant.facts = (found["notes"], found["facts"]) if found else ("", {})
    say("judging the answers")
    verdicts = [_verdict(subject, folder, number) for number, _ in enumerate(entrants)]
    return _result(subject, entrants, verdicts, rates)


def _open(entrant: Entrant, subject: Subject, rules: Rules, answer: Path) -> None:
    found = entrant.ask(
        rules.limit_s,
        watch=True,
        do="open",
        engine=entrant.engine,
        settings=asdict(rules.settings),
        folder=subject.folder,
        answer=f"{answer}-first.npz",
    )
    if found is not None:
        entrant.load_s, entrant.first_call_s = found["load_s"], found["first_call_s"]


def _run(entrants: Sequence[Entrant], prober: Player | None, work: Work | None, rules: Rules, say: Say) -> Rates | None:
    """All rounds, with a probe of the machine at the start of each; the rates are the medians of the probes."""
    found: list[Rates] = []
    last = -1
    for number in take_turns(entrants, rules.rounds, rules.seconds, rules.least, rules.limit_s):
        if number != last and work is not None and prober is not None:
            with suppress(Failed):  # then the roofline stays unknown, and the contest goes on
                found.append(_probe(prober, work.bytes, rules))
        last = number
        say(f"round {number + 1} of {rules.rounds}")
    if not found:
        return None
    copies = [r.copy_bytes_s for r in found if r.copy_bytes_s]
    return Rates(
        statistics.median(r.flops_s for r in found),
        statistics.median(r.bytes_s for r in found),
        statistics.median(copies) if copies else None,
    )


def _probe(prober: Player, bytes: int, rules: Rules) -> Rates:
    def rate(what: str, bytes: int) -> float:
        threads = rules.settings.threads
        found = prober.ask(rules.limit_s, do="probe", what=what, threads=threads, seconds=PROBE_S, bytes=bytes)
        return float(found["rate"])

    return Rates(rate("fma", 0), rate("read", bytes), rate("copy", bytes // 2) if rules.copies else None)


def _verdict(subject: Subject, folder: Path, number: int) -> Verdict:
    """The first answer and the last must both be right: what serves may have changed in between."""
    if subject.no_exact:
        return Verdict(False, subject.no_exact)
    original, exact = (list(subject.arrays(name).values()) for name in ("original", "exact"))
    for when in ("first", "last"):
        path = folder / f"{number}-{when}.npz"
        if not path.exists():
            continue
        with np.load(path, allow_pickle=False) as found:
            verdict = judge(list(found.values()), original, exact)
        if not verdict:
            return Verdict(False, f"{when} answer: {verdict.reason}")
    return Verdict(True)


def _result(subject: Subject, entrants: Sequence[Entrant], verdicts: Sequence[Verdict], rates: Rates | None) -> Result:
    floor = floor_s(subject.work, rates) if subject.work and rates else None
    rows = [_row(e, v, bool(subject.no_exact), floor) for e, v in zip(entrants, verdicts, strict=True)]
    right = sorted((r for r in rows if r.counts), key=lambda r: r.timing.median_s if r.timing else 0.0)
    ours = next((r for r in right if r.engine.startswith(OURS)), None)
    peer = next((r for r in right if not r.engine.startswith(OURS)), None)
    compared = tuple(_compared(r, ours) for r in rows)
    return Result(
        subject.label,
        compared,
        subject.oracle,
        subject.work,
        rates,
        floor,
        ours.engine if ours else "",
        peer.engine if peer else "",
    )


def _row(entrant: Entrant, verdict: Verdict, unchecked: bool, floor: float | None) -> Row:
    timing = summarize(entrant.rounds) if entrant.rounds else None
    status = "ok" if verdict else "unchecked" if unchecked else "wrong"
    if entrant.failed:
        status = "skipped" if entrant.skipped else "failed"
    steady = timing.median_s if timing else 0.0
    return Row(
        entrant.engine,
        status,
        entrant.failed or verdict.reason,
        entrant.notes,
        entrant.facts,
        timing,
        entrant.first_call_s,
        max(0.0, entrant.load_s + entrant.first_call_s - steady),
        entrant.peak_bytes,
        floor / steady if floor and steady else None,
    )


def _compared(row: Row, ours: Row | None) -> Row:
    if ours is None or not row.counts or row.engine == ours.engine or row.timing is None or ours.timing is None:
        return row
    return replace(row, ratio=ratio_of(row.timing.round_medians_s, ours.timing.round_medians_s))


def overall(results: Sequence[Result]) -> float | None:
    """The geometric mean of our speed over the best peer of each model."""
    return geometric_mean([r.speedup.value for r in results if r.speedup])


def as_json(result: Result) -> dict[str, Any]:
    found = asdict(result)
    found["speedup"] = asdict(result.speedup) if result.speedup else None
    for row, source in zip(found["rows"], result.rows, strict=True):
        if source.ratio:
            row["ratio"]["is_claim"] = source.ratio.is_claim
    return found
