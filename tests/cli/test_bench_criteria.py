"""What suites must show: every criterion of `hotfuse bench` met, missed, and without a figure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hotfuse.cli.bench.contest import Result, Row
from hotfuse.cli.bench.criteria import Criterion, as_json, judge_chains, judge_lengths, judge_models, judge_products
from hotfuse.cli.bench.lengths import BAKED, GENERIC, Length, compiled_later
from hotfuse.cli.bench.roofline import Rates, Work
from hotfuse.cli.bench.table import show_criteria, show_kernels, show_lengths
from hotfuse.cli.bench.timing import ratio_of, summarize
from hotfuse.cli.view import make_console

NATIVE = {"kernels": 3, "missed": 0, "compiled": 3, "compile_cpu_ms": 40}


def row(engine: str, seconds: float, peak: int = 0, status: str = "ok", **facts: int) -> Row:
    return Row(engine, status, timing=summarize([[seconds] * 3] * 5), peak_bytes=peak, facts=facts)


def model(
    name: str, ours_s: float, peer_s: float, floor_s: float | None = None, ours_bytes: int = 9, peer_bytes: int = 10
) -> Result:
    ours, peer = row("hotfuse-onnx", ours_s, ours_bytes), row("onnxruntime", peer_s, peer_bytes)
    share = None if floor_s is None else floor_s / ours_s
    rows = (
        Row(**{**vars(ours), "roofline_share": share}),
        Row(**{**vars(peer), "ratio": ratio_of([peer_s] * 5, [ours_s] * 5)}),
    )
    return Result(name, rows, floor_s=floor_s, ours="hotfuse-onnx", best_peer="onnxruntime")


def find(criteria: Sequence[Criterion], start: str) -> Criterion:
    (found,) = [c for c in criteria if c.what.startswith(start)]
    return found


# models


@pytest.mark.parametrize(
    ("ours_s", "floor_s", "wanted", "met"),
    [
        (0.79, 0.5, 1.25, True),
        (0.81, 0.5, 1.25, False),
        (0.90, 0.78, 0.85 / 0.78, True),  # 87 % of the roofline is enough, 1.25x would be past it
        (0.95, 0.78, 0.85 / 0.78, False),
        (0.81, None, 1.25, False),
    ],
)
def test_speed_is_held_to_the_peer_or_to_the_roofline(ours_s: float, floor_s: float | None, wanted: float, met: bool) -> None:
    found = find(judge_models([model("gpt2", ours_s, 1.0, floor_s)]), "gpt2 against onnxruntime")
    assert found.figure == pytest.approx(1 / ours_s)
    assert found.wanted == pytest.approx(wanted)
    assert found.met == met


def test_the_slowest_and_the_mean_are_those_of_the_models_that_are_held() -> None:
    found = judge_models([model("mlp", 0.5, 1.0), model("gpt2", 1.0, 0.9), model("light_vgg19", 1.0, 0.1)])
    slowest, mean = find(found, "slowest"), find(found, "geometric mean")
    assert (slowest.figure, slowest.detail, slowest.met) == (pytest.approx(0.9), "gpt2", False)
    assert (mean.figure, mean.detail, mean.met) == (pytest.approx(1.8**0.5), "2 of 6 models", True)
    assert not [c for c in found if c.what.startswith("light_vgg19 against")]


def test_a_model_that_failed_is_no_help_to_the_mean() -> None:
    found = judge_models([model("mlp", 0.5, 1.0), Result("gpt2", (), failed="out of memory")])
    for start in ("gpt2 against", "slowest", "geometric mean", "gpt2: peak memory"):
        one = find(found, start)
        assert one.figure is None
        assert not one.met
    assert find(found, "mlp against").met


@pytest.mark.parametrize(("ours_s", "met"), [(0.7, True), (0.71, False)])
def test_the_small_mlp_through_a_session(ours_s: float, met: bool) -> None:
    found = find(judge_models([model("mlp", ours_s, 1.0)]), "mlp through Session.run")
    assert (found.figure, found.met) == (pytest.approx(ours_s), met)


def test_only_the_onnx_path_is_a_session() -> None:
    result = model("mlp", 0.5, 1.0)
    torch = Row(**{**vars(result.rows[0]), "engine": "hotfuse-torch"})
    other = Result("mlp", (torch, result.rows[1]), ours="hotfuse-torch", best_peer="onnxruntime")
    assert find(judge_models([other]), "mlp through Session.run").figure is None


@pytest.mark.parametrize(
    ("cpu_ms", "kernels", "figure", "met"), [(2000, 3, 2.0, True), (2100, 3, 2.1, False), (0, 0, None, False)]
)
def test_compiling_the_kernels_of_bert(cpu_ms: int, kernels: int, figure: float | None, met: bool) -> None:
    """A model that has no kernels did not compile them fast."""
    result = model("bert-base", 1.0, 1.0)
    facts = {**NATIVE, "compile_cpu_ms": cpu_ms, "kernels": kernels}
    rows = (Row(**{**vars(result.rows[0]), "facts": facts}), result.rows[1])
    found = find(judge_models([Result("bert-base", rows)]), "bert-base: CPU time")
    assert (found.figure, found.met) == (figure, met)


@pytest.mark.parametrize(("ours_bytes", "met"), [(10, True), (11, False)])
def test_memory_is_held_to_the_fastest_peers(ours_bytes: int, met: bool) -> None:
    found = find(judge_models([model("light_vgg19", 1.0, 1.0, ours_bytes=ours_bytes)]), "light_vgg19: peak memory")
    assert (found.figure, found.met) == (pytest.approx(ours_bytes / 10), met)


# kernels


def kernel(name: str, ours_s: float, others_s: float = 1.0, copy: float | None = 0.0, status: str = "ok") -> Result:
    """Work of 1 at rates of 1 a second: a share is one over a time."""
    rows = (row("hotfuse", ours_s, status=status), row("numpy", others_s), row("torch", 2 * others_s))
    return Result(name, rows, work=Work(1, 1), rates=Rates(1.0, 1.0, copy))


def test_products_are_held_to_the_rate_of_multiply_adds() -> None:
    mean, least = judge_products([kernel("gemm:a", 1 / 0.97), kernel("gemm:b", 1 / 0.9)], 2)
    assert mean.what.startswith("products on 2 threads")
    assert (mean.figure, mean.met) == (pytest.approx((0.97 * 0.9) ** 0.5), True)
    assert (least.figure, least.detail, least.met) == (pytest.approx(0.9), "gemm:b", True)
    mean, least = judge_products([kernel("gemm:a", 1 / 1.0), kernel("gemm:b", 1 / 0.74)], 1)
    assert mean.what.startswith("products on 1 thread:")
    assert not mean.met
    assert not least.met


def test_a_product_that_is_wrong_leaves_no_figure() -> None:
    mean, least = judge_products([kernel("gemm:a", 1.0), kernel("gemm:b", 1.0, status="wrong")], 1)
    assert (mean.figure, least.figure, mean.met, least.met) == (None, None, False, False)
    assert least.detail == "no figure for gemm:b"


def test_a_share_that_no_machine_has_is_pointed_out() -> None:
    mean, _ = judge_products([kernel("gemm:a", 1 / 1.7)], 2)
    assert "others used the machine" in mean.detail


def test_chains_are_held_to_the_best_of_the_others_and_a_copy() -> None:
    def least(*results: Result) -> Criterion:
        (found,) = judge_chains(results)
        return found

    assert least(kernel("chain:silu:32MB", 1.0, others_s=0.8)).figure == pytest.approx(0.8)
    assert least(kernel("chain:silu:32MB", 1.0, others_s=0.8, copy=2.0)).figure == pytest.approx(0.5)
    assert least(kernel("chain:silu:32MB", 1.0, others_s=0.86)).met
    assert not least(kernel("chain:silu:32MB", 1.0, others_s=0.84)).met
    assert least(kernel("chain:silu:32MB", 1.0, copy=None)).figure is None
    both = judge_chains([kernel("chain:silu:32MB", 1.0), kernel("chain:silu:1GB", 2.0), kernel("chain:softmax:1GB", 1.0)])
    assert [(c.what.split(":")[0], c.figure, c.met) for c in both] == [
        ("chains of 32MB", pytest.approx(1.0), True),
        ("chains of 1GB", pytest.approx(0.5), False),
    ]


# lengths


def length(size: int, *ratios: float, compiled: Sequence[int] = (3, 3, 3), status: str = "ok", **facts: int) -> Length:
    known = {**NATIVE, **facts}
    results = tuple(
        Result("m", (row(GENERIC, ratio, status=status, **{**known, "compiled": count}), row(BAKED, 1.0, **known)))
        for ratio, count in zip(ratios, compiled, strict=True)
    )
    return Length(size, results)


def test_a_length_is_too_slow_if_it_is_so_in_two_of_three_repeats() -> None:
    once, twice = length(7, 1.3, 1.0, 1.0), length(9, 1.3, 1.0, 1.26)
    _, worst, _, _ = judge_lengths([once, length(8, 1.0, 1.0, 1.0)], 0)
    assert (worst.figure, worst.met, worst.detail) == (pytest.approx(1.0), True, "")
    _, worst, _, _ = judge_lengths([once, twice], 0)
    assert (worst.figure, worst.met, worst.detail) == (pytest.approx(1.26), False, "over it in most repeats: 9")


def test_the_median_of_the_lengths() -> None:
    lengths = [length(1, 1.2, 1.2, 1.2), length(2, 1.09, 1.09, 1.09), length(3, 1.0, 1.0, 1.0)]
    median, *_ = judge_lengths(lengths, 0)
    assert (median.figure, median.met) == (pytest.approx(1.09), True)
    median, *_ = judge_lengths(lengths[:2], 0)
    assert not median.met


def test_compiling_after_the_first_length_is_seen() -> None:
    quiet = [length(1, 1, 1, 1), length(2, 1, 1, 1)]
    assert compiled_later(quiet) == 0
    late = [length(1, 1, 1, 1, compiled=(3, 5, 5)), length(2, 1, 1, 1, compiled=(5, 5, 5))]
    assert compiled_later(late) == 2
    assert [find(judge_lengths(quiet, n), "kernels compiled").met for n in (0, 2, None)] == [True, False, False]
    assert compiled_later([Length(1, (Result("m", (Row(GENERIC, "failed", "gone"),)),))]) is None


@pytest.mark.parametrize("facts", [{"kernels": 0}, {"missed": 1}])
def test_a_build_that_ran_without_its_kernels_is_not_generated_code(facts: dict[str, int]) -> None:
    found = find(judge_lengths([length(1, 1, 1, 1), length(2, 1, 1, 1, **facts)], 0), "lengths at which")
    assert (found.figure, found.wanted, found.met, found.detail) == (1, 2, False, "not at 2")


def test_a_wrong_length_leaves_no_figure() -> None:
    lengths = [length(1, 1, 1, 1), length(2, 1, 1, 1, status="wrong")]
    assert lengths[1].ratios == (None, None, None)
    assert [c.met for c in judge_lengths(lengths, 0)] == [False, False, True, False]


# what is shown


def test_criteria_are_shown_with_figure_limit_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    criteria = [
        Criterion("a", 1.3, 1.25),
        Criterion("b", 0.5, 0.9, unit="%", detail="[x]"),
        Criterion("c", None, 0, at_least=False, unit=""),
    ]
    show_criteria(make_console(), criteria, quick=False)
    title, _, *lines = capsys.readouterr().out.strip().splitlines()
    assert title.strip() == "criteria"
    assert [line.split() for line in lines] == [
        ["a", "1.30x", ">=", "1.25x", "met"],
        ["b", "50.0%", ">=", "90.0%", "NOT", "met", "[x]"],
        ["c", "nothing", "<=", "0", "NOT", "met"],
    ]
    assert [c["met"] for c in as_json(criteria)] == [True, False, False]


def test_a_kernel_that_was_not_generated_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    bare, native = (Row("hotfuse", "ok", notes=f"note {n}", facts={**NATIVE, "kernels": n}) for n in (0, 1))
    show_kernels(make_console(), "chains", [Result("chain:a:32MB", (bare,)), Result("chain:b:32MB", (native,))], False)
    shown = capsys.readouterr().out
    assert "chain:a:32MB hotfuse ran no generated code: note 0" in shown
    assert "note 1" not in shown


def test_lengths_are_shown_with_every_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    show_lengths(make_console(), "lengths", [length(7, 1.5, 1.0, 1.2), length(9, 1, 1, 1, status="wrong")])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["7", "1.2", "s", "1", "s", "1.50x", "~1.00x", "1.20x", "1.20x", "right"] in shown
    assert ["9", "1", "s", "1", "s", "-", "-", "-", "-", GENERIC, "WRONG"] in shown
