"""What each block of a tile program is: its dtype and shape. One pass, no state.

The rules of types are here and nowhere else: `type_of` is what an instruction makes of blocks that are already known, or
TileError saying which rule it breaks. Names, sizes and memory are the concern of `tile_check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from hotfuse.codegen.scalar_ops import ANY_KIND, BLOCK_DTYPES, NUMBERS, result_dtype
from hotfuse.codegen.tile import (
    Access,
    Block,
    Cast,
    Dot,
    Fill,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Reduce,
    Store,
    TileProgram,
)
from hotfuse.codegen.tile_text import show
from hotfuse.errors import TileError
from hotfuse.ir.types import BOOL, DType

BlockType: TypeAlias = tuple[DType, Block]
MAX_ELEMENTS = 1 << 16  # of a block; one that large is far past any register file, and still cheap to refuse

_REDUCED = {"sum": NUMBERS, "prod": NUMBERS, "max": ANY_KIND, "min": ANY_KIND, "any": ("bool",), "all": ("bool",)}


def types(program: TileProgram) -> dict[str, BlockType]:
    """Dtype and shape of every block by name, what loops carry included. Integers read by `Index` are no blocks."""
    found: dict[str, BlockType] = {}
    _enter(program.body, {b.name: b.dtype for b in program.buffers}, found)
    return found


def _enter(body: Iterable[Instruction], buffers: Mapping[str, DType], found: dict[str, BlockType]) -> None:
    for instruction in body:
        try:
            if isinstance(instruction, For):
                for carry in instruction.carry:
                    found[carry.name] = _known(carry.init, found)
            else:
                made = type_of(instruction, buffers, found)
                if made is not None:
                    found[instruction.name] = made  # type: ignore[union-attr]
        except TileError as error:
            raise TileError(f"`{show(instruction)}`: {error}") from error
        if isinstance(instruction, For):
            _enter(instruction.body, buffers, found)
            for carry in instruction.carry:
                if _known(carry.next, found) != found[carry.name]:
                    raise TileError(
                        f"`{show(instruction)}`: {carry.name} begins as {_show(found[carry.name])}, "
                        f"and {carry.next} is {_show(found[carry.next])}"
                    )


def type_of(instruction: Instruction, buffers: Mapping[str, DType], found: Mapping[str, BlockType]) -> BlockType | None:
    """What one instruction makes (None: no block), given the blocks before it. Of loops, only the carried blocks have types."""
    match instruction:
        case Load(_, at, fill):
            return _fitting(_element(at, buffers), fill), _sound(at.shape)
        case Store(at, value):
            dtype, shape = _known(value, found)
            _same(dtype, _element(at, buffers), f"{value} and the buffer {at.buffer}")
            if shape != _sound(at.shape):
                raise TileError(f"{value} is {_show((dtype, shape))}, and the place for it {at.shape[0]}x{at.shape[1]}")
            return None
        case Fill(_, dtype, shape, number):
            return _fitting(_allowed(dtype), number), _sound(shape)
        case Iota(_, dtype, shape):
            if not _allowed(dtype).is_integer:
                raise TileError(f"iota makes integers, not {dtype}; cast the result")
            return dtype, _sound(shape)
        case Map(_, op, args):
            parts = [_known(a, found) for a in args]
            return result_dtype(op, [d for d, _ in parts]), _broadcast([s for _, s in parts])
        case Cast(_, dtype, arg):
            return _allowed(dtype), _known(arg, found)[1]
        case Dot():
            return _dot(instruction, found)
        case Reduce(_, op, axis, arg):
            dtype, shape = _known(arg, found)
            if op not in _REDUCED:
                raise TileError(f"there is no reduction {op!r}; they are {', '.join(_REDUCED)}")
            if dtype.kind not in _REDUCED[op]:
                raise TileError(f"{op} does not reduce {dtype}")
            if axis not in (0, 1):
                raise TileError(f"a block has the axes 0 and 1, not {axis}")
            return dtype, (1, shape[1]) if axis == 0 else (shape[0], 1)
        case Index(_, at):
            if not _element(at, buffers).is_integer:
                raise TileError(f"an index is read from integers, and {at.buffer} holds {buffers[at.buffer]}")
            if at.shape != (1, 1):
                raise TileError(f"an index is one element, not {at.shape[0]}x{at.shape[1]}")
            return None
        case For():
            return None
        case _:
            _element(instruction.at, buffers)
            _sound(instruction.at.shape)
            return None


def _dot(it: Dot, found: Mapping[str, BlockType]) -> BlockType:
    (a, (m, k)), (b, (k2, n)), (acc, shape) = (_known(name, found) for name in (it.a, it.b, it.acc))
    _same(a, b, f"{it.a} and {it.b}")
    if a.kind not in NUMBERS or acc.kind != a.kind or acc.bits < a.bits or (acc.bits == a.bits and acc != a):
        raise TileError(f"products of {a} cannot be summed in {acc}")
    if k != k2 or shape != (m, n):
        raise TileError(f"{m}x{k} times {k2}x{n} does not go into {shape[0]}x{shape[1]}")
    return acc, shape


def _known(name: str, found: Mapping[str, BlockType]) -> BlockType:
    if name not in found:
        raise TileError(f"{name} is no block that is known here")
    return found[name]


def _element(at: Access, buffers: Mapping[str, DType]) -> DType:
    if at.buffer not in buffers:
        raise TileError(f"there is no buffer {at.buffer}")
    return buffers[at.buffer]


def _allowed(dtype: DType) -> DType:
    if dtype not in BLOCK_DTYPES:
        raise TileError(f"blocks cannot hold {dtype}; they hold {', '.join(map(str, BLOCK_DTYPES))}")
    return dtype


def _fitting(dtype: DType, value: float) -> DType:
    """The dtype, if it can hold the number `value`."""
    if dtype.is_float:
        return dtype
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise TileError(f"{value} is no {dtype}")
    low, high = (0, 1) if dtype == BOOL else (0, (1 << dtype.bits) - 1)
    if dtype.kind == "int":
        low, high = -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    if not low <= value <= high:
        raise TileError(f"{value} is no {dtype}")
    return dtype


def _sound(shape: Block) -> Block:
    rows, cols = shape
    if rows < 1 or cols < 1 or rows * cols > MAX_ELEMENTS:
        raise TileError(f"a block of {rows}x{cols} is refused; it has 1 to {MAX_ELEMENTS} elements")
    return shape


def _broadcast(shapes: list[Block]) -> Block:
    extents = []
    for axis in (0, 1):
        wide = {s[axis] for s in shapes} - {1}
        if len(wide) > 1:
            raise TileError(f"blocks of {', '.join(f'{r}x{c}' for r, c in shapes)} do not broadcast together")
        extents.append(wide.pop() if wide else 1)
    return _sound((extents[0], extents[1]))


def _same(a: DType, b: DType, what: str) -> None:
    if a != b:
        raise TileError(f"{what} have different types, {a} and {b}; cast one")


def _show(block: BlockType) -> str:
    return f"{block[0]} {block[1][0]}x{block[1][1]}"
