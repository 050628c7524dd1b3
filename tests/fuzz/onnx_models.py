"""Random ONNX models: `make(seed)` gives the same model for the same seed."""

from __future__ import annotations

import random

import numpy as np
import onnx

from tests.fuzz.onnx_draft import Draft
from tests.fuzz.onnx_judge import Case, finish
from tests.fuzz.onnx_layers import grow

OLDEST, NEWEST = 7, onnx.defs.onnx_opset_version()
SHAPES = (
    (), ("B",), ("B", 4), ("B", "S", 6), (2, "S", 8), ("B", 4, 5, 6), ("B", 2, "S", 4), (3, "B"), (2, 3, 4), (1, "S", 1),
    ("B", 6, "S"), ("B", 4, 4, 6),
)  # fmt: skip


def make(seed: int) -> Case:
    rng = random.Random(seed)
    settings = [{"B": 3, "S": 5}, {"B": 1, "S": 4}, {"B": 2, "S": 1}, {"B": 1, "S": 1}, {"B": 5, "S": 6}]
    if rng.random() < 0.25:
        settings.append({"B": 0, "S": 3})
    draft = Draft(rng, rng.choice([rng.randint(OLDEST, NEWEST), rng.randint(11, NEWEST), 17, NEWEST]), settings)
    for _ in range(rng.randint(1, 3)):
        dtype = rng.choice([np.float32] * 8 + [np.float64, np.float16, np.int64, np.int64, np.int32, np.bool_, np.uint8])
        draft.input(dtype, rng.choice(SHAPES))
    grow(draft, rng.randint(1, 10))
    loosen(draft)
    if not draft.nodes:
        return make(seed + 1_000_003)
    made = [draft.tensors[name] for node in draft.nodes for name in node.output]
    read = {name for node in draft.nodes for name in node.input}
    outputs = [t for t in made if t.name not in read or rng.random() < 0.15] or made[-1:]
    if rng.random() < 0.1:
        outputs.append(rng.choice(list(draft.tensors.values())))  # an input, a constant, or any value
    return finish(draft, outputs)


def loosen(draft: Draft) -> None:
    """Let a third of the models declare less than they could: names, or nothing at all, in place of numbers."""
    chance = draft.rng.choice([0, 0, 0.5])
    for i, info in enumerate(draft.inputs):
        for k, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and draft.rng.random() < chance:
                dim.Clear()
                if draft.rng.random() < 0.7:
                    dim.dim_param = f"free_{i}_{k}"
