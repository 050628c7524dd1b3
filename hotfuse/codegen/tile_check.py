"""Whether a tile program keeps the rules of its instruction set: `check` raises TileError for the first one that is broken.

  names    each block, index and carried value is defined once, before use and in the loop that uses it or around it; loop
           variables do not hide anything (loops after one another may share one)
  sizes    dims name only sizes, grid and loop variables and indices that are known there
  types    `tile_types`
  loops    the step is above 0, and `unroll` too; a free loop carries nothing
  memory   `tile_memory`: only output and scratch are stored to; and where that can be decided, accesses stay inside their
           buffers, scratch is written before it is read, and no two tasks store the same element

Everything that reads a program may rely on these, and need not check them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotfuse.codegen.scalar_ops import BLOCK_DTYPES
from hotfuse.codegen.tile import For, Index, Instruction, Prefetch, TileProgram, uses
from hotfuse.codegen.tile_memory import check_memory
from hotfuse.codegen.tile_text import NAME, dims_in, show
from hotfuse.codegen.tile_types import types as types
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, symbols_of


def check(program: TileProgram) -> None:
    """Raise TileError, naming the program and the instruction, if a rule is broken."""
    try:
        _check_head(program)
        _Names(program).body(program.body)
        types(program)
        check_memory(program)
    except TileError as error:
        raise TileError(f"tile program {program.name}: {error}") from error


def _check_head(program: TileProgram) -> None:
    sizes = set(program.sizes)
    for name in (program.name, *program.sizes, *(b.name for b in program.buffers), *(a.var for a in program.grid)):
        _check_name(name)
    _refuse_twice(program.sizes + tuple(a.var for a in program.grid), "size or grid variable")
    _refuse_twice([b.name for b in program.buffers], "buffer")
    for buffer in program.buffers:
        if buffer.kind not in ("input", "output", "scratch"):
            raise TileError(f"buffer {buffer.name} is of kind {buffer.kind!r}; there are input, output and scratch")
        if buffer.dtype not in BLOCK_DTYPES:
            raise TileError(f"buffer {buffer.name} holds {buffer.dtype}, which no block can hold")
        _check_symbols((buffer.size,), sizes, f"the size of buffer {buffer.name}")
    if sum(axis.shared for axis in program.grid) > 1:
        raise TileError("two axes of the grid are shared among threads")
    for axis in program.grid:
        _check_symbols((axis.count,), sizes, f"the count of grid axis {axis.var}")


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise TileError(f"{name!r} cannot be a name here: letters, digits, `_`, `.` and `?`, and no digit first")


def _refuse_twice(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TileError(f"{what} {name} is defined twice")
        seen.add(name)


def _check_symbols(dims: Iterable[Dim], known: set[str], where: str) -> None:
    for symbol in symbols_of(dims):
        if symbol.name not in known:
            raise TileError(f"{where} names {symbol.name}, which is not known there")


class _Names:
    """State: the names ever defined, and those that can be used at the instruction that is looked at."""

    def __init__(self, program: TileProgram) -> None:
        self.symbols = {*program.sizes, *(a.var for a in program.grid)}
        self.blocks: set[str] = set()
        self.defined: set[str] = set(self.symbols)

    def define(self, name: str, where: str) -> None:
        _check_name(name)
        if name in self.defined:
            raise TileError(f"{where}: {name} is defined twice")
        self.defined.add(name)

    def use(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if name in self.symbols:
                raise TileError(f"{where}: {name} is a number that dims may name, not a block; use iota")
            if name not in self.blocks:
                late = "out of reach here: it belongs to a loop, or comes later" if name in self.defined else "not defined"
                raise TileError(f"{where}: {name} is {late}")

    def body(self, body: tuple[Instruction, ...]) -> None:
        for instruction in body:
            where = f"`{show(instruction)}`"
            _check_symbols(dims_in(instruction), self.symbols, where)
            if isinstance(instruction, For):
                self.loop(instruction, where)
                continue
            self.use(uses(instruction), where)
            if isinstance(instruction, Prefetch) and instruction.level not in (1, 2):
                raise TileError(f"{where}: memory is brought to level 1 or 2, not {instruction.level}")
            name = getattr(instruction, "name", None)
            if name is not None:
                self.define(name, where)
                (self.symbols if isinstance(instruction, Index) else self.blocks).add(name)

    def loop(self, it: For, where: str) -> None:
        if it.step < 1:
            raise TileError(f"{where}: the step is {it.step}; it must be above 0")
        if it.unroll < 1:
            raise TileError(f"{where}: unroll is {it.unroll}; it must be above 0")
        if it.free and it.carry:
            raise TileError(f"{where}: a loop that carries {it.carry[0].name} from turn to turn is not free")
        _check_name(it.var)
        self.use((c.init for c in it.carry), where)
        if it.var in self.symbols | self.blocks:
            raise TileError(f"{where}: {it.var} hides another {it.var}")
        self.defined.add(it.var)
        for carry in it.carry:
            self.define(carry.name, where)
        outside = self.symbols, self.blocks
        carried = {c.name for c in it.carry}
        self.symbols, self.blocks = self.symbols | {it.var}, self.blocks | carried
        self.body(it.body)
        self.use((c.next for c in it.carry), where)
        self.symbols, self.blocks = outside[0], outside[1] | carried
