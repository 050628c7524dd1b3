"""Each rewrite of a schedule: what it makes of a program, that results stay as they were, and what it refuses."""

from __future__ import annotations

import pytest

from hotfuse.codegen.schedule import (
    coarsen,
    in_parts,
    inline,
    interchange,
    parallelize,
    partition,
    peel,
    reorder,
    split,
    unroll,
)
from hotfuse.codegen.schedule_memory import fetch_for_another, prefetch, stage, stream
from hotfuse.codegen.tile import Access, Buffer
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.errors import TileError
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F32
from tests.codegen.rewriting import Case, check_refused, check_results, check_text, made
from tests.codegen.schedule_cases import CASES, POINT, SUM

M, N = symbol("m"), symbol("n")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rewrite_makes_of_one_text_the_other(case: Case) -> None:
    check_text(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rewrite_leaves_results_as_they_were(case: Case) -> None:
    program = made(case.before)
    check_results(program, case.rewrite(program))


# what is refused, each by a program that would go wrong

FREE = f"grid i m\n for j in [0 : n : 1] free {{\n {POINT}\n }}"
CHAIN = f"grid i m\n for j in [0 : n : 1] {{\n {POINT}\n }}"
SQUARE = f"for i in [0 : m : 1] free {{\n for j in [0 : n : 1] free {{\n {POINT}\n }}\n }}"
STAGED = """
  grid i.t -((-m)//4)
  z = fill f32 1x1 0.0
  for i in [4*i.t : min(4*i.t + 4, m) : 1] free {
    for k in [0 : n : 1] carry (acc = z -> next) {
      a = load w[k; 0, 0] 1x1
      next = map add acc a
    }
    store acc to s[i; 0, 0] 1x1
  }
"""
NEXT = "next = dot a b acc"
WHOLE = "a = load x[0; 0, 0] 1x1 if ([i; 0, 0] < 0)\n store a to y[i; 0, 0] 1x1 if ([i; 0, 0] < m*n)"

REFUSED = (
    (Case("no tasks a task", lambda p: coarsen(p, "i", 0), FREE), "0 tasks of i cannot become one"),
    (Case("no such axis", lambda p: coarsen(p, "q", 2), FREE), "the grid has no axis q"),
    (
        Case("a tile of that name", lambda p: coarsen(p, "i", 4), f"grid i m\n grid i.t n\n {POINT.replace('j', 'i.t')}"),
        "the program has a i.t already",
    ),
    (Case("half an order", lambda p: reorder(p, ["i"]), f"grid i m\n grid j n\n {POINT}"), "i is no order of it"),
    (Case("an axis twice", lambda p: reorder(p, ["i", "i"]), f"grid i m\n grid j n\n {POINT}"), "i, i is no order of it"),
    (Case("share no axis", lambda p: partition(p, "k"), SUM), "k is no axis of the grid"),
    (Case("share two axes", lambda p: partition(partition(p, "i"), "i"), SUM), "another axis of the grid is shared already"),
    (Case("more than the loop", lambda p: parallelize(p, "k"), SUM), "the loop over k is not the whole body"),
    (Case("turns one after the other", lambda p: parallelize(p, "j"), CHAIN), "the turns of the loop over j may depend"),
    (
        Case("lengths that differ", lambda p: parallelize(p, "j"), FREE.replace("0 : n :", "0 : min(i, n) :")),
        "the length of the loop over j depends on i",
    ),
    (
        Case("the tasks' own name", lambda p: parallelize(coarsen(p, "i", 4), "i"), f"grid i 4*m\n {WHOLE}"),
        "the program has a i.t already",
    ),
    (
        Case("runs that steps jump over", lambda p: split(p, "j", 3, "o"), FREE.replace(": 1]", ": 2]")),
        "the loop over j has steps of 2, which 3 is no multiple of",
    ),
    (Case("no run", lambda p: split(p, "j", 0, "o"), FREE), "which 0 is no multiple of"),
    (Case("a name that is a size", lambda p: split(p, "j", 4, "n"), FREE), "the program has a n already"),
    (Case("two splits of one name", lambda p: split(split(p, "j", 4, "o"), "j", 2, "o"), FREE), "has a o already"),
    (
        Case(
            "something between", lambda p: interchange(p, "i", "j"), SQUARE.replace("{\n for", "{\n z = fill f32 1x1 0.0\n for")
        ),
        "the loop over j is not the whole body of the loop over i",
    ),
    (
        Case("an inner loop in order", lambda p: interchange(p, "i", "j"), SQUARE.replace("n : 1] free", "n : 1]")),
        "the turns of the loop over j may depend on each other",
    ),
    (
        Case("an outer loop in order", lambda p: interchange(p, "i", "j"), SQUARE.replace("m : 1] free", "m : 1]")),
        "the turns of the loop over i may depend on each other",
    ),
    (
        Case("a triangle", lambda p: interchange(p, "i", "j"), SQUARE.replace("0 : n :", "0 : min(i, n) :")),
        "the limits of the loop over j depend on i",
    ),
    (
        Case("whole runs that steps jump over", lambda p: peel(p, "j", 3, "r"), FREE.replace(": 1]", ": 2]")),
        "the loop over j has steps of 2, which 3 is no multiple of",
    ),
    (Case("a rest of that name", lambda p: peel(p, "j", 4, "i"), FREE), "the program has a i already"),
    (Case("two peels of one name", lambda p: peel(peel(p, "j", 8, "r"), "r", 4, "r"), FREE), "the program has a r already"),
    (Case("no turn at a time", lambda p: unroll(p, "k", 0), SUM), "0 turns cannot be written out at a time"),
    (Case("many turns", lambda p: inline(p, "k"), SUM), "the loop over k may have more than one turn, or none"),
    (
        Case("perhaps a turn", lambda p: inline(p, "k"), SUM.replace("0 : n :", "0 : min(n, 1) :")),
        "more than one turn, or none",
    ),
    (Case("no turn", lambda p: inline(p, "k"), SUM.replace("0 : n :", "3 : 3 :")), "more than one turn, or none"),
    (
        Case("parts that steps jump over", lambda p: in_parts(p, "k", 3), SUM.replace(": 1] c", ": 2] c")),
        "the loop over k has steps of 2, which 3 is no multiple of",
    ),
    (Case("a sum of something", lambda p: in_parts(p, "k", 8), SUM.replace("fill f32 1x1 0.0", "fill f32 1x1 1.0")), "no sum"),
    (
        Case("a sum from memory on", lambda p: in_parts(p, "k", 8), SUM.replace("fill f32 1x1 0.0", "load w[0; 0, 0] 1x1")),
        "acc is no sum that begins with zeros",
    ),
    (Case("a product", lambda p: in_parts(p, "k", 8), SUM.replace(NEXT, "next = map mul a acc")), "acc is no sum"),
    (
        Case("a doubled sum", lambda p: in_parts(p, "k", 8), SUM.replace(NEXT, "next = map add acc acc")),
        "used before the loop ends",
    ),
    (
        Case("a product of the sum", lambda p: in_parts(p, "k", 8), SUM.replace(NEXT, "next = dot a acc acc")),
        "acc, which the loop over k carries, is used before the loop ends",
    ),
    (
        Case(
            "a running total", lambda p: in_parts(p, "k", 8), SUM.replace(NEXT, NEXT + "\n store next to y[i*n + k; 0, 0] 1x1")
        ),
        "acc, which the loop over k carries, is used before the loop ends",
    ),
    (
        Case(
            "a total up to here",
            lambda p: in_parts(p, "k", 8),
            SUM.replace(NEXT, NEXT + "\n store acc to y[i*n + k; 0, 0] 1x1"),
        ),
        "acc, which the loop over k carries, is used before the loop ends",
    ),
    (
        Case("parts of a sum that goes on", lambda p: in_parts(split(p, "k", 4, "o"), "k", 2), SUM),
        "acc.i is no sum that begins with zeros",
    ),
    (Case("parts of parts", lambda p: in_parts(in_parts(p, "k", 8), "k", 4), SUM), "the program has a k.p already"),
    (Case("no such buffer", lambda p: prefetch(p, "k", Access("q", 0, 0, 1, (1, 4))), SUM), "there is no buffer q"),
    (
        Case("an output for another", lambda p: fetch_for_another(p, "k", Buffer("s", F32, M, "output"), 0, 4, 1), SUM),
        "s is no input that another program may read",
    ),
    (
        Case("another one of that name", lambda p: fetch_for_another(p, "k", Buffer("x", F32, M), 0, 4, 1), SUM),
        "or not the one that is there",
    ),
    (Case("no lines", lambda p: fetch_for_another(p, "k", Buffer("q", F32, M), 0, 4, 0), SUM), "0 lines are none"),
    (
        Case("a place nobody knows", lambda p: fetch_for_another(p, "k", Buffer("q", F32, M), symbol("j"), 4, 1), SUM),
        "j is not known in the loop over k",
    ),
    (Case("an input", lambda p: stream(p, "x"), SUM), "x is no output"),
    (
        Case(
            "what is read again",
            lambda p: stream(p, "y"),
            f"grid i m\n for j in [0 : n : 1] {{\n {POINT}\n b = load y[i*n + j; 0, 0] 1x1\n store b to s[i; 0, 0] 1x1\n }}",
        ),
        "the program reads y, which it would then fetch from far away",
    ),
    (Case("scratch of that name", lambda p: stage(p, "i", "w", "x", N), STAGED), "there is a buffer x already"),
    (
        Case(
            "a loop without turns",
            lambda p: stage(p, "i", "w", "q", N),
            STAGED.replace("min(4*i.t + 4, m)", "min(4*i.t + 4, m - 1)"),
        ),
        "the loop over i may have no turn, and then nothing of w may be read",
    ),
    (
        Case("nothing to stage", lambda p: stage(p, "i", "t", "q", N), STAGED),
        "the loop over i loads t in 0 places; one is needed",
    ),
    (
        Case(
            "two loads",
            lambda p: stage(p, "i", "w", "q", N),
            STAGED.replace("next = map", "c = load w[k; 0, 0] 1x1\n next = map"),
        ),
        "the loop over i loads w in 2 places; one is needed",
    ),
    (
        Case(
            "what is stored too",
            lambda p: stage(p, "i", "y", "q", N),
            STAGED.replace("w[k;", "y[k;").replace("store acc to s[i", "store acc to y[i*n"),
        ),
        "y is written too",
    ),
    (
        Case("what moves with the loop", lambda p: stage(p, "i", "x", "q", N), STAGED.replace("w[k;", "x[i*n + k;")),
        "what is read of x is not the same in every turn of the loop over i",
    ),
    (
        Case(
            "what moves with an index",
            lambda p: stage(p, "i", "w", "q", N),
            STAGED.replace("w[k;", "w[r;").replace("free {", "free {\n r = index t[i; 0, 0] 1x1 limit 4"),
        ),
        "what is read of w is not the same in every turn of the loop over i",
    ),
    (
        Case(
            "limits that move with the loop", lambda p: stage(p, "i", "w", "q", N), STAGED.replace("0 : n :", "0 : min(i, n) :")
        ),
        "what is read of w is not the same in every turn of the loop over i",
    ),
    (
        Case(
            "a triangle is packed",
            lambda p: stage(p, "i", "w", "q", N * N),
            """
  grid i.t -((-m)//4)
  for i in [4*i.t : min(4*i.t + 4, m) : 1] free {
    for k in [0 : n : 1] {
      for l in [k : n : 1] {
        a = load w[l; 0, 0] 1x1
        store a to y[i*n + k; 0, 0] 1x1
      }
    }
  }
""",
        ),
        "how often w is read depends on k",
    ),
    (Case("too little scratch", lambda p: stage(p, "i", "w", "q", N - 1), STAGED), "may be too few for n of w"),
    (
        Case("perhaps too little", lambda p: stage(p, "i", "w", "q", 64), STAGED),
        "64 elements of scratch may be too few for n of w",
    ),
    (Case("no such loop", lambda p: unroll(p, "q", 2), SUM), "0 loops run over q; a rewrite needs one"),
    (
        Case("two loops of one name", lambda p: unroll(p, "j", 2), CHAIN + CHAIN[8:].replace("a ", "b ")),
        "2 loops run over j; a rewrite needs one",
    ),
)


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=str)
def test_a_rewrite_refuses_what_would_go_wrong(case: Case, message: str) -> None:
    check_refused(case, message)


# rewrites one after the other

TWICE = {
    "two peels of what is carried": lambda p: peel(peel(p, "k", 8, "r8"), "r8", 4, "r4"),
    "a peel of what a peel left whole": lambda p: peel(peel(p, "k", 4, "r4"), "k", 8, "r8"),
    "two splits of what is carried": lambda p: split(split(p, "k", 8, "o8"), "k", 2, "o2"),
    "a split around a split": lambda p: split(split(p, "k", 2, "o2"), "o2", 8, "o8"),
    "parts of what was peeled": lambda p: in_parts(peel(p, "k", 8, "r"), "k", 4),
    "unrolled parts": lambda p: unroll(in_parts(p, "k", 8), "k", 4),
    "rows of a task, peeled twice": lambda p: peel(peel(coarsen(p, "i", 4), "i", 2, "i2"), "i", 4, "i4"),
    "coarse tasks of coarse tasks": lambda p: coarsen(coarsen(p, "i", 2), "i.t", 2),
}


@pytest.mark.parametrize("name", TWICE)
def test_rewrites_of_rewrites_keep_names_apart(name: str) -> None:
    program = made(SUM)
    check_results(program, TWICE[name](program))


def test_a_peel_renames_indices_and_inner_loops() -> None:
    program = made("""
  grid i m
  for j in [0 : n : 1] {
    r = index t[i; 0, 0] 1x1 limit 4
    for l in [r : r + 1 : 1] {
      a = load w[l; 0, 0] 1x1
      store a to y[i*n + j; 0, 0] 1x1
    }
  }
""")
    check_results(program, peel(peel(program, "j", 8, "j8"), "j", 16, "j16"))


def test_free_loops_may_be_split_exchanged_and_made_tasks() -> None:
    program = made(SQUARE)
    after = parallelize(split(interchange(program, "i", "j"), "j", 4, "o"), "o")
    check_results(program, after)
    assert [a.var for a in after.grid] == ["o.t"]


def test_what_is_staged_for_a_chunk_of_a_sum_is_packed_again_for_the_next() -> None:
    program = made("""
  grid i.t -((-m)//4)
  z = fill f32 4x1 0.0
  for k.p in [0 : n : 8] carry (acc = z -> part) {
    for r in [0 : 4 : 1] {
      for k in [k.p : min(n, k.p + 8) : 1] {
        c = load w[k; 0, 0] 1x1
        store c to y[r*n + k; 0, 0] 1x1 if ([r; 0, 0] < m, [i.t; 0, 0] < 1)
      }
    }
    o = fill f32 4x1 1.0
    part = map add acc o
  }
  store acc to s[4*i.t; 1, 0] 4x1 if ([4*i.t; 1, 0] < m)
""")
    check_results(program, stage(program, "r", "w", "pack", 8))
    with pytest.raises(TileError, match="7 elements of scratch may be too few"):
        stage(program, "r", "w", "pack", 7)


def test_what_is_fetched_for_another_is_a_new_input_with_its_size() -> None:
    program = made(SUM)
    after = fetch_for_another(program, "k", Buffer("q", F32, symbol("others")), symbol("others"), 4, 1)
    assert (after.sizes, after.buffers[-1].name) == ((*program.sizes, "others"), "q")
    check(after)


def test_a_stage_leaves_the_sizes_that_callers_pass_in_their_order() -> None:
    text = "program p {\n size n m\n input w f32[n]\n output s f32[m]\n" + STAGED.replace("0 : n :", "0 : min(n, 4) :") + "}"
    program = stage(parse_program(text), "i", "w", "pack", 4 + symbol("spare"))
    check(program)
    assert program.sizes == ("n", "m", "spare")


@pytest.mark.parametrize("name", TWICE)
def test_blocks_that_change_places_every_turn_stay_in_step(name: str) -> None:
    program = made("""
  grid i m
  p = load w[i; 0, 0] 1x1
  q = fill f32 1x1 2.0
  for k in [0 : n : 1] carry (a = p -> b, b = q -> a) {
  }
  c = map sub a b
  store c to s[i; 0, 0] 1x1
""")
    if "parts" in name:
        with pytest.raises(TileError, match="is no sum that begins with zeros"):
            TWICE[name](program)
    else:
        check_results(program, TWICE[name](program), native=False)


def test_a_rewrite_leaves_the_program_it_was_given() -> None:
    for case in CASES:
        program = made(case.before)
        case.rewrite(program)
        assert program == made(case.before)
