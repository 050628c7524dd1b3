"""The text form of tile programs round-trips exactly, and text that is no program is refused with its line."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotfuse.codegen.scalar_ops import BLOCK_DTYPES, SCALAR_OPS
from hotfuse.codegen.tile import (
    Access,
    Axis,
    Bound,
    Buffer,
    Carry,
    Cast,
    Dot,
    Fill,
    For,
    Index,
    Iota,
    Load,
    Map,
    Prefetch,
    Reduce,
    Store,
    TileProgram,
)
from hotfuse.codegen.tile_reader import MAX_CHARACTERS, parse_program
from hotfuse.codegen.tile_text import print_program, show
from hotfuse.errors import ParseError
from hotfuse.ir.dim import Dim, maximum, minimum, symbol
from hotfuse.ir.types import F32
from tests.codegen.goldens import GOLDENS, Golden, case_id

# generated programs: any that can be written down, whether or not they keep the rules

NAMES = st.sampled_from(["a", "b2", "acc", "_x", "fill", "load", "size", "x.y", "inf", "nan", "if", "to", "e1", "limit"])
SYMBOLS = ["n", "m", "k", "?0", "head.size", "low"]
MINIMUMS = {"m": 1, "low": -3}
LEAVES = st.one_of(st.integers(-9, 99), st.sampled_from([symbol(s, MINIMUMS.get(s, 0)) for s in SYMBOLS]))


def _combined(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
        st.tuples(inner, st.integers(1, 16)).map(lambda p: p[0] // p[1]),
        st.tuples(inner, st.integers(1, 16)).map(lambda p: p[0] % p[1]),
        st.tuples(inner, st.sampled_from([symbol("n"), symbol("k")])).map(lambda p: p[0] // (p[1] + 1)),
    )


DIMS = st.recursive(LEAVES, _combined, max_leaves=5)
SHAPES = st.tuples(st.integers(1, 32), st.integers(1, 32))
NUMBERS = st.one_of(st.floats(allow_nan=False), st.integers(-(2**63), 2**64), st.just(math.nan), st.just(-0.0))
STRIDES = st.integers(-99, 99)
DTYPE = st.sampled_from(BLOCK_DTYPES)
BOUNDS = st.builds(Bound, DIMS, STRIDES, STRIDES, DIMS)
ACCESSES = st.builds(Access, NAMES, DIMS, DIMS, DIMS, SHAPES, st.lists(BOUNDS, max_size=3).map(tuple))
PLAIN = st.one_of(
    st.builds(Load, NAMES, ACCESSES, NUMBERS),
    st.builds(Store, ACCESSES, NAMES, st.booleans()),
    st.builds(Prefetch, ACCESSES, st.integers(1, 2)),
    st.builds(Fill, NAMES, DTYPE, SHAPES, NUMBERS),
    st.builds(Iota, NAMES, DTYPE, SHAPES, DIMS, STRIDES, STRIDES),
    st.builds(Map, NAMES, st.sampled_from(sorted(SCALAR_OPS)), st.lists(NAMES, max_size=3).map(tuple)),
    st.builds(Cast, NAMES, DTYPE, NAMES),
    st.builds(Dot, NAMES, NAMES, NAMES, NAMES),
    st.builds(Reduce, NAMES, st.sampled_from(["sum", "max", "any"]), st.integers(0, 1), NAMES),
    st.builds(Index, NAMES, ACCESSES, DIMS),
)
CARRIES = st.lists(st.builds(Carry, NAMES, NAMES, NAMES), max_size=3).map(tuple)
BODIES = st.recursive(
    st.lists(PLAIN, max_size=3).map(tuple),
    lambda inner: st.tuples(PLAIN, st.builds(For, NAMES, DIMS, DIMS, st.integers(1, 64), inner, CARRIES, st.integers(1, 4))),
    max_leaves=4,
)
PROGRAMS = st.builds(
    TileProgram,
    NAMES,
    st.lists(st.sampled_from(SYMBOLS), unique=True, max_size=4).map(tuple),
    st.lists(st.builds(Buffer, NAMES, DTYPE, DIMS, st.sampled_from(["input", "output", "scratch"])), max_size=3).map(tuple),
    st.lists(st.builds(Axis, NAMES, DIMS), max_size=3).map(tuple),
    BODIES,
    st.lists(st.text(max_size=20), max_size=2).map(tuple),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(PROGRAMS)
def test_any_program_round_trips(program: TileProgram) -> None:
    text = print_program(program)
    back = parse_program(text)
    assert back == program
    assert back.notes == program.notes
    assert print_program(back) == text
    assert repr(back) == repr(program)  # -0.0 equals 0.0, and a bool its number; the text tells them apart


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_golden_programs_are_in_normal_form(golden: Golden) -> None:
    """But for the comments before them."""
    code = "".join(line for line in golden.text.splitlines(keepends=True) if not line.startswith("#"))
    assert print_program(golden.program) == code


def test_least_values_of_symbols_are_kept() -> None:
    """max(low, 0) is not low where low may be negative."""
    low = symbol("low", -3)
    program = TileProgram("p", ("low",), (Buffer("x", F32, maximum(low, 0)),), (), ())
    back = parse_program(print_program(program))
    assert back == program
    assert "where low >= -3" in print_program(back)


def test_comments_and_blank_lines_are_nothing() -> None:
    plain = 'program p {\n  size n\n  note "a # b"\n  a = fill f32 1x1 0.0\n}\n'
    dressed = '# head\n\nprogram p { # here\n size n # sizes\n\n note "a # b" # c "d\n a = fill f32 1x1 0.0 # \n # x\n}\n# end'
    assert parse_program(dressed) == parse_program(plain)
    assert parse_program(dressed).notes == ("a # b",)


def test_a_loop_is_shown_by_its_head() -> None:
    loop = For("k", 0, symbol("n"), 4, (Fill("a", F32, (1, 1), 0.0),), (Carry("c", "a", "b"),), 2)
    assert show(loop) == "for k in [0 : n : 4] carry (c = a -> b) unroll 2"


HEAD = "program p {\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected 'program', found the end of the text"),
        ("graph g {", "line 1: expected 'program', found 'graph g {'"),
        ("program {", "line 1: expected the program's name"),
        (HEAD, "line 2: expected '}', found the end of the text"),
        (HEAD + "a = fill f32 1x1 0", "line 2: expected an instruction or '}', found the end of the text"),
        (HEAD + "}\nmore", "line 3: expected the end of the text, found 'more'"),
        (HEAD + "} more", "line 2: expected the end of the line, found 'more'"),
        (HEAD + "frobnicate x\n}", "line 2: expected an instruction, found 'frobnicate x'"),
        (HEAD + "\n\na = frobnicate x\n}", "line 4: expected one of load, index, fill"),
        (HEAD + "a = fill f99 1x1 0\n}", "line 2: 'f99' is no element type"),
        (HEAD + "a = fill f32 1by1 0\n}", "line 2: expected a block shape such as 8x16"),
        (HEAD + "a = fill f32 1x1 zero\n}", "line 2: expected a number, found 'zero'"),
        (HEAD + "a = fill f32 1x1 0x10\n}", "line 2: expected a number"),
        (HEAD + "a = fill f32 1x1\n}", "line 2: expected a number, found the end of the line"),
        (HEAD + "a = load x[0, 0, 1] 1x1\n}", "line 2: cannot read the size"),
        (HEAD + "a = load x[0; ; 1] 1x1\n}", "line 2: cannot read the size"),
        (HEAD + "a = load x[; 0, 1] 1x1\n}", "line 2: expected a size"),
        (HEAD + "a = load x[n +; 0, 1] 1x1\n}", "line 2: cannot read the size 'n +'"),
        (HEAD + "a = load x[n//0; 0, 1] 1x1\n}", "line 2: size n is divided by zero"),
        (HEAD + "a = load x[0; 0, 1] 1x1 if [0; 0, 1] < n\n}", "line 2: expected '('"),
        (HEAD + "a = load x[0; 0, 1] 1x1 if ([0; n, 1] < n)\n}", "line 2: expected a whole number, found 'n, 1] < n)'"),
        (HEAD + "a = load x[0; 0, 1] 1x1 if ([0; 0, 1] < n\n}", "line 2: expected ')'"),
        (HEAD + "store a y[0; 0, 1] 1x1\n}", "line 2: expected 'to'"),
        (HEAD + "prefetch y[0; 0, 1] 1x1\n}", "line 2: expected 'level'"),
        (HEAD + "for k in [0 : n] {\n}\n}", "line 2: expected ':'"),
        (HEAD + "for k in [0 : n : 4\n}\n}", "line 2: expected ']'"),
        (HEAD + "for k in [0 : n : 4]\n}\n}", "line 2: expected '{'"),
        (HEAD + "for k in [0 : n : 4] carry (a = b) {\n}\n}", "line 2: expected '->'"),
        (HEAD + "input x f32 n\n}", "line 2: expected '['"),
        (HEAD + "note why\n}", "line 2: expected a quoted string"),
        (HEAD + "note 7\n}", "line 2: expected a quoted string"),
        (HEAD + "size 7\n}", "line 2: expected the name of a size"),
        (HEAD + "where n > 1\n}", "line 2: expected '>='"),
        (HEAD + "a = load x[0; 0, 1] 1x1\nsize n\n}", "line 3: expected an instruction, found 'size n'"),
        (HEAD + f"a = load x[{'9' * 40}; 0, 1] 1x1\n}}", "line 2: the size '9999.*is too large"),
        (HEAD + f"a = load x[{'(' * 1500}n{')' * 1500}; 0, 1] 1x1\n}}", "line 2: it is nested too deep"),
        (HEAD + f"a = load x[{'-' * 3000}n; 0, 1] 1x1\n}}", "line 2: it is nested too deep"),
        (HEAD + "a" * 5000, "line 2: 5000 characters; a line has at most 4096"),
        (HEAD + "for k in [0 : n : 1] {\n" * 40, "line 34: loops are nested deeper than 32"),
    ],
)  # fmt: skip
def test_text_that_is_no_program_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match="(?s)^" + _literal(message)):
        parse_program(text)


def _literal(message: str) -> str:
    import re

    return ".*".join(re.escape(part) for part in message.split(".*"))


def test_text_that_is_too_long_is_refused_at_once() -> None:
    started = time.perf_counter()
    with pytest.raises(ParseError, match="at most"):
        parse_program("#" * (MAX_CHARACTERS + 1))
    assert time.perf_counter() - started < 1


HOSTILE = [
    HEAD + "a = load x[" + "*".join(["(a + b + c + d)"] * 200) + "; 0, 1] 1x1\n}",
    HEAD + "a = load x[" + "min(a, " * 400 + "b" + ")" * 400 + "; 0, 1] 1x1\n}",
    HEAD + "a = load x[" + "//".join(["(a + b)"] * 400) + "; 0, 1] 1x1\n}",
    HEAD + "for k in [0 : n : 1] {\n" * 40_000,
    "program p {\n" + "a = map add b c\n" * 60_000,
    '"' * 4000,
    "\x00" * 4000,
    HEAD + 'note "' + "\\" * 3000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_ends_in_an_error_soon(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ParseError):
        parse_program(text)
    assert time.process_time() - started < 5


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(GOLDENS) - 1), st.integers(0, 2000), st.text(alphabet='{}[]();:,<=>-+*/#"\\ \nax09.', max_size=4))
def test_damaged_programs_are_read_or_refused(which: int, place: int, noise: str) -> None:
    """Nothing but a program or ParseError comes out."""
    text = GOLDENS[which].text
    place %= len(text)
    try:
        parse_program(text[:place] + noise + text[place + len(noise) :])
    except ParseError as error:
        assert "line " in str(error)  # noqa: PT017
