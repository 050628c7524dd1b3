"""Proofs by the hundreds: planted miscompiles are caught before they serve, and right kernels of random models are not blamed.

HOTFUSE_FUZZ_SEED sets the first random model of the long test.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hotfuse
from benchmarks.false_alarms import ALLOWED, judge, judge_here
from hotfuse.errors import InputError
from hotfuse.runtime.verdict import UnitVerdict
from tests.runtime import mutants as planting
from tests.runtime.mutants import CAUGHT, Fate, fate_of, mutants
from tests.runtime.proof_models import SIZES, TEXTS, Built, built

SEED = int(os.environ.get("HOTFUSE_FUZZ_SEED", "0"))


@pytest.fixture(name="models", scope="module")
def _models() -> dict[str, Built]:
    return {name: built(name) for name in TEXTS}


def campaign(models: dict[str, Built], count: int, held_out: int, seed: int = 0) -> tuple[Counter[str], list[Fate]]:
    """Mutants drawn evenly over models, units and kinds of change: how each fared, and those that escaped."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    escaped: list[Fate] = []
    names = list(models)
    while counts["counted"] < count and counts["made"] < 10 * count:
        counts["made"] += 1
        model = models[names[int(rng.integers(len(names)))]]
        unit = int(rng.integers(len(model.build.units)))
        recipe = int(rng.integers(len(model.build.units[unit].recipes)))
        options = list(mutants(model.build.units[unit].recipes[recipe].program))
        kinds = sorted({kind for kind, _ in options})
        kind = kinds[int(rng.integers(len(kinds)))]
        chosen = [program for k, program in options if k == kind]
        program = chosen[int(rng.integers(len(chosen)))]
        feeds = [model.feeds(int(rng.integers(1 << 30)), **SIZES) for _ in range(1 + held_out)]
        fate = fate_of(model, unit, recipe, kind, program, feeds)
        counts.update([fate.first, f"{kind} {fate.first}"])
        if fate.breaks_the_rule:
            counts["counted"] += 1
            if not fate.is_caught:
                escaped.append(fate)
    return counts, escaped


def test_planted_miscompiles_are_caught(models: dict[str, Built]) -> None:
    counts, escaped = campaign(models, 100, held_out=1)
    print(dict(counts))
    assert not escaped
    assert counts["counted"] == 100
    assert all(counts[f"{kind} {CAUGHT}"] for kind in ("constant", "start", "stride", "mask", "limit"))


def test_a_proof_that_sees_nothing_or_only_later_is_found_out(
    models: dict[str, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def blind(*_: Any) -> list[UnitVerdict]:
        seen.append(1)
        return [UnitVerdict(0, len(seen) < 2 or nothing, "", "", 0.0, 0.0)]

    monkeypatch.setattr(planting, "prove", blind)
    for nothing in (True, False):
        counts, escaped = campaign(models, 3, held_out=1)
        assert (counts["counted"], len(escaped)) == ((0, 0) if nothing else (3, 3))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_planted_miscompiles_are_caught(models: dict[str, Built]) -> None:
    counts, escaped = campaign(models, 1000, held_out=2, seed=1)
    print(dict(counts), *escaped, sep="\n")
    assert counts["counted"] == 1000
    assert len(escaped) <= 1


def test_right_kernels_of_random_models_are_not_blamed() -> None:
    tally = judge_here(range(60), 120)
    print(tally.figures())
    assert len(tally.kernels) >= 100
    assert tally.notes == []
    assert tally.counts["proved"] > 5 * tally.counts["not tried"]


# a model that refuses the other sizes that it is proved at, one whose call is empty, and indices for more slices than there are
@pytest.mark.parametrize("seed", [27, 31, 116, 233, 447])
def test_models_that_were_once_not_proved_or_blamed(seed: int) -> None:
    found = judge(seed)
    assert (found.failed, found.alarms) == ("", ())


def test_indices_for_more_slices_than_there_are_are_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x, int64[m, 4] i) => (float[m, 4] y)
        { y = GatherElements <axis: int = 1> (x, i) }"""
    with hotfuse.load(onnx.parser.parse_model(text), tier=1, wait=True) as session:
        x, i = np.ones((2, 4), np.float32), np.zeros((3, 4), np.int64)
        assert session.run(None, {"x": x, "i": i[:2]})[0].shape == (2, 4)
        with pytest.raises(InputError, match="3 slices along axis 0, and x has 2"):
            session.run(None, {"x": x, "i": i})


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_right_kernels_are_not_blamed() -> None:
    tally = judge_here(range(SEED, SEED + 100_000), 10_000)
    print(tally.figures())
    assert len(tally.kernels) >= 10_000
    assert tally.share <= ALLOWED
