"""Made-up runs and a made-up timeline whose figures are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.cli.bench.timeline import Cpu, Mark, Run
from hotfuse.cli.bench.timeline_runs import ADAPTIVE, Timeline, Turns


def series(*parts: tuple[int, float], first_s: float = 1.0, rest_s: float = 0.0, **fields: Any) -> Run:
    """A first call that ends at `first_s`, then so many calls of so many seconds, with a rest after each."""
    seconds = np.array([first_s / 2, *(s for count, s in parts for _ in range(count))])
    starts = np.array([first_s / 2, *(first_s + np.cumsum([0.0, *(seconds[1:-1] + rest_s)]))])
    usual = {"engine": "adaptive-torch", "load": "closed", "round": 0}
    return Run(**{**usual, **fields}, starts=starts, seconds=seconds)


def published(at_s: float) -> tuple[Mark, ...]:
    return (Mark(at_s, "tier.publish", "generic kernels"),)


def made_up(edit: Callable[[Run], Run] = lambda run: run) -> Timeline:
    """Two rounds that meet every criterion exactly or better; `edit` changes runs."""
    swap = published(11.5)
    runs = []
    for number in range(2):
        for load in ("closed", "half"):
            rest_s = 0.1 if load == "half" else 0.0
            at = {"load": load, "round": number, "rest_s": rest_s}
            quick = published(3.0)
            cpu = Cpu(opening_s=0.0, children_s=1.0)
            runs += [
                series((400, 0.1), engine="eager", **at),
                replace(series((600, 0.06), engine="inductor", first_s=40.0, **at), cpu=replace(cpu, children_s=3.0)),
                replace(
                    series((100, 0.105), (800, 0.06), engine="adaptive-torch", first_s=1.05, adapts=True, marks=swap, **at),
                    cpu=cpu,
                ),
                replace(
                    series((10, 0.105), (800, 0.06), engine="adaptive-onnx", first_s=1.05, adapts=True, marks=quick, **at),
                    cpu=cpu,
                ),
                series((100, 0.1), engine="unfused-onnx", **at),
            ]
    turns = tuple(Turns(engine, (0.0601,) * 5, (0.06,) * 5) for _ in range(2) for engine in ADAPTIVE)
    return Timeline("toy", tuple(map(edit, runs)), turns, "made up")
