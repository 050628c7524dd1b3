"""The text form of tile programs: one line an instruction. `print_program` and `tile_reader.parse_program` round-trip exactly.

program scaled_rows {
  size m n                                           the run-time sizes, in order
  where n >= 1                                       a symbol's least value, when it is not 0
  input x f32[m*n]                                   a buffer and its number of elements
  output y f32[m*n]
  scratch row f32[n]
  grid i (m + 7)//8                                  i takes 0 .. (m + 7)//8 - 1; "shared i ..." if threads share it
  note "eight rows a task"
  # an access is BUFFER[offset; rows, cols] ROWSxCOLS; the bound [s; r, c] < n holds where 0 <= s + r*i + c*j < n
  a = load x[8*i*n; n, 1] 8x16 if ([8*i; 1, 0] < m, [0; 0, 1] < n) fill -inf
  store a to y[8*i*n; n, 1] 8x16 if ([8*i; 1, 0] < m) stream
  prefetch x[8*i*n; n, 1] 8x16 level 1
  z = fill f32 8x1 0.0
  k = iota i32 1x16 [4*i; 0, 1]
  s = map add a b
  h = cast f16 s
  d = dot a b z
  r = reduce max 1 a
  t = index table[i; 0, 0] 1x1 limit n
  for k in [0 : n : 16] carry (acc = z -> s, top = r -> q) unroll 2 {
    ...
  }
  for r in [0 : m : 1] free {                        its turns may run in any order
    ...
  }
}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator

from hotfuse.codegen.tile import (
    Access,
    Block,
    Bound,
    Cast,
    Dot,
    Fill,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Prefetch,
    Reduce,
    Store,
    TileProgram,
    walk,
)
from hotfuse.ir.dim import Dim, symbols_of

NAME = re.compile(r"[A-Za-z_?][A-Za-z0-9_.?]*")


def print_program(program: TileProgram) -> str:
    return "\n".join(_program_lines(program)) + "\n"


def show(instruction: Instruction) -> str:
    """An instruction on one line; of a loop, its head."""
    match instruction:
        case Load(name, at, fill):
            shown = show_number(fill)
            return f"{name} = load {show_access(at)}" + (f" fill {shown}" if shown != "0.0" else "")
        case Store(at, value, stream):
            return f"store {value} to {show_access(at)}" + (" stream" if stream else "")
        case Prefetch(at, level):
            return f"prefetch {show_access(at)} level {level}"
        case Fill(name, dtype, shape, value):
            return f"{name} = fill {dtype} {_show_block(shape)} {show_number(value)}"
        case Iota(name, dtype, shape, start, rows, cols):
            return f"{name} = iota {dtype} {_show_block(shape)} [{start}; {rows}, {cols}]"
        case Map(name, op, args):
            return f"{name} = map {op} {' '.join(args)}"
        case Cast(name, dtype, arg):
            return f"{name} = cast {dtype} {arg}"
        case Dot(name, a, b, acc):
            return f"{name} = dot {a} {b} {acc}"
        case Reduce(name, op, axis, arg):
            return f"{name} = reduce {op} {axis} {arg}"
        case Index(name, at, limit):
            return f"{name} = index {show_access(at)} limit {limit}"
        case For(var, start, stop, step, _, carry, unroll, free):
            carried = ", ".join(f"{c.name} = {c.init} -> {c.next}" for c in carry)
            head = f"for {var} in [{start} : {stop} : {step}]"
            tail = (f" unroll {unroll}" if unroll != 1 else "") + (" free" if free else "")
            return head + (f" carry ({carried})" if carry else "") + tail


def show_access(at: Access) -> str:
    bounds = f" if ({', '.join(_show_bound(b) for b in at.bounds)})" if at.bounds else ""
    return f"{at.buffer}[{at.offset}; {at.rows}, {at.cols}] {_show_block(at.shape)}{bounds}"


def _show_bound(bound: Bound) -> str:
    return f"[{bound.start}; {bound.rows}, {bound.cols}] < {bound.limit}"


def show_number(value: float) -> str:
    """A fill value such that reading it gives the same number; whole numbers of any size stay whole."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(float(value))


def _show_block(shape: Block) -> str:
    return f"{shape[0]}x{shape[1]}"


def _program_lines(program: TileProgram) -> Iterator[str]:
    yield f"program {program.name} {{"
    if program.sizes:
        yield f"  size {' '.join(program.sizes)}"
    least = {s.name: s.minimum for s in symbols_of(dims_of(program)) if s.minimum}
    for name in sorted(least):
        yield f"  where {name} >= {least[name]}"
    for buffer in program.buffers:
        yield f"  {buffer.kind} {buffer.name} {buffer.dtype}[{buffer.size}]"
    for axis in program.grid:
        yield f"  {'shared' if axis.shared else 'grid'} {axis.var} {axis.count}"
    for note in program.notes:
        yield f"  note {json.dumps(note)}"
    yield from _body_lines(program.body, "  ")
    yield "}"


def _body_lines(body: Iterable[Instruction], indent: str) -> Iterator[str]:
    for instruction in body:
        if isinstance(instruction, For):
            yield f"{indent}{show(instruction)} {{"
            yield from _body_lines(instruction.body, indent + "  ")
            yield f"{indent}}}"
        else:
            yield indent + show(instruction)


def dims_of(program: TileProgram) -> Iterator[Dim]:
    """Every dim of a program."""
    yield from (b.size for b in program.buffers)
    yield from (a.count for a in program.grid)
    for instruction in walk(program.body):
        yield from dims_in(instruction)


def dims_in(instruction: Instruction) -> Iterator[Dim]:
    """The dims that an instruction names itself (of a loop, its limits)."""
    if isinstance(instruction, Load | Store | Prefetch | Index):
        at = instruction.at
        yield from (at.offset, at.rows, at.cols)
        yield from (dim for bound in at.bounds for dim in (bound.start, bound.limit))
    if isinstance(instruction, Index):
        yield instruction.limit
    if isinstance(instruction, Iota):
        yield instruction.start
    if isinstance(instruction, For):
        yield from (instruction.start, instruction.stop)
