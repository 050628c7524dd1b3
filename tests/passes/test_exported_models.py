"""Models of transformers as torch.onnx.export writes them, old exporter and new: every layer's attention, norms and activation
must come back as one operator each, and the results must be torch's by the float64 rule.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import hotfuse
from hotfuse.ir.verify import verify
from hotfuse.numerics import close_to_exact
from tests.passes.graphs import ops

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own
LAYERS = 2
SMALL = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 99, "max_position_embeddings": 64}


class Positional(torch.nn.Module):
    """A model of transformers with its inputs by position and its first output alone."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]  # type: ignore[no-any-return]


class Blocks(torch.nn.Module):
    """Convolutions with batch norms, and a linear layer with one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.SiLU(),
            torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(8, 4, 2), torch.nn.BatchNorm2d(4), torch.nn.Flatten(),
        )  # fmt: skip
        for module in self.body:
            if isinstance(module, torch.nn.BatchNorm2d):
                for parameter in (module.running_mean, module.weight, module.bias):
                    torch.nn.init.normal_(parameter)  # type: ignore[arg-type]
                torch.nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def tokens() -> torch.Tensor:
    return torch.randint(0, 99, (2, 7))


def padding() -> torch.Tensor:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    return mask


def positions() -> torch.Tensor:
    return torch.arange(7)[None].expand(2, 7).contiguous()


Case = tuple[Callable[[str], torch.nn.Module], dict[str, Callable[[], torch.Tensor]], dict[str, int]]
TRANSFORMER = {"attention": LAYERS, "layer_norm": 2 * LAYERS + 1, "gelu": LAYERS, "softmax": 0, "erf": 0, "tanh": 0}
CASES: dict[str, Case] = {
    "bert": (
        lambda kind: tf.BertModel(tf.BertConfig(**SMALL, **TEXT, attn_implementation=kind), add_pooling_layer=False),
        {"input_ids": tokens, "attention_mask": padding},
        TRANSFORMER,
    ),
    "gpt2": (
        lambda kind: tf.GPT2Model(
            tf.GPT2Config(
                n_embd=32, n_layer=LAYERS, n_head=4, n_positions=64, vocab_size=99, attn_implementation=kind, use_cache=False
            )
        ),
        {"input_ids": tokens, "attention_mask": padding, "position_ids": positions},
        TRANSFORMER,
    ),
    "llama": (
        lambda kind: tf.LlamaModel(
            tf.LlamaConfig(**SMALL, **TEXT, num_key_value_heads=2, attn_implementation=kind, use_cache=False)
        ),
        {"input_ids": tokens, "attention_mask": padding, "position_ids": positions},
        {"attention": LAYERS, "rms_norm": 2 * LAYERS + 1, "silu": LAYERS, "softmax": 0, "rsqrt": 0, "sigmoid": 0},
    ),
    "vit": (
        lambda kind: tf.ViTModel(
            tf.ViTConfig(**SMALL, image_size=32, patch_size=8, attn_implementation=kind), add_pooling_layer=False
        ),
        {"pixel_values": lambda: torch.randn(2, 3, 32, 32)},
        TRANSFORMER,
    ),
    "resnet": (
        lambda kind: tf.ResNetModel(tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
        {"pixel_values": lambda: torch.randn(2, 3, 32, 32)},
        {"batch_norm": 0},
    ),
    "blocks": (lambda kind: Blocks(), {"x": lambda: torch.randn(2, 3, 8, 8)}, {"batch_norm": 0, "silu": 1, "conv": 2}),
}  # fmt: skip
EXPORTS = [
    ("bert", "dynamo", "sdpa"), ("bert", "script 14", "eager"), ("bert", "script 18", "sdpa"),
    ("gpt2", "dynamo", "eager"), ("gpt2", "script 14", "sdpa"), ("llama", "dynamo", "sdpa"), ("llama", "script 17", "eager"),
    ("vit", "dynamo", "sdpa"), ("vit", "script 14", "sdpa"), ("resnet", "dynamo", "eager"), ("resnet", "script 14", "eager"),
    ("blocks", "script 14", "eager"),
]  # fmt: skip


def export(model: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path, exporter: str) -> None:
    kind, _, opset = exporter.partition(" ")
    axes = {name: {0: "batch", 1: "seq"} if x.dim() == 2 else {0: "batch"} for name, x in inputs.items()}
    common: dict[str, Any] = {"input_names": list(inputs), "verbose": False}
    if kind == "dynamo":
        dims = {name: torch.export.Dim(name) for name in ("batch", "seq")}
        shapes = tuple({i: dims[d] for i, d in sizes.items()} for sizes in axes.values())
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=True, dynamic_shapes=(shapes,), **common)
    else:
        # Folding and the training flag are set so that batch norms stay to be folded here.
        torch.onnx.export(
            model, tuple(inputs.values()), path, dynamo=False, dynamic_axes=axes, opset_version=int(opset),
            do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE, **common,
        )  # fmt: skip


@pytest.mark.parametrize(("name", "exporter", "kind"), EXPORTS, ids=[" ".join(e) for e in EXPORTS])
def test_exported(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    make, given, wanted = CASES[name]
    torch.manual_seed(0)
    inputs = {key: value() for key, value in given.items()}
    model = make(kind).eval()
    whole = model if name == "blocks" else Positional(model, tuple(inputs))
    path = tmp_path / "model.onnx"
    export(whole.eval(), inputs, path, exporter)

    session = hotfuse.load(path, strict=True)
    verify(session.graph)
    found = ops(session.graph)
    assert {op: found[op] for op in wanted} == wanted
    assert not session.opaque

    with torch.no_grad():
        original = whole(*inputs.values()).numpy()
        wide = [x.double() if x.is_floating_point() else x for x in inputs.values()]
        exact = copy.deepcopy(whole).double()(*wide).numpy()
    (ours,) = session.run(None, {key: value.numpy() for key, value in inputs.items()})[:1]
    verdict = close_to_exact(ours, original, exact)
    assert verdict, verdict.reason
