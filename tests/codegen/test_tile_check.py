"""Every rule of tile programs has a program that breaks it and is refused, next to one that keeps it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from hotfuse.codegen.tile import Access, Axis, Buffer, Fill, For, Prefetch, TileProgram
from hotfuse.codegen.tile_check import check, types
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.errors import TileError
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import BOOL, C64, F32, I32, I64
from tests.codegen.goldens import GOLDENS, Golden, case_id

HEAD = """
  size m n
  input x f32[m*n]
  input rows i64[m]
  input few f32[16]
  input flags bool[n]
  output y f32[m*n]
  output z f32[16]
  scratch s f32[64]
"""


def program(body: str, grid: str = "") -> TileProgram:
    return parse_program(f"program p {{\n{HEAD}{grid}\n{body}\n}}")


GOOD = [
    "a = load few[0; 4, 1] 4x4\n store a to z[0; 1, 4] 4x4",
    "a = load few[0; 0, 0] 4x4",  # a broadcast
    "a = fill f32 1x1 0\n store a to s[0; 0, 0] 1x1\n b = load s[0; 0, 0] 1x1",
    "for k in [0 : n : 1] {\n r = index rows[k; 0, 0] 1x1 limit m\n a = load x[r*n; 0, 1] 1x4\n }",
    "for k in [0 : n : 1] {\n a = fill f32 1x1 0\n }\n for k in [0 : n : 1] {\n b = fill f32 1x1 0\n }",  # one after the other
    "for k in [0 : 0 : 1] {\n a = load few[99; 0, 0] 1x1\n }",  # never runs
    "for k in [16 : 4 : 4] {\n a = load few[k; 0, 1] 1x4\n }",
    "for k in [0 : 16 : 4] {\n a = load few[k; 0, 1] 1x4\n }",
    "for k in [0 : 13 : 4] {\n a = load few[k; 0, 1] 1x4\n }",  # the last turn is at 12
    "a = load few[14; 0, 1] 1x4 if ([14; 0, 1] < 16)",
    "a = load few[-2; 0, 1] 1x4 if ([-2; 0, 1] < 16)",
    "prefetch few[1000; 0, 1] 1x4 level 1",
    "for k in [0 : n : 1] {\n for l in [0 : k : 1] {\n a = load x[k - l - 1; 0, 0] 1x1\n }\n }",  # empty in the first turn
    # read in a later turn than it is written
    """for k in [0 : n : 1] {
      for l in [0 : min(k, 1) : 1] {
        b = load s[0; 0, 0] 1x1
      }
      a = fill f32 1x1 0
      store a to s[0; 0, 0] 1x1
    }""",
]


@pytest.mark.parametrize("body", GOOD)
def test_programs_that_keep_the_rules_pass(body: str) -> None:
    check(program(body))


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_golden_programs_pass(golden: Golden) -> None:
    check(golden.program)


REFUSED = [
    # names
    ("a = fill f32 1x1 0\n a = fill f32 1x1 0", "a is defined twice"),
    ("b = map neg a\n a = fill f32 1x1 0", "a is not defined"),
    ("for k in [0 : n : 1] {\n a = fill f32 1x1 0\n }\n b = map neg a", "a is out of reach here"),
    ("for k in [0 : n : 1] {\n a = fill f32 1x1 0\n }\n for l in [0 : n : 1] {\n a = fill f32 1x1 0\n }", "a is defined twice"),
    ("n = fill f32 1x1 0", "n is defined twice"),
    ("for n in [0 : m : 1] {\n }", "n hides another n"),
    ("for k in [0 : m : 1] {\n for k in [0 : m : 1] {\n }\n }", "k hides another k"),
    ("k = fill f32 1x1 0\n for k in [0 : m : 1] {\n }", "k hides another k"),
    ("a = fill f32 1x1 0\n for k in [0 : m : 1] carry (a = a -> a) {\n }", "a is defined twice"),
    ("for k in [0 : m : 1] carry (c = a -> c) {\n }", "a is not defined"),
    ("a = fill f32 1x1 0\n for k in [0 : m : 1] carry (c = a -> d) {\n }", "d is not defined"),
    ("r = index rows[0; 0, 0] 1x1 limit m\n b = map neg r", "r is a number that dims may name, not a block"),
    # sizes
    ("a = load few[q; 0, 0] 1x1", "names q, which is not known"),
    ("a = load few[0; q, 0] 1x1", "names q"),
    ("a = load few[0; 0, 0] 1x1 if ([q; 0, 0] < 1)", "names q"),
    ("a = load few[0; 0, 0] 1x1 if ([0; 0, 0] < q)", "names q"),
    ("a = iota i32 1x1 [q; 0, 0]", "names q"),
    ("r = index rows[0; 0, 0] 1x1 limit q", "names q"),
    ("prefetch few[q; 0, 0] 1x1 level 1", "names q"),
    ("for k in [k : n : 1] {\n }", "names k"),
    ("for k in [0 : n : 1] {\n }\n a = load few[k; 0, 0] 1x1", "names k"),
    ("for k in [0 : n : 1] {\n r = index rows[k; 0, 0] 1x1 limit m\n }\n a = load x[r; 0, 0] 1x1", "names r"),
    # types
    ("a = load other[0; 0, 0] 1x1", "there is no buffer other"),
    ("prefetch other[0; 0, 0] 1x1 level 1", "there is no buffer other"),
    ("a = fill f32 0x4 0", "a block of 0x4 is refused"),
    ("a = load few[0; 0, 0] 1000x1000", "a block of 1000x1000 is refused"),
    ("prefetch few[0; 0, 0] 1000x1000 level 1", "a block of 1000x1000 is refused"),
    ("a = fill f32 1000x1 0\n b = fill f32 1x1000 0\n c = map add a b", "a block of 1000x1000 is refused"),
    ("a = fill i32 1x1 0.5", "0.5 is no i32"),
    ("a = fill i64 1x1 inf", "inf is no i64"),
    ("a = fill i64 1x1 nan", "nan is no i64"),
    ("a = fill u8 1x1 256", "256 is no u8"),
    ("a = fill i8 1x1 -129", "-129 is no i8"),
    ("a = fill bool 1x1 2", "2 is no bool"),
    ("a = load rows[0; 0, 0] 1x1 fill 0.5", "0.5 is no i64"),
    ("a = load flags[0; 0, 0] 1x1 fill -1", "-1 is no bool"),
    ("a = fill c64 1x1 0", "blocks cannot hold c64"),
    ("a = fill f32 1x1 0\n b = cast string a", "blocks cannot hold string"),
    ("a = iota f32 1x4 [0; 0, 1]", "iota makes integers, not f32"),
    ("a = fill f32 2x1 0\n b = fill f32 3x1 0\n c = map add a b", "2x1, 3x1 do not broadcast"),
    ("a = fill f32 1x1 0\n b = fill f64 1x1 0\n c = map add a b", "arguments of one type"),
    ("a = fill f32 1x1 0\n c = map frobnicate a", "there is no operation 'frobnicate'"),
    ("a = fill f32 1x1 0\n c = map add a", "add takes 2 arguments"),
    ("a = fill f32 2x3 0\n b = fill f32 2x3 0\n c = dot a b a", "2x3 times 2x3 does not go into 2x3"),
    ("a = fill f32 2x3 0\n b = fill f32 3x2 0\n c = dot a b a", "does not go into 2x3"),
    ("a = fill f32 2x2 0\n b = fill f64 2x2 0\n c = dot a b b", "have different types, f32 and f64"),
    ("a = fill f32 2x2 0\n b = fill f16 2x2 0\n c = dot a a b", "products of f32 cannot be summed in f16"),
    ("a = fill f16 2x2 0\n b = fill bf16 2x2 0\n c = dot a a b", "products of f16 cannot be summed in bf16"),
    ("a = fill i8 2x2 0\n b = fill f32 2x2 0\n c = dot a a b", "products of i8 cannot be summed in f32"),
    ("a = fill f32 2x2 0\n b = reduce mean 1 a", "there is no reduction 'mean'"),
    ("a = fill f32 2x2 0\n b = reduce any 1 a", "any does not reduce f32"),
    ("a = fill bool 2x2 0\n b = reduce sum 1 a", "sum does not reduce bool"),
    ("a = fill f32 2x2 0\n b = reduce sum 2 a", "a block has the axes 0 and 1, not 2"),
    ("r = index few[0; 0, 0] 1x1 limit m", "an index is read from integers"),
    ("r = index rows[0; 0, 1] 1x2 limit m", "an index is one element"),
    ("a = fill f32 2x2 0\n store a to z[0; 1, 1] 1x4", "a is f32 2x2, and the place for it 1x4"),
    ("a = fill f64 1x1 0\n store a to z[0; 1, 1] 1x1", "have different types, f64 and f32"),
    ("a = fill f32 1x1 0\n b = fill f32 2x1 0\n for k in [0 : n : 1] carry (c = a -> b) {\n }", "c begins as f32 1x1"),
    ("a = fill f32 1x1 0\n b = fill f64 1x1 0\n for k in [0 : n : 1] carry (c = a -> b) {\n }", "and b is f64 1x1"),
    # loops
    ("for k in [0 : n : 0] {\n }", "the step is 0"),
    ("for k in [n : 0 : -1] {\n }", "the step is -1"),
    ("for k in [0 : n : 1] unroll 0 {\n }", "unroll is 0"),
    ("prefetch few[0; 0, 0] 1x1 level 3", "level 1 or 2, not 3"),
    # memory
    ("a = fill f32 1x1 0\n store a to x[0; 0, 0] 1x1", "x is an input"),
    ("a = fill f32 1x4 0\n store a to z[0; 1, 0] 1x4", "stored at one place"),
    ("a = fill f32 4x1 0\n store a to z[0; 0, 1] 4x1", "stored at one place"),
    ("a = load few[13; 0, 1] 1x4", "element (0, 3) is at 16 of few, which has 16 elements"),
    ("a = load few[0; 8, 1] 3x4", "element (2, 0) is at 16 of few"),
    ("a = load few[3; 0, -1] 1x5", "element (0, 4) is at -1 of few"),
    ("a = load few[16; 0, 1] 1x4 if ([0; 0, 1] < 4)", "is at 16 of few"),
    ("a = load x[m*n; 0, 0] 1x1", "is at m*n of x, which has m*n elements"),
    ("r = index rows[m; 0, 0] 1x1 limit m", "is at m of rows"),
    ("for k in [0 : 17 : 4] {\n a = load few[k; 0, 0] 1x1\n }", "is at 16 of few"),
    ("for k in [0 : m + 1 : 1] {\n a = load rows[k; 0, 0] 1x1\n }", "is at m of rows"),
    ("for k in [0 : 4 : 1] {\n for l in [0 : k + 2 : 1] {\n a = load few[4*k + l; 0, 0] 1x1\n }\n }", "is at 16 of few"),
    ("a = load s[0; 0, 0] 1x1", "scratch s is read and nothing was stored there before"),
    ("a = load s[0; 0, 0] 1x1\n store a to s[0; 0, 0] 1x1", "scratch s is read"),
    ("for k in [0 : n : 1] {\n a = load s[0; 0, 0] 1x1\n }\n store a to s[0; 0, 0] 1x1", "a is out of reach"),
    ("b = fill f32 1x1 0\n for k in [0 : n : 1] {\n a = load s[0; 0, 0] 1x1\n }\n store b to s[0; 0, 0] 1x1", "s is read"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_a_broken_rule_is_refused(body: str, message: str) -> None:
    with pytest.raises(TileError, match="tile program p: .*" + re.escape(message)):
        check(program(body))


STORE = "a = fill f32 1x4 0\n store a to y[{}; 0, 1] 1x4{}"


@pytest.mark.parametrize(
    ("grid", "body"),
    [
        ("grid i m", STORE.format("0", "")),
        ("grid i m\n grid j n", STORE.format("4*i", "")),  # tasks along j
        ("grid i 2", STORE.format("n", " if ([0; 0, 1] < n)")),
        ("grid i m", STORE.format("3*i", "")),
        ("grid i m", STORE.format("-2*i + 8", "")),
        ("grid i m", "a = fill f32 2x4 0\n store a to y[4*i; 4, 1] 2x4"),
        ("grid i m", "for k in [0 : n : 1] {\n a = fill f32 1x1 0\n store a to y[k; 0, 0] 1x1\n }"),
    ],
)
def test_two_tasks_that_store_one_element_are_refused(grid: str, body: str) -> None:
    with pytest.raises(TileError, match=r"tasks along . (store the same elements|are -?\d+ elements apart)"):
        check(program(body, grid))


@pytest.mark.parametrize(
    ("grid", "body"),
    [
        ("grid i m", STORE.format("4*i", "")),
        ("grid i m", STORE.format("-4*i", "")),
        ("grid i 1", STORE.format("0", "")),
        ("grid i m", STORE.format("n*i", "")),  # cannot be decided
        ("grid i m", "a = fill f32 2x4 0\n store a to y[8*i; 4, 1] 2x4"),
        ("grid i m", STORE.format("0", " if ([0; 0, 1] < 1 - i)")),
        ("grid i m", "for k in [i : i + 1 : 1] {\n a = fill f32 1x1 0\n store a to y[k; 0, 0] 1x1\n }"),
        ("grid i m", "r = index rows[i; 0, 0] 1x1 limit n\n a = fill f32 1x1 0\n store a to y[r; 0, 0] 1x1"),
        ("grid i m", "a = fill f32 1x4 0\n store a to s[0; 0, 1] 1x4"),  # scratch is each thread's own
        ("grid i 0", "a = load few[99; 0, 0] 1x1"),  # no task, no access
    ],
)
def test_tasks_that_do_not_meet_or_cannot_be_decided_pass(grid: str, body: str) -> None:
    check(program(body, grid))


def test_a_grid_variable_is_judged_at_both_ends() -> None:
    with pytest.raises(TileError, match="is at -4 of few"):
        check(program("a = load few[i - 4; 0, 0] 1x1", "grid i m"))
    with pytest.raises(TileError, match="is at m of rows"):
        check(program("a = load rows[i + 1; 0, 0] 1x1", "grid i m"))


EMPTY = TileProgram("p", ("n",), (Buffer("x", F32, symbol("n")),), (Axis("i", symbol("n")),), ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a b"}, "'a b' cannot be a name"),
        ({"sizes": ("n", "n")}, "size or grid variable n is defined twice"),
        ({"sizes": ("n", "2n")}, "'2n' cannot be a name"),
        ({"grid": (Axis("i", 1, True), Axis("j", 1, True))}, "two axes of the grid are shared among threads"),
        ({"grid": (Axis("n", 1),)}, "size or grid variable n is defined twice"),
        ({"grid": (Axis("i", symbol("q")),)}, "the count of grid axis i names q"),
        ({"grid": (Axis("i", 1), Axis("j", symbol("i")))}, "the count of grid axis j names i"),
        ({"buffers": (Buffer("x", F32, 1), Buffer("x", F32, 1))}, "buffer x is defined twice"),
        ({"buffers": (Buffer("x", F32, 1, "inout"),)}, "buffer x is of kind 'inout'"),
        ({"buffers": (Buffer("x", C64, 1),)}, "buffer x holds c64"),
        ({"buffers": (Buffer("x", F32, symbol("i")),)}, "the size of buffer x names i"),
        ({"buffers": (Buffer("x y", F32, 1),)}, "'x y' cannot be a name"),
        ({"body": (Fill("", F32, (1, 1), 0.0),)}, "'' cannot be a name"),
        ({"body": (For("k k", 0, 1, 1, ()),)}, "'k k' cannot be a name"),
        ({"body": (Prefetch(Access("x", 0, 0, 0, (1, 1)), 0),)}, "level 1 or 2, not 0"),
    ],
)
def test_a_head_that_breaks_a_rule_is_refused(change: dict, message: str) -> None:
    check(EMPTY)
    with pytest.raises(TileError, match=re.escape(message)):
        check(dataclasses.replace(EMPTY, **change))


def test_an_error_names_the_program_and_the_instruction() -> None:
    with pytest.raises(TileError) as caught:
        check(program("a = fill f32 2x1 0\n b = fill f32 3x1 0\n c = map add a b"))
    assert str(caught.value) == "tile program p: `c = map add a b`: blocks of 2x1, 3x1 do not broadcast together"


def test_types_are_of_every_block() -> None:
    body = """a = load few[0; 4, 1] 4x4
      z0 = fill f32 4x1 0
      for k in [0 : n : 1] carry (c = z0 -> d) {
        d = reduce max 1 a
        t = map lt d z0
      }
      r = index rows[0; 0, 0] 1x1 limit m
      i = iota i32 1x8 [r; 0, 1]
      w = cast i64 i"""
    assert types(program(body)) == {
        "a": (F32, (4, 4)), "z0": (F32, (4, 1)), "c": (F32, (4, 1)), "d": (F32, (4, 1)), "t": (BOOL, (4, 1)),
        "i": (I32, (1, 8)), "w": (I64, (1, 8)),
    }  # fmt: skip
