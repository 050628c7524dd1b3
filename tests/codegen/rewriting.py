"""Rewrites of tile programs under test: what they make of a text, and whether the results stay as they were.

Programs share a head of sizes and buffers, so that a test shows little but the loops it is about. Floats are small whole
numbers, now and then NaN or an infinity: sums are exact, in whatever order they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from hotfuse.codegen.interpret import run
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.errors import TileError
from tests.codegen.test_llvm_programs import run_native
from tests.codegen.tile_programs import random_memory, same

Rewrite = Callable[[TileProgram], TileProgram]
SIZES: tuple[dict[str, int], ...] = ({"m": 4, "n": 16}, {"m": 5, "n": 37}, {"m": 1, "n": 1}, {"m": 3, "n": 0})
HEAD = """
  size m n
  input x f32[m*n]
  input w f32[n + 8]
  input t i64[m]
  output y f32[m*n]
  output s f32[m]
"""


@dataclass(frozen=True)
class Case:
    """A rewrite, a program before it and after it; the texts begin with the grid, or with what else the head lacks."""

    name: str
    rewrite: Rewrite
    before: str
    after: str = ""

    def __str__(self) -> str:
        return self.name


def made(text: str) -> TileProgram:
    return parse_program(f"program p {{{HEAD}{text}\n}}")


def check_text(case: Case) -> None:
    """The rewrite makes of one text the other one."""
    assert print_program(case.rewrite(made(case.before))) == print_program(made(case.after))


def check_results(
    before: TileProgram, after: TileProgram, sizes: Sequence[Mapping[str, int]] = SIZES, native: bool = True
) -> None:
    """The rewritten program keeps the rules and its text, and computes the same, interpreted and compiled."""
    check(before)
    check(after)
    assert parse_program(print_program(after)) == after
    for number, each in enumerate(sizes):
        wanted, ours = (random_memory(before, dict(each), number) for _ in range(2))
        status = run(before, wanted, each, seed=number)
        assert run(after, ours, each, seed=number + 1) == status
        compare(ours, wanted, after)
    if native:
        for number, each in enumerate(sizes[:2]):
            wanted, ours = (random_memory(before, dict(each), number) for _ in range(2))
            status = run(before, wanted, each)
            assert run_native(after, ours, each, 8) == status
            compare(ours, wanted, after)


def compare(ours: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], program: TileProgram) -> None:
    for name, expected in wanted.items():
        assert same(ours[name], expected), f"{name} of\n{print_program(program)}"


def check_refused(case: Case, message: str) -> None:
    """The program is a sound one, and the rewrite refuses it for the reason that is stated."""
    program = made(case.before)
    check(program)
    with pytest.raises(TileError) as refusal:
        case.rewrite(program)
    assert message in str(refusal.value)
