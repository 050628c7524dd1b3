"""Profile: what a model's calls were made of of late: traces, how often each unit ran and what it took, and what follows what.

    counts of all calls, by plan and form  +  traces of some  ->  Use of every unit, Chains of units and of plans

A plan is whatever answers calls, by an id that its owner gives it. Traces are few (`Sampling`); all calls are counted, so a
unit ran as often as its plan was called. Calls of a form that was never traced are taken to run what others of the plan run.

State: the last traces, bounded in number and bytes; for each of the last plans and forms a count and the times of its traces. A
lock guards it, and may be waited for: callers' threads are never here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from statistics import median

from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.order import Chain, make_chains
from hotfuse.runtime.trace import Piece, PieceTime, Trace

HALF_LIFE_S = 60.0
TRACES, TRACE_BYTES = 256, 1 << 20
FORMS = 64  # of all plans
OTHERS = "other forms"
TIMES = 16  # kept of each form: the median of these is what a piece takes


@dataclass(frozen=True)
class Use:
    """One unit of a plan. `count` is of all calls; `recent` counts those long ago less, and so does `spent_s`. The rest is of
    one run: the median of the last traces, over forms by how recent their calls are. Rates are of all threads together."""

    plan: str
    unit: str
    kind: str
    kernels: int
    count: int
    recent: float
    traced: int
    spent_s: float
    share: float  # of the plan's time
    seconds: float
    busy_s: float
    waiting_s: float
    threads: int
    tasks: int
    flops: float
    bytes_moved: float
    gflops_per_s: float
    gbytes_per_s: float


@dataclass
class _Form:
    """Calls of one form of a plan. `pieces` are those of its last trace, `typical` what each takes (None: to be worked out)."""

    count: int = 0
    recent: float = 0.0
    seconds: float = 0.0
    at_s: float = 0.0
    pieces: tuple[Piece, ...] = ()
    traced: int = 0
    times: deque[tuple[PieceTime, ...]] = field(default_factory=lambda: deque(maxlen=TIMES))
    typical: tuple[PieceTime, ...] | None = None

    def fade(self, now_s: float, half_life_s: float) -> None:
        self.recent *= 0.5 ** (max(0.0, now_s - self.at_s) / half_life_s)
        self.at_s = max(now_s, self.at_s)


class Profile:
    """Of one model."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._forms: OrderedDict[tuple[str, str], _Form] = OrderedDict()
        self._traces: deque[Trace] = deque()
        self._bytes = 0
        self.added = 0  # traces so far: who asked before may see whether there is anything new
        self._lock = make_lock()

    def count(self, plan: str, form: str, calls: int, seconds: float, now_s: float) -> None:
        """Calls of a form were answered by a plan, in so many seconds."""
        with self._lock:
            known = self._form(plan, form, now_s)
            known.count += calls
            known.recent += calls
            known.seconds += seconds

    def add(self, trace: Trace, now_s: float) -> None:
        """A call was traced. It is not counted."""
        with self._lock:
            known = self._form(trace.plan, trace.form, now_s)
            if known.pieces != trace.pieces:  # the plan's id was another plan's before, or it was bound anew
                known.pieces, known.traced = trace.pieces, 0
                known.times.clear()
            known.traced += 1
            self.added += 1
            known.times.append(trace.times)
            known.typical = None
            self._traces.append(trace)
            self._bytes += trace.size_bytes
            while len(self._traces) > TRACES or self._bytes > TRACE_BYTES:
                self._bytes -= self._traces.popleft().size_bytes

    def forget(self, plan: str) -> None:
        """A plan that answers no more: what replaces it may have its id."""
        with self._lock:
            for key in [key for key in self._forms if key[0] == plan]:
                del self._forms[key]

    def _form(self, plan: str, form: str, now_s: float) -> _Form:
        known = self._forms.setdefault((plan, form), _Form(at_s=now_s))
        known.fade(now_s, self._half_life_s)
        self._forms.move_to_end((plan, form))
        while len(self._forms) > FORMS:
            self._merge_oldest(now_s)
        return known

    def _merge_oldest(self, now_s: float) -> None:
        """Count the form that was longest ago among `OTHERS` of its plan; if all are such, a plan goes."""
        plan, form = next((key for key in self._forms if key[1] != OTHERS), next(iter(self._forms)))
        oldest = self._forms.pop((plan, form))
        if form == OTHERS:
            return
        oldest.fade(now_s, self._half_life_s)
        others = self._forms.setdefault((plan, OTHERS), _Form(at_s=now_s))
        others.fade(now_s, self._half_life_s)
        others.count += oldest.count
        others.recent += oldest.recent
        others.seconds += oldest.seconds

    # what it tells

    def calls(self, plan: str) -> tuple[int, float]:
        """How many calls a plan answered, and in how many seconds."""
        with self._lock:
            mine = [form for (owner, _), form in self._forms.items() if owner == plan]
            return sum(form.count for form in mine), sum(form.seconds for form in mine)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The last ones, the oldest first."""
        with self._lock:
            return tuple(self._traces)

    @property
    def size_bytes(self) -> int:
        """About what the traces take."""
        return self._bytes

    def uses(self, now_s: float) -> tuple[Use, ...]:
        """Every unit of every plan that was traced, what most time is spent on first."""
        found = [use for plan, forms in self._plans(now_s).items() for use in _uses(plan, forms)]
        return tuple(sorted(found, key=lambda use: -use.spent_s))

    def chains(self, now_s: float) -> tuple[Chain, ...]:
        """What directly follows what within plans, the most frequent first."""
        found = [chain for plan, forms in self._plans(now_s).items() for chain in make_chains(plan, _unit_pairs(forms))]
        return tuple(sorted(found, key=lambda chain: -chain.recent))

    def _plans(self, now_s: float) -> dict[str, list[_Form]]:
        """The forms of each plan as they are now. Those that were not traced have the pieces and times of the last that was."""
        with self._lock:
            plans: dict[str, list[_Form]] = {}
            for (plan, _), form in self._forms.items():
                form.fade(now_s, self._half_life_s)
                if form.typical is None:
                    form.typical = tuple(map(_typical, zip(*form.times, strict=True)))
                plans.setdefault(plan, []).append(replace(form))
        for forms in plans.values():
            model = next((form for form in reversed(forms) if form.pieces), None)
            for form in forms:
                if model is not None and not form.pieces:
                    form.pieces, form.typical = model.pieces, model.typical
        return plans


def _uses(plan: str, forms: Iterable[_Form]) -> Iterator[Use]:
    """Of the units of one plan."""
    found: dict[str, list[tuple[_Form, Piece, PieceTime]]] = {}
    for form in forms:
        for piece, time in zip(form.pieces, form.typical or (), strict=True):
            found.setdefault(piece.unit, []).append((form, piece, time))
    spent = {unit: sum(form.recent * time.seconds for form, _, time in of) for unit, of in found.items()}
    total = sum(spent.values())
    for unit, of in found.items():
        recent = sum(form.recent for form, _, _ in of)
        each = [form.recent / recent if recent else 1 / len(of) for form, _, _ in of]  # traced before any call was counted
        pieces, times = [piece for _, piece, _ in of], [time for _, _, time in of]
        seconds = sum(w * t.seconds for w, t in zip(each, times, strict=True))
        flops = sum(w * p.flops for w, p in zip(each, pieces, strict=True))
        moved = sum(w * p.bytes_moved for w, p in zip(each, pieces, strict=True))
        yield Use(
            plan,
            unit,
            pieces[-1].kind,
            pieces[-1].kernels,
            sum(form.count for form, _, _ in of),
            recent,
            sum(form.traced for form, _, _ in of),
            spent[unit],
            spent[unit] / total if total else 0.0,
            seconds,
            sum(w * t.busy_s for w, t in zip(each, times, strict=True)),
            sum(w * t.waiting_s for w, t in zip(each, times, strict=True)),
            max(t.threads for t in times),
            max(p.tasks for p in pieces),
            flops,
            moved,
            flops / seconds / 1e9 if seconds else 0.0,
            moved / seconds / 1e9 if seconds else 0.0,
        )


def _typical(found: Sequence[PieceTime]) -> PieceTime:
    """What a piece takes: medians, since whoever loses its core amid a call tells nothing of the piece."""
    return PieceTime(
        median(t.seconds for t in found),
        median(t.busy_s for t in found),
        median(t.waiting_s for t in found),
        max(t.threads for t in found),
    )


def _unit_pairs(forms: Iterable[_Form]) -> Mapping[tuple[str, str], float]:
    pairs: dict[tuple[str, str], float] = {}
    for form in forms:
        units = [piece.unit for piece in form.pieces]
        for pair in pairwise(units):
            pairs[pair] = pairs.get(pair, 0.0) + form.recent
    return pairs
