"""Timelines of one model: every engine from cold in a fresh process, one after the other, round by round.

    for each round, for each load, for each engine: a process with empty caches -> `Run`

After one run of a round, that at half load if there is one, an adaptive engine takes turns with a process of
`Config(tier=1, wait=True)`, as in any contest: what it came to is compared within seconds of the same weather.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.cli.bench.contest import Rules, Say
from hotfuse.cli.bench.engines import cold_caches, thread_environment
from hotfuse.cli.bench.judge import judge
from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.rounds import Entrant, Failed, Player, take_turns
from hotfuse.cli.bench.subject import Subject, read_subject
from hotfuse.cli.bench.timeline import Cpu, Mark, Run
from hotfuse.cli.bench.timing import Ratio, ratio_of
from hotfuse.numerics import Verdict
from hotfuse.records import dataclass

EAGER, INDUCTOR, UNFUSED = "eager", "inductor", "unfused-onnx"
# each adaptive engine: what it answers with at first, and what it is to come to
ADAPTIVE = {"adaptive-torch": (EAGER, "hotfuse-torch"), "adaptive-onnx": (UNFUSED, "hotfuse-onnx")}
LOADS = ("closed", "half")
TURNS, TURN_S, LEAST_CALLS = 5, 1.0, 3


@dataclass(frozen=True)
class Turns:
    """Medians of an adaptive engine at the end of a run and of what it is to come to, turn by turn; `failed` says why not."""

    engine: str
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class Timeline:
    """All runs of one model, and the turns of each round."""

    model: str
    runs: tuple[Run, ...] = ()
    turns: tuple[Turns, ...] = ()
    oracle: str = ""
    failed: str = ""

    def of(self, engine: str, load: str) -> list[Run]:
        return [run for run in self.runs if (run.engine, run.load) == (engine, load)]

    def good(self, engine: str, load: str) -> list[Run]:
        """The runs of an engine if all of them count, and none if one does not: a failure never improves a figure."""
        found = self.of(engine, load)
        return found if all(run.counts for run in found) else []

    @property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(run.engine for run in self.runs))

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(run.load for run in self.runs))

    def ratio(self, engine: str) -> Ratio | None:
        """The time of an adaptive engine at the end of its runs over that of `Config(tier=1, wait=True)`; None where the turns
        of a round failed."""
        turns = [one for one in self.turns if one.engine == engine]
        if not turns or self.turns_failed(engine):
            return None
        return ratio_of([s for one in turns for s in one.ours], [s for one in turns for s in one.theirs])

    def turns_failed(self, engine: str) -> str:
        return next((one.failed for one in self.turns if one.engine == engine and one.failed), "")


def count_runs(engines: Sequence[str], loads: Sequence[str], rules: Rules) -> int:
    return len(engines) * len(loads) * rules.rounds


def hold_timeline(case: Case, engines: Sequence[str], loads: Sequence[str], rules: Rules, say: Say) -> Timeline:
    """Run the timelines of one model. Whatever an engine does becomes a run."""
    with tempfile.TemporaryDirectory(prefix="hotfuse-bench-") as place:
        environment = thread_environment(rules.settings.threads)
        say("building the model and its float64 answer")
        maker = Player({**environment, **cold_caches(place)})
        try:
            maker.ask(rules.limit_s, do="subject", case=asdict(case), folder=f"{place}/subject")
        except Failed as failed:
            return Timeline(case.label, failed=str(failed))
        finally:
            maker.close()
        subject = read_subject(Path(place) / "subject")
        runs: list[Run] = []
        turns: list[Turns] = []
        for number, load, engine in itertools.product(range(rules.rounds), loads, engines):
            say(f"round {number + 1} of {rules.rounds}, {load} load, {engine}")
            with _fresh_player(place, environment) as (player, own):
                runs.append(_run(player, subject, engine, load, number, rules, own))
                if runs[-1].counts and engine in ADAPTIVE and load == turns_after(loads):
                    with _fresh_player(place, environment) as (other, _):
                        turns.append(_take_turns(engine, player, other, subject, rules, own))
        return Timeline(case.label, tuple(runs), tuple(turns), subject.oracle)


def turns_after(loads: Sequence[str]) -> str:
    """The load after whose run an adaptive engine is held against what it is to come to."""
    return "half" if "half" in loads else loads[0]


@contextmanager
def _fresh_player(place: str, environment: Mapping[str, str]) -> Iterator[tuple[Player, Path]]:
    """A worker with empty caches, and a folder for what it leaves."""
    with tempfile.TemporaryDirectory(dir=place) as own:
        player = Player({**environment, **cold_caches(own)})
        try:
            yield player, Path(own)
        finally:
            player.close()


def _run(player: Player, subject: Subject, engine: str, load: str, number: int, rules: Rules, own: Path) -> Run:
    seconds = rules.seconds / 3 if engine == UNFUSED else rules.seconds  # it never changes
    request: dict[str, Any] = {"engine": engine, "settings": asdict(rules.settings), "folder": subject.folder, "load": load}
    try:
        found = player.ask(rules.limit_s + seconds, do="timeline", seconds=seconds, place=str(own), **request)
    except Failed as failed:
        return Run(engine, load, number, "skipped" if failed.skipped else "failed", str(failed))
    with np.load(own / "calls.npz", allow_pickle=False) as arrays:
        starts, took, process, client = arrays.values()
    verdict = _verdict(subject, own, found["answers_s"])
    return Run(
        engine,
        load,
        number,
        "ok" if verdict else "unchecked" if subject.no_exact else "wrong",
        verdict.reason,
        found["notes"],
        found["construct_s"],
        starts,
        took,
        Cpu(process, client, found["opening_s"], found["threads_s"], found["children_s"]),
        tuple(Mark(*mark) for mark in found["marks"]),
        tuple((at, cpu) for at, cpu in found["samples"]),
        len(found["answers_s"]),
        engine in ADAPTIVE,
    )


def _verdict(subject: Subject, own: Path, answers_s: Sequence[float]) -> Verdict:
    """All answers that were kept must be right: what serves changes in between."""
    if subject.no_exact:
        return Verdict(False, subject.no_exact)
    original, exact = (list(subject.arrays(name).values()) for name in ("original", "exact"))
    for number, at_s in enumerate(answers_s):
        with np.load(own / f"answer-{number}.npz", allow_pickle=False) as found:
            verdict = judge(list(found.values()), original, exact)
        if not verdict:
            return Verdict(False, f"the answer at {at_s:.2f} s: {verdict.reason}")
    return Verdict(True)


def _take_turns(engine: str, player: Player, other: Player, subject: Subject, rules: Rules, own: Path) -> Turns:
    """An adaptive engine that is open against what it is to come to, which is opened in the other worker."""
    entrants = ours, goal = Entrant(engine, player), Entrant(ADAPTIVE[engine][1], other)
    request: dict[str, Any] = {"settings": asdict(rules.settings), "folder": subject.folder, "answer": str(own / "goal.npz")}
    goal.ask(rules.limit_s, do="open", engine=goal.engine, **request)
    for _ in take_turns(entrants, TURNS, min(TURN_S, rules.seconds / 10), LEAST_CALLS, rules.limit_s):
        if ours.failed or goal.failed:
            break
    if ours.failed or goal.failed:
        return Turns(engine, failed=f"{ours.engine}: {ours.failed}" if ours.failed else f"{goal.engine}: {goal.failed}")
    mine, theirs = (tuple(float(np.median(turn)) for turn in entrant.rounds) for entrant in entrants)
    return Turns(engine, mine, theirs)
