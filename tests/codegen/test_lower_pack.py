"""Packing as a kernel: the very bytes that the operator's own function gives, whichever axis of the source is contiguous."""

from __future__ import annotations

import numpy as np
import pytest

from hotfuse.codegen import interpret
from hotfuse.codegen.lower_pack import lower_pack
from hotfuse.codegen.tile_check import check
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.layout import Layout
from hotfuse.ir.ops.panels import pack, packed_columns
from hotfuse.ir.types import BF16, F16, F32, F64, DType
from tests.codegen.test_llvm_programs import run_native


def check_packed(dtype: DType, k: int, n: int, panel: int, last: int, known: bool, turned: bool, lanes: int) -> None:
    """`turned`: the columns of the source are contiguous, as those of a transposed matrix are."""
    rows, columns = (k, n) if known else (symbol("k"), symbol("n"))
    made = rows * packed_columns(columns, panel, last)
    sizes: dict[str, Dim] = {"x": rows * columns * 2, "y": made * 2}
    strides: tuple[Dim, Dim] = (1, rows) if turned else (columns, 1)
    source = Layout("x", 0, (2, rows, columns), (rows * columns, *strides))
    target = Layout("y", 0, (2, made), (made, 1))
    program = lower_pack("pack", source, target, panel, last, lambda root: (dtype, sizes[root]))
    check(program)
    matrices = np.random.default_rng(0).standard_normal((2, k, n)).astype(np.float32).astype(dtype.numpy)
    memory = np.ascontiguousarray(matrices.transpose(0, 2, 1) if turned else matrices).reshape(-1)
    expected = pack(matrices, panel=panel, last=last)
    env = {} if known else {"k": k, "n": n}
    for run in (interpret.run, lambda *args: run_native(*args, lanes)):
        buffers = {"x": memory, "y": interpret.poison(dtype, expected.size)}
        assert run(program, buffers, env) == 0
        assert buffers["y"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("k", "n"), [(1, 1), (13, 50), (16, 48), (64, 77), (70, 33), (130, 5)])
@pytest.mark.parametrize("turned", [True, False], ids=["turned", "plain"])
def test_sizes(k: int, n: int, turned: bool) -> None:
    check_packed(F32, k, n, 48, 48, False, turned, 16)
    last = -(-(n % 48 or 48) // 16) * 16
    check_packed(F32, k, n, 48, last, True, turned, 16)


@pytest.mark.parametrize("dtype", [F64, F16, BF16], ids=str)
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_types_and_vectors(dtype: DType, lanes: int) -> None:
    check_packed(dtype, 35, 29, 2 * lanes, 2 * lanes, False, True, lanes)
