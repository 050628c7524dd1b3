"""Packing as a kernel: the columns of an activation written in panels, as `ir/ops/panels` says."""

from __future__ import annotations

from collections.abc import Callable

from hotfuse.codegen.tile import Access, Axis, Bound, Buffer, For, Instruction, Load, Store, TileProgram, sizes_of
from hotfuse.ir.dim import Dim, ceildiv, maximum, minimum, symbol
from hotfuse.ir.layout import Layout
from hotfuse.ir.ops.panels import whole_panels
from hotfuse.ir.types import DType

ROWS = 64  # of a task
SQUARE = 16  # rows that are transposed at once


def lower_pack(
    name: str, source: Layout, target: Layout, panel: int, last: int, info: Callable[[str], tuple[DType, Dim]]
) -> TileProgram:
    """`source` is [batch..., k, n]; `target` [batch..., elements of a packed matrix]."""
    *batch, k, n = source.shape
    outer = [f"o{i}" for i in range(len(batch))]
    j, i, p, r = symbol("j"), symbol("i"), symbol("p"), symbol("r")
    start, into = source.offset, target.offset
    for axis, variable in enumerate(outer):
        start = start + symbol(variable) * source.strides[axis]
        into = into + symbol(variable) * target.strides[axis]
    down, across = source.strides[-2:]

    def rows(first: Dim, end: Dim, height: int, width: int) -> Instruction:
        bounds = () if isinstance(n, int) and n % width == 0 and width == panel else (Bound(p * panel, 0, 1, n),)
        block, shape = f"b{height}x{width}", (height, width)
        place = start + r * down + p * panel * across
        source_at = Access(source.root, place, down if height > 1 else 0, across, shape, bounds)
        target_at = Access(target.root, into + p * (k * panel) + r * width, width if height > 1 else 0, 1, shape)
        return For("r", first, end, height, (Load(block, source_at), Store(target_at, block)))

    def panels(first: Dim, end: Dim, width: int) -> Instruction:
        begin, stop = i * ROWS, minimum(k, i * ROWS + ROWS)
        if down != 1 or across == 1:
            return For("p", first, end, 1, (rows(begin, stop, 1, width),))
        split = begin + (stop - begin) // SQUARE * SQUARE  # columns are neighbours: whole squares move as vectors
        return For("p", first, end, 1, (rows(begin, split, SQUARE, width), rows(split, stop, 1, width)))

    count, whole = ceildiv(n, panel), whole_panels(n, panel, last)
    body: list[Instruction] = []
    if whole != 0:
        body.append(panels(j, j + 1 if whole == count else minimum(j + 1, whole), panel))
    if last != panel:
        body.append(panels(maximum(j, whole), j + 1, last))
    grid = (*(Axis(v, size) for v, size in zip(outer, batch, strict=True)), Axis("j", count), Axis("i", ceildiv(k, ROWS)))
    buffers = (Buffer(source.root, *info(source.root)), Buffer(target.root, *info(target.root), "output"))
    return TileProgram(name, sizes_of(buffers, grid, body), buffers, grid, tuple(body))
