"""Plain programs of bodies: what they look like, what numpy makes of the same, and that no rewrite changes a result."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.codegen.body import Body, Fold, Given, Read, Scan, Write
from hotfuse.codegen.interpret import run
from hotfuse.codegen.nest import make_nest
from hotfuse.codegen.tile import Map, TileProgram
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.errors import TileError
from hotfuse.ir.types import F32, F64, I32, DType
from hotfuse.numerics import close_to_exact, same_bits
from tests.codegen.rewriting import compare
from tests.codegen.scrambling import EXACT, ROUNDED, STRIDES, Draft, M, N, candidates, scrambled
from tests.codegen.test_llvm_programs import run_native
from tests.codegen.tile_programs import random_memory

SOFTMAX = Body(
    (M, N),
    1,
    (
        Read("in", "x", F32, 0, (N, 1)),
        Fold("most", "max", "in", F32),
        Map("less", "sub", ("in", "most")),
        Map("power", "exp", ("less",)),
        Fold("total", "sum", "power", F32),
        Map("out", "div", ("power", "total")),
    ),
    (Write("out", "y", F32, (N, 1)),),
)


def text_of(body: Body, keep: bool) -> str:
    program = make_nest("p", body, lambda root: (F32, M * N), keep).program
    check(program)
    return print_program(program)


def test_the_walks_of_a_softmax_keep_what_is_dear() -> None:
    assert (
        text_of(SOFTMAX, keep=True)
        == """program p {
  size m n
  input x f32[m*n]
  output y f32[m*n]
  scratch keep0 f32[n]
  grid i0 m
  v3 = fill f32 1x1 -inf
  for c0 in [0 : n : 1] carry (v1 = v3 -> v2) {
    v0 = load x[i0*n + c0; 0, 0] 1x1
    v2 = map max v1 v0
  }
  v9 = fill f32 1x1 0
  for c1 in [0 : n : 1] carry (v7 = v9 -> v8) {
    v6 = load x[i0*n + c1; 0, 0] 1x1
    v5 = map sub v6 v1
    v4 = map exp v5
    store v4 to keep0[c1; 0, 0] 1x1
    v8 = map add v7 v4
  }
  for c2 in [0 : n : 1] {
    v11 = load keep0[c2; 0, 0] 1x1
    v10 = map div v11 v7
    store v10 to y[i0*n + c2; 0, 0] 1x1
  }
}
"""
    )


def test_without_scratch_a_walk_computes_again() -> None:
    text = text_of(SOFTMAX, keep=False)
    assert "keep0" not in text
    assert text.count("map exp") == 2


@pytest.mark.parametrize("keep", [True, False])
def test_a_softmax_is_numpys(keep: bool) -> None:
    program = make_nest("p", SOFTMAX, lambda root: (F32, M * N), keep).program
    x = np.random.default_rng(0).standard_normal((4, 11)).astype(np.float32)
    y = np.zeros(44, np.float32)
    assert run(program, {"x": x.reshape(-1), "y": y}, {"m": 4, "n": 11}) == 0
    exact, ours = (np.exp(a - a.max(1, keepdims=True)) for a in (x.astype(np.float64), x))
    exact, ours = (a / a.sum(1, keepdims=True) for a in (exact, ours))
    verdict = close_to_exact(y.reshape(4, 11), ours, exact)
    assert verdict, verdict.reason


def test_a_product_with_a_broadcast_sum_is_numpys() -> None:
    program = Draft(("row", "depth"), (("add", 0, 1), ("mul", 2, 3)), product=True).program(F32, False)
    rng = np.random.default_rng(0)
    shapes = {"row": (4, 1), "depth": (3,), "left": (4, 5), "right": (5, 3)}
    arrays = {name: rng.integers(-4, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    y = np.zeros(12, np.float32)
    assert run(program, {**{name: a.reshape(-1) for name, a in arrays.items()}, "y": y}, {"m": 4, "n": 5}) == 0
    expected = arrays["left"] @ arrays["right"] * (arrays["row"] + arrays["depth"])
    assert np.array_equal(y.reshape(4, 3), expected)


def test_a_running_total_goes_along_one_axis() -> None:
    steps = (Read("in", "x", F32, 0, STRIDES["x"]), Scan("s", "sum", "in", F32))
    scan = Body((M, N, 3), 2, steps, (Write("s", "y", F32, STRIDES["x"]),))
    with pytest.raises(TileError, match="a running total goes along one axis"):
        make_nest("p", scan, lambda root: (F32, M * N * 3), False)


def test_a_block_that_only_a_kernel_has_is_no_part_of_a_plain_program() -> None:
    given = Body((M, N), 0, (Given("acc"),), (Write("acc", "y", F32, (N, 1)),))
    with pytest.raises(TileError, match="step acc is not there yet"):
        make_nest("p", given, lambda root: (F32, M * N), False)
    kept = Body(
        (M, N), 1,
        (Given("acc"), Map("e", "exp", ("acc",)), Fold("f", "sum", "e", F32), Map("o", "div", ("e", "f"))),
        (Write("o", "y", F32, (N, 1)),),
    )  # fmt: skip
    with pytest.raises(TileError, match="step acc is not there yet"):
        make_nest("p", kept, lambda root: (F32, M * N), True)


# any rewrites in any order

PICKS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from((1, 2, 3, 4, 8))), min_size=1, max_size=7)
SIZES = st.fixed_dictionaries({"m": st.integers(0, 5), "n": st.integers(0, 9)})


@st.composite
def drafts(draw: st.DrawFn, ops: tuple[str, ...], folds: tuple[str, ...]) -> Draft:
    reads = draw(st.lists(st.sampled_from(sorted(STRIDES)), min_size=1, max_size=3))
    numbers = st.integers(0, 7)
    maps = draw(st.lists(st.tuples(st.sampled_from(ops), numbers, numbers), min_size=1, max_size=3))
    kind = draw(st.sampled_from(("pointwise", "folds", "folds", "product", "scan")))
    if kind == "folds":
        depth = draw(st.lists(st.sampled_from(folds), min_size=1, max_size=2))
        return Draft(tuple(reads), tuple(maps), tuple(depth), folded=draw(st.sampled_from((1, 2))))
    return Draft(tuple(reads), tuple(maps), product=kind == "product", scan=kind == "scan", folded=int(kind == "scan"))


def rewritten(program: TileProgram, picks: list[tuple[int, int]]) -> tuple[TileProgram, set[str]]:
    """Each program on the way keeps the rules and its text."""
    names = set()
    for name, changed in scrambled(program, picks):
        check(changed)
        assert parse_program(print_program(changed)) == changed
        names.add(name)
        program = changed
    return program, names


@pytest.mark.parametrize("dtype", [I32, F32], ids=str)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(drafts(EXACT, ("sum", "max", "min")), SIZES, PICKS, st.booleans(), st.integers(0, 9))
def test_rewrites_keep_whole_numbers_exact(
    dtype: DType, draft: Draft, sizes: dict[str, int], picks: list[tuple[int, int]], keep: bool, seed: int
) -> None:
    program = draft.program(dtype, keep)
    after, _ = rewritten(program, picks)
    wanted, ours = (random_memory(program, sizes, seed) for _ in range(2))
    assert run(program, wanted, sizes, seed) == 0
    assert run(after, ours, sizes, seed + 1) == 0
    compare(ours, wanted, after)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(drafts(ROUNDED, ("sum", "prod", "max")), SIZES, PICKS, st.integers(0, 9))
def test_rewrites_round_no_worse(draft: Draft, sizes: dict[str, int], picks: list[tuple[int, int]], seed: int) -> None:
    """The same bits unless a sum was reordered; else as close to float64 as the plain program is."""
    program, wide = draft.program(F32, True), draft.program(F64, True)
    after, names = rewritten(program, picks)
    rng = np.random.default_rng(seed)
    memory = {name: rng.uniform(-1, 1, a.size).astype(np.float32) for name, a in random_memory(program, sizes, 0).items()}
    wanted, ours = ({name: array.copy() for name, array in memory.items()} for _ in range(2))
    exact = {name: array.astype(np.float64) for name, array in memory.items()}
    for each, buffers in ((program, wanted), (after, ours), (wide, exact)):
        assert run(each, buffers, sizes) == 0
    for name in ("y", "total") if "total" in ours else ("y",):
        if names & {"widen", "in_parts"}:
            verdict = close_to_exact(ours[name], wanted[name], exact[name])
        else:
            verdict = same_bits(ours[name], wanted[name])
        assert verdict, f"{name}: {verdict.reason}\n{print_program(after)}"


DRAFTS = (
    Draft(("x", "row", "column"), (("mul", 0, 1), ("add", 3, 2))),
    Draft(("x", "depth"), (("sub", 0, 1),), ("max", "sum"), folded=1),
    Draft(("x", "one"), (("exp", 0, 0),), ("max", "sum"), folded=2),
    Draft(("row",), (("max", 0, 1),), product=True),
    Draft(("x", "x"), (("mul", 0, 1),)),
)


def test_every_rewrite_is_tried_and_accepted_somewhere() -> None:
    accepted: collections.Counter[str] = collections.Counter()
    rng = np.random.default_rng(0)
    for number in range(200):
        program = DRAFTS[number % 5].program(F32, True)
        picks = [(int(rng.integers(200)), int(rng.choice([1, 2, 3, 4, 8]))) for _ in range(6)]
        accepted.update(name for name, _ in scrambled(program, picks))
    offered = {name for draft in DRAFTS for name, _ in candidates(draft.program(F32, True), 2, 0)} | {"interchange"}
    assert offered == {
        "coarsen", "reorder", "parallelize", "split", "interchange", "peel", "unroll", "inline", "hoist", "in_parts",
        "prefetch", "stream", "stage", "share", "prune", "widen",
    }  # fmt: skip
    assert offered <= set(accepted), offered - set(accepted)


@pytest.mark.parametrize("seed", range(16))
def test_rewritten_programs_run_as_native_code(seed: int) -> None:
    draft, sizes = DRAFTS[seed % 4], {"m": 3 + seed % 3, "n": 2 * seed + 1}
    rng = np.random.default_rng(seed)
    picks = [(int(rng.integers(200)), int(rng.choice([2, 3, 4, 8]))) for _ in range(8)]
    program = Draft(draft.reads, tuple(("abs", a, b) if op == "exp" else (op, a, b) for op, a, b in draft.maps),
                    draft.folds, draft.folded, draft.product).program(F32, True)  # fmt: skip
    after, _ = rewritten(program, picks)
    wanted, ours = (random_memory(program, sizes, seed) for _ in range(2))
    assert run(program, wanted, sizes) == run_native(after, ours, sizes, 8) == 0
    compare(ours, wanted, after)
