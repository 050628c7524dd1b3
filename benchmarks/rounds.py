"""Interleaved rounds: every engine lives in a process of its own and measures only when asked, one at a time.

A worker is `python -m benchmarks.worker ENGINE MODEL`. It answers each line "N" on its input with the seconds of N calls,
as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Measured:
    """The times of one engine, over all rounds, in seconds."""

    engine: str
    seconds: list[float] = field(default_factory=list)
    round_medians: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.round_medians)

    def percentile_s(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interleave(engines: Sequence[str], model: str, rounds: int, calls: int) -> dict[str, Measured]:
    """Measure every engine in turn, `rounds` times, `calls` calls each."""
    workers = {e: _start(e, model) for e in engines}
    measured = {e: Measured(e) for e in engines}
    try:
        for worker in workers.values():
            _ask(worker, 2)
        for _ in range(rounds):
            for engine, worker in workers.items():
                found = _ask(worker, calls)
                measured[engine].seconds += found
                measured[engine].round_medians.append(statistics.median(found))
    finally:
        for worker in workers.values():
            worker.kill()
    return measured


def _start(engine: str, model: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", engine, model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(worker: subprocess.Popen[str], calls: int) -> list[float]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{calls}\n")
    worker.stdin.flush()
    while True:
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker {worker.args} ended early")
        if line.startswith("["):
            return [float(s) for s in json.loads(line)]
