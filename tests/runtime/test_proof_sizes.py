"""Proofs at other sizes than a call's: what one size hides, and large calls that are proved on a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F32, I64, tensor
from hotfuse.runtime import build_work
from hotfuse.runtime.build_request import ProveRequest
from hotfuse.runtime.build_work import prove_here
from hotfuse.runtime.proof_sizes import at_other_sizes, cut
from hotfuse.runtime.tier0_values import Tier0Values
from tests.runtime.mutants import mutants, planted
from tests.runtime.proof_models import CONFIG, SIZES, Array, Built, built, from_graph, rows_of, verdicts


@pytest.fixture(name="models", scope="module")
def _models() -> dict[str, Built]:
    return {name: built(name) for name in ("block", "mlp")}


def test_inputs_of_other_sizes_are_longer_and_shorter(models: dict[str, Built]) -> None:
    model = models["block"]
    feeds = model.feeds(1, **SIZES)
    found = list(at_other_sizes(model.build.main, feeds))
    assert [x["x"].shape for x in found] == [(9, 3, 24), (1, 17, 24), (1, 3, 24)]
    assert [x["m"].shape for x in found] == [(9, 1, 1, 3), (1, 1, 1, 17), (1, 1, 1, 3)]
    np.testing.assert_array_equal(found[1]["x"][0, 7:14], feeds["x"][0])
    for each in found:
        assert all(v.ok for v in verdicts(model, each))


def test_where_twice_as_long_is_too_large_one_more_does(models: dict[str, Built]) -> None:
    model = models["block"]
    feeds = model.feeds(1, b=1, s=100)
    found = list(at_other_sizes(model.build.main, feeds, 120_000))
    assert [x["x"].shape[:2] for x in found] == [(2, 50), (1, 203), (1, 50)]
    for each in found:
        assert all(v.ok for v in verdicts(model, each))


def test_a_mistake_that_one_size_hides_shows_at_another() -> None:
    model, feeds = rows_of(lambda b, x: b.add("tanh", x), rows=4, columns=16)
    program = model.build.units[0].recipes[0].program
    hidden = [
        wrong
        for _, p in mutants(program)
        if verdicts(wrong := planted(model, 0, 0, p), feeds)[0].ok
        and not all(verdicts(wrong, each)[0].ok for each in at_other_sizes(model.build.main, feeds))
    ]
    assert hidden
    for wrong in hidden:
        met: dict[str, Array] = {}
        verdicts(wrong, feeds, met=met)
        assert not all(verdicts(wrong, each, elsewhere=met)[0].ok for each in at_other_sizes(model.build.main, feeds))


def test_at_other_sizes_a_unit_is_given_what_it_met_at_the_first(
    models: dict[str, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, met = models["block"], dict[str, Array]()
    feeds = model.feeds(1, **SIZES)
    assert all(v.ok for v in verdicts(model, feeds, met=met))
    computed: list[str] = []
    compute = Tier0Values.compute
    monkeypatch.setattr(Tier0Values, "compute", lambda self, node: (computed.append(node.id), compute(self, node)))

    def nodes(unit: int, **options: Any) -> int:
        computed.clear()
        for each in at_other_sizes(model.build.main, feeds):
            (verdict,) = verdicts(model, each, units=[unit], **options)
            assert (verdict.ok, verdict.tried) == (True, True)
        return len(set(computed))

    for place, unit in enumerate(model.build.units):
        assert nodes(place, elsewhere=met) <= len(unit.nodes) + 6  # views, and what is prepared from weights
    assert nodes(len(model.build.units) - 1) > 20


# large calls


def request_of(model: Built, feeds: dict[str, Array]) -> ProveRequest:
    objects = tuple(model.kernels[program].data for program in model.build.programs)
    return ProveRequest(model.build, objects, feeds, CONFIG)


def test_a_large_call_is_cut_to_a_part_from_all_over(models: dict[str, Built]) -> None:
    model = models["block"]
    feeds = model.feeds(1, b=8, s=100)
    assert cut(model.build.main, feeds) is feeds
    part = cut(model.build.main, feeds, 40_000)
    assert {name: array.shape for name, array in part.items()} == {"x": (8, 6, 24), "m": (8, 1, 1, 6)}
    places = [0, 16, 33, 50, 66, 83]  # not the first: those may all be padding
    np.testing.assert_array_equal(part["x"], feeds["x"][:, places])
    np.testing.assert_array_equal(part["m"], feeds["m"][..., places])
    smallest = cut(model.build.main, feeds, 0)
    assert smallest["x"].shape == (1, 1, 24)


def test_a_call_of_fixed_sizes_is_not_cut() -> None:
    builder = GraphBuilder()
    model = from_graph(builder.build([builder.add("tanh", builder.input("x", tensor(F32, 40, 50)))]), lambda seed: {})
    feeds = {"x": np.ones((40, 50), np.float32)}
    assert cut(model.build.main, feeds, 10) is feeds


def test_a_proof_of_a_large_call_computes_a_part_of_it(models: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    model, computed = models["mlp"], []
    compute = Tier0Values.compute

    def seen(self: Tier0Values, node: Any) -> None:
        compute(self, node)
        computed.append(self.value(node.id).shape)

    monkeypatch.setattr(Tier0Values, "compute", seen)
    monkeypatch.setattr(build_work, "cut", lambda graph, inputs: cut(graph, inputs, 5000))
    reply = prove_here(request_of(model, model.feeds(1, b=1000)), model.weight)
    assert all(v.ok and v.tried for v in reply.verdicts)
    assert len(reply.verdicts) == len(model.build.units)
    assert 1 < max(rows for rows, *columns in computed if columns == [11]) < 100


def test_a_mistake_in_a_large_call_is_found_on_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_work, "cut", lambda graph, inputs: cut(graph, inputs, 500))
    model, feeds = rows_of(lambda b, x: b.add("tanh", x), rows=64)
    program = model.build.units[0].recipes[0].program
    found = [planted(model, 0, 0, p) for _, p in mutants(program)]
    assert found
    for wrong in found:
        whole = verdicts(wrong, feeds)[0].ok
        (verdict,) = prove_here(request_of(wrong, feeds), wrong.weight).verdicts
        assert whole or not verdict.ok


def test_where_a_model_takes_no_part_the_whole_is_proved_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gathers is not all in the first part; of that unit the whole is looked at, of the other the part."""
    builder = GraphBuilder()
    x, i = builder.input("x", tensor(F32, symbol("n", 1), 5)), builder.input("i", tensor(I64, 3))
    picked = builder.add("gather", builder.add("tanh", x), i)
    model = from_graph(builder.build([picked, builder.add("exp", x)]), lambda seed: {})
    feeds = {"x": np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32), "i": np.array([2, 80, 89])}
    monkeypatch.setattr(build_work, "cut", lambda graph, inputs: cut(graph, inputs, 200))
    reply = prove_here(request_of(model, feeds), model.weight)
    assert [(v.ok, v.tried) for v in reply.verdicts] == [(True, True)] * len(model.build.units)
