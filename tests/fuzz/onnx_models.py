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
    if not draft.nodes:
        return make(seed + 1_000_003)
    made = [draft.tensors[name] for node in draft.nodes for name in node.output]
    read = {name for node in draft.nodes for name in node.input}
    outputs = [t for t in made if t.name not in read or rng.random() < 0.15]
    return finish(draft, outputs or made[-1:])
