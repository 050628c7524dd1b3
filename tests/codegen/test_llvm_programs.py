"""Kernels that LLVM compiled from tile programs: torch's results on the golden programs, the interpreter's on random ones."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools

import numpy as np
import pytest

from hotfuse.codegen.interpret import evaluate, run
from hotfuse.codegen.link import Code
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import Store, TileProgram, scratch_offsets
from hotfuse.hardware.spec import host_spec
from tests.codegen.goldens import Golden, Sizes, case_id, cases
from tests.codegen.tile_programs import random_memory, random_program, same

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARTS = 3  # tasks are handed out in so many pieces


def run_native(program: TileProgram, buffers: dict[str, np.ndarray], sizes: Sizes, lanes: int) -> int:
    """Compile, run all tasks, and return the status. The last tasks come first: their order must not matter."""
    spec = host_spec()
    code = Code(compile_ir(emit(program, lanes, spec.isa if lanes == spec.vector_bytes // 4 else "other"), spec))
    status = np.zeros(1, np.int64)
    words = [status.ctypes.data, *(buffers[b.name].ctypes.data for b in program.arguments)]
    table = np.array([*words, *(sizes[s] for s in program.sizes)], np.int64)
    scratch = np.full(evaluate(scratch_offsets(program)[1], sizes) + 64, 0xAB, np.uint8)
    aligned = -(-scratch.ctypes.data // 64) * 64
    tasks = evaluate(program.tasks, sizes)
    ends = [tasks * part // PARTS for part in range(PARTS + 1)]
    entry = ENTRY(code.address(program.name))
    for begin, end in reversed(list(itertools.pairwise(ends))):
        entry(table.ctypes.data, aligned, begin, end)
    code.close()
    return int(status[0])


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize(("golden", "sizes"), cases(), ids=case_id)
def test_golden_programs_give_torchs_results(golden: Golden, sizes: Sizes, lanes: int) -> None:
    inputs, buffers = golden.buffers(sizes)
    assert run_native(golden.program, buffers, sizes, lanes) == 0
    verdict = golden.judge(inputs, buffers["y"])
    assert verdict, verdict.reason


def test_an_index_out_of_range_is_reported() -> None:
    golden, sizes = next((g, s) for g, s in cases() if g.name == "gather")
    _, buffers = golden.buffers(sizes)
    buffers["rows"][-1] = -sizes["t"] - 1
    assert run_native(golden.program, buffers, sizes, 8) == 1


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_do_what_the_interpreter_does(seed: int) -> None:
    """Without streamed stores: those take it that memory is aligned to their vectors, which random programs do not promise."""
    program, sizes = random_program(seed)
    stores = tuple(dataclasses.replace(i, stream=False) if isinstance(i, Store) else i for i in program.body)
    program = dataclasses.replace(program, body=stores)
    ours, expected = (random_memory(program, sizes, seed) for _ in range(2))
    with np.errstate(all="ignore"):
        status = run(program, expected, sizes)
    assert run_native(program, ours, sizes, (16, 8)[seed % 2]) == status
    for buffer in program.arguments:
        assert same(ours[buffer.name], expected[buffer.name]), f"{buffer.name} of\n{program}"
