"""The parts of `hotfuse bench` that need no other process: models, oracles, rates, statistics."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.cli.bench import kernels, probes
from hotfuse.cli.bench.float64 import to_float64
from hotfuse.cli.bench.judge import judge
from hotfuse.cli.bench.kernels import CHAINS, Kernel, gemm_triples
from hotfuse.cli.bench.models import LIGHT, Case, make_light
from hotfuse.cli.bench.roofline import Rates, Work, floor_s, work_of
from hotfuse.cli.bench.timing import geometric_mean, ratio_of, summarize

HEAD = '<ir_version: 10, opset_import: ["": 17]>'

# roofline


def test_the_floor_is_the_larger_bound() -> None:
    rates = Rates(flops_s=100.0, bytes_s=10.0)
    assert floor_s(Work(flops=400, bytes=20), rates) == 4.0
    assert floor_s(Work(flops=400, bytes=80), rates) == 8.0


def work(text: str, **feeds: Any) -> Work | None:
    return work_of(hotfuse.load(onnx.parser.parse_model(f"{HEAD} {text}")).graph, feeds)


def test_work_counts_products_and_what_must_be_touched() -> None:
    text = "g (float[n, 4] x) => (float[n, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { h = MatMul(x, w)  y = Relu(h) }"
    x = np.ones((3, 4), np.float32)
    assert work(text, x=x) == Work(flops=2 * 3 * 4 * 2, bytes=4 * (12 + 8 + 6))


def test_a_table_counts_by_the_rows_it_gives() -> None:
    values = ", ".join(str(i) for i in range(200))
    text = f"g (int64[3] i) => (float[3, 2] y) <float[100, 2] t = {{{values}}}> {{ y = Gather(t, i) }}"
    assert work(text, i=np.arange(3)) == Work(flops=0, bytes=3 * 8 + 2 * 3 * 8)


def test_work_that_is_hidden_is_unknown() -> None:
    text = "g (float[4] x) => (float[1, k] y) { i = NonZero(x)  y = Cast<to = 1>(i) }"
    assert work(text, x=np.ones(4, np.float32)) is None


def test_a_convolution_counts_its_products() -> None:
    text = "g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }"
    found = work(text, x=np.ones((1, 3, 8, 8), np.float32), w=np.ones((4, 3, 3, 3), np.float32))
    assert found is not None
    assert found.flops == 2 * 4 * 6 * 6 * 3 * 9


# statistics


def test_a_summary_of_rounds() -> None:
    found = summarize([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0], [2.0, 2.0, 2.0]])
    assert (found.median_s, found.min_s, found.calls) == (2.0, 1.0, 9)
    assert found.round_medians_s == (2.0, 4.0, 2.0)
    assert found.iqr_s == pytest.approx(np.subtract(*np.percentile([1, 2, 9, 3, 4, 5, 2, 2, 2], (75, 25))))


def test_a_clear_ratio_is_a_claim() -> None:
    ratio = ratio_of([2.0, 2.1, 1.9, 2.0, 2.05], [1.0, 1.05, 0.95, 1.0, 1.0])
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low > 1.5
    assert ratio.is_claim
    assert str(ratio) == "2.00x"


def test_a_ratio_that_noise_explains_is_none() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(1.0, 0.2, (2, 9))
    ratio = ratio_of(list(a), list(b))
    assert ratio.low < 1 < ratio.high
    assert not ratio.is_claim
    assert str(ratio).startswith("~")


def test_few_rounds_claim_nothing() -> None:
    assert not ratio_of([2.0] * 4, [1.0] * 4).is_claim
    assert ratio_of([2.0] * 5, [1.0] * 5).is_claim


def test_a_slow_spell_that_hits_both_engines_does_not_widen_the_ratio() -> None:
    weather = np.array([1.0, 1.0, 5.0, 1.1, 3.0, 1.0, 1.2])
    ratio = ratio_of(list(2 * weather), list(weather))
    assert (ratio.low, ratio.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_the_geometric_mean() -> None:
    assert geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


# probes


@pytest.fixture(scope="module")
def machine() -> probes.Probes:
    return probes.Probes()


def test_lanes_follow_the_processor() -> None:
    assert [probes.lanes_of(f) for f in ({"avx512f": True, "avx": True}, {"avx": True}, {})] == [16, 8, 4]


def test_the_chains_of_multiply_adds_are_run_to_the_end(machine: probes.Probes) -> None:
    parts, each = machine.parts("fma", 1, 0)
    assert each == probes.FMA_STEPS * probes.CHAINS * machine.lanes * 2
    machine.run("fma", parts, 1)
    _, target = machine._buffers["fma", probes.PIECE, 1][0]
    assert target[: machine.lanes].tolist() == [probes.CHAINS * 1.0] * machine.lanes  # each chain tends to 0.5 / (1 - 0.5)


def test_the_copy_copies_and_the_read_reads_all(machine: probes.Probes) -> None:
    for what in ("copy", "read"):
        parts, _ = machine.parts(what, 2, 4 * probes.PIECE)
        for number, (source, target) in enumerate(machine._buffers[what, 2 * probes.PIECE, 2]):
            source.view(np.int32)[:] = np.arange(source.size) + number
            target[:] = 0
        machine.run(what, parts, 1)
        for source, target in machine._buffers[what, 2 * probes.PIECE, 2]:
            if what == "copy":
                assert (source.view(np.int32) == target.view(np.int32)).all()
            else:
                lanes = target.view(np.int32)[: machine.lanes].astype(np.int64)
                assert int(lanes.sum()) == int(source.view(np.int32).astype(np.int64).sum())


@pytest.mark.parametrize("what", ["fma", "read", "copy"])
def test_rates_are_those_of_a_computer(machine: probes.Probes, what: str) -> None:
    for threads in (1, 2):
        assert 1e8 < machine.rate(what, threads, 0.02, 1 << 20) < 1e14


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_loops_are_valid_for_every_width(lanes: int) -> None:
    import llvmlite.binding as llvm

    texts = (probes.fma_text(lanes), probes.memory_text(lanes), *map(probes.again_text, ("fma", "read", "copy")))
    llvm.parse_assembly("\n".join(texts)).verify()


# oracles


def test_a_model_in_float64() -> None:
    """Weights, constants of every kind, casts and nested graphs; the answer is numpy's in float64."""
    text = """g (float[3] x, bool c) => (float[3] y)
    <float[3] w = {0.1, 0.2, 0.3}> {
        half = Constant<value_float = 0.7>()
        third = Constant<value = float {0.3}>()
        i = Constant<value_ints = [1, 2, 3]>()
        k = Cast<to = 1>(i)
        a = Mul(x, w)
        b = Add(a, half)
        d = Mul(b, third)
        e = Add(d, k)
        y = If (c) <
            then_branch = yes () => (float[3] t) { one = Constant<value = float {0.1}>()  t = Add(e, one) },
            else_branch = no () => (float[3] f) { f = Identity(e) }
        >
    }"""
    wide = to_float64(onnx.parser.parse_model(f"{HEAD} {text}"))
    x = np.array([1.1, 2.2, 3.3])
    (y,) = hotfuse.load(wide).run(None, {"x": x, "c": np.array(True)})
    single = lambda v: np.float64(np.float32(v))  # noqa: E731 - the model's own constants are float32
    w = np.array([0.1, 0.2, 0.3], np.float32).astype(np.float64)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, (x * w + single(0.7)) * single(0.3) + [1, 2, 3] + single(0.1), rtol=1e-15)


def test_the_original_model_is_left_as_it_was() -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[1] x) => (float[1] y) <float[1] w = {{1}}> {{ y = Add(x, w) }}")
    before = model.SerializeToString()
    to_float64(model)
    assert model.SerializeToString() == before


def test_the_judge_wants_every_output_in_every_row() -> None:
    exact = np.random.default_rng(0).standard_normal((4, 16))
    original = exact.astype(np.float32)
    assert judge([original], [original], [exact])
    assert not judge([], [original], [exact])
    assert "2 outputs" in judge([original, original], [original], [exact]).reason
    bad = original.copy()
    bad[3, 15] += 1e-3
    assert "row 3" in judge([bad], [original], [exact]).reason
    assert "type" in judge([exact], [original], [exact]).reason


def test_single_elements_are_not_rows() -> None:
    """A column is judged as one row; a wrong element in it is still found."""
    generator = np.random.default_rng(0)
    exact = generator.standard_normal((1, 500, 1, 1))
    noise = generator.standard_normal((2, 1, 500, 1, 1)) * 1e-5
    original, ours = (exact + noise[0]).astype(np.float32), (exact + noise[1]).astype(np.float32)
    assert judge([ours], [original], [exact])
    ours[0, 7] += 1e-3
    assert not judge([ours], [original], [exact])


def test_shapes_are_compared_with_their_axes_of_length_1() -> None:
    exact = np.ones((4, 1))
    original = exact.astype(np.float32)
    assert judge([original], [original], [exact])
    for shape in ((4,), (4, 1, 1), (1, 4)):
        assert (
            f"output 0: shape {list(shape)}, the original's is [4, 1]"
            in judge([original.reshape(shape)], [original], [exact]).reason
        )


# models


def test_labels_tell_cases_apart() -> None:
    assert [Case("minilm", sequence=16).label, Case("mlp", batch=4).label, Case("/a/b.onnx").label] == [
        "minilm-s16",
        "mlp-b4",
        "b.onnx",
    ]


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_densenet121"])
def test_light_models_get_random_weights_of_the_same_shapes(name: str) -> None:
    made = make_light(name)
    onnx.checker.check_model(made)
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert not any(node.op_type == "ConstantOfShape" for node in made.graph.node)
    assert all(np.unique(w).size > 1 for w in weights.values() if w.size > 1)
    for node in made.graph.node:
        if node.op_type == "BatchNormalization":
            assert weights[node.input[4]].min() > 0
        if node.op_type == "Conv":
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            assert list(weights[node.input[1]].shape[2:]) == list(attrs["kernel_shape"])
    again = make_light(name)
    assert made.SerializeToString() == again.SerializeToString()
    assert len(LIGHT) == 9


def test_a_light_model_keeps_its_numbers_in_range() -> None:
    made = make_light("light_squeezenet")
    session = hotfuse.load(made)
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    (y,) = session.run(None, {session.inputs[0].name: x})
    assert np.isfinite(y).all()
    assert 0.0 < y.max() < 1.0  # a softmax that is not saturated


# kernels


def test_the_gemm_sample_is_fixed() -> None:
    triples = gemm_triples()
    assert triples == gemm_triples()
    assert len(set(triples)) == 40
    assert {n for t in triples for n in t} == set(kernels.GEMM_SIZES)
    assert all(t in set(itertools.product(kernels.GEMM_SIZES, repeat=3)) for t in triples)


@pytest.mark.parametrize("name", [*(f"chain:{c}:tiny" for c in CHAINS), "gemm:5x6x7"])
def test_every_engine_of_a_kernel_means_the_same_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setitem(kernels.CHAIN_BYTES, "tiny", 6 * kernels.COLUMNS * 4)
    kernel = Kernel(name)
    exact = kernel.answer(np.float64)
    x = torch.from_numpy(kernel.x).double()
    theirs = x @ torch.from_numpy(kernel.weight).double() if kernel.is_product else kernel.chain.torch(x)
    np.testing.assert_allclose(exact, theirs.numpy(), rtol=1e-10, atol=1e-12)
    model = kernel.model()
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (other,) = session.run(None, {"x": kernel.x})
    np.testing.assert_allclose(exact, other, rtol=1e-4, atol=1e-5)
    assert kernel.work.bytes == kernel.x.nbytes + other.nbytes + (kernel.weight.nbytes if kernel.is_product else 0)


def test_a_large_kernel_is_judged_on_some_rows_with_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_ROWS", 200)
    rows = Kernel("gemm:5000x2x3").rows
    assert 200 <= len(rows) < 400
    assert rows[:64].tolist() == list(range(64))
    assert rows[-64:].tolist() == list(range(4936, 5000))
