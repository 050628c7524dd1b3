"""The fusion engine: the dynamic compilation graph, from the plan of the rules to one that is predicted to be faster.

    rules' groups -> draft -> legal edits (`candidates`) -> predicted gain (`hardware/model`), scored (`criteria`) -> the best
    ones are made -> edits around what changed -> ... until nothing pays -> groups

An edit is made where its predicted gain exceeds a part of what it is about, `LEAST_GAIN` or what repeated measurements on
this machine differ by if that is more, and is surely one: the model's trees, each asked what the edit makes of the time,
agree on it but for `SURE` standard deviations of theirs. What may pay and is not sure is told (`Planned.unsure`): it is to be
measured, not trusted. Who measures it asks for the plan with it made (`revise`).

Rounds. Of all edits of a round those with the largest gain are made first, each if what it is about is still there; the next
round looks at what is new alone. Distances that bytes come from are those of the rules' plan: an edit moves groups by a few
places. So planning takes a time in proportion to the number of groups.

State: none outside of one `plan`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hotfuse.errors import IllegalEdit
from hotfuse.fusion.analyzer import Analyzer
from hotfuse.fusion.candidates import Candidate, find, verdicts
from hotfuse.fusion.chains import make_chains
from hotfuse.fusion.criteria import Score, score, show
from hotfuse.fusion.draft import Draft, Item
from hotfuse.fusion.edits import apply
from hotfuse.fusion.legality import Legality, Refusal
from hotfuse.fusion.ordering import Pair, arrange, pace_of
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.fusion.weaving import Place, Side, Weave, weigh
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import ACROSS, GRAIN, LAYOUT, REGISTERS, SIBLINGS, SPLIT, STRIPS, Edit, Looks
from hotfuse.hardware.prior import Bound, roofline
from hotfuse.hardware.spec import Spec
from hotfuse.hardware.work import Touch, Work
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import Layout
from hotfuse.records import dataclass

LEAST_GAIN = 0.02  # of the time of what is edited: a compile and a proof cost more than less would bring
SURE = 1.0  # standard deviations of the trees' gains that must be left of it
MOST_ROUNDS = 64
MOST_UNSURE = 64  # edits that are told: a build carries them, and traffic tries one at a time
LEAST_SHARED_S = 5e-6  # of a group that one thread has for itself, where nobody measured what handing a part of it over costs
LEAST_TURNED_S = 0.2e-6  # gained by what turns elements on their way: of less a roofline knows nothing
MOST_BLOCK = 384  # elements of a row that is one block: of longer ones every walk computes anew what it folds
BESIDE, WOVEN = "beside", "woven"  # the strategies of an order


@dataclass(frozen=True, eq=False)
class Planner:
    """What decides: a model of the machine, and the sizes that calls have."""

    model: Model
    spec: Spec
    sizes: Mapping[str, int]
    complements: bool = True  # groups that complement each other run side by side


@dataclass(frozen=True)
class Revision:
    """An edit by what it is known by wherever the same graph is planned: its strategy, the groups that it is about by their
    names, and which of the edits it is that the strategy has for these."""

    strategy: str
    groups: tuple[str, ...]
    choice: int = 0


@dataclass(frozen=True)
class Step:
    """An edit of the plan: groups by their names, seconds as predicted or measured, how far the gain may be off, and what
    speaks for it."""

    strategy: str
    groups: tuple[str, ...]
    made: tuple[str, ...]
    before_s: float
    after_s: float
    spread_s: float
    scores: tuple[Score, ...]
    is_measured: bool = False
    choice: int = 0  # which of the edits that the strategy has for these groups
    digest: str = ""  # of what is done before and after: the same for layers alike, in every process

    @property
    def revision(self) -> Revision:
        return Revision(self.strategy, self.groups, self.choice)

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s

    def __str__(self) -> str:
        how = "measured" if self.is_measured else "predicted"
        times = f"{1e6 * self.before_s:.4g} us to {1e6 * self.after_s:.4g} us, give or take {1e6 * self.spread_s:.2g} us"
        return "; ".join(filter(None, (f"{self.strategy}: {how} {times}", show(self.scores))))


@dataclass(frozen=True, eq=False)
class Planned:
    """The groups, in an order in which they can run; the edits that led there, and those that nobody can be sure of, what may
    gain most first. `failure` says why the engine has no plan, where it failed and these are the rules'."""

    groups: tuple[Fused, ...]
    steps: tuple[Step, ...] = ()
    unsure: tuple[Step, ...] = ()
    failure: str = ""


@dataclass(frozen=True, eq=False)
class Weighed:
    """A candidate with what it would do: the works that would come, what those that go take, what of that would be gained, and
    how far trees disagree on it."""

    candidate: Candidate
    works: tuple[Work, ...]
    before_s: float
    gain_s: float
    spread_s: float
    least: float = LEAST_GAIN  # that must be gained, as a part of the time before

    @property
    def pays(self) -> bool:
        return self.gain_s > self.least * self.before_s

    @property
    def may_pay(self) -> bool:
        return self.most_s > self.least * self.before_s

    @property
    def most_s(self) -> float:
        """What may be gained, where trees disagree."""
        return self.gain_s + SURE * self.spread_s

    @property
    def is_sure(self) -> bool:
        return self.gain_s - SURE * self.spread_s > self.least * self.before_s


def plan(graph: Graph, values: Mapping[str, Value], layouts: Mapping[str, Layout], planner: Planner) -> Planned:
    """The groups of a graph that are predicted to be fastest."""
    return Engine(graph, values, layouts, planner).run()


class Engine:
    """Begins with groups that are given, or with those of the rules. State: the draft, and what is known of its items: what
    each does and takes, once and for all, and so what was asked of edits of them. Rounds meet many of those again, and who
    tells what is unsure meets them all."""

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Value],
        layouts: Mapping[str, Layout],
        planner: Planner,
        groups: Sequence[Fused] | None = None,
    ) -> None:
        self._planner = planner
        if groups is None:
            groups = make_chains(fuse(graph, values, layouts), graph, values, layouts, planner.spec.l2_bytes)
        self._analyzer = Analyzer(graph, values, layouts, planner.sizes)
        self._legality = Legality(graph, values, layouts)
        self.draft = Draft(graph, layouts, groups)
        items = [item for item in self.draft if item.group is not None]
        works = self._analyzer.located([self._analyzer.work(item.group) for item in items if item.group])
        self._works = dict(zip(items, works, strict=True))
        self._seconds = dict(zip(items, planner.model.predict(list(self._works.values())).seconds.tolist(), strict=True))
        self._steps: list[Step] = []
        self._doubtful: dict[Item, None] = {}  # what edits are about that may pay and are not sure
        self._looks = Looks(planner.model.rates, planner.model.threads)
        self._weighed: dict[tuple[str, tuple[Item, ...], int], Weighed] = {}

    def run(self) -> Planned:
        around: Iterable[Item] = list(self.draft)
        for _ in range(MOST_ROUNDS):
            weighed = self.weigh(self.candidates(around))
            around = self._edit(sorted((w for w in weighed if w.is_sure), key=lambda w: -w.gain_s))
            doubtful = [w for w in weighed if w.may_pay and not w.is_sure]
            self._doubtful |= dict.fromkeys(item for w in doubtful for item in w.candidate.gone)
            if not around:
                break
            self.draft.close_gaps()
        unsure = self._unsure()
        return Planned(tuple(self.ordered()), tuple(self._steps), unsure)

    def _unsure(self) -> tuple[Step, ...]:
        """The edits of the plan as it is now that may pay and are not sure."""
        named = self._named(item for item in self._doubtful if item in self.draft)
        weighed = zip(named, self.weigh(list(named.values())), strict=True)
        found = [(revision, w) for revision, w in weighed if w.may_pay and not w.is_sure]
        best = sorted(found, key=lambda pair: -pair[1].most_s)[:MOST_UNSURE]
        return tuple(replace(self.step(w), choice=revision.choice) for revision, w in best)

    def _named(self, around: Iterable[Item]) -> dict[Revision, Candidate]:
        """The legal edits around some items, by what they are known by."""
        return {Revision(c.strategy, c.names, c.choice): c for c in self.candidates(around)}

    def revise(self, revision: Revision) -> tuple[list[Fused], Step]:
        """The groups with an edit made that is legal, whatever the model says of it, and that edit. None of them
        runs beside another. Raises IllegalEdit where there is no such edit."""
        named = self._named([item for item in self.draft if item.name in revision.groups])
        if revision not in named:
            raise IllegalEdit(f"{revision.strategy} of {', '.join(revision.groups)} is no edit of this plan, or not legal")
        (weighed,) = self.weigh([named[revision]])
        step = self.step(weighed)
        made = apply(self.draft, weighed.candidate)
        if not made:
            raise IllegalEdit(f"{revision.strategy} of {', '.join(revision.groups)} cannot be made")
        return self.draft.groups, replace(step, made=tuple(item.name for item in made), choice=revision.choice)

    def ordered(self) -> list[Fused]:
        """The groups, those next to each other that are to run side by side."""
        planner, made = self._planner, dict[Item, Fused]()
        threads, rates = planner.model.threads, planner.model.rates
        if not planner.complements:
            return self.draft.groups

        def found(pair: Pair) -> None:
            row = 1 + len(made) // 2
            made.update({item: replace(item.group, row=row) for item in pair.items if item.group is not None})
            if pair.woven is not None:
                made[pair.items[0]] = replace(pair.woven, row=row)
            works = [self._works[item] for item in pair.items]
            scores = score(works, [roofline(work, rates, threads) for work in works], works, planner.spec, threads)
            names = tuple(item.name for item in pair.items)
            how = BESIDE if pair.woven is None else WOVEN
            self._steps.append(Step(how, names, names, pair.before_s, pair.after_s, 0.0, scores))

        items = [item for item in self.draft if item.group is not None]
        paces = {i: pace_of(self._works[i], self._seconds[i], rates, threads) for i in items}
        order = arrange(self.draft, paces, found, self._woven, threads)
        return [made.get(item, item.group) for item in order if item.group is not None]

    def _woven(self, first: Item, second: Item) -> Pair | None:
        found = self.weave(first, second)
        if isinstance(found, Refusal):
            return None
        is_first = first.group is not None and first.group.kind == "product"
        return Pair((first, second) if is_first else (second, first), found.before_s, found.after_s, found.product)

    def weave(self, first: Item, second: Item) -> Weave | Refusal:
        """What weaving two items would do that need not wait for each other, or why it would gain nothing."""
        sides = [Side(item.group, self._works[item], self._seconds[item]) for item in (first, second) if item.group is not None]
        if len(sides) != 2:
            return Refusal("tier 0 runs one of both")
        planner, model = self._planner, self._planner.model
        place = Place(planner.spec, model.rates, model.threads)
        return weigh(sides[0], sides[1], self._legality, self._analyzer.tasks_of, place)

    def seconds(self, item: Item) -> float:
        """What an item is predicted to take; 0 where it has no native code."""
        return float(self._seconds.get(item, 0.0))

    def candidates(self, around: Iterable[Item] | None = None) -> list[Candidate]:
        """The legal edits around some items, or all of them."""
        return list(find(self.draft, self._legality, list(self.draft) if around is None else around))

    def verdicts(self, first: Item, second: Item) -> Iterator[tuple[str, Refusal | Weighed]]:
        """Of each way to make one of two items: why that is not legal, or what it would do."""
        first, second = self.draft.in_order((first, second))
        for strategy, verdict in verdicts(self.draft, self._legality, first, second):
            if isinstance(verdict, Refusal):
                yield strategy, verdict
            else:
                yield strategy, self.weigh([Candidate(strategy, (first, second), (verdict,))])[0]

    def _edit(self, weighed: Sequence[Weighed]) -> list[Item]:
        """Make what still can be made, the best first; returns what is new."""
        new: list[Item] = []
        for found in weighed:
            made = apply(self.draft, found.candidate)
            if not made:
                continue
            self._steps.append(self.step(found, tuple(item.name for item in made)))
            after_s = found.before_s - found.gain_s
            for item, work in zip(made, found.works, strict=True):
                self._works[item], self._seconds[item] = work, after_s / len(made)
            new += made
        return [item for item in new if item in self.draft]

    def weigh(self, candidates: Sequence[Candidate]) -> list[Weighed]:
        """What edits would gain, all asked of the model at once."""
        keys = [(c.strategy, c.gone, c.choice) for c in candidates]
        new = {key: c for key, c in zip(keys, candidates, strict=True) if key not in self._weighed}
        self._weighed |= zip(new, self._asked(list(new.values())), strict=True)
        return [self._weighed[key] for key in keys]

    def _asked(self, candidates: Sequence[Candidate]) -> list[Weighed]:
        """What the model says of edits that it was not asked of before."""
        if not candidates:
            return []
        edits = [
            Edit(c.strategy, tuple(self._works[item] for item in c.gone), tuple(self._work(c, group) for group in c.made))
            for c in candidates
        ]
        found, model = [], self._planner.model
        least = LEAST_GAIN if model.pairs is None else max(LEAST_GAIN, model.rates.spread)  # typical rates were not measured
        before = [sum(self._seconds[item] for item in candidate.gone) for candidate in candidates]
        ratios = model.ratios(edits, self._looks)
        gains = np.array(before, ratios.dtype)[:, None] * (1 - ratios)
        figures = zip(candidates, edits, before, gains.mean(1).tolist(), gains.std(1).tolist(), strict=True)
        for candidate, edit, before_s, gain_s, spread_s in figures:
            if model.pairs is None and self._is_guess(edit, before_s, gain_s):
                spread_s = max(spread_s, gain_s)
            found.append(Weighed(candidate, edit.after, before_s, gain_s, spread_s, least))
        return found

    def _is_guess(self, edit: Edit, before_s: float, gain_s: float) -> bool:
        """Whether a roofline alone cannot tell that an edit pays. Of how threads share work it knows how many tasks there are,
        and not which core has the bytes; but a thread without any task has nothing to lose, where there is enough to do."""
        if edit.strategy in (GRAIN, SPLIT):
            return min(work.tasks for work in edit.before) >= self._planner.model.threads or before_s < LEAST_SHARED_S
        if edit.strategy == LAYOUT and (edit.before[0].kind == "copy" or edit.before[0].walks):
            return True  # what turning takes amid other work, nobody knows: from half to three times as long was seen
        if edit.strategy in (REGISTERS, SIBLINGS) and any(w.walks and w.row > MOST_BLOCK for w in edit.after):
            return True
        return edit.strategy == STRIPS or (edit.strategy in (LAYOUT, ACROSS) and gain_s < LEAST_TURNED_S)

    def _work(self, candidate: Candidate, group: Fused) -> Work:
        """What a group would do, its bytes from as far as those have them that it is made of."""
        known: dict[tuple[str, bool], Touch] = {}
        for item in candidate.gone:
            work = self._works[item]
            for is_write, touches in enumerate((work.reads, work.writes)):
                for touch in touches:
                    known.setdefault((touch.name, bool(is_write)), touch)

        def far(touches: Iterable[Touch], is_write: bool) -> tuple[Touch, ...]:
            found = ((t, known.get((t.name, is_write), known.get((t.name, not is_write)))) for t in touches)
            return tuple(
                t.found_at(t.bytes, t.handed)
                if k is None
                else t.found_at(k.distance, k.handed * min(1.0, t.bytes / max(k.bytes, 1.0)))
                for t, k in found
            )

        return self._analyzer.work(group, far)

    def step(self, found: Weighed, made: tuple[str, ...] = ()) -> Step:
        """An edit as a step of the plan's story."""
        planner, gone = self._planner, found.candidate.gone
        before = [self._works[item] for item in gone]
        threads = planner.model.threads
        bounds: list[Bound] = [roofline(work, planner.model.rates, threads) for work in before]
        scores = score(before, bounds, found.works, planner.spec, threads)
        after_s = found.before_s - found.gain_s
        digest = _digest(f"{found.candidate.strategy}, {threads} threads", before, found.works)
        times = found.before_s, after_s, found.spread_s
        return Step(found.candidate.strategy, found.candidate.names, made, *times, scores, digest=digest)


def _digest(how: str, *sides: Sequence[Work]) -> str:
    """Of works, whatever their values are called and wherever in a plan they are."""

    def plain(touch: Touch) -> Touch:
        return Touch("", touch.bytes, 0.0, touch.element, touch.access, touch.is_weight)

    said = [[replace(w, reads=tuple(map(plain, w.reads)), writes=tuple(map(plain, w.writes))) for w in side] for side in sides]
    return hashlib.sha256(f"{how} {said}".encode()).hexdigest()[:16]
