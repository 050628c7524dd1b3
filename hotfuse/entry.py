"""What `hotfuse.load` does: pick the front end, run the passes, open a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotfuse.config import Config, resolve
from hotfuse.runtime.session import Session


def load_model(source: Any, config: Config | None, options: Mapping[str, Any]) -> Session:
    chosen = resolve(config, options)
    from hotfuse.frontends.onnx_model import load_onnx

    imported = load_onnx(source, chosen)
    return Session(imported.graph, imported.output_names, chosen, imported.opaque)
