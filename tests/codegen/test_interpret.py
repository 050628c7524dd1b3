"""The interpreter gives torch's results on the golden programs, and finds what a check of the text cannot."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hotfuse.codegen.interpret import evaluate, poison, run
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.errors import DimError, ExecutionError, InputError, TileError
from hotfuse.ir import dim
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.types import BOOL, F16, F32, I32, U8
from tests.codegen.goldens import GOLDENS, Golden, Sizes, case_id, cases
from tests.codegen.tile_programs import random_memory, random_program, same


@pytest.mark.parametrize(("golden", "sizes"), cases(), ids=case_id)
def test_golden_programs_give_torchs_results(golden: Golden, sizes: Sizes) -> None:
    inputs, buffers = golden.buffers(sizes)
    assert run(golden.program, buffers, sizes) == 0
    verdict = golden.judge(inputs, buffers["y"])
    assert verdict, verdict.reason


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_the_order_of_tasks_does_not_matter(golden: Golden) -> None:
    sizes = golden.sizes[1]
    results = []
    for seed in (1, 2):
        _, buffers = golden.buffers(sizes)
        run(golden.program, buffers, sizes, seed)
        results.append(buffers["y"])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_a_planted_defect_is_noticed(golden: Golden) -> None:
    """The last store moved by one element: outside of the buffer, into another task's, or wrong."""
    head, stored, tail = golden.text.rpartition("to y[")
    _, buffers = golden.buffers(golden.sizes[1])
    inputs, _ = golden.buffers(golden.sizes[1])
    try:
        run(parse_program(f"{head}{stored}1 + {tail}"), buffers, golden.sizes[1])
    except ExecutionError:
        return
    assert not golden.judge(inputs, buffers["y"])


def program(body: str, head: str = "") -> str:
    return f"program p {{\n size n\n input x f32[n]\n output y f32[n]\n {head}\n {body}\n}}"


def run_text(text: str, n: int = 6, **more: np.ndarray) -> tuple[int, np.ndarray]:
    y = np.full(n, np.nan, np.float32)
    status = run(parse_program(text), {"x": np.arange(n, dtype=np.float32), "y": y, **more}, {"n": n})
    return status, y


@pytest.mark.parametrize("n", [6, 8])
def test_a_forgotten_tail_is_found_where_there_is_one(n: int) -> None:
    text = program("a = load x[4*i; 0, 1] 1x4\n store a to y[4*i; 0, 1] 1x4 if ([4*i; 0, 1] < n)", "grid i (n + 3)//4")
    if n == 8:
        np.testing.assert_array_equal(run_text(text, n)[1], np.arange(8))
        return
    message = r"p, task 1, `a = load x\[4\*i; 0, 1\] 1x4`: element \(0, 2\) is at 6 of x, which has 6 elements \(n = 6, i = 1\)"
    with pytest.raises(ExecutionError, match=message):
        run_text(text, n)


def test_masked_elements_are_the_fill_and_their_memory_is_not_touched() -> None:
    body = "a = load x[i - 2; 0, 1] 1x4 if ([i - 2; 0, 1] < n) fill 9.0\n b = reduce sum 1 a\n store b to y[i; 0, 0] 1x1"
    text = program(body, "grid i n")
    padded = np.array([9, 9, 0, 1, 2, 3, 4, 5, 9])
    np.testing.assert_array_equal(run_text(text)[1], [padded[i : i + 4].sum() for i in range(6)])


def test_a_place_too_far_to_count_is_outside() -> None:
    with pytest.raises(ExecutionError, match="which has 6 elements"):
        run_text(program("a = load x[n*n*n*n*4611686018427387904; 1, 0] 1x1"))
    assert (
        run_text(program("a = load x[n*n*n*n*4611686018427387904; 1, 0] 1x1 if ([n*n*n*n*4611686018427387904; 1, 0] < n)"))[0]
        == 0
    )


@pytest.mark.parametrize(
    ("body", "head", "message"),
    [
        ("a = load x[0; 0, 1] 1x4\n store a to y[i//2; 0, 1] 1x4", "grid i 4", "it stores elements of y that task"),
        ("a = load x[i; 0, 1] 1x2 if ([i; 0, 1] < n)\n store a to y[i; 0, 1] 1x2 if ([i; 0, 1] < n)", "grid i n", "it stores"),
        ("a = load x[i; 0, 0] 1x1\n store a to y[i; 0, 0] 1x1\n b = load y[0; 0, 0] 1x1", "grid i n", "it reads elements of y"),
        ("a = load x[0; 0, 1] 2x2\n store a to y[0; 1, 1] 2x2 if ([0; 1, 1] < n)", "", "two elements of the block"),
        ("a = load x[0; 0, 1] 2x2\n store a to y[0; n//4, 1] 2x2", "", "two elements of the block"),
        ("a = load x[n - 7; 0, 1] 1x1", "", r"element \(0, 0\) is at -1 of x"),
    ],
)
def test_what_depends_on_the_order_or_leaves_memory_is_refused(body: str, head: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run_text(program(body, head))


def test_scratch_is_poisoned_before_each_task() -> None:
    """A task that stores its scratch only the first time leaves NaN in the others, whatever their order."""
    body = """z = load x[i; 0, 0] 1x1
      for k in [0 : 1 - min(i, 1) : 1] {
        store z to s[0; 0, 0] 1x1
      }
      a = load s[0; 0, 0] 1x1
      store a to y[i; 0, 0] 1x1"""
    _, y = run_text(program(body, "scratch s f32[1]\n grid i n"))
    assert np.isnan(y).sum() == 5
    assert y[0] == 0


@pytest.mark.parametrize("dtype", [F32, F16, I32, U8, BOOL], ids=str)
def test_poison_is_no_small_number(dtype: object) -> None:
    assert poison(dtype, 7).dtype == dtype.numpy  # type: ignore[arg-type, attr-defined]
    assert poison(dtype, 7).shape == (7,)  # type: ignore[arg-type]
    assert not np.array_equal(poison(dtype, 7), np.zeros(7))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "status", "expected"), [(4, 0, 4), (-6, 0, 0), (-1, 0, 5), (6, 1, 0), (-7, 1, 0), (2**62, 1, 0)]
)
def test_an_index_counts_from_the_end_or_is_reported(row: int, status: int, expected: int) -> None:
    text = program(
        "r = index rows[0; 0, 0] 1x1 limit n\n a = load x[r; 0, 0] 1x1\n store a to y[0; 0, 0] 1x1", "input rows i64[1]"
    )
    found, y = run_text(text, rows=np.array([row]))
    assert (found, y[0]) == (status, expected)


def test_an_index_outside_of_its_bounds_is_0() -> None:
    body = "r = index rows[9; 0, 0] 1x1 if ([9; 0, 0] < 1) limit n\n a = load x[r; 0, 0] 1x1\n store a to y[0; 0, 0] 1x1"
    assert run_text(program(body, "input rows i64[1]"), rows=np.array([5]))[1][0] == 0


def test_a_loop_without_turns_hands_on_its_first_block() -> None:
    body = """z = load x[3; 0, 0] 1x1
      for k in [n : 0 : 1] carry (a = z -> b) {
        b = map add a a
      }
      store a to y[0; 0, 0] 1x1"""
    assert run_text(program(body))[1][0] == 3


def test_carried_blocks_change_together() -> None:
    """Fibonacci: both carried blocks are of the last turn."""
    body = """zero = fill f32 1x1 0.0
      one = fill f32 1x1 1.0
      for k in [0 : 10 : 1] carry (a = zero -> b, b = one -> c) {
        c = map add a b
      }
      store a to y[0; 0, 0] 1x1"""
    assert run_text(program(body))[1][0] == 55


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = load x[0; 3, 1] 2x3\n b = reduce sum 0 a\n c = reduce prod 1 b", 3 * 5 * 7),
        ("a = load x[0; 3, 1] 2x3\n b = reduce max 0 a\n c = reduce min 1 b", 3),
        ("a = iota i32 2x3 [n; 10, 1]\n b = cast f32 a\n d = reduce max 1 b\n c = reduce sum 0 d", 8 + 18),
        ("a = load x[1; 0, 0] 1x1\n b = fill f32 1x1 1.0\n d = map eq a b\n e = reduce any 1 d\n c = cast f32 e", 1),
        ("a = load x[0; 0, 1] 1x6\n d = map isnan a\n f = map not d\n e = reduce all 1 f\n c = cast f32 e", 1),
        ("a = load x[0; 0, 1] 1x3\n b = load x[3; 1, 0] 3x1\n z = fill f32 1x1 100.0\n c = dot a b z", 100 + 4 + 10),
    ],
)
def test_instructions(body: str, expected: float) -> None:
    assert run_text(program(f"{body}\n store c to y[0; 0, 0] 1x1"))[1][0] == expected


def test_nan_wins_in_reductions() -> None:
    body = """a = load x[0; 0, 1] 1x6
      b = reduce max 1 a
      store b to y[0; 0, 0] 1x1
      c = reduce min 1 a
      store c to y[1; 0, 0] 1x1"""
    y = np.zeros(6, np.float32)
    run(parse_program(program(body)), {"x": np.float32([1, np.nan, 3, 4, 5, 6]), "y": y}, {"n": 6})
    assert np.isnan(y[:2]).all()


def test_products_of_halves_may_be_summed_in_float32() -> None:
    text = """program p {
      input x f16[8]
      output y f32[1]
      a = load x[0; 0, 1] 1x4
      b = load x[4; 1, 0] 4x1
      z = fill f32 1x1 0.0
      c = dot a b z
      store c to y[0; 0, 0] 1x1
    }"""
    x, y = np.float16([1, 2048, 1, 1, 1, 1, 1, 1]), np.zeros(1, np.float32)
    run(parse_program(text), {"x": x, "y": y}, {})
    assert y[0] == 2051  # float16 cannot count past 2048


@pytest.mark.parametrize(
    ("buffers", "sizes", "message"),
    [
        ({}, {}, "needs a size for n"),
        ({}, {"n": 6}, "no memory was given for the input x"),
        ({"x": np.zeros(5, np.float32)}, {"n": 6}, "flat memory of 6 elements of f32, not float32 of shape (5,)"),
        ({"x": np.zeros((6, 1), np.float32)}, {"n": 6}, "of shape (6, 1)"),
        ({"x": np.zeros(6)}, {"n": 6}, "not float64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(buffers: dict, sizes: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        run(parse_program(program("a = load x[0; 0, 0] 1x1")), buffers, sizes)


def test_a_program_that_breaks_a_rule_is_not_run() -> None:
    with pytest.raises(TileError, match="is an input"):
        run_text(program("a = load x[0; 0, 0] 1x1\n store a to x[0; 0, 0] 1x1"))


@pytest.mark.parametrize("text", ["7", "n*m - 3", "(n + 7)//8*m", "min(n, 2*m) + max(n, 3)", "n*n*n % 5", "-n//4"])
def test_dims_are_evaluated_as_ir_dim_does(text: str) -> None:
    sizes = {"n": 13, "m": 4}
    assert evaluate(parse(text), sizes) == dim.evaluate(parse(text), sizes)


def test_sizes_that_make_no_sense_are_refused() -> None:
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(InputError, match="buffer s would have -1 elements"):
        run(parse_program(program("", "scratch s f32[n - 5]")), {"x": x, "y": y}, {"n": 4})
    with pytest.raises(DimError, match=r"n//\(n - 4\) divides by zero at n = 4"):
        run(parse_program(program("a = load x[n//(n - 4); 0, 0] 1x1")), {"x": x, "y": y}, {"n": 4})


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_keep_the_rules_and_do_not_depend_on_the_order_of_tasks(seed: int) -> None:
    made, sizes = random_program(seed)
    assert parse_program(print_program(made)) == made
    first, second = (random_memory(made, sizes, seed) for _ in range(2))
    assert run(made, first, sizes, seed=1) == run(made, second, sizes, seed=2) == 0
    assert all(same(first[name], second[name]) for name in first)
