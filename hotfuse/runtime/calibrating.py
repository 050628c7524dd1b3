"""Calibrating: specimens are timed until the time is up, forests are trained of what they took, and all is kept.

A specimen runs by a plan that chance made, and by the same with some edits, in turns (`runtime/racing`): every group of both is
a sample of what kernels take, and every edit a sample of what edits make of it.

Who is interrupted goes on where it was: samples are put into the cache every few seconds, and seeds of specimens are numbers in
order.

State: what is in the cache (`runtime/calibration`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.fusion.analyzer import analyse
from hotfuse.fusion.candidates import Candidate, find
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.exploring import random_plan
from hotfuse.fusion.legality import Legality
from hotfuse.fusion.rules import Fused
from hotfuse.fusion.tuning import Lap, computing, sum_of
from hotfuse.hardware.features import rows_of
from hotfuse.hardware.pairs import GRAIN, Edit, pair_rows
from hotfuse.hardware.retrain import TrainReply, TrainRequest
from hotfuse.hardware.samples import Samples, make_samples, no_samples, write_samples
from hotfuse.hardware.work import Work
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.build_jobs import worker_job
from hotfuse.runtime.build_pool import build_pool
from hotfuse.runtime.building import native_form
from hotfuse.runtime.calibration import RATIOS, SUBJECTS, TIMES, Calibration, Subject
from hotfuse.runtime.quiet import Quiet
from hotfuse.runtime.racing import Track
from hotfuse.runtime.specimens import Specimen, specimen

KEEP_S = 10.0  # between two savings
ALONE = 4  # of so many specimens, one is timed on one thread
EDITS = 12  # of a specimen's plan
GRAINED = 0.8  # how much later edits of grain come, which are legal nearly everywhere, than those that fuse

Progress = Callable[[float, int, str], None]  # seconds passed, samples so far, what is timed
Found = tuple[Samples, Samples]  # times and ratios


def gather(calibration: Calibration, config: Config, seconds: float, progress: Progress, quiet: Quiet | None = None) -> Found:
    """Time specimens for so many seconds, after those that were timed before. `quiet` says when; what is waited does not count,
    and where there is no more patience all ends with what was found so far."""
    times, ratios = (calibration.samples(subject) for subject in SUBJECTS)
    seed = int(times.source.max()) + 1 if len(times) else 0
    begun = kept = time.monotonic()
    waited = 0.0 if quiet is None else quiet.waited_s

    def passed() -> float:
        return time.monotonic() - begun - (0.0 if quiet is None else quiet.waited_s - waited)

    def pause(cores: float) -> None:
        progress(passed(), len(times), f"waiting: others have {cores:.1f} cores")

    def keep() -> None:
        for subject, samples in zip(SUBJECTS, (times, ratios), strict=True):
            calibration.keep(subject.samples, subject, write_samples(samples))

    try:
        while passed() < seconds:
            if quiet is not None and not quiet.wait(pause):
                break
            progress(passed(), len(times), f"specimen {seed}")
            new_times, new_ratios = timed(calibration, specimen(seed), config, seed)
            times, ratios = times + new_times, ratios + new_ratios
            seed += 1
            if time.monotonic() - kept > KEEP_S:
                keep()
                kept = time.monotonic()
    finally:
        keep()
    return times, ratios


def timed(calibration: Calibration, subject: Specimen, config: Config, source: int) -> Found:
    """What the groups of a specimen took, and what edits made of it: some specimens' on one thread, the others' on all."""
    threads = 1 if source % ALONE == 0 else calibration.rates.threads
    try:
        return _raced(calibration, subject, replace(config, threads=threads), source)
    except HotfuseError:  # a model that cannot run teaches nothing
        return no_samples(TIMES.columns), no_samples(RATIOS.columns)


def _raced(calibration: Calibration, subject: Specimen, config: Config, source: int) -> Found:
    rng = np.random.default_rng(source)
    hoisted = hoist(native_form(skeleton(subject.graph), calibration.spec), ())
    graph = hoisted.main
    groups = random_plan(graph, rng)
    edited, edits = _edited(graph, groups, rng)
    given = [subject.inputs[name] for name in graph.inputs]
    race = Track(hoisted, graph, attached(hoisted, subject.graph.constants), given, config).race(groups, edited)
    plans = [_works(graph, plan) for plan in (groups, edited)]
    rates, threads, places = calibration.rates, config.threads, layouts(graph, graph.values)
    timed_ids = {lap.nodes for lap in race.laps[1]}
    seen: dict[tuple[str, ...], tuple[Work, Lap]] = {}
    for works, laps in zip(plans, race.laps, strict=True):
        by_nodes = {lap.nodes: lap for lap in laps}
        for nodes, work in works.items():
            if (lap := by_nodes.get(computing(nodes, places))) is not None:
                seen.setdefault(nodes, (work, lap))
    rows, prior = rows_of([work for work, _ in seen.values()], rates, threads)
    laps = [lap for _, lap in seen.values()]
    times = make_samples(rows, prior, [lap.seconds for lap in laps], [_part(lap.spread_s, lap.seconds) for lap in laps], source)
    pairs: list[Edit] = []
    ratios: list[tuple[float, float]] = []
    for candidate in edits:
        gone = [_ids(item.group) for item in candidate.gone if item.group is not None]
        made = [_ids(group) for group in candidate.made]
        region = frozenset(id for ids in gone for id in ids)
        (before, doubt), (after, more) = (sum_of(laps, region) for laps in race.laps)
        if before > 0 and after > 0 and all(computing(ids, places) in timed_ids for ids in made):
            pairs.append(
                Edit(candidate.strategy, *(tuple(p[i] for i in ids) for p, ids in zip(plans, (gone, made), strict=True)))
            )
            ratios.append((after / before, (doubt + more) / before))
    rows, prior = pair_rows(pairs, rates, threads)
    return times, make_samples(rows, prior, [r for r, _ in ratios], [s for _, s in ratios], source)


def _edited(graph: Graph, groups: Sequence[Fused], rng: np.random.Generator) -> tuple[list[Fused], list[Candidate]]:
    """A plan with some edits, none of which touches what another does."""
    places = layouts(graph, graph.values)
    draft = Draft(graph, places, groups)
    found = list(find(draft, Legality(graph, graph.values, places), list(draft)))
    made: list[Candidate] = []
    touched: set[str] = set()
    chance = rng.random(len(found)) + [GRAINED * (candidate.strategy == GRAIN) for candidate in found]
    for place in np.argsort(chance):
        candidate = found[place]
        if len(made) < EDITS and touched.isdisjoint(candidate.names) and apply(draft, candidate):
            touched.update(candidate.names)
            made.append(candidate)
    return draft.groups, made


def _works(graph: Graph, groups: Sequence[Fused]) -> dict[tuple[str, ...], Work]:
    found = analyse(groups, graph, graph.values, layouts(graph, graph.values), {})
    return {_ids(group): work for group, work in zip(groups, found, strict=True)}


def _ids(group: Fused) -> tuple[str, ...]:
    return tuple(node.id for node in group.nodes)


def _part(spread_s: float, seconds: float) -> float:
    return spread_s / seconds if seconds > 0 else 0.0


def retrain(calibration: Calibration, samples: Samples, config: Config, subject: Subject = TIMES) -> TrainReply:
    """Have a worker train a forest, and keep it if it is better than the one that is there."""
    asked = TrainRequest(samples, subject.columns, calibration.forest(subject), subject.are_ratios)
    done = threading.Event()
    found: list[TrainReply | BaseException] = []

    def finish(result: TrainReply | BaseException) -> None:
        found.append(result)
        done.set()

    build_pool(config).submit(worker_job("training", lambda: asked, TrainReply, finish, config, kind="train"))
    done.wait()
    (reply,) = found
    if not isinstance(reply, TrainReply):
        raise WorkerError(f"no forest was trained: {reply}", getattr(reply, "cause", ""))
    if reply.forest:
        calibration.keep(subject.forest, subject, reply.forest)
    return reply
