"""The models that benchmarks measure: architectures from `transformers` with seeded random weights, and their ONNX files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

Made = tuple[Any, dict[str, Any]]  # module in eval mode, keyword inputs


def bert_base(sequence: int = 128, layers: int = 12) -> Made:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    module = BertModel(BertConfig(num_hidden_layers=layers)).eval()
    return module, {"input_ids": torch.randint(0, 30000, (1, sequence))}


def minilm(sequence: int = 128) -> Made:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=6, hidden_size=384, intermediate_size=1536, num_attention_heads=12)
    return BertModel(config).eval(), {"input_ids": torch.randint(0, 30000, (1, sequence))}


def resnet50() -> Made:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(num_labels=1000)).eval(), {"pixel_values": torch.randn(1, 3, 224, 224)}


MODELS: dict[str, Callable[[], Made]] = {"bert-base": bert_base, "minilm": minilm, "resnet-50": resnet50}


def onnx_file(name: str) -> Path:
    """The model as an ONNX file, exported once and kept in the user's cache."""
    folder = Path(os.environ.get("HOTFUSE_BENCH_DIR", platformdirs.user_cache_path("hotfuse") / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    if not path.exists():
        _export(name, path)
    return path


def _export(name: str, path: Path) -> None:
    import torch

    module, inputs = MODELS[name]()

    class Plain(torch.nn.Module):
        """Tensors in, one tensor out, as an exported model should be."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)[0]  # type: ignore[no-any-return]

    (key, value), *_ = inputs.items()
    temporary = path.with_suffix(".tmp")
    with torch.no_grad():
        torch.onnx.export(Plain().eval(), (value,), str(temporary), dynamo=False, input_names=[key], opset_version=17)
    temporary.rename(path)
