"""What `hotfuse.load` does: pick the front end, run the passes, open a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.config import Config, resolve
from hotfuse.ir.graph import Graph
from hotfuse.ir.op import OPS, Pattern
from hotfuse.passes import optimize
from hotfuse.runtime.binding import check_static_sizes
from hotfuse.runtime.session import Session


def load_model(source: Any, config: Config | None, options: Mapping[str, Any]) -> Session:
    chosen = resolve(config, options)
    from hotfuse.frontends.onnx_model import load_onnx

    imported = load_onnx(source, chosen)
    check_static_sizes(imported.graph, chosen.max_value_bytes)
    graph = optimize(imported.graph)
    return Session(graph, imported.output_names, chosen, _still_there(imported.opaque, graph))


def _still_there(opaque: Sequence[tuple[str, str, str]], graph: Graph) -> list[tuple[str, str, str]]:
    """The opaque nodes that the passes left in the graph or in a graph nested in it."""
    kept = Counter(str(node.origin) for g in graph.walk() for node in g.nodes if OPS[node.op].pattern is Pattern.OPAQUE)
    found = []
    for entry in opaque:
        if kept[entry[0]]:
            kept[entry[0]] -= 1
            found.append(entry)
    return found
