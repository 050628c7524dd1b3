"""Random ONNX models against ONNX Runtime: at several sizes through one session, with passes and without, from two threads.

HOTFUSE_FUZZ_COUNT and HOTFUSE_FUZZ_SEED set how many models the long test runs and where it starts; a failure prints its seed
and the shortest beginning of the model that fails.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.ir.op import OPS
from tests.fuzz import onnx_judge
from tests.fuzz.onnx_draft import Draft
from tests.fuzz.onnx_judge import Case, by_rule, failures, finish, judge, shrink, story
from tests.fuzz.onnx_layers import grow
from tests.fuzz.onnx_models import make

SEED = int(os.environ.get("HOTFUSE_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("HOTFUSE_FUZZ_COUNT", "2000"))
QUICK, CHUNK = 240, 40


def check(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        case = make(seed)
        if failures(case, threads=seed % 10 == 0):
            pytest.fail(story(case, seed))
        counts += Counter(models=1, results=2 * len(case.outputs) * case.draft.count) + case.draft.discarded
    print(dict(counts))  # what was left out is said


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


def test_an_elementwise_result_is_held_to_units_in_the_last_place() -> None:
    case = chain()
    (tanh,) = [case.draft.tensors[n] for node in case.proto.graph.node if node.op_type == "Tanh" for n in node.output]
    exact = tanh.exact[0].astype(np.float32)
    off = [exact + n * np.spacing(exact) for n in (0, 3, 6)]
    assert tanh.ulp == 4
    assert [bool(judge(case, tanh, x, 0)) for x in off] == [True, True, False]


def test_the_sign_of_a_zero_counts() -> None:
    draft = Draft(random.Random(0), 17, [{"B": 3}])
    x = draft.one("Round", draft.input(np.float32, ("B", 4), -0.4, 0.4), bits=True)
    ends = [draft.constant(np.float32(v)) for v in (0, 6)]
    case = finish(draft, [draft.one("Clip", x, *ends, bits=True)])
    (clipped,) = case.outputs
    assert np.signbit(clipped.data[0]).any()
    assert judge(case, clipped, clipped.data[0], 0)
    assert not judge(case, clipped, np.abs(clipped.data[0]), 0)


def total() -> Case:
    draft = Draft(random.Random(0), 17, [{"B": 3}])
    x = draft.one("Sigmoid", draft.input(np.float32, ("B", 100)))
    return finish(draft, [draft.one("ReduceSum", x, keepdims=0)])


def test_where_oracles_break_the_rule_ours_is_held_to_the_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    case = total()
    (tensor,) = case.outputs
    off = tensor.data[0] * np.float32(1 + 1e-6)
    assert not judge(case, tensor, off, 0)
    monkeypatch.setattr(onnx_judge, "other_oracles", lambda *_: [tensor.data[0]])
    assert not judge(case, tensor, off, 0)  # that one keeps the rule
    monkeypatch.setattr(onnx_judge, "other_oracles", lambda *_: [off])
    assert judge(case, tensor, off, 0)
    assert not judge(case, tensor, tensor.data[0] * np.float32(1 + 1e-5), 0)  # further off than that one
    assert case.draft.discarded == {onnx_judge.ORACLES_APART: 1}


class Biased:
    """A session whose results are all a little too large, by as much as one of a short row may be by bad luck."""

    def __init__(self, case: Case, factor: float) -> None:
        self.session, self.factor = hotfuse.load(case.proto), np.float32(factor)

    def run(self, names: None, feeds: Any) -> list[Any]:
        return [x * self.factor for x in self.session.run(names, feeds)]


def test_bad_luck_in_a_short_row_is_told_from_a_bias() -> None:
    case = total()
    (tensor,) = case.outputs
    unlucky = tensor.exact[0].astype(np.float32) * np.float32(1 + 3e-7)
    assert not by_rule(tensor, unlucky, tensor.data[0], 0)
    assert judge(case, tensor, unlucky, 0, Biased(case, 1))  # type: ignore[arg-type]
    assert not judge(case, tensor, unlucky, 0, Biased(case, 1 + 6e-7))  # type: ignore[arg-type]


def test_what_is_left_out_is_counted() -> None:
    draft = Draft(random.Random(0), 17, [{"B": 3}])
    x = draft.input(np.float32, ("B", 4))
    zero = draft.one("Sub", x, x)
    grow(draft, 1, [(lambda d: d.one("Div", x, zero), 1)])
    assert draft.discarded == {"not finite": 4}


def test_the_same_seed_gives_the_same_model() -> None:
    a, b = make(5), make(5)
    assert a.proto.SerializeToString() == b.proto.SerializeToString()
    assert all(np.array_equal(x.data[0], y.data[0]) for x, y in zip(a.outputs, b.outputs, strict=True))


def test_models_are_varied() -> None:
    """A generator that rejects most of what it draws would test little."""
    seen = {node.op_type for seed in range(120) for node in make(seed).proto.graph.node}
    assert len(seen) > 80
    assert {"If", "Loop", "Conv", "Softmax", "Reshape", "Slice", "ScatterND", "ReduceMean"} <= seen
