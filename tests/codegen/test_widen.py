"""Turns of a loop as one block: what becomes of each instruction, that results stay as they were, and what is refused."""

from __future__ import annotations

import pytest

from hotfuse.codegen.schedule import coarsen, hoist, inline, peel, unroll
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.widen import widen
from hotfuse.errors import TileError
from tests.codegen.rewriting import Case, check_refused, check_results, check_text, made
from tests.codegen.widen_cases import CASES, FLAT, FOLD, LOAD, MAP, NEXT, PAIR, POINT, PRODUCT, SPARE, STORE, point


@pytest.mark.parametrize("case", CASES, ids=str)
def test_turns_become_blocks(case: Case) -> None:
    check_text(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_stay_as_they_were(case: Case) -> None:
    program = made(case.before)
    check_results(program, case.rewrite(program))


FOLDS = {
    "sum": ("0.0", "add"), "prod": ("1.0", "mul"), "max": ("-inf", "max"), "min": ("inf", "min"), "from 3": ("3.0", "add"),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fold", FOLDS)
def test_folds_of_ragged_rows(fold: str, axis: int) -> None:
    """The lanes beyond the end are neutral, whatever the loads there bring."""
    start, op = FOLDS[fold]
    program = made(FOLD.replace("1x1 0.0", f"1x1 {start}").replace(NEXT, f"b = map abs a\n next = map {op} acc b"))
    check_results(program, widen(program, "j", 8, axis), native=axis == 1)


@pytest.mark.parametrize(("fold", "start", "op"), [("any", 0, "or"), ("all", 1, "and")])
def test_folds_of_truth_values(fold: str, start: int, op: str) -> None:
    program = made(f"""
  output q bool[m]
  grid i m
  z = fill bool 1x1 {start}
  v = load w[i; 0, 0] 1x1
  for j in [0 : n : 1] carry (acc = z -> next) {{
    a = load x[i*n + j; 0, 0] 1x1
    b = map lt a v
    next = map {op} acc b
  }}
  store acc to q[i; 0, 0] 1x1
""")
    after = widen(program, "j", 8, axis=1)
    assert f"reduce {fold}" in str(after) or any(getattr(it, "op", "") == fold for it in after.body)
    check_results(program, after)


LOOPS = {
    "a fold that takes in what does not move": FOLD.replace("add acc a", "add acc c").replace(
        "z =", "c = load w[i; 0, 0] 1x1\n z ="
    ),
    "a loop that ends before it begins": FOLD.replace("0 : n :", "n : n - n//2 :").replace("x[i*n + j", "w[j"),
    "a loop that begins below zero": FOLD.replace("0 : n :", "-3 : n - 3 :").replace("x[i*n + j", "w[j + 3"),
    "two folds at once": FOLD.replace("-> next)", "-> next, top = z -> most)")
    .replace(NEXT, f"most = map max a top\n {NEXT}")
    .replace("store acc", "store top to y[i*n; 0, 0] 1x1 if ([0; 0, 0] < n)\n store acc"),
    "an element that a turn stores twice": point(store=f"store a to y[i*n + j; 0, 0] 1x1\n {STORE}"),
    "an element that a turn reads again": point(
        store=f"{STORE}\n c = load y[i*n + j; 0, 0] 1x1\n d = map add c a\n store d to y[i*n + j; 0, 0] 1x1"
    ),
    "scratch of every turn": point(
        store="store b to q[j; 0, 0] 1x1\n c = load q[j; 0, 0] 1x1\n store c to y[i*n + j; 0, 0] 1x1",
        head="scratch q f32[n]\n grid i m",
    ),
    "an index that does not move": point("r = index t[i; 0, 0] 1x1 limit 4\n a = load w[r + j; 0, 0] 1x1"),
    "a carried block that becomes wide late": """
  grid i m
  z = fill f32 1x1 1.0
  for j in [0 : n : 1] {
    for l in [0 : 3 : 1] carry (p = z -> q, q = z -> c) {
      a = load x[i*n + j; 0, 0] 1x1
      c = map add a p
    }
    d = map sub p q
    store d to y[i*n + j; 0, 0] 1x1
  }
""",
    "a carried block that stays": """
  grid i m
  z = fill f32 1x1 1.0
  for j in [0 : n : 1] {
    a = load x[i*n + j; 0, 0] 1x1
    for l in [0 : 2 : 1] carry (p = z -> c, q = a -> z) {
      c = map add p p
    }
    d = map sub p q
    store d to y[i*n + j; 0, 0] 1x1
  }
""",
    "elements that lie apart": """
  grid i m
  for j in [0 : n : 1] free {
    a = load x[i*n - j + n - 1; 0, 0] 1x1
    store a to y[i*n - j + n - 1; 0, 0] 1x1
  }
""",
}


@pytest.mark.parametrize("by", [1, 4, 64])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_may_be_widened(name: str, by: int) -> None:
    program = made(LOOPS[name])
    check_results(program, widen(program, "j", by, axis=1), native=by == 4)


def test_rows_and_columns_of_a_product_with_a_ragged_rest() -> None:
    """A register tile: columns of the grid along axis 1, rows along axis 0, and what is left over in lower tiles."""
    program = made("""
  input v f32[n*8]
  output q f32[m*8]
  grid i m
  grid c 8
  z = fill f32 1x1 0.0
  for k in [0 : n : 1] carry (acc = z -> next) {
    a = load x[i*n + k; 0, 0] 1x1
    b = load v[8*k + c; 0, 0] 1x1
    next = dot a b acc
  }
  store acc to q[8*i + c; 0, 0] 1x1
""")
    after = inline(widen(coarsen(program, "c", 8), "c", 8, axis=1), "c")
    after = peel(coarsen(after, "i", 4), "i", 2, "rest")
    after = unroll(widen(after, "i", 2, axis=0), "k", 4)
    assert "2x8" in str(after) or any("(2, 8)" in repr(it) for it in after.body)
    check_results(program, after)
    check_results(program, widen(after, "rest", 4, axis=0))


def test_turns_that_store_blocks_apart_from_each_other_may_be_widened() -> None:
    program = made(point(FLAT, PAIR, "store c to v[2*j; 0, 1] 1x2", SPARE))
    check_results(program, widen(program, "j", 4, axis=0))


def test_names_of_a_block_widened_twice_stay_apart() -> None:
    program = made(FOLD.replace("store acc", "c = load w[0; 0, 0] 1x1\n store acc"))
    once = widen(program, "j", 1, axis=1)
    with pytest.raises(TileError, match="the loop over j has steps of 4"):
        widen(widen(program, "j", 4, axis=1), "j", 4, axis=1)
    check_results(program, widen(once, "j", 4, axis=0))
    check_results(program, hoist(widen(peel(widen(program, "j", 1, axis=0), "j", 8, "r"), "j", 8, axis=1), "j"))


FREE = "[0 : n : 1] free"
SAME, MEET = "turns of the loop over j may store the same elements", "turns of the loop over j may meet in"
SEEN = "acc, which the loop over j carries, is used before the loop ends"


def refused(name: str, text: str, message: str, by: int = 4, axis: int = 1, var: str = "j") -> tuple[Case, str]:
    return Case(name, lambda p: widen(p, var, by, axis), text), message


REFUSED = (
    refused("no turns", POINT, "0 turns along axis 1 make no block", by=0),
    refused("a third axis", POINT, "4 turns along axis 2 make no block", axis=2),
    refused("no such loop", POINT, "0 loops run over q", var="q"),
    refused("steps", point(loop="[0 : n : 2]"), "the loop over j has steps of 2; only turns next to each other make a block"),
    # stores
    refused("one place for every turn", point(store="store b to y[i*n; 0, 0] 1x1"), SAME),
    refused(
        "one place for every turn of a free loop",
        point(store="store b to y[i*n; 0, 0] 1x1", loop=FREE),
        "every turn of the loop over j stores at the same place",
    ),
    refused("stores that may not move", point(FLAT, MAP, "store b to v[j*(m//(m + 1)); 0, 0] 1x1", SPARE), SAME),
    refused("blocks that overlap", point(FLAT, PAIR, "store c to v[j; 0, 1] 1x2", SPARE), SAME),
    refused("blocks of a stride that is not known", point(FLAT, PAIR, "store c to v[2*j; 0, m] 1x2", SPARE), SAME),
    refused("blocks that go back", point(FLAT, PAIR, "store c to v[2*j + 1; 0, -1] 1x2", SPARE), SAME),
    refused(
        "stores of an inner loop", point(FLAT, MAP, "for l in [0 : 2 : 1] {\n store b to v[j + l; 0, 0] 1x1\n }", SPARE), SAME
    ),
    refused(
        "stores where an inner index says",
        point(
            FLAT,
            MAP,
            "for l in [0 : m : 1] {\n r = index t[l; 0, 0] 1x1 limit 4\n store b to v[j + r; 0, 0] 1x1\n }",
            SPARE,
        ),
        SAME,
    ),
    refused(
        "a turn reads what the one before stored",
        point(store=f"{STORE}\n c = load y[i*n + j - 1; 0, 0] 1x1 if ([j - 1; 0, 0] < n)"),
        f"{MEET} y",
    ),
    refused(
        "a turn stores where the next one does",
        point(store=f"{STORE}\n store b to y[i*n + j + 1; 0, 0] 1x1 if ([j + 1; 0, 0] < n)"),
        f"{MEET} y",
    ),
    refused(
        "an index that another turn stored",
        point(
            map="c = iota i64 1x1 [j; 0, 0]\n store c to q[j + 1; 0, 0] 1x1",
            store="r = index q[0; 0, 0] 1x1 limit 2\n store a to y[i*n + j; 0, 0] 1x1",
            head="scratch q i64[n + 1]\n grid i m",
        ),
        f"{MEET} q",
    ),
    refused(
        "turns of a free loop that follow each other in scratch",
        point(
            store=f"for l in [0 : 2 : 1] {{\n store b to q[j + l; 0, 0] 1x1\n c = load q[j + l; 0, 0] 1x1\n }}\n {STORE}",
            head="scratch q f32[n + 2]\n grid i m",
            loop=FREE,
        ),
        SAME,
    ),
    # addresses
    refused(
        "addresses that jump",
        point("a = load x[i*n + j//2; 0, 0] 1x1"),
        "`a = load x[i*n + (j//2); 0, 0] 1x1`: it does not move evenly with j",
    ),
    refused("bounds that jump", point(f"{LOAD} if ([j//2; 0, 0] < 3)"), "it does not move evenly with j"),
    refused("bounds that move by a size", point(f"{LOAD} if ([j*m; 0, 0] < 3)"), "it does not move evenly with j"),
    refused("limits of bounds that move", point(f"{LOAD} if ([i; 0, 0] < j)"), "it does not move evenly with j"),
    refused(
        "strides that move",
        point(map="c = load w[0; 0, j] 1x2 if ([2*j; 0, 0] < n)\n d = reduce sum 1 c\n b = map add a d"),
        "it does not move evenly with j",
        axis=0,
    ),
    refused("numbers that jump", point(map="k = iota i32 1x1 [j*n; 0, 0]\n b = cast f32 k"), "it does not move evenly with j"),
    refused(
        "an index that moves",
        point("r = index t[j; 0, 0] 1x1 limit 8\n a = load w[r; 0, 0] 1x1", loop="[0 : min(m, n) : 1]"),
        "an index that differs between the turns of the loop over j",
    ),
    refused(
        "an inner loop that moves",
        point(map=f"for l in [0 : j : 1] {{\n c = map neg a\n }}\n {MAP}"),
        "the limits of the loop over l depend on j",
    ),
    # blocks
    refused(
        "blocks that are wide already",
        point(map="c = load w[j; 0, 1] 1x4\n b = reduce sum 1 c"),
        "its block has 4 elements along axis 1 already",
    ),
    refused(
        "a wide block among others",
        point(map="k = iota i32 1x4 [0; 0, 1]\n c = cast f32 k\n d = map add a c\n b = reduce max 1 d"),
        "d has 4 elements along axis 1 already",
    ),
    refused(
        "a wide block that is stored",
        point(FLAT, "c = fill f32 2x1 1.0", "store c to v[2*j; 1, 0] 2x1", SPARE, FREE),
        "c has 2 elements along axis 0 already",
        axis=0,
    ),
    refused(
        "a wide block that is folded",
        FOLD.replace("f32 1x1 0.0", "f32 1x4 0.0")
        .replace(NEXT, "next = map add acc z")
        .replace("store acc", "c = reduce sum 1 acc\n store c"),
        "next has 4 elements along axis 1 already",
    ),
    refused(
        "a product along its inner axis",
        PRODUCT.replace("next = dot a b acc", "d = dot a b z\n next = map add acc d"),
        "a differs between the turns of the loop over k along its inner axis",
        var="k",
    ),
    refused(
        "a reduction of the turns themselves",
        point(map="c = map neg a\n b = reduce sum 1 c"),
        "it reduces the axis that the turns of the loop over j are to lie along",
    ),
    # what is carried
    refused("no fold", FOLD.replace(NEXT, "next = map sub acc a"), "acc, which the loop over j carries, is no fold"),
    refused("a carried product", PRODUCT, "acc, which the loop over k carries, is no fold", var="k"),
    refused("what every turn doubles", FOLD.replace(NEXT, "next = map add acc acc"), SEEN),
    refused("a running total", FOLD.replace(NEXT, f"{NEXT}\n store next to y[i*n + j; 0, 0] 1x1"), SEEN),
    refused("a total up to here", FOLD.replace(NEXT, f"{NEXT}\n store acc to y[i*n + j; 0, 0] 1x1"), SEEN),
    refused(
        "a total of totals",
        FOLD.replace("-> next)", "-> next, b = z -> c)").replace(NEXT, f"{NEXT}\n c = map add b next"),
        SEEN,
    ),
    refused("a total that two carry", FOLD.replace("-> next)", "-> next, b = z -> next)"), SEEN),
)


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=str)
def test_what_would_go_wrong_is_refused(case: Case, message: str) -> None:
    check_refused(case, message)


def test_a_block_too_large_for_any_machine_is_found_by_the_check() -> None:
    with pytest.raises(TileError, match="a block of 1x65537 is refused"):
        check(widen(made(POINT), "j", 65537, axis=1))
