"""Random ONNX models against ONNX Runtime: at several sizes through one session, with passes and without, from two threads.

HOTFUSE_FUZZ_COUNT and HOTFUSE_FUZZ_SEED set how many models the long test runs and where it starts; a failure prints its seed
and the shortest beginning of the model that fails.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from hotfuse.ir.op import OPS
from tests.fuzz.onnx_draft import Draft
from tests.fuzz.onnx_judge import Case, failures, finish, judge, shrink, story
from tests.fuzz.onnx_models import make

SEED = int(os.environ.get("HOTFUSE_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("HOTFUSE_FUZZ_COUNT", "2000"))
QUICK, CHUNK = 240, 40


def check(seeds: range) -> None:
    for seed in seeds:
        case = make(seed)
        if failures(case, threads=seed % 10 == 0):
            pytest.fail(story(case, seed))


@pytest.mark.parametrize("start", range(0, QUICK, CHUNK))
def test_random_models(start: int) -> None:
    check(range(start, start + CHUNK))


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
def test_many_random_models() -> None:
    check(range(SEED, SEED + COUNT))


def chain() -> Case:
    """x -> Tanh -> Floor of the input -> Add, at two batch sizes."""
    draft = Draft(random.Random(0), 17, [{"B": 3}, {"B": 1}])
    x = draft.input(np.float32, ("B", 4))
    low = draft.one("Floor", x, bits=True)
    return finish(draft, [draft.one("Add", draft.one("Tanh", x), low)])


def test_a_sound_model_passes() -> None:
    assert failures(chain(), threads=True) == []


def test_a_planted_defect_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    case = chain()

    def wrong(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:  # type: ignore[type-arg]
        return np.asarray(np.tanh(x) * np.float32(1 + 1e-5))

    monkeypatch.setitem(OPS["tanh"].__dict__, "reference", wrong)
    monkeypatch.setitem(OPS["tanh"].__dict__, "writes_out", False)
    assert any("v4" in text or "v3" in text for text in failures(case))
    small = shrink(case)
    assert [node.op_type for node in small.proto.graph.node] == ["Tanh"]
    assert "seed 7" in story(case, 7)


def test_one_wrong_bit_of_moved_data_is_found() -> None:
    case = chain()
    (low,) = [case.draft.tensors[n] for node in case.proto.graph.node if node.op_type == "Floor" for n in node.output]
    flipped = low.data[0].copy()
    flipped[0, 0] = np.nextafter(flipped[0, 0], np.float32(9))
    assert judge(case, low, low.data[0], 0)
    assert not judge(case, low, flipped, 0)


def test_the_same_seed_gives_the_same_model() -> None:
    a, b = make(5), make(5)
    assert a.proto.SerializeToString() == b.proto.SerializeToString()
    assert all(np.array_equal(x.data[0], y.data[0]) for x, y in zip(a.outputs, b.outputs, strict=True))


def test_models_are_varied() -> None:
    """A generator that rejects most of what it draws would test little."""
    seen = {node.op_type for seed in range(120) for node in make(seed).proto.graph.node}
    assert len(seen) > 80
    assert {"If", "Loop", "Conv", "Softmax", "Reshape", "Slice", "ScatterND", "ReduceMean"} <= seen
