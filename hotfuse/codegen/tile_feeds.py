"""Inputs for a tile program nobody gave inputs for, and its twin in float64 that says what the exact results are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.codegen.interpret import evaluate
from hotfuse.codegen.tile import Cast, Fill, For, Index, Instruction, TileProgram, walk
from hotfuse.errors import InputError
from hotfuse.ir.dim import symbols_of
from hotfuse.ir.types import BOOL, F64, DType

Array = np.ndarray[Any, Any]


def make_inputs(program: TileProgram, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random inputs by name: normal floats, bools of both kinds, integers that stay in range where they are read as an index
    and are small elsewhere."""
    rng = np.random.default_rng(seed)
    limits: dict[str, int] = {}
    for instruction in walk(program.body):
        if isinstance(instruction, Index) and all(s.name in sizes for s in symbols_of((instruction.limit,))):
            limit = evaluate(instruction.limit, sizes)
            limits[instruction.at.buffer] = min(limit, limits.get(instruction.at.buffer, limit))
    made: dict[str, Array] = {}
    for buffer in program.arguments:
        if buffer.kind == "input":
            elements = evaluate(buffer.size, sizes)
            if elements < 0:
                raise InputError(f"tile program {program.name}: buffer {buffer.name} would have {elements} elements")
            if buffer.dtype.is_float:
                found: Array = rng.standard_normal(elements)
            elif buffer.dtype == BOOL:
                found = rng.random(elements) < 0.5
            else:
                high = max(limits.get(buffer.name, 8), 1)
                found = rng.integers(0 if buffer.name in limits or buffer.dtype.kind == "uint" else -high, high, elements)
            made[buffer.name] = found.astype(buffer.dtype.numpy)
    return made


def widened(program: TileProgram) -> TileProgram:
    """The same program with float64 in place of every float type."""
    buffers = tuple(replace(b, dtype=_wide(b.dtype)) for b in program.buffers)
    return replace(program, buffers=buffers, body=_widened(program.body))


def _widened(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    wide: list[Instruction] = []
    for instruction in body:
        if isinstance(instruction, Fill | Cast):
            wide.append(replace(instruction, dtype=_wide(instruction.dtype)))
        elif isinstance(instruction, For):
            wide.append(replace(instruction, body=_widened(instruction.body)))
        else:
            wide.append(instruction)
    return tuple(wide)


def _wide(dtype: DType) -> DType:
    return F64 if dtype.is_float else dtype
