"""Random models of NNSmith through ONNX and through Dynamo.

HOTFUSE_FUZZ_COUNT and HOTFUSE_FUZZ_SEED set how many models the long test runs and where it starts.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest
import torch

from tests.fuzz.nnsmith_judge import through_dynamo, through_onnx
from tests.fuzz.nnsmith_models import make

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's own
SEED = int(os.environ.get("HOTFUSE_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("HOTFUSE_FUZZ_COUNT", "300"))


def check(seeds: range) -> Counter[str]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            model = make(seed)
        except Exception:  # the generator's own: no model in time, or one that eager refuses
            counts["not made"] += 1
            continue
        if model is None:
            counts["on an edge"] += 1
            continue
        way, found = through_onnx(model)
        counts[way] += 1
        wrong = [f"onnx: {text}" for text in found] + [f"dynamo: {text}" for text in through_dynamo(model)]
        if wrong:
            pytest.fail("\n".join([f"seed {seed}", *wrong, str(model.module.code), str([x.shape for x in model.inputs])]))
        counts["through dynamo"] += 1
    print(dict(counts))
    return counts


def test_models_of_nnsmith() -> None:
    counts = check(range(16))
    assert counts["through onnx"] >= 5
    assert counts["through dynamo"] >= 5


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
def test_many_models_of_nnsmith() -> None:
    check(range(SEED, SEED + COUNT))


def test_a_wrong_result_is_found() -> None:
    model = next(m for m in map(make, range(2, 40)) if m is not None and m.original[0].is_floating_point())
    off = tuple(x + 1e-2 if x.is_floating_point() else x for x in model.original)
    exact = tuple(x + 1e-2 if x.is_floating_point() else x for x in model.exact)
    wrong = type(model)(model.net, model.module, model.inputs, off, exact)
    assert through_dynamo(model) == []
    assert through_dynamo(wrong)
    torch._dynamo.reset()
