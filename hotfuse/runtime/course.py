"""Courses: a model runs by a plan that chance made, and by the same with some edits, in turns (`runtime/racing`): every group
of both is a sample of what kernels take, and every edit a sample of what edits make of it. Several times, each time with other
edits: most of the time goes into compiling, and most kernels of the plan are made already.

Before and after it is felt how near the cores are to each other (`runtime/pulse`). What was timed while they were moved is
timed again; samples are of the rates that the machine had at the time, and of two times those count as one that were alike.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from hotfuse.config import Config
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
from hotfuse.hardware.rates import Closeness, Rates, rates_now
from hotfuse.hardware.samples import Samples, make_samples
from hotfuse.hardware.work import Work
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.records import dataclass
from hotfuse.runtime.build import attached, baked, sizes_of, skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.calibration import Calibration
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import team_of
from hotfuse.runtime.pulse import Pulse
from hotfuse.runtime.racing import Laps, Track, best_of
from hotfuse.runtime.specimens import Specimen

EDITS = 12  # of a plan, at once
EDITED = 3  # times that a plan is edited, by edits that it was not edited by before
BAKED = 0.5  # of the plans of a model with free sizes have kernels for those of a call, and the others for all sizes
MOVED = 3  # times that it is timed at most until cores stay where they are
GRAINED = 0.8  # how much later edits of grain come, which are legal nearly everywhere, than those that fuse

Found = tuple[Samples, Samples]  # times and ratios


@dataclass(frozen=True, eq=False)
class _Edited:
    """A plan with some edits, none of which touches what another does."""

    groups: list[Fused]
    edits: list[Candidate]


class Course:
    """A specimen, a plan that chance made of it, and the same with some edits. State: what groups took so far, of the plan and
    of each that was made of it, by how near the cores were."""

    def __init__(
        self,
        calibration: Calibration,
        subject: Specimen,
        config: Config,
        source: int,
        pulse: Pulse | None = None,
        help: AskBack | None = None,
    ) -> None:
        self._rates, self._source, self._pulse = calibration.rates, source, pulse
        rng = np.random.default_rng(abs(source))
        hoisted = hoist(native_form(skeleton(subject.graph), calibration.spec), ())
        main = attached(hoisted, subject.graph.constants)
        given = [subject.inputs[name] for name in main.inputs]
        self._sizes = dict(sizes_of(main, {name: NUMPY.type_of(value) for name, value in zip(main.inputs, given, strict=True)}))
        is_baked = bool(self._sizes) and rng.random() < BAKED
        self._graph = graph = baked(hoisted.main, self._sizes) if is_baked else hoisted.main
        self._threads = team_of(graph, self._sizes, config.threads)
        self._plan = random_plan(graph, rng)
        self._edited = _edited(graph, self._plan, rng)
        self._track = Track(hoisted, graph, main, given, config, 1 + len(self._edited), help)
        self._takes: list[list[tuple[Closeness | None, Laps]]] = [[] for _ in self._edited]

    def run(self) -> None:
        """Time it, or time it again."""
        for edited, takes in zip(self._edited, self._takes, strict=True):
            self._race(edited.groups, takes)

    def _race(self, groups: Sequence[Fused], takes: list[tuple[Closeness | None, Laps]]) -> None:
        """Time the plan and another in turns."""
        for _ in range(MOVED):
            before = self._close()
            laps = self._track.laps(self._plan, groups)
            if before is None or before.is_like(self._close() or before):
                break
        for place, (close, known) in enumerate(takes):
            if before is None or close is None or close.is_like(before):
                takes[place] = close, (best_of(known[0], laps[0]), best_of(known[1], laps[1]))
                return
        takes.append((before, laps))

    def _close(self) -> Closeness | None:
        return None if self._pulse is None or self._threads == 1 else self._pulse.feel()

    def found(self) -> Found:
        """Every group that was timed, and every edit whose groups were."""
        found = [
            self._found(edited, laps, rates_now(self._rates, close))
            for edited, takes in zip(self._edited, self._takes, strict=True)
            for close, laps in takes
        ]
        assert found, "it was never timed"
        times, ratios = (functools.reduce(operator.add, samples) for samples in zip(*found, strict=True))
        return times, ratios

    def _found(self, edited: _Edited, raced: Laps, rates: Rates) -> Found:
        graph = self._graph
        plans = [_works(graph, plan, self._sizes) for plan in (self._plan, edited.groups)]
        places = layouts(graph, graph.values)
        timed_ids = {lap.nodes for lap in raced[1]}
        seen: dict[tuple[str, ...], tuple[Work, Lap]] = {}
        told = () if edited is self._edited[0] else plans[0]  # the plan is timed beside each that was made of it
        for works, laps in zip(plans, raced, strict=True):
            by_nodes = {lap.nodes: lap for lap in laps}
            for nodes, work in works.items():
                if nodes not in told and (lap := by_nodes.get(computing(nodes, places))) is not None:
                    seen.setdefault(nodes, (work, lap))
        rows, prior = rows_of([work for work, _ in seen.values()], rates, self._threads)
        lapped = [lap for _, lap in seen.values()]
        spreads = [_part(lap.spread_s, lap.seconds) for lap in lapped]
        times = make_samples(rows, prior, [lap.seconds for lap in lapped], spreads, self._source)
        pairs: list[Edit] = []
        ratios: list[tuple[float, float]] = []
        for candidate in edited.edits:
            gone = [_ids(item.group) for item in candidate.gone if item.group is not None]
            made = [_ids(group) for group in candidate.made]
            region = frozenset(id for ids in gone for id in ids)
            (before, doubt), (after, more) = (sum_of(laps, region) for laps in raced)
            if before > 0 and after > 0 and all(computing(ids, places) in timed_ids for ids in made):
                before_works, after_works = (tuple(p[i] for i in ids) for p, ids in zip(plans, (gone, made), strict=True))
                pairs.append(Edit(candidate.strategy, before_works, after_works))
                ratios.append((after / before, (doubt + more) / before))
        rows, _ = pair_rows(pairs, rates, self._threads)
        return times, make_samples(rows, np.ones(len(rows)), [r for r, _ in ratios], [s for _, s in ratios], self._source)


def _edited(graph: Graph, groups: Sequence[Fused], rng: np.random.Generator) -> list[_Edited]:
    """Plans made of one by edits; those after the first by such as none before was."""
    places = layouts(graph, graph.values)
    legality = Legality(graph, graph.values, places)
    found = list(find(draft := Draft(graph, places, groups), legality, list(draft)))
    order = np.argsort(rng.random(len(found)) + [GRAINED * (candidate.strategy == GRAIN) for candidate in found])
    left, plans = [found[place] for place in order], list[_Edited]()
    while len(plans) < EDITED and (left or not plans):
        draft = Draft(graph, places, groups)
        items = {item.name: item for item in draft}
        made: list[Candidate] = []
        touched: set[str] = set()
        for candidate in left:
            if len(made) < EDITS and touched.isdisjoint(candidate.names) and apply(draft, candidate.on(items)):
                touched.update(candidate.names)
                made.append(candidate)
        if plans and not made:
            break
        plans.append(_Edited(draft.groups, made))
        left = [candidate for candidate in left if candidate not in made]
    return plans


def _works(graph: Graph, groups: Sequence[Fused], sizes: Mapping[str, int]) -> dict[tuple[str, ...], Work]:
    found = analyse(groups, graph, graph.values, layouts(graph, graph.values), sizes)
    return {_ids(group): work for group, work in zip(groups, found, strict=True)}


def _ids(group: Fused) -> tuple[str, ...]:
    return tuple(node.id for node in group.nodes)


def _part(spread_s: float, seconds: float) -> float:
    return spread_s / seconds if seconds > 0 else 0.0
