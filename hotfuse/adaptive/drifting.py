"""Drifting: whether a model that serves takes as long as the performance model says, and what is done about it if not.

    traces of what serves -> worker: predictions (`runtime/traffic`) -> Drift -> model.drift
                          -> worker, once callers leave room: a forest of traffic, too -> model.retrained, if it is better

All of it happens in the background's thread and in workers; a look costs the process some traces that are there anyway.

State: the drift so far, when it was last looked at, and whether an answer is waited for. Only the background's thread touches
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from hotfuse.adaptive.lineup import Lineup
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.target import Baked, Edit, Generic, Target
from hotfuse.adaptive.watch import NATIVE, Watch, form_sizes
from hotfuse.hardware.drift import Drift
from hotfuse.right_of_way import RIGHT_OF_WAY

if TYPE_CHECKING:
    from hotfuse.runtime.trace import Trace
    from hotfuse.runtime.traffic import TrafficReply, TrafficRequest
    from hotfuse.runtime.workers import Job

EVERY_S = 20.0  # between looks: a worker plans the model again for each
TRACES = 3  # of a form, and new ones, before it is looked at
PATIENCE_S = 600.0  # after an answer, before a shift is answered again; where there is no forest, before that is asked again


class Drifting:
    """Of one subject. `post` has something done by the background's thread, `submit` by a worker."""

    def __init__(self, subject: Subject, post: Callable[[Callable[[], None]], object], submit: Callable[[Job], None]) -> None:
        self._subject, self._post, self._submit = subject, post, submit
        self.drift = Drift()
        self._due_s = 0.0
        self._trains_s = 0.0  # when a forest may be trained again
        self._seen = 0  # traces
        self._since = 0  # traces, of what served before
        self._asked = False

    def tick(self, now_s: float, watch: Watch, lineup: Lineup) -> None:
        """Look at what serves, if it is time for that, there are new traces, and nobody was asked already."""
        if self._asked or now_s < self._due_s or watch.profile.added - self._seen < TRACES or not lineup.serving:
            return
        self._due_s = now_s + EVERY_S
        new = watch.profile.added - self._since
        asked = self._request(now_s, watch.hottest, list(watch.profile.traces)[-new:] if new else [], lineup)
        if asked is None:
            return
        from hotfuse.runtime.build_jobs import worker_job
        from hotfuse.runtime.traffic import TrafficReply

        self._seen, self._asked = watch.profile.added, True

        def finish(result: TrafficReply | BaseException) -> None:
            self._post(functools.partial(self.told, now_s, asked.trains, result))

        label, config = f"traffic of {self._subject.name}", self._subject.config
        self._submit(worker_job(label, lambda: asked, TrafficReply, finish, config, kind="train"))

    def replaced(self, watch: Watch) -> None:
        """Something else serves: predictions are others, too."""
        self.drift = self.drift.answered()
        self._since = watch.profile.added

    def _request(self, now_s: float, form: Hashable, traces: Sequence[Trace], lineup: Lineup) -> TrafficRequest | None:
        from hotfuse.runtime.traffic import TrafficRequest

        target: Target = Baked(str(form)) if Baked(str(form)) in lineup.serving else Generic()
        made = lineup.made.get(target)
        sizes = None if made is None else form_sizes(made.build.main, form)
        mine = [trace for trace in traces if trace.plan == NATIVE and trace.form == str(form)]
        if made is None or sizes is None or len(mine) < TRACES:
            return None
        taken: dict[str, list[float]] = {}
        for trace in mine[-4 * TRACES :]:
            for piece, time in zip(trace.pieces, trace.times, strict=True):
                taken.setdefault(piece.unit, []).append(time.seconds)
        edited = {unit for other in lineup.serving if isinstance(other, Edit) for unit in other.units}
        units = [unit for unit in made.units if unit.name in taken and unit.name not in edited]
        return TrafficRequest(
            made.build.main,
            self._subject.config,
            tuple(sorted(sizes.items())),
            bool(made.sizes),
            tuple(unit.nodes for unit in units),
            tuple(median(taken[unit.name]) for unit in units),
            trains=self.drift.is_away and now_s >= self._trains_s and not RIGHT_OF_WAY.crowded,
        )

    def told(self, now_s: float, trained: bool, result: TrafficReply | BaseException) -> None:
        """What a worker found, or that it found nothing."""
        self._asked = False
        if isinstance(result, BaseException):
            self._due_s = now_s + PATIENCE_S
            self._trains_s = max(self._trains_s, self._due_s if trained else 0.0)
            self._subject.events.emit("model.unknown", self._subject.name, f"{type(result).__name__}: {result}")
            return
        if not result.is_known:
            self._due_s = now_s + PATIENCE_S
            return
        before = self.drift
        self.drift = before.seen(now_s, result.measured_s, result.predicted_s)
        if self.drift.is_away != before.is_away:
            reason = "kernels lastingly take other times than predicted" if self.drift.is_away else "it is over"
            self._subject.events.emit(
                "model.drift",
                self._subject.name,
                reason,
                shift=self.drift.shift,
                units=len(result.measured_s),
                is_away=self.drift.is_away,
            )
        if trained:
            self._trains_s = now_s + PATIENCE_S
            self._answer(result)

    def _answer(self, result: TrafficReply) -> None:
        if result.is_replaced:
            from hotfuse.runtime.calibration import forget_machine

            forget_machine()
            self.drift = self.drift.answered()
        errors = {"before": result.before, "after": result.after}
        reason = "" if result.is_replaced else "the forest in use is as good on units held out, or there are too few"
        self._subject.events.emit("model.retrained", self._subject.name, reason, is_replaced=result.is_replaced, **errors)
