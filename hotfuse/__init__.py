"""hotfuse: an adaptive, fusing compiler and runtime for neural networks.

session = hotfuse.load("model.onnx")
outputs = session.run(None, {"input": array})

fast = hotfuse.compile(torch_model)
y = fast(x)
"""

from __future__ import annotations

from typing import Any

from hotfuse.config import Config
from hotfuse.errors import HotfuseError

__version__ = "0.1.0"
__all__ = ["Config", "HotfuseError", "compile", "load"]


def load(source: Any, config: Config | None = None, **options: Any) -> Any:
    """Load a model for inference: a `Session` for an ONNX model (a path, bytes or an `onnx.ModelProto`), a callable
    `ExportedModel` for a path to a .pt2 file."""
    from hotfuse.entry import load_model

    return load_model(source, config, options)


def compile(model: Any, config: Config | None = None, **options: Any) -> Any:
    """A drop-in for a PyTorch module, function or exported program that hotfuse speeds up while it serves."""
    from hotfuse.entry import compile_torch

    return compile_torch(model, config, options)
