"""The engine's plans against those of the rules, on random graphs and on the models of the CPU suite: the bound is 1.08 times
as fast in the geometric mean, and none slower by more than 3 % in each of the repeats.

Both plans of a graph run in one process and take turns call by call; their answers are held against tier 0's.

python -m benchmarks.engine_plans [--graphs 200] [--first 1000000] [--models mlp,minilm,...] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import hotfuse
from hotfuse.config import Config
from hotfuse.ir.graph import Constant, Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import native_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.session import Session
from hotfuse.runtime.specimens import specimen
from hotfuse.runtime.tuned import tuned_executor

BOUND, SLOWER = 1.08, 1.03
MODELS = "mlp,minilm,bert-base,gpt2,vit-base,resnet-50"
SECONDS = 0.3  # of one repeat
LEAST, MOST = 15, 400  # pairs of calls of one repeat

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    name: str
    rules_s: float
    ratios: tuple[float, ...]  # rules' time over the engine's, of each repeat
    right: bool

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        return all(ratio < 1 / SLOWER for ratio in self.ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed; calibration has those from 0 on")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tune", type=float, default=0.0, help="seconds in which edits of each plan may be measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config(tier=1, wait=True, strict=False, threads=options.threads)
    rows = [compared(*subject, config, options.repeats, options.tune) for subject in subjects(options)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))


def subjects(options: argparse.Namespace) -> Iterator[tuple[str, Graph, list[Array]]]:
    for name in filter(None, options.models.split(",")):
        yield name, *of_model(name)
    for seed in track(range(options.first, options.first + options.graphs), "graphs"):
        found = specimen(seed)
        yield f"graph {seed}", found.graph, [found.inputs[name] for name in found.graph.inputs]


def of_model(name: str) -> tuple[Graph, list[Array]]:
    """A model of the suite, exported, with the inputs that it is measured with."""
    from hotfuse.cli.bench.models import Case
    from hotfuse.cli.bench.subject import export, torch_call

    with tempfile.TemporaryDirectory() as folder:
        call = torch_call(Case(name), Path(folder))
        path = Path(folder) / "model.onnx"
        export(call, path)
        session = hotfuse.load(str(path), tier=0)
        given = [tensor.numpy() for tensor in call.tensors]
        graph = replace(session.graph, constants={n: Constant.of(c.numpy().copy()) for n, c in session.graph.constants.items()})
        return graph, given


def compared(name: str, graph: Graph, given: list[Array], config: Config, repeats: int, tune_s: float) -> Row:
    plans = [native_executor(graph, NUMPY, dataclasses.replace(config, fusion=way)) for way in ("rules", "engine")]
    if tune_s:
        plans[1], _ = tuned_executor(graph, given, config, tune_s)
    wanted = Executor(trivial_plan(graph), NUMPY, config).run(given)
    calls = [call_of(graph, plan, given) for plan in plans]
    ruled, ours = (call() for call in calls)  # some graphs enlarge roundings without end, whatever their plan
    right = all(_agrees(a, w) or _agrees(a, r) for a, r, w in zip(ours, ruled, wanted, strict=True))
    times = [in_turns(calls) for _ in range(repeats)]
    return Row(name, times[0][0], tuple(rules / engine for rules, engine in times), right)


def call_of(graph: Graph, plan: Executor, given: list[Array]) -> Callable[[], list[Any]]:
    """A call as users make it."""
    session = Session(graph, graph.outputs, Config(tier=0))
    session.publish(session.serving(plan, 1, "tier 1"))
    feeds = dict(zip(graph.inputs, given, strict=True))
    return lambda: session.run(None, feeds)


def _agrees(got: Array, want: Array) -> bool:
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-3))
    return bool(np.allclose(got, want, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


def in_turns(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Medians of calls that take turns; who goes first changes."""
    for call in [*calls] * 3:
        call()
    begun = time.perf_counter()
    calls[0]()
    turns = max(LEAST, min(MOST, int(SECONDS / 2 / max(time.perf_counter() - begun, 1e-6))))
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(turns):
        for place in range(len(calls))[:: 1 if turn % 2 else -1]:
            begun = time.perf_counter()
            calls[place]()
            taken[place].append(time.perf_counter() - begun)
    return [statistics.median(found) for found in taken]


def show(rows: list[Row]) -> None:
    table = Table("what", "rules, ms", "times as fast", "repeats", "answers")
    for row in sorted(rows, key=lambda row: row.ratio):
        repeats = " ".join(f"{ratio:.2f}" for ratio in row.ratios)
        table.add_row(row.name, f"{row.rules_s * 1e3:.3f}", f"{row.ratio:.3f}", repeats, "right" if row.right else "WRONG")
    Console().print(table)
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    slower = [row.name for row in rows if row.is_slower]
    print(f"geometric mean {mean:.3f} (the bound is {BOUND}); {len(slower)} of {len(rows)} slower in every repeat: {slower}")


if __name__ == "__main__":
    main()
