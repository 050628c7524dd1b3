"""What tracing calls costs, on and off alternated call by call: the bound is 1 % of run time.

Two sessions of one model run side by side; one of them has a sampler, which has calls traced as often as it finds that they are
paid for. After half of the pairs it is the other one: where a session's weights lie in memory makes up to three percent, which
says nothing of tracing. Three differences are measured in pairs, whoever comes first taking turns:

    traced   a call that is traced and the one after it, against two plain calls, others having cooled down what tracing needs
    others   a call of the session with a sampler that is not traced, against a plain one
    handled  CPU time of the background for each trace

    cost = (traced + handled) / (every * a plain call) + others / a plain call

Means are of the middle half of pairs: who loses its core to another process says nothing of tracing. On a machine with much
other work the CPU time of one thread says more than the time that passes: --threads 1 --cpu.

python -m benchmarks.profiler_cost [--pairs 4000] [--threads 2] [--cpu] [--json FILE] [mlp minilm:16 ...]
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import hotfuse
from hotfuse.adaptive.profile import Profile
from hotfuse.adaptive.sampling import Sampled, Sampler
from hotfuse.cli.bench.subject import read_subject
from hotfuse.runtime.session import Session

BOUND = 0.01
CUT = 0.25  # of the pairs at either end
DRAWS = 2000
COOLED_S = 3e-3  # of plain calls between two traces
TRACES = 20  # after which the sampler knows what they cost

Array = np.ndarray[Any, np.dtype[Any]]

_MAKE = """
import sys
from pathlib import Path
from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.subject import make_subject
model, _, length = sys.argv[1].partition(":")
make_subject(Case(model, sequence=int(length) if length else None), Path(sys.argv[2]))
"""


@dataclass(frozen=True)
class Figure:
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """Times in microseconds."""

    model: str
    pairs: int
    plain_us: float
    traced_us: Figure
    handled_us: Figure
    others_us: Figure
    every: int
    cost: Figure
    reported: float


class Profiled:
    """A session with a sampler, asked after every batch of calls. `traces` are handled at once, and timed."""

    def __init__(self, session: Session, feeds: dict[str, Any], plain_s: float) -> None:
        self.session, self.feeds, self.plain_s = session, feeds, plain_s
        self.profile, self._work = Profile(), queue.SimpleQueue[Callable[[], None]]()
        self.sampler = Sampler(self.profile, self._work.put)
        self.handled_s: list[float] = []
        self._counted = session.calls

    def trace_next(self) -> bool:
        """As a tick of the background: count calls, and have one traced if that is paid for."""
        calls, self._counted = self.session.calls - self._counted, self.session.calls
        self.profile.count("plan", "form", calls, calls * self.plain_s, time.monotonic())
        asked = self.sampler.ask("plan", self.session._best.executor)
        if asked:
            self.session.look_at_next()
        return asked

    def pay(self) -> None:
        """Count so many calls that a trace is due."""
        while not self.trace_next():
            self.profile.count("plan", "form", 1_000_000, 1_000_000 * self.plain_s, time.monotonic())

    def handle(self) -> None:
        while not self._work.empty():
            begun = time.thread_time()
            self._work.get()()
            self.handled_s.append(time.thread_time() - begun)

    @property
    def sampled(self) -> Sampled:
        (found,) = self.sampler.sampled()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mlp", "minilm:16"])
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [measure(model, options.pairs, options.threads, options.cpu) for model in options.models]
    for cost in found:
        print(
            f"{cost.model}: a call {cost.plain_us:.1f} us; a traced one {cost.traced_us.value:+.1f} us and "
            f"{cost.handled_us.value:.0f} us of handling, one in {cost.every}; others {cost.others_us.value:+.3f} us; cost "
            f"{cost.cost.value:.2%} ({cost.cost.low:.2%} to {cost.cost.high:.2%}), {cost.reported:.2%} by its own reckoning"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in found], indent=2))


def measure(model: str, pairs: int, threads: int, cpu: bool) -> Cost:
    clock = Clock(time.thread_time if cpu else time.perf_counter)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _MAKE, model, folder], check=True, capture_output=True)
        subject = read_subject(Path(folder))
        feeds = subject.feeds()
        on, off = (hotfuse.load(subject.onnx_path, tier=1, wait=True, threads=threads) for _ in range(2))
        for session in (on, off):
            for _ in range(100):
                session.run(None, feeds)
        rng = np.random.default_rng(0)
        halves = [_half(clock, *pair, feeds, pairs // 2, model, rng) for pair in ((on, off), (off, on))]
    every, plain_s = halves[-1].sampled.every, float(np.mean([half.plain_s for half in halves]))
    rows = [np.mean(row, axis=0) for row in zip(*(half.rows for half in halves), strict=True)]
    total = (rows[0] + rows[1]) / (every * plain_s) + rows[2] / plain_s
    figures = [_figure(row * 1e6) for row in rows]
    return Cost(model, pairs, plain_s * 1e6, *figures, every, _figure(total), halves[-1].sampled.cost)


@dataclass(frozen=True, eq=False)
class Half:
    """What one of the sessions with a sampler and the other without told: draws of the means of seconds that traced calls and
    their handling took, and that other calls took longer."""

    plain_s: float
    sampled: Sampled
    rows: tuple[Array, Array, Array]


def _half(
    clock: Clock, on: Session, off: Session, feeds: dict[str, Any], pairs: int, model: str, rng: np.random.Generator
) -> Half:
    plain_s = float(np.median([clock.time(off, feeds) for _ in range(500)]))
    profiled = Profiled(on, feeds, plain_s)
    others = _others(clock, profiled, off, pairs, model)
    sampled = profiled.sampled
    traced = _traced(clock, profiled, off, pairs, model)
    on._best.executor.watch_next(None)
    handled = np.array(profiled.handled_s[1:])
    return Half(plain_s, sampled, tuple(_bootstrap(row, rng) for row in (traced, handled, others)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Clock:
    """Times calls by a function that reads a clock."""

    read: Callable[[], float]

    def time(self, session: Session, feeds: dict[str, Any], calls: int = 1) -> float:
        begun = self.read()
        for _ in range(calls):
            session.run(None, feeds)
        return self.read() - begun

    def difference(self, profiled: Profiled, off: Session, turn: int, calls: int) -> float:
        """How much longer calls take with a sampler; whoever comes first changes with every turn."""
        if turn % 2:
            plain = self.time(off, profiled.feeds, calls)
            return self.time(profiled.session, profiled.feeds, calls) - plain
        return self.time(profiled.session, profiled.feeds, calls) - self.time(off, profiled.feeds, calls)


def _others(clock: Clock, profiled: Profiled, off: Session, pairs: int, model: str) -> Array:
    """Seconds that calls which are not traced take longer. What is due is traced in between, two calls for each trace."""
    found = []
    batch = 20
    for turn in track(range(pairs), f"{model}, others"):
        if turn % batch == 0:
            if profiled.trace_next():
                clock.time(profiled.session, profiled.feeds, 2)
            profiled.handle()
        found.append(clock.difference(profiled, off, turn, 1))
    for _ in track(range(TRACES), f"{model}, on its own"):  # small calls pay for few traces
        while not profiled.trace_next():
            clock.time(profiled.session, profiled.feeds, batch)
        clock.time(profiled.session, profiled.feeds, 2)
        profiled.handle()
    return np.array(found)


def _traced(clock: Clock, profiled: Profiled, off: Session, pairs: int, model: str) -> Array:
    """Seconds that a traced call and the one after it take longer than two others."""
    found = []
    between = math.ceil(COOLED_S / profiled.plain_s)
    for turn in track(range(pairs), f"{model}, traced"):
        clock.time(profiled.session, profiled.feeds, between)
        profiled.pay()
        found.append(clock.difference(profiled, off, turn, 2))
        profiled.handle()
    return np.array(found)


def _bootstrap(values: Array, rng: np.random.Generator) -> Array:
    """Means of the middle of the values, for draws of them; the first one is that of the values as they are."""
    draws = [values, *(rng.choice(values, len(values)) for _ in range(DRAWS))]
    cut = int(CUT * len(values))
    return np.array([np.sort(draw)[cut : len(values) - cut].mean() for draw in draws])


def _figure(means: Array) -> Figure:
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return Figure(float(means[0]), float(low), float(high))


if __name__ == "__main__":
    main()
