"""The golden tile programs with inputs and an oracle: torch's result in float32, and in float64 for the numerics rules.

Everything that runs tile programs (the interpreter, the code generators) is tested on all of them, at sizes with and without
tails. `judge` says whether outputs are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as nn

from hotfuse.codegen.interpret import evaluate, poison
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.ir.types import BF16
from hotfuse.numerics import Verdict, close_to_exact, same_bits

FOLDER = Path(__file__).parent / "golden"
Arrays = dict[str, np.ndarray]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Golden:
    """`inputs` makes the arguments in their shapes, `oracle` the output `y` from tensors; `exact` asks for its very bits."""

    name: str
    sizes: tuple[Sizes, ...]
    inputs: Callable[[Sizes, np.random.Generator], Arrays]
    oracle: Callable[..., torch.Tensor]
    exact: bool = False

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.tile").read_text()

    @property
    def program(self) -> TileProgram:
        return parse_program(self.text)

    def buffers(self, sizes: Sizes, seed: int = 0) -> tuple[Arrays, Arrays]:
        """The inputs in their shapes, and flat memory for every argument, with poisoned outputs."""
        inputs = self.inputs(sizes, np.random.default_rng(seed))
        flat = {name: np.ascontiguousarray(self.packed(name, x)).reshape(-1).copy() for name, x in inputs.items()}
        for buffer in self.program.arguments:
            if buffer.kind == "output":
                flat[buffer.name] = poison(buffer.dtype, evaluate(buffer.size, sizes))
        return inputs, flat

    def packed(self, name: str, x: np.ndarray) -> np.ndarray:
        """`panels` are given as a matrix: panels of 16 columns, one after the other, zeros at the end."""
        if name != "panels":
            return x
        k, n = x.shape
        panels = -(-n // 16)
        wide = np.zeros((k, panels * 16), x.dtype)
        wide[:, :n] = x
        return wide.reshape(k, panels, 16).transpose(1, 0, 2)

    def judge(self, inputs: Arrays, y: np.ndarray) -> Verdict:
        """Whether the flat output `y` is right by the rules of `hotfuse.numerics`."""
        tensors = {name: _tensor(x) for name, x in inputs.items()}
        original = self.oracle(**tensors).numpy()
        if self.exact:
            return same_bits(y.reshape(original.shape), original)
        wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        return close_to_exact(y.reshape(original.shape), original, self.oracle(**wide).numpy())


def _tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float32)).bfloat16() if x.dtype == BF16.numpy else torch.from_numpy(x)


def _columns(x: torch.Tensor) -> torch.Tensor:
    least = x.amin(0) if len(x) else torch.zeros(x.shape[1])
    return torch.where(least < 0, -x.sum(0), x.sum(0))


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.scaled_dot_product_attention(q, k, v, is_causal=True)


ROWS: tuple[Sizes, ...] = ({"m": 8, "n": 32}, {"m": 5, "n": 37}, {"m": 1, "n": 1}, {"m": 0, "n": 4})
GEMMS: tuple[Sizes, ...] = (
    {"m": 16, "n": 32, "k": 24}, {"m": 13, "n": 21, "k": 7}, {"m": 1, "n": 1, "k": 1}, {"m": 9, "n": 17, "k": 0},
)  # fmt: skip

GOLDENS = (
    Golden(
        "pointwise", ROWS,
        lambda s, rng: {"x": _normal(rng, s["m"], s["n"]), "scale": _normal(rng, s["m"], 1), "bias": _normal(rng, s["n"])},
        lambda x, scale, bias: nn.gelu(x * scale + bias),
    ),
    Golden("transpose", ROWS, lambda s, rng: {"x": _normal(rng, s["m"], s["n"])}, lambda x: x.T.contiguous(), exact=True),
    Golden("softmax", ROWS, lambda s, rng: {"x": 5 * _normal(rng, s["m"], s["n"])}, lambda x: nn.softmax(x, -1)),
    Golden(
        "layer_norm", ROWS,
        lambda s, rng: {"x": _normal(rng, s["m"], s["n"]) + 3, "weight": _normal(rng, s["n"]), "bias": _normal(rng, s["n"])},
        lambda x, weight, bias: nn.layer_norm(x, x.shape[-1:], weight, bias, 1e-5),
    ),
    Golden(
        "gemm", GEMMS,
        lambda s, rng: {
            "a": _normal(rng, s["m"], s["k"]), "b": _normal(rng, s["k"], s["n"]), "bias": _normal(rng, s["n"]),
        },
        lambda a, b, bias: nn.relu(a @ b + bias),
    ),
    Golden(
        "gemm_packed", GEMMS,
        lambda s, rng: {"a": _normal(rng, s["m"], s["k"]), "panels": _normal(rng, s["k"], s["n"])},
        lambda a, panels: a @ panels,
    ),
    Golden(
        "gather", ({"m": 8, "n": 32, "t": 5}, {"m": 3, "n": 19, "t": 40}, {"m": 0, "n": 3, "t": 1}),
        lambda s, rng: {
            "rows": rng.integers(-s["t"], s["t"], s["m"]), "table": _normal(rng, s["t"], s["n"]), "shift": _normal(rng, 1),
        },
        lambda rows, table, shift: table[rows] + shift,
        exact=True,
    ),
    Golden(
        "attention", ({"heads": 2, "length": 16}, {"heads": 3, "length": 13}, {"heads": 1, "length": 1}),
        lambda s, rng: {name: 2 * _normal(rng, s["heads"], s["length"], 16) for name in "qkv"},
        _attention,
    ),
    Golden(
        "mixed", ROWS,
        lambda s, rng: {
            "x": _normal(rng, s["m"], s["n"]).astype(BF16.numpy), "mask": rng.random((s["m"], s["n"])) > 0.5,
        },
        lambda x, mask: torch.where(mask, x.float(), x.float() * -0.5).half(),
        exact=True,
    ),
    Golden(
        "columns", ROWS,
        lambda s, rng: {"x": (rng.integers(0, 2**31, (s["m"], s["n"])) * rng.choice([-1, 1], (1, s["n"]))).astype(np.int32)},
        _columns,
        exact=True,
    ),
)  # fmt: skip


def cases() -> Iterator[tuple[Golden, Sizes]]:
    for golden in GOLDENS:
        for sizes in golden.sizes:
            yield golden, sizes


def case_id(value: object) -> str:
    if isinstance(value, Golden):
        return value.name
    return "-".join(f"{k}{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
