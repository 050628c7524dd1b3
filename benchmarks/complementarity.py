"""A model with branches that compute and branches that wait for memory: the engine's plan with groups that complement each
other woven or side by side, and without. The bound is 1.15 times as fast.

python -m benchmarks.complementarity [--branches 4] [--repeats 5] [--kind sum] [--long 6] [--threads N] [--json FILE]

`--long` are the millions (2^20) of elements that a branch goes through; `--kind` is what it does with them:

    sum     scaled and added up, row by row        two     two of them multiplied and added up
    norm    a layer norm that is then added up     shift   something is added to them, as long a result is written
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.engine_plans import in_turns
from hotfuse.config import Config
from hotfuse.fusion.engine import plan
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, TensorType
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.building import build_groups, native_form
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import planner_of

BOUND = 1.15
LONG = 6  # 2^20 elements that a branch goes through: more than the caches hold
WIDE = 768
KINDS = ("sum", "norm", "two", "shift")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kind", choices=KINDS, default="sum")
    parser.add_argument("--long", type=float, default=LONG)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    graph, given = branches(options.branches, options.kind, options.long)
    plans = [executor(graph, way, options.threads) for way in (False, True)]
    calls = [lambda plan=plan: plan.run(given) for plan in plans]  # type: ignore[misc]
    for first, second in zip(calls[0](), calls[1](), strict=True):
        assert np.array_equal(first, second)
    times = [in_turns(calls) for _ in range(options.repeats)]
    ratios = [without / beside for without, beside in times]
    without, beside = (statistics.median(t[way] for t in times) * 1e3 for way in (0, 1))
    print(f"{options.kind}, {options.long:g} x 2^20 elements:", end=" ")
    print(f"one after the other {without:.2f} ms, together {beside:.2f} ms: {statistics.median(ratios):.3f} times as fast")
    print(f"repeats {' '.join(f'{ratio:.3f}' for ratio in ratios)}; the bound is {BOUND}")
    if options.json:
        options.json.write_text(json.dumps({"ratios": ratios, "ms": [without, beside]}, indent=2))


def branches(count: int, kind: str = "sum", long_millions: float = LONG) -> tuple[Graph, list[np.ndarray]]:
    """Products one after the other beside sums of long arrays, or what else is done with these."""
    rng, builder = np.random.default_rng(0), GraphBuilder("branches")
    rows = int(long_millions * (1 << 20)) // 1024

    def array(name: str) -> Value:
        given.append(rng.standard_normal((rows, 1024), np.float32))
        return builder.input(name, TensorType(F32, (rows, 1024)))

    x = builder.input("x", TensorType(F32, (WIDE // 2, WIDE)))
    given = [rng.standard_normal((WIDE // 2, WIDE), np.float32)]
    outputs = []
    for number in range(count):
        long = array(f"long{number}")
        weight = builder.constant(rng.standard_normal((WIDE, WIDE), np.float32) / 28, f"w{number}")
        x = builder.add("relu", builder.add("matmul", x, weight))
        scale = builder.constant(rng.standard_normal(1024, np.float32), f"s{number}")
        if kind == "shift":
            outputs.append(builder.add("add", long, scale))
            continue
        if kind == "two":
            factor = builder.add("mul", long, array(f"other{number}"))
        elif kind == "norm":
            factor = builder.add("layer_norm", long, scale, axis=1)
        else:
            factor = builder.add("mul", long, scale)
        outputs.append(builder.add("reduce_sum", factor, axes=(1,), keepdims=False))
    return builder.build([x, *outputs]), given


def executor(graph: Graph, complements: bool, threads: int = 0) -> Executor:
    config = Config(tier=1, wait=True, threads=threads)
    spec = host_spec(config.isa)
    hoisted = hoist(native_form(skeleton(graph), spec), ())
    main = hoisted.main
    planner = planner_of(config, spec, main, {})
    assert planner is not None
    planned = plan(main, main.values, layouts(main, main.values), replace(planner, complements=complements))
    shop = Workshop(config)
    build = build_groups(hoisted, main, planned.groups, spec, config, shop)
    return build_executor(attached(hoisted, graph.constants), build, shop.kernels, NUMPY, config)


if __name__ == "__main__":
    main()
