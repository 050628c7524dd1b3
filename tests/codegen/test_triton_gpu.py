"""Tile programs as Triton source: every golden renders to Python that compiles, and gives torch's results where triton is."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotfuse.codegen.scalar_ops import SCALAR_OPS
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.triton_gpu import dim_text, is_offered, render
from hotfuse.errors import TileError
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.types import F32, I32
from tests.codegen.goldens import GOLDENS, Golden, case_id

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_goldens_render(golden: Golden) -> None:
    """To a module of Python whose kernel takes the arguments of the program, and names nothing that it does not define."""
    text = render(golden.program)
    tree = ast.parse(text)
    kernel = tree.body[-1]
    assert isinstance(kernel, ast.FunctionDef)
    program = golden.program
    pointers = [f"p_{b.name}" for b in (*program.arguments, *program.scratch)]
    assert (kernel.name, [a.arg for a in kernel.args.args]) == (
        program.name,
        ["status", *pointers, *(f"n_{s}" for s in program.sizes)],
    )
    names = [n for n in ast.walk(kernel) if isinstance(n, ast.Name)]
    made = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in kernel.args.args}
    assert {n.id for n in names} - made <= {"tl", "triton", "range", "float", "_max", "_min", "_div", "_sqrt", "libdevice"}


def body(text: str, head: str = "") -> list[str]:
    """The lines that a body renders to, without comments."""
    program = parse_program(f"program p {{\n size n\n input x f32[n]\n output y f32[n]\n {head}\n {text}\n}}")
    kernel = render(program).split("def p(")[1]
    return [line.strip() for line in kernel.splitlines() if not line.strip().startswith("#")]


def test_bounds_are_masks_and_fills_are_the_other_value() -> None:
    (line,) = [x for x in body("a = load x[4*n; 0, 1] 1x4 if ([n; 0, 2] < n) fill -inf") if "tl.load" in x]
    assert "mask=" in line
    assert "other=float('-inf')" in line
    (line,) = [x for x in body("a = load x[0; 0, 1] 1x4") if "tl.load" in x]
    assert "mask" not in line


def test_large_products_use_the_matrix_unit_and_small_ones_do_not() -> None:
    def product(m: int, k: int, n: int) -> str:
        text = f"a = fill f32 {m}x{k} 1.0\n b = fill f32 {k}x{n} 1.0\n c = fill f32 {m}x{n} 0.0\n d = dot a b c"
        return next(x for x in body(text) if x.startswith("v_d ="))

    assert "tl.dot(v_a, v_b, v_c, input_precision='ieee')" in product(16, 16, 16)
    assert "tl.sum(" in product(16, 8, 16)
    assert "tl.fma(" in product(8, 1, 16)


def test_carried_blocks_change_together() -> None:
    text = "a = fill f32 1x1 0.0\n for k in [0 : n : 1] carry (b = a -> c, c = a -> b) {\n }"
    lines = body(text)
    assert lines[-4:] == ["v_b_next = v_c", "v_c_next = v_b", "v_b = v_b_next", "v_c = v_c_next"]


def test_what_threads_read_again_is_behind_a_barrier() -> None:
    text = "a = fill f32 1x1 0.0\n store a to s[0; 0, 0] 1x1\n"
    assert "tl.debug_barrier()" not in body(text, "scratch s f32[4]")
    assert body(text + " b = load s[0; 0, 0] 1x1", "scratch s f32[4]").count("tl.debug_barrier()") == 2


@pytest.mark.parametrize("n", [-9, -8, -1, 0, 1, 7, 8, 13])
@pytest.mark.parametrize("text", ["n//4", "(n - 3)//4", "n % 4", "min(n, 3)*2 - max(n, -2)", "(n*n)//(n*n + 1)"])
def test_dims_divide_downward_though_triton_divides_toward_zero(text: str, n: int) -> None:
    class Whole(int):
        """An integer with Triton's division."""

        def __floordiv__(self, other: int) -> Whole:  # type: ignore[override]
            return Whole(int(abs(int(self)) // abs(int(other))) * (1 if (self < 0) == (other < 0) else -1))

        def __mod__(self, other: int) -> Whole:  # type: ignore[override]
            return Whole(int(self) - int(other) * int(self // other))

        __add__ = __radd__ = lambda self, other: Whole(int(self) + int(other))
        __mul__ = __rmul__ = lambda self, other: Whole(int(self) * int(other))
        __sub__ = lambda self, other: Whole(int(self) - int(other))  # noqa: E731

    class Language:
        minimum, maximum = staticmethod(lambda a, b: Whole(min(a, b))), staticmethod(lambda a, b: Whole(max(a, b)))

    expected = eval(text, {"n": n})
    assert eval(dim_text(parse(text, {"n": -10})), {"n_n": Whole(n), "tl": Language}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = fill f32 3x4 0.0", "powers of two, and a block is 3x4"),
        ("a = load x[0; 0, 1] 1x6 if ([0; 0, 1] < n)", "powers of two, and a block is 1x6"),
        ("a = iota i32 1x4 [0; 0, 1]\n b = map floor_div a a", "floor_div of i32 is not offered on Triton"),
        ("a = load x[0; 0, 0] 2x2\n store a to x[0; 2, 1] 2x2", "x is an input"),
    ],
)
def test_what_triton_cannot_do_is_refused(text: str, message: str) -> None:
    with pytest.raises(TileError, match=re.escape(message)):
        body(text)


def test_most_operations_are_offered() -> None:
    assert [op for op in SCALAR_OPS if "float" in SCALAR_OPS[op].kinds and not is_offered(op, F32)] == []
    assert [op for op in SCALAR_OPS if "int" in SCALAR_OPS[op].kinds and not is_offered(op, I32)] == [
        "floor_div",
        "mod",
        "fmod",
    ]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (it is in the extra `gpu`)")
def test_interpreted_kernels_give_the_right_results() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.codegen.triton_worker"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = {name: reason for name, reason in {**found["goldens"], **found["ops"]}.items() if reason}
    assert wrong == {}
    assert len(found["goldens"]) == sum(len(g.sizes) for g in GOLDENS)
    assert len(found["ops"]) > 200
    assert found["bad_index"] == 1
