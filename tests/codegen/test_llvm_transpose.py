"""Transposed accesses as native code: every element type and vector width, ragged edges, against numpy's transpose."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hotfuse.codegen import interpret
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import Access, Axis, Block, Bound, Buffer, Load, Store, TileProgram
from hotfuse.ir.dim import ceildiv, symbol
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, I8, I64, DType
from tests.codegen.test_llvm_programs import run_native

M, N = symbol("m"), symbol("n")


def program(dtype: DType, block: Block, turned_load: bool, fill: float = 0.0) -> TileProgram:
    """y = x transposed, for x of m rows and n columns: of load and store one goes along columns."""
    i, j = symbol("i") * block[0], symbol("j") * block[1]
    if turned_load:  # the block is of y: n rows, m columns
        bounds = Bound(i, 1, 0, N), Bound(j, 0, 1, M)
        source = Access("x", j * N + i, 1, N, block, bounds)
        target = Access("y", i * M + j, M, 1, block, bounds)
        counts = ceildiv(N, block[0]), ceildiv(M, block[1])
    else:
        bounds = Bound(i, 1, 0, M), Bound(j, 0, 1, N)
        source = Access("x", i * N + j, N, 1, block, bounds)
        target = Access("y", j * M + i, 1, M, block, bounds)
        counts = ceildiv(M, block[0]), ceildiv(N, block[1])
    buffers = Buffer("x", dtype, M * N), Buffer("y", dtype, M * N, "output")
    grid = Axis("i", counts[0]), Axis("j", counts[1])
    return TileProgram("turn", ("m", "n"), buffers, grid, (Load("b", source, fill), Store(target, "b")))


def check_turned(made: TileProgram, dtype: DType, sizes: dict[str, int], lanes: int) -> None:
    bits = np.random.default_rng(0).integers(0, 2 if dtype == BOOL else 100, sizes["m"] * sizes["n"])
    x = bits.astype(dtype.numpy)
    buffers = {"x": x, "y": interpret.poison(dtype, x.size)}
    assert run_native(made, buffers, sizes, lanes) == 0
    expected = x.reshape(sizes["m"], sizes["n"]).T
    assert buffers["y"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I8, I64, BOOL], ids=str)
@pytest.mark.parametrize("turned_load", [True, False], ids=["load", "store"])
def test_squares(dtype: DType, lanes: int, turned_load: bool) -> None:
    check_turned(program(dtype, (lanes, lanes), turned_load), dtype, {"m": 2 * lanes + 3, "n": 3 * lanes - 1}, lanes)


@pytest.mark.parametrize("block", [(8, 32), (32, 8), (2, 16), (12, 16), (16, 12), (7, 19), (1, 16), (16, 1), (3, 2)])
@pytest.mark.parametrize("turned_load", [True, False], ids=["load", "store"])
def test_blocks_of_any_shape(block: Block, turned_load: bool) -> None:
    check_turned(program(F32, block, turned_load), F32, {"m": 41, "n": 37}, 16)
    check_turned(program(F32, block, turned_load), F32, {"m": 3, "n": 1}, 8)


@pytest.mark.parametrize("turned_load", [True, False], ids=["load", "store"])
def test_whole_squares_move_as_vectors(turned_load: bool) -> None:
    """No element on its own, and a few shuffles for each vector."""
    text = emit(program(F32, (16, 16), turned_load), 16)
    assert not re.search(r"(load|store) float", text)
    assert text.count("shufflevector") <= 16 * 4 + 64  # the rest makes masks


def test_elements_outside_of_bounds_are_the_fill() -> None:
    """A block of 4 x 4 of which 3 x 2 elements are in memory."""
    at = Access("x", 0, 1, 4, (4, 4), (Bound(0, 1, 0, 3), Bound(0, 0, 1, 2)))
    body = Load("b", at, 7.0), Store(Access("y", 0, 4, 1, (4, 4)), "b")
    made = TileProgram("turn", (), (Buffer("x", F32, 7), Buffer("y", F32, 16, "output")), (), body)
    buffers = {"x": np.arange(7, dtype=np.float32), "y": np.zeros(16, np.float32)}
    assert run_native(made, buffers, {}, 16) == 0
    assert buffers["y"].reshape(4, 4).tolist() == [[0, 4, 7, 7], [1, 5, 7, 7], [2, 6, 7, 7], [7, 7, 7, 7]]
