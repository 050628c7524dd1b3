"""Vector functions: accuracy against wider types and mpmath, specials against torch, and the same bits for every lane count."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from llvmlite import binding as llvm

from hotfuse.codegen import vector_avx512
from hotfuse.codegen.llvm_map import emit_map
from hotfuse.codegen.llvm_text import LType, Operand, Writer
from hotfuse.codegen.object_file import read_symbols
from hotfuse.codegen.scalar_ops import SCALAR_OPS
from hotfuse.codegen.vector_math import FUNCTIONS, NOT_OFFERED
from hotfuse.errors import TileError
from tests.codegen.vector_harness import (
    BEST,
    NARROW,
    NUMPY,
    WIDE,
    Array,
    Target,
    compile_map,
    count_instructions,
    loop_ir,
    machine,
    ulp_error,
)
from tests.codegen.vector_oracle import BINARY, ONLY_MPMATH, SPECIAL, arguments, exact_slow, exact_wide, hard_angles, pairs

MOST_ULP = 4
GELUS = ("gelu_erf", "gelu_tanh")
OFFERED = [(name, element) for element in ("f32", "f64") for name in FUNCTIONS if name not in NOT_OFFERED[element]]
ACCURATE = [(name, element) for name, element in OFFERED if name not in GELUS]
WIDENED = [(name, element) for name, element in ACCURATE if element == "f32" or name not in ONLY_MPMATH]


def on_targets(cases: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    """Each case on the best target, and what AVX-512 has code of its own for without it too."""
    both = [
        (*case, t)
        for case in cases
        for t in (BEST, NARROW)
        if t == BEST or (BEST == WIDE and case[0] in vector_avx512.FUNCTIONS)
    ]
    return pytest.mark.parametrize(("name", "element", "target"), both, ids=[f"{n}-{e}-{t[0]}" for n, e, t in both])


offered = pytest.mark.parametrize(("name", "element"), OFFERED, ids=map("-".join, OFFERED))


def arity(name: str) -> int:
    return 2 if name in BINARY else 1


def vectorised(name: str, element: str, target: Target = BEST) -> Callable[..., Array]:
    return compile_map(FUNCTIONS[name], element, 16 if element == "f32" else 8, arity(name), target)


def inputs(name: str, element: str, count: int) -> tuple[Array, ...]:
    return pairs(name, element, count // 4) if name in BINARY else (arguments(element, count),)


def worst(got: Array, exact: Array, *args: Array) -> str:
    """Empty if all are near enough."""
    errors = ulp_error(got, exact)
    if not (at := np.flatnonzero(~(errors <= MOST_ULP))).size:
        return ""
    i = at[np.argmax(errors[at])]
    return f"{at.size} wrong; ({', '.join(str(a[i]) for a in args)}) gave {got[i]}, not {exact[i]}: {errors[i]:.1f} ULP"


@on_targets(WIDENED)
def test_results_are_within_4_ulp(name: str, element: str, target: Target) -> None:
    args = inputs(name, element, 400_000)
    assert not worst(vectorised(name, element, target)(*args), exact_wide(name, element, *args), *args)


@on_targets([case for case in ACCURATE if case[1] == "f64"])
def test_f64_results_are_within_4_ulp_of_mpmath(name: str, element: str, target: Target) -> None:
    args = inputs(name, element, 2_000)
    # mpmath has no -0, and takes long for what overflows or is flat; only the trigonometric functions are neither.
    most = math.inf if name in ("sin", "cos", "tan") else 2000
    keep = np.all([(a != 0) & (np.abs(a) < most) for a in args], axis=0)
    args = tuple(a[keep] for a in args)
    exact = exact_slow(name, *args)
    known = np.isfinite(exact)
    assert known.sum() > 300
    args = tuple(a[known] for a in args)
    assert not worst(vectorised(name, element, target)(*args), exact[known], *args)


@pytest.mark.parametrize("name", ONLY_MPMATH)
def test_f64_ends_of_erf_are_flat(name: str) -> None:
    x = arguments("f64", 20_000)
    x = x[np.abs(x) > 40]
    with np.errstate(invalid="ignore"):
        ends = {"erf": np.copysign(1.0, x), "erfc": np.where(x > 0, 0.0, 2.0), "gelu_erf": np.where(x > 0, x, -0.0 * np.abs(x))}
    np.testing.assert_array_equal(vectorised(name, "f64")(x), ends[name])


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_half_pi(name: str, element: str) -> None:
    """The nearest that numbers of each size come to one: there all but the last bits of the reduction cancel."""
    random = np.random.default_rng(5)
    near = np.rint(2.0 ** random.uniform(-3, 50, 300)) * (math.pi / 2)
    x = np.concatenate([hard_angles(element), near]).astype(NUMPY[element])
    exact = exact_slow(name, x)
    assert not worst(vectorised(name, element)(x), exact if element == "f64" else exact.astype(np.float64), x)


def eager(name: str, *args: Array) -> Array:
    functions = {
        "gelu_erf": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    return (functions.get(name) or getattr(torch, name))(*map(torch.from_numpy, args)).numpy()


def kinds(x: Array) -> Array:
    """NaN, infinities and zeros by sign; everything else alike."""
    plain = np.isfinite(x) & (x != 0)
    return np.where(np.isnan(x), 9, np.where(plain, 0, np.where(np.isinf(x), 1, 2) * np.where(np.signbit(x), -1, 1)))


@on_targets(OFFERED)
def test_specials_are_as_in_eager(name: str, element: str, target: Target) -> None:
    few = np.array([*SPECIAL, 1e-310, -1e-310, 1e-40, 1000.0, -1000.0, 1e30, -1e30], NUMPY[element])
    args = tuple(side.ravel() for side in np.meshgrid(few, few)) if name in BINARY else (few,)
    # Eager's float32 rounds tiny results of sigmoid to zero, and has NaN for gelu(inf), where its float64 has inf.
    with np.errstate(over="ignore"):
        expected = eager(name, *(a.astype(np.float64) for a in args)).astype(NUMPY[element])
    got = vectorised(name, element, target)(*args)
    wrong = kinds(got) != kinds(expected)
    assert not wrong.any(), [tuple(a[wrong] for a in args), got[wrong], expected[wrong]]


@on_targets([(name, element) for name in GELUS for element in ("f32", "f64")])
def test_gelu_is_within_4_ulp_or_nearer_than_eager(name: str, element: str, target: Target) -> None:
    function = vectorised(name, element, target)
    random = np.random.default_rng(7)
    for low, high in itertools.pairwise((-40, -13, -8, -6, -5, -4, -3, -2, -1, 0, 1, 50)):
        x = random.uniform(low, high, 400 if element == "f64" else 20_000).astype(NUMPY[element])
        exact = exact_slow(name, x) if element == "f64" else exact_wide(name, element, x)
        ours, theirs = ulp_error(function(x), exact), ulp_error(eager(name, x), exact)
        assert ours.max() <= max(MOST_ULP, theirs.max()), (low, high)
        assert ours.mean() <= max(1, theirs.mean()), (low, high)


@on_targets([(name, element) for name in ("tanh", "erf", "sin", "cos", "sigmoid") for element in ("f32", "f64")])
def test_bounds_are_never_passed(name: str, element: str, target: Target) -> None:
    got = vectorised(name, element, target)(arguments(element, 400_000))
    assert np.nanmin(got) == (0 if name == "sigmoid" else -1)
    assert np.nanmax(got) == 1


@offered
@pytest.mark.parametrize(("target", "counts"), [(BEST, (16, 8, 5, 0)), (NARROW, (16, 8, 3, 0))], ids=["best", "narrow"])
def test_every_lane_count_gives_the_same_bits(name: str, element: str, target: Target, counts: tuple[int, ...]) -> None:
    args = inputs(name, element, 4_000)
    first, *others = (compile_map(FUNCTIONS[name], element, lanes, arity(name), target)(*args) for lanes in counts)
    for other in others:
        same = (first.view(f"u{first.itemsize}") == other.view(f"u{first.itemsize}")) | (np.isnan(first) & np.isnan(other))
        assert same.all()


@offered
def test_code_is_straight_and_calls_nothing(name: str, element: str) -> None:
    for lanes, target in ((16, WIDE), (8, NARROW), (0, NARROW)):
        w = Writer(target[0])
        FUNCTIONS[name](w, *(Operand(LType(element, lanes), f"%x{k}") for k in range(arity(name))))
        assert not [line for line in w.lines if re.search(r"\bbr\b|:$|@(?!llvm\.)", line)]
        module = llvm.parse_assembly(loop_ir(FUNCTIONS[name], element, lanes, arity(name), target))
        assert read_symbols(machine(target).emit_object(module)).undefined == ()


# Vector instructions for 16 numbers with AVX-512: what the hot functions cost now. None of them grows unnoticed.
@pytest.mark.parametrize(
    ("name", "most"),
    [("exp", 11), ("sigmoid", 13), ("tanh", 17), ("gelu_tanh", 17), ("erf", 22), ("log", 15), ("gelu_erf", 23)],
)
def test_hot_functions_are_short(name: str, most: int) -> None:
    assert 0 < count_instructions(FUNCTIONS[name], "f32", 16, target=WIDE) <= most


@pytest.mark.parametrize(("element", "name"), [(e, n) for e, names in NOT_OFFERED.items() for n in names])
def test_what_is_not_offered_is_refused(element: str, name: str) -> None:
    with pytest.raises(TileError, match=f"{name} of {element}"):
        loop_ir(FUNCTIONS[name], element, 8, arity(name), NARROW)


def test_every_transcendental_operation_is_there() -> None:
    assert {op.name for op in SCALAR_OPS.values() if op.ulp == MOST_ULP} <= set(FUNCTIONS)


@pytest.mark.parametrize("target", [BEST, NARROW], ids=["best", "narrow"])
@pytest.mark.parametrize(("element", "lanes"), [("f32", 16), ("f32", 5), ("f64", 16), ("f64", 3), ("f32", 0)])
@pytest.mark.parametrize(("name", "oracle"), [("max", np.maximum), ("min", np.minimum)])
def test_extremes_are_numpys(name: str, oracle: Callable[..., Array], element: str, lanes: int, target: Target) -> None:
    few = np.array([*SPECIAL, 1.5, -1.5, 1e-310], NUMPY[element])
    x, y = (side.ravel() for side in np.meshgrid(few, few))

    def emit(w: Writer, *args: Operand) -> Operand:
        return emit_map(w, name, args)

    np.testing.assert_array_equal(compile_map(emit, element, lanes, 2, target)(x, y), oracle(x, y))


@pytest.mark.parametrize(("lanes", "target", "most"), [(16, WIDE, 2), (8, NARROW, 3)], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_are_short(name: str, lanes: int, target: Target, most: int) -> None:
    def emit(w: Writer, *args: Operand) -> Operand:
        return emit_map(w, name, args)

    assert 0 < count_instructions(emit, "f32", lanes, 2, target) <= most


def test_the_check_sees_an_error_of_five_units() -> None:
    def off(w: Writer, x: Operand) -> Operand:
        return w.mul(FUNCTIONS["exp"](w, x), w.const(x, 1 + 5 * 2.0**-23))

    x = arguments("f32", 10_000)
    assert worst(compile_map(off, "f32")(x), exact_wide("exp", "f32", x), x)


def test_the_table_in_the_documentation_is_whole() -> None:
    text = (Path(__file__).parents[2] / "docs/vector_math.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (f\d\d) \| ([\d.]+) \|", text, re.M)
    assert [(name, element) for name, element, _ in rows] == sorted(OFFERED)
    assert max(float(most) for _, _, most in rows) <= MOST_ULP
