"""hotfuse: an adaptive, fusing compiler and runtime for neural networks.

session = hotfuse.load("model.onnx")
outputs = session.run(None, {"input": array})

fast = hotfuse.compile(torch_model)
y = fast(x)
"""

from __future__ import annotations

import sys
from typing import Any

from hotfuse.config import Config
from hotfuse.errors import HotfuseError

__version__ = "0.1.0"
__all__ = ["Config", "HotfuseError", "compile", "load", "metrics", "models", "serve_metrics"]


def load(source: Any, config: Config | None = None, **options: Any) -> Any:
    """Load a model for inference: a `Session` for an ONNX model (a path, bytes or an `onnx.ModelProto`), a callable
    `ExportedModel` for a path to a .pt2 file."""
    from hotfuse.entry import load_model
    from hotfuse.runtime.metrics import watch

    return watch(load_model(source, config, options))


def compile(model: Any, config: Config | None = None, **options: Any) -> Any:
    """A drop-in for a PyTorch module, function or exported program that hotfuse speeds up while it serves."""
    from hotfuse.entry_torch import compile_torch
    from hotfuse.runtime.metrics import watch

    return watch(compile_torch(model, config, options))


def models() -> list[Any]:
    """Every model of this process that hotfuse serves, oldest first; those that `torch.compile(backend="hotfuse")` traced are
    among them. Each has `report()`, `story(id)`, `explain()`, `settle()`, `refresh()`, `close()` and `events`."""
    from hotfuse.runtime.metrics import models

    return models()


def metrics() -> str:
    """What all models of this process did and hold, in the text format that Prometheus reads."""
    from hotfuse.runtime.metrics import metrics_text

    return metrics_text()


def serve_metrics(port: int = 0, host: str = "127.0.0.1") -> Any:
    """Serve `metrics()` at `http://host:port/metrics`, from a thread of its own, until `close()` of what is returned. Its
    `port` says which it is where any would do. With another `host`, whoever reaches this machine can read it."""
    from hotfuse.runtime.metrics_endpoint import serve

    return serve(port, host)


if sys.modules.get("torch"):  # now, and not while somebody waits for the first answer of a module
    import hotfuse.entry_torch
    import hotfuse.runtime.metrics  # noqa: F401
