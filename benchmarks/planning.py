"""How long the fusion engine plans: at most 0.3 s for 1,000 nodes and 3 s for 10,000, by what is known of this machine.

Graphs are of two kinds: random ones, no two parts of which are alike, and layers of a transformer, all alike. Time is that of
the processor, the median of some rounds: planning runs in workers, which others may hold up.

python -m benchmarks.planning [--rounds 3] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotfuse.config import Config
from hotfuse.fusion.engine import plan
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, TensorType
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.planning import planner_of
from hotfuse.runtime.specimens import specimen

BOUNDS = {1_000: 0.3, 10_000: 3.0}  # seconds for so many nodes
FIRST = 6_000_000  # seeds that nobody calibrates with
WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("graph", "nodes", "edits made", "CPU s", "s for 1,000 nodes", "bound")
    rows = []
    kinds = {"layers": encoder} | {f"random {seed}": random_graph(seed) for seed in range(FIRST, FIRST + options.seeds)}
    for name, make in kinds.items():
        for count, bound in BOUNDS.items():
            graph = sized(make, count)
            edits, seconds = planned(graph, options.rounds)
            nodes = len(graph.nodes)
            rows.append({"graph": name, "nodes": nodes, "edits": edits, "seconds": seconds, "bound": bound})
            each, least = 1000 * seconds / nodes, 1000 * bound / count
            verdict = f"{least:.1f} {'met' if each <= least else 'not met'}"
            table.add_row(name, f"{nodes:,}", f"{edits:,}", f"{seconds:.3f}", f"{each:.3f}", verdict)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


def planned(graph: Graph, rounds: int) -> tuple[int, float]:
    """How many edits the plan has, and the median of the processor's time."""
    config = Config(tier=1, wait=True)
    planner, places = planner_of(config, host_spec(config.isa), graph, {}), layouts(graph, graph.values)
    assert planner is not None
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        found = plan(graph, graph.values, places, planner)
        taken.append(time.process_time() - begun)
    return len(found.steps), statistics.median(taken)


def sized(make: Callable[[int], Graph], count: int) -> Graph:
    """A graph of about so many nodes, in the form that is planned."""
    few = native(make(8))
    return native(make(round(8 * count / len(few.nodes))))


def native(graph: Graph) -> Graph:
    return hoist(native_form(skeleton(graph), host_spec("native"))).main


def random_graph(seed: int) -> Callable[[int], Graph]:
    return lambda blocks: specimen(seed, blocks).graph


def encoder(layers: int) -> Graph:
    """Layers of projections, attention, norms and a hidden layer."""
    builder = GraphBuilder("encoder")
    x = builder.input("x", TensorType(F32, (128, WIDTH)))
    for number in range(layers):

        def weight(name: str, *shape: int, layer: int = number) -> object:
            return builder.weight(f"{name}{layer}", TensorType(F32, shape))

        q, k, v = (builder.add("matmul", x, weight(name, WIDTH, WIDTH)) for name in "qkv")
        shares = builder.add("softmax", builder.add("matmul", q, builder.add("transpose", k, perm=(1, 0))), axis=-1)
        y = builder.add("add", x, builder.add("matmul", builder.add("matmul", shares, v), weight("o", WIDTH, WIDTH)))
        y = builder.add("layer_norm", y, weight("scale", WIDTH), weight("shift", WIDTH), axis=-1)
        hidden = builder.add("gelu", builder.add("matmul", y, weight("up", WIDTH, 4 * WIDTH)))
        x = builder.add("add", y, builder.add("matmul", hidden, weight("down", 4 * WIDTH, WIDTH)))
    return builder.build([x])


if __name__ == "__main__":
    main()
