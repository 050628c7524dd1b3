"""The rules that results are held to: which applies, what is exact, and what chance may do."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.tile import Fill
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BF16, F16, F32, F64, tensor
from hotfuse.runtime import proof
from hotfuse.runtime.exact import exact_values, run_nodes
from hotfuse.runtime.guard_bands import NAN_BYTES
from hotfuse.runtime.proof_inputs import shuffled
from hotfuse.runtime.unit_proof import Outcome, Subject, judge_results, run_kernels
from hotfuse.runtime.unit_rule import BITS, EQUAL, Rule, judge, rule_of
from tests.codegen.lowering import Make, graph_of
from tests.runtime.mutants import differs, mutants, planted
from tests.runtime.proof_models import Array, small, verdicts

NO_RUN: Any = None  # where no kernel runs


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda b, x: b.add("concat", x, x, axis=1), "bits"),
        (lambda b, x: b.add("cast", x, to=F16), "bits"),
        (lambda b, x: b.add("greater", x, b.constant(np.float32(0))), "bits"),
        (lambda b, x: b.add("argmax", b.add("exp", x), axis=1), "bits"),
        (lambda b, x: b.add("relu", x), "0 ulp"),
        (lambda b, x: b.add("reduce_max", x, axes=(1,)), "0 ulp"),
        (lambda b, x: b.add("add", x, x), "2 ulp"),
        (lambda b, x: b.add("relu", b.add("add", x, x)), "2 ulp"),
        (lambda b, x: b.add("exp", x), "4 ulp"),
        (lambda b, x: b.add("cast", b.add("atan", x), to=F64), "4 ulp of f32"),
        (lambda b, x: b.add("cast", b.add("exp", b.add("exp", b.add("cast", x, to=BF16))), to=F32), "float64 of bf16"),
        (lambda b, x: b.add("sigmoid", x), "4 ulp"),
        (lambda b, x: b.add("gelu", x), "float64"),
        (lambda b, x: b.add("softplus", x), "float64"),
        (lambda b, x: b.add("exp", b.add("add", x, x)), "float64"),
        (lambda b, x: b.add("softmax", x, axis=1), "float64"),
        (lambda b, x: b.add("reduce_sum", x, axes=(1,)), "float64"),
    ],
)
def test_the_strictest_rule_applies(make: Make, rule: str) -> None:
    graph = graph_of(make, {"x": tensor(F32, 3, 5)})
    given = {"x": np.ones((3, 5), np.float32), **{n: c.numpy() for n, c in graph.constants.items()}}
    original = run_nodes(graph.nodes, given)
    assert str(rule_of(graph.nodes, original, graph.outputs[0])) == rule


def test_exact_values_are_of_float64_but_where_nothing_rounds() -> None:
    def model(b: Any, x: Any) -> Any:
        small_ = b.add("cast", x, to=BF16)
        return [b.add("exp", b.add("cast", small_, to=F32)), b.add("cast", b.add("exp", x), to=F16)]

    graph = graph_of(model, {"x": tensor(F32, 64)})
    given = {"x": np.random.default_rng(0).standard_normal(64).astype(np.float32)}
    exact = exact_values(graph.nodes, given, run_nodes(graph.nodes, given))
    first, second = (exact[n] for n in graph.outputs)
    rounded = run_nodes(graph.nodes, given)[graph.nodes[0].id]
    np.testing.assert_array_equal(first, np.exp(rounded.astype(np.float64)))  # the cast is the same for everybody
    np.testing.assert_array_equal(second, np.exp(given["x"].astype(np.float64)))  # this one comes after a rounding


def subject_of(make: Make, **feeds: Array) -> tuple[Subject, dict[str, Array]]:
    """The nodes of a graph as one unit, without kernels; and tier 0's values."""
    from hotfuse.ir.types import type_of

    graph = graph_of(make, {n: type_of(a) for n, a in feeds.items()})
    values = run_nodes(graph.nodes, {**feeds, **{n: c.numpy() for n, c in graph.constants.items()}})
    return Subject(graph.nodes, (), (), tuple(feeds), graph.outputs, {}, {}), values


WHOLE = np.arange(1, 41, dtype=np.float32).reshape(2, 20)


@pytest.mark.parametrize("op", ["floor", "round", "greater", "argmax"])
def test_where_rounding_decides_either_side_is_right(op: str) -> None:
    """exp(log(k)) is k or nearly k."""
    x = np.log(WHOLE + np.float32(0.5 if op == "round" else 0))
    if op == "argmax":
        x = np.array([[1, 2, np.nextafter(np.float32(2), np.float32(3)), 0]], np.float32)

    def make(b: Any, x: Any) -> Any:
        e = b.add("exp", x)
        more = {"greater": [b.constant(WHOLE)]}.get(op, [])
        return b.add(op, e, *more, **({"axis": 1} if op == "argmax" else {}))

    subject, values = subject_of(make, x=x)
    (name,) = subject.writes
    low, high = {"floor": (WHOLE - 1, WHOLE), "round": (WHOLE, WHOLE + 1), "greater": (WHOLE < 0, WHOLE > 0)}.get(
        op, (np.array([1]), np.array([2]))
    )
    for side in (low, high, values[name]):
        assert judge_results(subject, {name: side}, values, NO_RUN)[1]
    wrong = low.copy()
    if op == "greater":
        values["x"] = values["x"] + np.float32(1)  # no branch point any more
        values = run_nodes(subject.nodes, values)
    else:
        wrong[0, ...] = 0 if op == "argmax" else wrong[0] - 1
    assert not judge_results(subject, {name: wrong}, values, NO_RUN)[1]


def test_bad_luck_in_a_short_row_is_told_from_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of some numbers, off by as much as one may be by bad luck; what is right is said over more runs of the kernel."""
    model = small(
        lambda b, x: b.add("reduce_sum", b.add("exp", x), axes=(1,), keepdims=False), x=tensor(F32, symbol("n", 1), 300)
    )
    feeds = {"x": np.random.default_rng(0).uniform(-2, 2, (1, 300)).astype(np.float32)}
    seen: list[Any] = []

    def look(subject: Any, values: Any, driver: Any, threads: int) -> Outcome:
        seen.append((subject, values, driver))
        return Outcome()

    monkeypatch.setattr(proof, "prove_unit", look)
    program = model.build.units[0].recipes[0].program
    biased = next(p for _, p in mutants(program) if differs(program, p, Fill))
    for each in (model, planted(model, 0, 0, biased)):
        verdicts(each, feeds)
    (good, values, driver), (bad, _, _) = seen
    (name,) = good.writes
    unlucky = (exact_values(good.nodes, {"x": feeds["x"]}, values)[name] * (1 + 8e-7)).astype(np.float32)
    assert not judge(rule_of(good.nodes, values, name), unlucky, values[name], values[name].astype(np.float64))
    for subject, is_right in ((good, True), (bad, False)):
        run = partial(run_kernels, subject, driver=driver, threads=1, byte=NAN_BYTES)
        assert judge_results(subject, {name: unlucky}, values, run)[1].ok == is_right


def test_units_in_the_last_place_are_counted_from_the_exact_result() -> None:
    original = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    original[0, 0], original[0, 1] = np.inf, np.nan
    exact = original.astype(np.float64)
    for ulp, off in ((2, 2), (2, 3), (0, 0), (0, 1)):
        ours = np.where(np.isfinite(original), original + off * np.spacing(np.abs(np.nan_to_num(original, posinf=0))), original)
        assert bool(judge(Rule(ulp), ours.astype(np.float32), original, exact)) == (off <= ulp)
    assert not judge(Rule(2), np.where(np.isnan(original), 1, original).astype(np.float32), original, exact)
    assert judge(EQUAL, np.array([-0.0], np.float32), np.array([0.0], np.float32), np.array([0.0]))
    assert not judge(BITS, np.array([-0.0], np.float32), np.array([0.0], np.float32), np.array([0.0]))


def test_shuffled_inputs_have_the_same_numbers_but_for_zeros() -> None:
    rng = np.random.default_rng(0)
    for array in (
        np.arange(-3, 9, dtype=np.float32).reshape(3, 4),
        (np.arange(1 << 17) % 7).astype(np.float16),
        np.zeros((0, 2)),
    ):
        array.flags.writeable = False
        made = shuffled(array, rng)
        assert (made.shape, made.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(np.sort(made, axis=None), np.sort(np.where(array == 0, 1, array), axis=None))
        assert array.size == 0 or not np.array_equal(made, array)
    numbers = np.array([0, 5, 0, 9, 2])
    assert sorted(shuffled(numbers, rng)) == sorted(numbers)


def test_results_of_bools_are_compared_as_bytes() -> None:
    subject, values = subject_of(lambda b, x: b.add("greater", x, b.constant(np.float32(0))), x=np.ones((2, 3), np.float32))
    (name,) = subject.writes
    odd = np.full((2, 3), 0xFF, np.uint8).view(np.bool_)
    assert judge_results(subject, {name: values[name]}, values, NO_RUN)[1]
    assert not judge_results(subject, {name: odd}, values, NO_RUN)[1]
