"""The models that are measured by name: well-known architectures with seeded random weights, and the onnx wheel's light ones.

Every torch model takes one tensor and returns one, so that each engine computes the same function. The light models of the
onnx wheel fill their weights with one number, which makes every layer of rank 1; here they get seeded random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.errors import InputError
from hotfuse.records import dataclass

LIGHT = (
    "light_bvlc_alexnet", "light_densenet121", "light_inception_v1", "light_inception_v2", "light_resnet50",
    "light_shufflenet", "light_squeezenet", "light_vgg19", "light_zfnet512",
)  # fmt: skip
WORDS = 30_000  # token ids stay below; every vocabulary here is larger


@dataclass(frozen=True)
class Case:
    """What to measure: a name of `MODELS` or `LIGHT`, a path, or a kernel; batch and length where not the model's own."""

    model: str
    batch: int | None = None
    sequence: int | None = None

    @property
    def label(self) -> str:
        name = Path(self.model).name
        tail = [f"b{self.batch}"] if self.batch else []
        return "-".join([name, *([f"s{self.sequence}"] if self.sequence else []), *tail])

    @property
    def is_file(self) -> bool:
        return self.model.endswith((".onnx", ".pt2"))

    @property
    def is_kernel(self) -> bool:
        return self.model.startswith(("gemm:", "chain:"))


@dataclass(frozen=True)
class TorchModel:
    """A module, the name and value of its one input, and what tracing for ONNX must pass beside it."""

    module: Any
    name: str
    value: Any
    when_traced: Mapping[str, Any]


def one_output(model: TorchModel, traced: bool = False) -> Any:
    """The model as a module of one tensor in, one tensor out."""
    import torch

    extra = dict(model.when_traced) if traced else {}

    class OneOutput(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = model.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer = self.module(x, **extra)
            return answer if isinstance(answer, torch.Tensor) else answer[0]  # type: ignore[no-any-return]

    return OneOutput().eval()


def _mlp(batch: int, sequence: int) -> TorchModel:
    from torch import nn, randn

    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return TorchModel(nn.Sequential(*layers), "x", randn(batch, 64), {})


def _bert(batch: int, sequence: int, **sizes: int) -> TorchModel:
    from torch import randint
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(**sizes), add_pooling_layer=False)
    return TorchModel(module, "input_ids", randint(0, WORDS, (batch, sequence)), {})


def _minilm(batch: int, sequence: int) -> TorchModel:
    return _bert(batch, sequence, num_hidden_layers=6, hidden_size=384, intermediate_size=1536, num_attention_heads=12)


def _bert_tiny(batch: int, sequence: int) -> TorchModel:
    return _bert(batch, sequence, num_hidden_layers=2, hidden_size=128, intermediate_size=512, num_attention_heads=2)


def _gpt2(batch: int, sequence: int) -> TorchModel:
    from torch import long, ones, randint
    from transformers import GPT2Config, GPT2Model

    module = GPT2Model(GPT2Config(use_cache=False))
    # without a mask, tracing records a search for packed sequences that ONNX has no operators for
    mask = {"attention_mask": ones(batch, sequence, dtype=long)}
    return TorchModel(module, "input_ids", randint(0, WORDS, (batch, sequence)), mask)


def _resnet50(batch: int, sequence: int) -> TorchModel:
    from torch import randn
    from transformers import ResNetConfig, ResNetForImageClassification

    module = ResNetForImageClassification(ResNetConfig(num_labels=1000, return_dict=False))
    return TorchModel(module, "pixel_values", randn(batch, 3, 224, 224), {})


def _vit(batch: int, sequence: int) -> TorchModel:
    from torch import randn
    from transformers import ViTConfig, ViTModel

    return TorchModel(ViTModel(ViTConfig(), add_pooling_layer=False), "pixel_values", randn(batch, 3, 224, 224), {})


# name -> how to make it, its own batch, its own sequence length (0 where it has none)
MODELS: Mapping[str, tuple[Callable[[int, int], TorchModel], int, int]] = {
    "mlp": (_mlp, 8, 0),
    "minilm": (_minilm, 1, 128),
    "bert-base": (_bert, 1, 128),
    "bert-tiny": (_bert_tiny, 1, 128),
    "gpt2": (_gpt2, 1, 64),
    "resnet-50": (_resnet50, 1, 0),
    "vit-base": (_vit, 1, 0),
}
CPU_SUITE = (
    Case("mlp"), Case("minilm", sequence=16), Case("minilm", sequence=128), Case("bert-base"), Case("gpt2"), Case("resnet-50"),
    Case("vit-base"), *(Case(name) for name in LIGHT),
)  # fmt: skip


def check_case(case: Case) -> None:
    """Refuse a name that nobody knows and a file that is not there, before anything is started."""
    if case.is_kernel:
        return
    if case.is_file:
        if not Path(case.model).is_file():
            raise InputError(f"there is no file {case.model}")
    elif case.model not in MODELS and case.model not in LIGHT:
        known = ", ".join((*MODELS, *LIGHT))
        raise InputError(f"{case.model!r} is neither a path to an .onnx or .pt2 file nor one of {known}")
    elif case.model in MODELS and case.sequence and not MODELS[case.model][2]:
        raise InputError(f"{case.model} has no sequence; leave --seq out")


def make_torch(case: Case) -> TorchModel:
    """The model of that name, always with the same weights and input."""
    import torch

    make, batch, sequence = MODELS[case.model]
    torch.manual_seed(0)
    made = make(case.batch or batch, case.sequence or sequence)
    made.module.eval()
    return made


def make_light(name: str, seed: int = 0) -> Any:
    """A light model of the onnx wheel with random weights of the same shapes."""
    import onnx
    from onnx import numpy_helper

    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    model = onnx.load(str(folder / f"{name}.onnx"))
    graph = model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    shapes = {n.output[0]: constants[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    shapes |= {name: np.array(value.shape) for name, value in constants.items() if value.dtype == np.float32}
    kinds = _weight_kinds(graph)
    generator = np.random.default_rng(seed)
    weights = {name: _random_weight(kinds.get(name, "bias"), shape, generator) for name, shape in shapes.items()}
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    whole = {name: value for name, value in constants.items() if value.dtype != np.float32} | weights
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(value, name) for name, value in whole.items() if name in used]
    inputs = [i for i in graph.input if i.name not in whole and i.name in used]
    for field, new in ((graph.node, nodes), (graph.initializer, tensors), (graph.input, inputs)):
        del field[:]
        field.extend(new)
    model.ir_version = max(model.ir_version, 4)  # from then on weights need not be inputs
    return model


def _weight_kinds(graph: Any) -> dict[str, str]:
    """What each constant is to the node that reads it: a weight, or a moment of a batch norm; all others are biases."""
    kinds: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            kinds[node.input[1]] = node.op_type
        elif node.op_type == "BatchNormalization":
            kinds |= {node.input[1]: "scale", node.input[4]: "scale"}
        elif node.op_type == "Unsqueeze":  # a scale or shift per channel is widened before it is used
            kinds.setdefault(node.output[0], node.input[0])
    for node in graph.node:
        if node.op_type == "Mul" and node.input[1] in kinds:
            kinds[kinds[node.input[1]]] = "scale"
    return kinds


def _random_weight(kind: str, shape: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Sizes that keep activations near 1 through many layers; variances and scales stay positive."""
    size = tuple(int(n) for n in shape)
    if kind == "scale":
        return generator.uniform(0.5, 1.5, size).astype(np.float32)
    if kind in ("Conv", "Gemm") and len(size) > 1:
        fan_in = int(np.prod(size[1:]))
        return (generator.standard_normal(size, dtype=np.float32) * np.float32(np.sqrt(2.0 / fan_in))).astype(np.float32)
    return (generator.standard_normal(size, dtype=np.float32) * np.float32(0.1)).astype(np.float32)
