"""What `hotfuse.load` does: pick the front end, and have what serves adapted while it serves."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotfuse.config import Config, resolve
from hotfuse.errors import InvalidModel
from hotfuse.ir.graph import Graph
from hotfuse.ir.op import OPS, Pattern
from hotfuse.passes import optimize
from hotfuse.runtime.concrete import check_static_sizes
from hotfuse.runtime.feeds import Signature
from hotfuse.runtime.metrics import watch
from hotfuse.runtime.numpy_engine import NUMPY, copied_ahead
from hotfuse.runtime.overrides import Overrides
from hotfuse.runtime.session import Session
from hotfuse.runtime.stressed import session_class

if TYPE_CHECKING:
    from hotfuse.frontends.onnx_model import ImportedModel
    from hotfuse.runtime.torch_exported import ExportedModel


def load_model(source: Any, config: Config | None, options: Mapping[str, Any]) -> Session | ExportedModel:
    chosen = resolve(config, options)
    if isinstance(source, (str, os.PathLike)) and os.fspath(source).endswith(".pt2"):
        from hotfuse.entry_torch import adapt
        from hotfuse.frontends.torch_archive import load_archive
        from hotfuse.runtime.torch_exported import compile_exported

        return compile_exported(load_archive(source, chosen), chosen, adapt)
    _refuse_torch(source)
    early = False
    if chosen.adapts:
        from hotfuse.adaptive.maker import constant_bytes, get_ready, wake_early

        early = wake_early(chosen, _file_bytes(source))
    from hotfuse.frontends.onnx_model import load_onnx

    imported = load_onnx(source, chosen)
    if chosen.adapts:
        early = wake_early(chosen, constant_bytes(imported.graph)) or early  # weights may lie elsewhere
    session = _open(imported, chosen)
    if early:
        get_ready()
    return session


def _file_bytes(source: Any) -> int:
    """Of a model's file; 0 where it is none, or cannot be read: who reads it says why."""
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(OSError, ValueError):
            return os.path.getsize(source)
    return 0


def _open(imported: ImportedModel, config: Config) -> Session:
    check_static_sizes(imported.graph, config.max_value_bytes)
    with contextlib.nullcontext() if config.native else copied_ahead(imported.graph):
        return _prepared(imported, config)


def _prepared(imported: ImportedModel, config: Config) -> Session:
    failures: list[tuple[str, Exception]] = []
    note = None if config.strict else lambda name, error: failures.append((name, error))
    graph = imported.graph if config.disable else optimize(imported.graph, failed=note)
    overrides = None
    if (reimport := imported.overridden) is not None:
        defaults = [Signature(name, imported.graph.type(name)) for name in imported.defaults]
        overrides = Overrides(defaults, lambda names: watch(_open(reimport(names), config), is_part=True))
    session = session_class(config)(graph, imported.output_names, config, _still_there(imported.opaque, graph), overrides)
    if not config.native:
        NUMPY.make_ready(graph)
    for name, error in failures:
        session.events.emit("pass.failed", name, f"{type(error).__name__}: {error}")
    if not config.adapts:
        return session
    chance = next((node for inner in graph.walk() for node in inner.nodes if not OPS[node.op].deterministic), None)
    if chance is not None:
        reason = f"{chance.op} ({chance.origin}) draws random numbers: two runs do not agree, and nothing could be proved of it"
        session.events.emit("tier.never", graph.name, reason)
    else:
        from hotfuse.adaptive.session_subject import SessionSubject
        from hotfuse.adaptive.subject import rules_of

        session.observer = SessionSubject(session, rules_of(config, graph))
    return session


def _refuse_torch(source: Any) -> None:
    torch = sys.modules.get("torch")  # whoever has such a model has imported it
    if torch is not None and isinstance(source, (torch.nn.Module, torch.export.ExportedProgram)):
        raise InvalidModel(
            f"hotfuse.load takes ONNX models and paths to .pt2 files, not {type(source).__name__}; "
            "PyTorch models go to hotfuse.compile"
        )


def _still_there(opaque: Sequence[tuple[str, str, str]], graph: Graph) -> list[tuple[str, str, str]]:
    """The opaque nodes that the passes left in the graph or in a graph nested in it."""
    kept = Counter(str(node.origin) for g in graph.walk() for node in g.nodes if OPS[node.op].pattern is Pattern.OPAQUE)
    found = []
    for entry in opaque:
        if kept[entry[0]]:
            kept[entry[0]] -= 1
            found.append(entry)
    return found
