"""Pointwise and row kernels: the plain nest of a body, and a schedule for it.

Vectors run along the axis that `loop_order` chooses: along the walks of a row, or along an axis of the grid, so that many rows
are walked side by side. A row of few vectors stays in registers as one block, and each thing is computed once. Tasks get as
many points as make handing them out cheap.
"""

from __future__ import annotations

from dataclasses import replace

from hotfuse.codegen.body import Body
from hotfuse.codegen.body_axes import joined
from hotfuse.codegen.chain import Inside, keep_inside
from hotfuse.codegen.loop_order import RowOrder, order_rows
from hotfuse.codegen.nest import Info, Nest, make_nest
from hotfuse.codegen.schedule import coarsen, hoist, inline, peel
from hotfuse.codegen.schedule_memory import stream
from hotfuse.codegen.schedule_values import prune, share
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_loops import has_loop
from hotfuse.codegen.widen import widen
from hotfuse.errors import TileError
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, floordiv, maximum, minimum
from hotfuse.ir.types import numel

TASK_ELEMENTS = 4096  # of the domain, about: long against the cost of handing out a task, short against a cache


def lower_rows(
    name: str, body: Body, info: Info, spec: Spec, inside: Inside | None = None, grain: int = 0, variant: str = ""
) -> TileProgram:
    """The program of a body without given blocks. `info` tells element type and size of each value in memory. With `inside` it
    is a link of a chain. With a finer `grain` tasks have a quarter of the points, and a quarter of that."""
    most = TASK_ELEMENTS >> 2 * grain
    whole = joined(body)
    if any(size == 0 for size in whole.domain):
        raise TileError("a domain without points is left to tier 0")
    order = order_rows(whole, info, spec, variant, grain)
    nest = make_nest(name, whole, info, keep=order.along_walks and not order.is_whole)
    program = _vectors(nest, whole, order, most)
    if inside is None:
        program = _abreast(_tasks(program, nest, whole, order, most), nest, order)
    else:
        if len(nest.kept) != 1 or not order.along_walks:
            raise TileError("only rows that vectors run along make a link of a chain")
        program = keep_inside(coarsen(program, nest.kept[0], inside.rows), nest.kept[0], inside)
    for buffer in order.streamed:
        program = stream(program, buffer)
    return replace(prune(program), notes=order.reasons)


def _vectors(nest: Nest, body: Body, order: RowOrder, most: int) -> TileProgram:
    """Blocks along the chosen axis."""
    program = nest.program
    if order.axis is None:
        return program
    length = body.domain[order.axis]
    if order.across:
        return _across(nest, body, order, most)
    if order.along_walks:
        for walk in nest.walks:
            program = _blocks(program, walk[-1], length, order)
        return share(program)
    var = nest.kept[order.axis]
    program = coarsen(program, var, length if order.is_whole else _along(order, most))
    program = _blocks(program, var, length, order)
    return program if order.turned is None else _squares(program, nest.kept[order.turned], order)


def _along(order: RowOrder, most: int) -> int:
    """Elements of a task along the axis of its vectors: whole blocks."""
    if order.strips:
        return order.width
    return most if order.turned is None else max(order.width, most // order.width)


def _across(nest: Nest, body: Body, order: RowOrder, most: int) -> TileProgram:
    """Blocks of whole rows, each of which is a column of its block."""
    program, width = nest.program, body.domain[-1]
    assert order.axis is not None
    assert isinstance(width, int)
    loops = [walk[-1] for walk in nest.walks]
    if not body.folded:
        loops = [nest.kept[-1]]
        program = coarsen(program, loops[0], width)
    for loop in loops:
        program = inline(widen(program, loop, width, axis=0), loop)
    program = coarsen(share(program), nest.kept[order.axis], _rows_across(body, order, most))
    return _blocks(program, nest.kept[order.axis], body.domain[order.axis], order)


def _rows_across(body: Body, order: RowOrder, most: int) -> int:
    """Rows of a task: whole vectors of them."""
    width = body.domain[-1]
    assert isinstance(width, int)
    return max(1, most // (width * order.width)) * order.width


def _abreast(program: TileProgram, nest: Nest, order: RowOrder) -> TileProgram:
    """A few rows at a time, each with what it folds; the rest go one by one."""
    if order.abreast == 1:
        return program
    var = nest.kept[-1]
    program = peel(program, var, order.abreast, f"{var}.rest")
    return widen(program, var, order.abreast, axis=0) if has_loop(program, var) else program


def _squares(program: TileProgram, var: str, order: RowOrder) -> TileProgram:
    """As many turns along the other axis as a vector has elements make a square; the rest goes row by row."""
    program = peel(coarsen(program, var, order.width), var, order.width, f"{var}.rest")
    return widen(program, var, order.width, axis=0) if has_loop(program, var) else program


def _blocks(program: TileProgram, var: str, length: Dim, order: RowOrder) -> TileProgram:
    """The turns of a loop as blocks: one block of all, or many of the order's width and masked ones for the rest."""
    if order.is_whole:
        assert isinstance(length, int)
        return inline(widen(program, var, length, axis=1), var)
    rest = f"{var}.rest"
    program = peel(program, var, order.width, rest)
    for loop, width in ((var, order.width), (rest, _rest(length, order))):
        if has_loop(program, loop):
            program = hoist(widen(program, loop, width, axis=1), loop)
    return program


def _rest(length: Dim, order: RowOrder) -> int:
    """Elements at a time of what is left behind whole blocks: as many vectors as it takes, one by one where nobody knows."""
    left = length % order.width if isinstance(length, int) else 0
    return -(-left // order.lanes) * order.lanes or order.lanes


def _tasks(program: TileProgram, nest: Nest, body: Body, order: RowOrder, most: int) -> TileProgram:
    """Axes of the grid that are left become loops of a task, innermost first, until a task has enough to do."""
    points: Dim = numel(body.domain[len(nest.kept) :])
    if order.across:
        return program
    if order.axis is not None and not order.along_walks:
        points = points * minimum(body.domain[order.axis], _along(order, most))
    if order.turned is not None:
        points = points * order.width
    for axis in reversed(range(len(nest.kept))):
        if axis == order.turned or (axis == order.axis and not order.along_walks):
            continue
        least = order.abreast if axis == len(nest.kept) - 1 else 1  # whole blocks of rows
        many = least * maximum(1, floordiv(most, maximum(points * least, 1)))
        if many == 1:
            break
        program = coarsen(program, nest.kept[axis], many)
        points = points * body.domain[axis]
    return program
