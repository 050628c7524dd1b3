"""Metrics of all models of the process.

    load, compile -> watch(model)          a scrape -> every live model, the caches, the workers -> families of samples

Nothing is counted for it while calls run: what models, logs and caches know anyway is read when somebody asks. Models of one
name are one row.

State: a weak reference to each model that is watched, with the counts of its log, which outlive it; and the totals of models
that are gone; the size of the cache's folder when it was last looked over. Of a model that goes without an event, calls since
somebody last looked are not in the totals.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

from hotfuse.event_file import dropped_lines, open_event_file
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.metrics_text import Family, Sample, exposition

NAMES = 256  # of models that are told apart; the rest is one row
REST, DYNAMO = "(others)", "(dynamo)"
LOOK_S = 60.0  # between looks over the cache's folder


@dataclass
class Totals:
    """What only grows: calls by tier, events by kind, and the sums of the numbers in their data, by kind and name."""

    calls: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    sums: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Totals) -> None:
        self.calls.update(other.calls)
        self.events.update(other.events)
        self.sums.update(other.sums)

    def sum_of(self, name: str) -> float:
        return sum(value for (_, other), value in self.sums.items() if other == name)


# Counters that follow from events, by model.
COUNTERS: tuple[tuple[str, str, Callable[[Totals], float]], ...] = (
    ("builds", "Builds of kernels that were begun.", lambda t: t.events["tier.build"]),
    ("failed_builds", "Builds or proofs that came to nothing.", lambda t: t.events["tier.buildfailed"]),
    ("compiled_kernels", "Kernels that were compiled in workers; the cache had the others.", lambda t: t.sum_of("compiled")),
    ("compile_cpu_seconds", "CPU time of workers that built kernels.", lambda t: t.sum_of("cpu_s")),
    ("proofs", "Proofs of kernels against the original operators.", lambda t: t.events["tier.prove"]),
    ("shadowed_calls", "Calls that the original and a candidate answered.", lambda t: t.events["tier.shadowed"]),
    (
        "audits",
        "Calls of published kernels that the original answered, too.",
        lambda t: t.events["audit.passed"] + t.events["audit.failed"],
    ),
    (
        "mismatches",
        "Proofs, shadowed calls, audits and captured programs that answered otherwise than the original.",
        lambda t: t.events["tier.disproved"] + t.events["capture.differs"] + _disagreed(t),
    ),
    ("quarantines", "Kernels, or all of a target, that never serve again.", lambda t: t.events["tier.quarantine"]),
    ("swaps", "Publications and withdrawals.", lambda t: t.events["tier.publish"] + t.events["tier.withdraw"]),
    ("worker_deaths", "Worker processes that crashed, hung or grew too large.", lambda t: t.events["worker.died"]),
)


def _disagreed(totals: Totals) -> float:
    """A failed audit is told as a shadowed call as well."""
    return totals.events["tier.shadowed"] - totals.sums["tier.shadowed", "ok"]


class _Watched:
    """One model, as long as somebody else holds it, and what its log counted, for longer."""

    def __init__(self, model: Any, name: str, is_part: bool) -> None:
        self.name, self.is_part, self._model = name, is_part, weakref.ref(model)
        self._events, self._sums = model.events.counts, model.events.sums
        self._calls: Counter[str] = Counter()

    @property
    def model(self) -> Any:
        return self._model()

    def calls(self) -> int:
        """How many it has answered, as events note it."""
        model = self.model
        return 0 if model is None else _calls_of(model)

    def totals(self) -> Totals:
        """So far; the calls of a model that is gone are as they were when it was last looked at."""
        model = self.model
        if model is not None and not self.is_part:
            self._calls = Counter({str(tier): count for tier, count in _tiers_of(model).items() if count})
        return Totals(self._calls, Counter(dict(self._events)), Counter(dict(self._sums)))


_LOCK = make_lock()
_WATCHED: list[_Watched] = []
_GONE: dict[str, Totals] = {}
_FOLDERS: dict[str, tuple[float, int]] = {}  # when a folder was looked over last, and what it held


def watch(model: Any, is_part: bool = False) -> Any:
    """Have a model among the metrics, its events in the file that it is configured for, and the endpoint opened if it is to be.
    What is a part of one that its user has is told with that one, which counts its calls. Returns the model."""
    inner = getattr(model, "_hotfuse", model)  # of a compiled module, what stands behind it
    config, name = inner.config, _name_of(inner)
    watched = _Watched(inner, name, is_part)
    with _LOCK:
        _let_go()
        _WATCHED.append(watched)
    file = open_event_file(config.event_log, config.max_event_log_bytes) if config.event_log else None
    inner.events.bind(watched.calls, file, name)
    if config.metrics_port:
        from hotfuse.runtime.metrics_endpoint import serve_once

        try:
            serve_once(config.metrics_port)
        except OSError as error:  # another process has the port: no reason to refuse a model
            inner.events.emit("metrics.failed", name, f"port {config.metrics_port} cannot be served: {error.strerror}")
    return model


def _let_go() -> None:
    """Add what is gone to the totals. Holds the lock."""
    gone = [watched for watched in _WATCHED if watched.model is None]
    for watched in gone:
        name = watched.name if watched.name in _GONE or len(_GONE) < NAMES else REST
        _GONE.setdefault(name, Totals()).add(watched.totals())
    if gone:
        _WATCHED[:] = [watched for watched in _WATCHED if watched not in gone]


def models() -> list[Any]:
    """What is watched and still there, oldest first."""
    with _LOCK:
        _let_go()
        return [model for watched in _WATCHED if not watched.is_part and (model := watched.model) is not None]


def metrics_text() -> str:
    """All metrics, in Prometheus' text format."""
    return exposition(collect())


def collect() -> list[Family]:
    """What there is to say now."""
    with _LOCK:
        _let_go()
        alive = [(watched, model) for watched in _WATCHED if (model := watched.model) is not None]
        totals = {name: Totals() for name in dict.fromkeys((*_GONE, *(watched.name for watched in _WATCHED)))}
        for name, gone in _GONE.items():
            totals[name].add(gone)
        for watched in _WATCHED:
            totals[watched.name].add(watched.totals())
    backend = sys.modules.get("hotfuse.runtime.torch_backend")  # one log for all that Dynamo compiles
    if backend is not None:
        log = backend.EVENTS
        totals.setdefault(DYNAMO, Totals()).add(Totals(events=Counter(log.counted()), sums=Counter(dict(log.sums))))
    return [*_counters(totals), *_gauges(alive), *_of_process()]


def _counters(totals: Mapping[str, Totals]) -> Iterable[Family]:
    calls = [({"model": name, "tier": tier}, n) for name, t in totals.items() for tier, n in sorted(t.calls.items())]
    help = "Answered calls; tier 0 is the original operators or module, 1 is generated code."
    yield _family("calls_total", "counter", help, calls)
    events = [({"model": name, "kind": kind}, n) for name, t in totals.items() for kind, n in sorted(t.events.items())]
    yield _family("events_total", "counter", "Events in the logs of models.", events)
    for counter, help, value in COUNTERS:
        rows = [({"model": name}, value(t)) for name, t in totals.items()]
        yield _family(f"{counter}_total", "counter", help, rows)


def _gauges(alive: Iterable[tuple[_Watched, Any]]) -> Iterable[Family]:
    from hotfuse.runtime.subgraph import code_of

    models, kernels, code, arenas = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for watched, model in alive:
        name = watched.name
        models[name] += not watched.is_part
        for executor in _executors_of(model):
            kernels[name] += executor.kernels
            code[name] += code_of(executor)
            arenas[name] += sum(executor.arena_bytes().values())
    told = (
        ("models", "Models that are loaded.", models),
        ("kernels", "Generated kernels that a call runs.", kernels),
        ("code_bytes", "Object code of what serves.", code),
        ("arena_bytes", "Scratch memory of bound shapes.", arenas),
    )
    for gauge, help, values in told:
        yield _family(gauge, "gauge", help, [({"model": name}, values[name]) for name in models])


def _of_process() -> Iterable[Family]:
    """What all models share. What was not needed so far is not imported for it."""
    kernels, cache, workers = (sys.modules.get(f"hotfuse.runtime.{name}") for name in ("kernels", "cache", "workers"))
    compiled = kernels.compiled_so_far() if kernels else None
    caches = list(cache._OPEN.values()) if cache else []
    counted: Counter[str] = Counter()
    for each in caches:
        counted.update(each.counts())
    queue = sum(len(pool.unfinished) for pool in list(workers._POOLS)) if workers else 0
    here = "Kernels that were compiled in this process itself."
    yield _family("compiled_here_total", "counter", here, [({}, compiled.kernels if compiled else 0)])
    here = "CPU time of making kernels in this process itself."
    yield _family("compile_cpu_here_seconds_total", "counter", here, [({}, compiled.cpu_s if compiled else 0)])
    asked = [({"result": what.replace(" ", "_")}, n) for what, n in sorted(counted.items())]
    yield _family("cache_requests_total", "counter", "What this process asked of the cache on disk.", asked)
    folders = dict.fromkeys(each.folder.path for each in caches)  # one may be open with several limits
    sizes = [({"folder": path}, _folder_bytes(path)) for path in folders]
    yield _family("cache_bytes", "gauge", "Files in the cache on disk.", sizes)
    yield _family("queue_length", "gauge", "Jobs that workers have not finished.", [({}, queue)])
    held_back: Counter[str] = Counter()
    for pool in list(workers._POOLS) if workers else ():
        held_back.update(pool.held_back)
    waits = [({"cause": cause}, n) for cause, n in sorted(held_back.items())]
    yield _family("held_back_total", "counter", "Jobs that had to wait, though a worker was free.", waits)
    dropped = "Events that could not be appended to a log file."
    yield _family("event_log_dropped_total", "counter", dropped, [({}, dropped_lines())])


def _folder_bytes(path: str) -> int:
    """As of the last minute: a look at every file of a large cache takes longer than the rest of a scrape."""
    looked_s, taken = _FOLDERS.get(path, (float("-inf"), 0))
    if time.monotonic() - looked_s > LOOK_S:
        taken = 0
        with contextlib.suppress(OSError), os.scandir(path) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    taken += file.stat(follow_symlinks=False).st_size
        _FOLDERS[path] = time.monotonic(), taken
    return taken


def _family(name: str, kind: Literal["counter", "gauge"], help: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> Family:
    return Family(f"hotfuse_{name}", kind, help, tuple(Sample(value, labels) for labels, value in rows))


# what is read of each kind of model: a session, an exported program, or what stands behind a compiled module


def _name_of(model: Any) -> str:
    root = getattr(model, "root", None)
    return str(root.name if root is not None else model.graph.name) or "model"


def _calls_of(model: Any) -> int:
    root = getattr(model, "root", None)
    return int(root.calls if root is not None else model._calls)


def _tiers_of(model: Any) -> Mapping[int, int]:
    family = getattr(model, "family", None)
    if family is None:
        from hotfuse.runtime.story import calls_by_tier

        return calls_by_tier(model.events, _calls_of(model))
    answered, native = model.root.answered, any(c.tier for member in family.all() for c in member.classes)
    return Counter({0: model.root.calls - answered}) + Counter({int(native): answered})


def _executors_of(model: Any) -> list[Any]:
    family, best = getattr(model, "family", None), getattr(model, "best", None)
    if family is not None:
        return [served.runner.executor for member in family.all() for served in member.classes]
    if best is not None:
        return [best.executor]
    runner = model._fastest
    return [model._executor if runner is None else runner.executor]
