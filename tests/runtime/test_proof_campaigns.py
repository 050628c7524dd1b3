"""Proofs by the hundreds: planted miscompiles are caught before they serve, and right kernels of random models are not blamed.

HOTFUSE_FUZZ_SEED sets the first random model of the long test.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.codegen.tile import TileProgram
from hotfuse.errors import DimError, HotfuseError
from hotfuse.runtime.proof import prove
from hotfuse.runtime.verdict import UnitVerdict
from tests.fuzz.onnx_models import make
from tests.runtime import mutants as planting
from tests.runtime.mutants import CAUGHT, Fate, fate_of, mutants
from tests.runtime.proof_models import CONFIG, SIZES, TEXTS, Built, built, from_graph

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


def false_alarms(seeds: range, kernels: int) -> tuple[int, int, Counter[str], list[str]]:
    """Proofs of the kernels of random models, until so many distinct ones were judged: how many these are, how many of them
    were blamed, and for what."""
    seen: set[TileProgram] = set()
    blamed: set[TileProgram] = set()
    counts: Counter[str] = Counter()
    alarms: list[str] = []
    for seed in seeds:
        case = make(seed)
        try:
            model = from_graph(hotfuse.load(case.proto).graph, lambda seed: {})
        except HotfuseError:
            counts["not built"] += 1
            continue
        for setting in range(len(case.draft.settings)):
            try:
                found = prove(model.build, model.kernels, case.feeds(setting), model.weight, CONFIG)
            except DimError:
                counts["refused"] += 1
                continue
            for verdict in found:
                unit = model.build.units[verdict.unit]
                counts.update(["proved" if verdict.ok else "alarm" if verdict.tried else "not tried"])
                programs = {r.program for r in unit.recipes} if verdict.tried else set()
                seen |= programs
                if verdict.tried and not verdict.ok:
                    blamed |= programs
                    ops = [model.build.main.by_id[id].op for id in unit.nodes]
                    alarms.append(
                        f"seed {seed}, sizes {dict(case.draft.settings[setting])}, {ops}: {verdict.what}: {verdict.reason}"
                    )
        if len(seen) >= kernels:
            break
    return len(seen), len(blamed), counts, alarms


def test_right_kernels_of_random_models_are_not_blamed() -> None:
    kernels, _, counts, alarms = false_alarms(range(60), 120)
    print(kernels, dict(counts))
    assert kernels >= 100
    assert alarms == []
    assert counts["proved"] > 5 * (counts["not tried"] + counts["not built"])


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_right_kernels_are_not_blamed() -> None:
    kernels, blamed, counts, alarms = false_alarms(range(SEED, SEED + 100_000), 10_000)
    print(kernels, dict(counts), *alarms, sep="\n")
    assert kernels >= 10_000
    assert blamed <= kernels // 1000
