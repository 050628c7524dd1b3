"""What `hotfuse.load` does: pick the front end, run the passes, open a session."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotfuse.config import Config, resolve
from hotfuse.ir.graph import Graph
from hotfuse.ir.op import OPS, Pattern
from hotfuse.passes import optimize
from hotfuse.runtime.binding import check_static_sizes
from hotfuse.runtime.session import Session

if TYPE_CHECKING:
    from hotfuse.runtime.torch_exported import ExportedModel


def load_model(source: Any, config: Config | None, options: Mapping[str, Any]) -> Session | ExportedModel:
    chosen = resolve(config, options)
    if isinstance(source, (str, os.PathLike)) and os.fspath(source).endswith(".pt2"):
        from hotfuse.frontends.torch_archive import load_archive
        from hotfuse.runtime.torch_exported import compile_exported

        return compile_exported(load_archive(source, chosen), chosen)
    from hotfuse.frontends.onnx_model import load_onnx

    imported = load_onnx(source, chosen)
    check_static_sizes(imported.graph, chosen.max_value_bytes)
    failures: list[tuple[str, Exception]] = []
    note = None if chosen.strict else lambda name, error: failures.append((name, error))
    graph = imported.graph if chosen.disable else optimize(imported.graph, failed=note)
    session = Session(graph, imported.output_names, chosen, _still_there(imported.opaque, graph))
    for name, error in failures:
        session.events.emit("pass.failed", name, f"{type(error).__name__}: {error}")
    return session


def _still_there(opaque: Sequence[tuple[str, str, str]], graph: Graph) -> list[tuple[str, str, str]]:
    """The opaque nodes that the passes left in the graph or in a graph nested in it."""
    kept = Counter(str(node.origin) for g in graph.walk() for node in g.nodes if OPS[node.op].pattern is Pattern.OPAQUE)
    found = []
    for entry in opaque:
        if kept[entry[0]]:
            kept[entry[0]] -= 1
            found.append(entry)
    return found
