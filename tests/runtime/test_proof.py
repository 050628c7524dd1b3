"""Proofs of kernels: right ones pass, planted miscompiles are caught, and no kernel is blamed for what is not its fault."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.tile import Fill, Index, Store
from hotfuse.errors import InputError, VerifyError
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.ops.panels import pack
from hotfuse.ir.types import F32, F64, I64, tensor
from hotfuse.runtime import proof, tier0_values, unit_proof
from hotfuse.runtime.guard_bands import LARGE_BYTES, NAN_BYTES, Bands, Copies
from hotfuse.runtime.proof import prove
from hotfuse.runtime.unit_proof import Outcome, Subject
from hotfuse.runtime.unit_rule import Rule, judge
from tests.runtime.mutants import differs, mutants, planted
from tests.runtime.proof_models import CONFIG, SIZES, TEXTS, Array, Built, built, from_graph, rows_of, small, verdicts

NO_RUN: Any = None  # where no kernel runs


@pytest.fixture(name="models", scope="module")
def _models() -> dict[str, Built]:
    return {name: built(name) for name in TEXTS}


def changed(model: Built, unit: int, kind: str, instruction: type, number: int = 0) -> Built:
    """The model with one change of a kind to an instruction of a type."""
    program = model.build.units[unit].recipes[0].program
    found = [p for k, p in mutants(program) if k == kind and differs(program, p, instruction)]
    return planted(model, unit, 0, found[number])


# right kernels


@pytest.mark.parametrize("name", list(TEXTS))
def test_right_kernels_are_proved(models: dict[str, Built], name: str) -> None:
    model = models[name]
    assert model.build.units
    for sizes in (SIZES, {"b": 1, "s": 16}, {"b": 2, "s": 33}):
        found = verdicts(model, model.feeds(1, **sizes))
        assert [v.unit for v in found] == list(range(len(model.build.units)))
        assert [v.reason for v in found if not v.ok] == []
        assert all(v.tried and v.what and v.seconds >= v.native_s > 0 for v in found)


def with_head(count: int) -> Built:
    """Layers alike, and a softmax behind the last of them."""
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("n", 1), 160))
    rng, results = np.random.default_rng(0), []
    for i in range(count):
        weight = builder.constant((rng.standard_normal((160, 160)) / 12).astype(np.float32), name=f"w{i}")
        x = builder.add("tanh", builder.add("matmul", x, weight))
        results.append(x)
    results.append(builder.add("softmax", x, axis=0))
    return from_graph(
        builder.build(results), lambda seed: {"x": np.random.default_rng(seed).standard_normal((9, 160)).astype(np.float32)}
    )


def test_what_comes_behind_many_layers_is_proved_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = with_head(9), set[str]()
    seen: dict[str, Array] = {}

    def look(subject: Subject, values: Any, driver: Any, threads: int) -> Outcome:
        seen.update({name: values[name] for name in (*subject.reads, *subject.writes)})
        return unit_proof.prove_unit(subject, values, driver, threads)

    def weight(name: str) -> Array:
        asked.add(name)
        return model.weight(name)

    found = prove(model.build, model.kernels, model.feeds(0), weight, CONFIG, by=look)
    assert [(v.ok, v.tried) for v in found] == [(True, True)] * len(model.build.units)
    assert asked == {"w0", "w1"}
    np.testing.assert_array_equal(seen["tanh_8"], seen["tanh_1"])  # of the same kind, and real
    head = next(place for place, unit in enumerate(model.build.units) if "softmax_0" in unit.nodes)
    wrong = [planted(model, head, 0, p) for _, p in mutants(model.build.units[head].recipes[0].program)][:12]
    caught = [[v.ok for v in verdicts(each, model.feeds(0))] for each in wrong]
    assert 0 < sum(not ok[head] for ok in caught) < sum(sum(ok) for ok in caught)
    monkeypatch.setattr(proof, "_stand_ins", lambda subjects, speakers: {})
    assert [[v.ok for v in verdicts(each, model.feeds(0))] for each in wrong] == caught


def test_what_would_stand_in_for_itself_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_head(4)
    last = model.build.units[-1]
    with pytest.raises(VerifyError, match="follows from itself"):
        proof._needed_graph(model.build.hoisted, [last], (), {"tanh_0": "tanh_3"})
    monkeypatch.setattr(proof, "_stand_ins", lambda subjects, speakers: {"tanh_0": "tanh_3"})
    assert all(v.ok and v.tried for v in verdicts(model, model.feeds(0)))


def test_a_pace_is_kept_and_units_can_be_chosen() -> None:
    model, turns, asked = layers(8), [], []
    (verdict,) = prove(
        model.build, model.kernels, model.feeds(1), lambda n: asked.append(n) or model.weight(n), CONFIG, {0},
        lambda: turns.append(1),
    )  # fmt: skip
    assert (verdict.unit, verdict.ok) == (0, True)
    assert len(turns) >= 2
    assert 0 < len(set(asked)) < len(model.build.hoisted.sources)


def layers(count: int) -> Built:
    """Products of 160 x 160, one after the other; all are results, so that each is a unit of its own."""
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("n", 1), 160))
    rng = np.random.default_rng(0)
    results = []
    for i in range(count):
        weight = builder.constant((rng.standard_normal((160, 160)) / 12).astype(np.float32), name=f"w{i}")
        x = builder.add("tanh", builder.add("matmul", x, weight))
        results.append(x)
    return from_graph(
        builder.build(results), lambda seed: {"x": np.random.default_rng(seed).standard_normal((9, 160)).astype(np.float32)}
    )


def test_weights_are_asked_for_when_needed_and_dropped_after_their_last_use() -> None:
    model = layers(8)
    assert len(model.build.hoisted.sources) == 8
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    def weight(name: str) -> Array:
        nonlocal most
        gc.collect()
        most = max(most, len(alive))
        made: Any = model.weight(name).copy().view(_Tracked)
        alive.add(made)
        return made  # type: ignore[no-any-return]

    found = prove(model.build, model.kernels, model.feeds(0), weight, CONFIG)
    assert all(v.ok for v in found)
    assert most <= 1


def test_of_equal_units_the_first_two_speak_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real inputs both, on others one of them."""
    model = layers(5)
    assert len({tuple(recipe.program for recipe in unit.recipes) for unit in model.build.units}) == 1
    tried: list[Any] = []
    original = unit_proof.other_inputs
    monkeypatch.setattr(unit_proof, "other_inputs", lambda reads, ops, rows: tried.append(ops) or original(reads, ops, rows))
    found = verdicts(model, model.feeds(0))
    assert [v.ok for v in found] == [True] * 5
    assert all("by" in v.what for v in found)
    assert len(tried) == 1
    asked: list[Subject] = []

    def one_is_wrong(wrong: str) -> Any:
        def judge(subject: Subject, *rest: Any) -> Outcome:
            asked.append(subject)
            return Outcome(reason="planted" if wrong in subject.writes else "", what="y")

        return judge

    for wrong, ok in (("tanh_0", False), ("tanh_1", False), ("tanh_4", True)):
        asked.clear()
        found = prove(model.build, model.kernels, model.feeds(0), model.weight, CONFIG, by=one_is_wrong(wrong))
        assert [v.unit for v in found] == [0, 1, 2, 3, 4]
        assert [v.ok for v in found] == [ok] * 5
        assert [(s.writes[-1], s.again) for s in asked] == [("tanh_0", False), ("tanh_1", True)]


class _Tracked(np.ndarray):  # type: ignore[type-arg]
    """An array that can be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]


# wrong kernels, one for each thing that is looked at


def test_bytes_beside_an_array_show_whoever_writes_them() -> None:
    for byte in (NAN_BYTES, LARGE_BYTES):
        for offset, said in ((-4, "before"), (40, "behind"), (40 + 4095, "behind"), (-4096, "before")):
            bands = Bands(byte)
            array = bands.fresh(tensor(F32, 2, 5))
            copy = bands.copy(np.arange(3, dtype=np.int16))
            assert not bands.damage(array)
            assert not bands.damage(copy)
            assert copy.tolist() == [0, 1, 2]
            memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(array.ctypes.data + offset))
            memory[0] ^= 1
            assert said in bands.damage(array)
            assert f" {-offset if offset < 0 else offset - 39} off" in bands.damage(array)


def test_a_copy_is_made_once_and_stands_between_the_bytes_of_each_run() -> None:
    copies: Copies = {}
    array, other = np.arange(3, dtype=np.int16), np.arange(3, dtype=np.int16)
    first = Bands(NAN_BYTES, copies).copy(array)
    bands = Bands(LARGE_BYTES, copies)
    again = bands.copy(array)
    assert again is first
    assert bands.copy(other) is not first
    memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(again.ctypes.data - 1))
    assert memory[0] == LARGE_BYTES
    assert not bands.damage(again)
    memory[0] = NAN_BYTES
    assert "1 bytes before it" in bands.damage(again)


def test_runs_keep_copies_of_what_they_share_alone(models: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Copies] = []
    original = unit_proof.Bands
    monkeypatch.setattr(unit_proof, "Bands", lambda byte, copies: seen.append(dict(copies)) or original(byte, copies))
    model = models["mlp"]
    assert all(v.ok for v in verdicts(model, model.feeds(0, **SIZES)))
    held = [len(copies) for copies in seen]
    assert held[0] == 0
    assert 0 < max(held) <= max(len(r.reads) for unit in model.build.units for r in unit.recipes)


def test_products_with_packed_columns_pack_none(models: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []
    monkeypatch.setattr(tier0_values, "pack", lambda columns, **attrs: packed.append(columns.shape) or pack(columns, **attrs))
    model = layers(8)
    assert all(v.ok for v in verdicts(model, model.feeds(0)))
    judged = sum(
        op.op == "panel_matmul" for unit in model.build.units[:2] for op in model.build.main.nodes if op.id in unit.nodes
    )
    assert len(packed) == judged


def test_what_is_written_beside_a_result_is_caught() -> None:
    model, feeds = rows_of(lambda b, x: b.add("tanh", x))
    program = model.build.units[0].recipes[0].program
    wrong = [p for kind, p in mutants(program) if kind == "stride" and differs(program, p, Store)]
    found = [verdicts(planted(model, 0, 0, p), feeds)[0] for p in wrong]
    assert not any(v.ok for v in found)
    for where in ("before", "behind"):
        assert any(f"bytes {where} it were written, the nearest 1 off" in v.reason for v in found), where


def test_an_element_that_nobody_writes_is_caught_whatever_it_should_be() -> None:
    model, feeds = rows_of(lambda b, x: b.add("tanh", x))
    feeds["x"][...] = np.nan  # so that the bytes that were there before would do
    program = model.build.units[0].recipes[0].program
    (short,) = [p for k, p in mutants(program) if k == "limit" and p.grid != program.grid][:1]
    (verdict,) = verdicts(planted(model, 0, 0, short), feeds)
    assert "two runs differ" in verdict.reason


def test_an_input_that_is_changed_is_caught(models: dict[str, Built]) -> None:
    model, feeds = rows_of(lambda b, x: b.add("tanh", x))
    program = model.build.units[0].recipes[0].program
    target, source = (next(b.name for b in program.buffers if b.kind == kind) for kind in ("output", "input"))

    def rewritten(body: Any) -> Any:
        return tuple(
            replace(it, body=rewritten(it.body)) if hasattr(it, "body")
            else replace(it, at=replace(it.at, buffer=source)) if isinstance(it, Store) else it
            for it in body
        )  # fmt: skip

    assert target != source
    (verdict,) = verdicts(planted(model, 0, 0, replace(program, body=rewritten(program.body))), feeds)
    assert verdict.reason == "it is an input, and was changed"
    assert verdict.what == "x"


def test_an_index_that_only_the_kernel_refuses_is_caught(models: dict[str, Built]) -> None:
    model = small(lambda b, x, i: b.add("gather", x, i), x=tensor(F32, 6, 9), i=tensor(I64, symbol("n", 1)))
    feeds = {"x": np.ones((6, 9), np.float32), "i": np.array([0, 5])}
    (good,) = verdicts(model, feeds)
    (verdict,) = verdicts(changed(model, 0, "limit", Index), feeds)
    assert good.ok
    assert "index" in verdict.reason


def test_one_wrong_tail_row_is_caught() -> None:
    model, feeds = rows_of(lambda b, x: b.add("softmax", x, axis=-1), rows=301)
    program = model.build.units[0].recipes[0].program
    fates = Counter(verdicts(planted(model, 0, 0, p), feeds)[0].ok for k, p in mutants(program) if k in ("start", "constant"))
    assert fates[False] > 0


def test_a_result_is_judged_in_the_coarsest_type_that_it_went_through() -> None:
    model, feeds = rows_of(lambda b, x: b.add("cast", b.add("atan", x), to=F64))
    (verdict,) = verdicts(model, feeds)
    assert verdict.ok
    original = np.arctan(feeds["x"]).astype(np.float64)
    off = (np.arctan(feeds["x"]) * np.float32(1 + 1e-6)).astype(np.float64)
    for ours, right in ((original, True), (off, False)):
        assert bool(judge(Rule(4, F32), ours, original, np.arctan(feeds["x"].astype(np.float64)))) == right


def test_what_a_fold_begins_with_shows_even_if_these_inputs_hide_it() -> None:
    model, feeds = rows_of(lambda b, x: b.add("reduce_max", x, axes=(1,), keepdims=False))
    assert (feeds["x"].max(axis=1) > 0).all()
    program = model.build.units[0].recipes[0].program
    (good,) = verdicts(model, feeds)
    zero = next(p for _, p in mutants(program) if differs(program, p, Fill))
    (verdict,) = verdicts(planted(model, 0, 0, zero), feeds)
    assert good.ok
    assert not verdict.ok


# what cannot be proved


def test_a_missing_kernel_or_input_is_an_error(models: dict[str, Built]) -> None:
    model = models["mlp"]
    with pytest.raises(VerifyError, match=r"unit 0 .* has no kernel for its program"):
        prove(model.build, {}, model.feeds(0, **SIZES), model.weight, CONFIG)
    with pytest.raises(InputError, match="input x is missing"):
        verdicts(model, {})


def test_what_tier_0_cannot_compute_is_nobodys_fault() -> None:
    def model(b: Any, x: Any, i: Any) -> Any:
        return [b.add("exp", x), b.add("gather", x, i)]

    built_ = small(model, x=tensor(F32, 6, 9), i=tensor(I64, symbol("n", 1)))
    found = verdicts(built_, {"x": np.ones((6, 9), np.float32), "i": np.array([7])})
    by_kind = {v.tried: v for v in found}
    assert by_kind[True].ok
    assert "nothing was proved" in by_kind[False].reason
    assert "gather failed: IndexError" in by_kind[False].reason


def test_sizes_that_kernels_were_not_made_for_are_nobodys_fault() -> None:
    model, _ = rows_of(lambda b, x: b.add("tanh", x))
    (verdict,) = verdicts(model, {"x": np.ones((0, 37), np.float32)})
    assert not verdict.tried
    assert "native code was made for 1 and more" in verdict.reason


def test_a_defect_of_the_proof_itself_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Outcome:
        raise ZeroDivisionError("planted")

    model, feeds = rows_of(lambda b, x: b.add("tanh", x))
    monkeypatch.setattr(proof, "prove_unit", fail)
    with pytest.raises(ZeroDivisionError):
        verdicts(model, feeds)
    (verdict,) = prove(model.build, model.kernels, feeds, model.weight, replace(CONFIG, strict=False))
    assert (verdict.ok, verdict.tried) == (False, False)
    assert "the proof failed: ZeroDivisionError: planted" in verdict.reason


def test_a_size_that_a_call_passes_as_a_number_is_one_of_the_graphs() -> None:
    builder = GraphBuilder()
    x, many = builder.input("x", tensor(F32, symbol("n", 1), 5)), builder.input("many", tensor(I64))
    graph = builder.build([builder.add("mul", x, builder.add("cast", many, to=F32))])
    told = {**graph.values, many.name: replace(many, contents=(symbol("n", 1),))}
    model = from_graph(replace(graph, values=told), lambda seed: {})
    found = verdicts(model, {"x": np.ones((7, 5), np.float32), "many": 7})  # type: ignore[dict-item]
    assert [v.reason for v in found] == ["", ""]


def test_an_operator_that_only_torch_knows_is_computed_by_torch() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 3, 5))
    attrs = {"target": "aten.erfinv.default", "args": (("in", 0),), "kwargs": (), "reason": "a test"}
    (inverse,) = builder.add_node("torch_op", [builder.add("tanh", x)], attrs, types=[tensor(F32, 3, 5)])
    model = from_graph(builder.build([builder.add("exp", inverse)]), lambda seed: {})
    found = verdicts(model, {"x": np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)})
    assert [v.ok for v in found] == [True, True]


def test_kernels_find_no_number_where_nothing_was_written(models: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    """In two runs two other bytes, so that whoever reads there has two other results."""
    soiled: list[int] = []
    monkeypatch.setattr(unit_proof.Segment, "soil", lambda self, byte: soiled.append(byte))
    model = models["mlp"]
    assert all(v.ok for v in verdicts(model, model.feeds(0, **SIZES)))
    assert {NAN_BYTES, LARGE_BYTES} == set(soiled)
