"""Matrix products: panels of packed columns against tiles of rows, with the group's elementwise steps on the accumulators.

The plain program has a task for each row, panel and column of the panel, and a loop over k. The schedule makes of it

    for each panel of columns, for each chunk of rows (one task):
        for each tile of rows:                       rows x panel accumulators, in registers
            for k: accumulators += a[rows, k] * b[k, panel]
            epilogue on the accumulators, store

b is packed: panel by panel, and in a panel row after row, so that the inner loop reads it from front to back. The last panel is
as narrow as vectors allow, and a program of its own. Long sums are made of parts, for their accuracy. What is read of b is
fetched into the second-level cache: some steps before, and long before, a little of the next panel with every step of this one,
so that the first tile of a panel does not wait for memory. Rows that do not fill a tile go through lower tiles, down to one
row, so that thin products have their own schedule.

A product that is woven with another kernel (`fusion/weaving`) also fetches what that will read right after each task, in even
steps over all of the task's steps of k: with task i of n, the part i / n of all that the other one reads. It has nothing
left to wait for then, and fetches of b hold up those for the other: it makes none but for the next panel, and these only where
a step fetches one line beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotfuse.codegen.body import Body, Given, Limit, Product, Read, Step
from hotfuse.codegen.body_axes import joined
from hotfuse.codegen.chain import Inside, keep_inside
from hotfuse.codegen.loop_order import LINE, ProductOrder, order_product
from hotfuse.codegen.nest import Info, make_nest
from hotfuse.codegen.schedule import coarsen, in_parts, inline, interchange, partition, peel, reorder, unroll
from hotfuse.codegen.schedule_memory import fetch_for_another, prefetch
from hotfuse.codegen.schedule_values import prune
from hotfuse.codegen.tile import Access, Buffer, TileProgram
from hotfuse.codegen.tile_loops import has_loop
from hotfuse.codegen.widen import widen
from hotfuse.errors import TileError
from hotfuse.fusion.weaving import SHARE
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, ceildiv, floordiv, maximum, minimum, symbol
from hotfuse.ir.layout import Layout, broadcast_strides
from hotfuse.ir.ops.panels import whole_panels
from hotfuse.ir.types import F32, F64, DType
from hotfuse.records import dataclass

TURNS = 4  # of k that are written out where tiles are small: a third of the time went into counting and addresses
AHEAD = 32  # steps of k: the third-level cache answers within so many
NEAREST = 1  # level of caches that it fetches to: 1 to 4 % faster than the second one on Zen 5
MOST_FETCHES = 2  # with a step of k that fetches for another kernel: with more, two branches gained 1.22 and not 1.36
BLOCK = 512  # steps of k in one chain of additions: the error of a sum grows with the length of its chains
NARROW, NARROW_BLOCK = 64, 128  # columns, and steps where there are so few: heads of models, whose differences softmax enlarges


@dataclass(frozen=True)
class Fetched:
    """What a kernel beside this one reads from front to back: `size` elements of a value in memory, from `offset` on; and how
    many lines of it each step of k fetches."""

    root: str
    offset: Dim
    size: Dim
    lines: int


@dataclass(frozen=True)
class Packing:
    """How the second operand is packed (`ir/ops/panels`): its layout, [batch..., elements of a matrix], and its sizes."""

    panels: Layout
    k: Dim
    n: Dim
    panel: int
    last: int

    @property
    def whole(self) -> Dim:
        """Panels of full width."""
        return whole_panels(self.n, self.panel, self.last)


def lower_gemm(
    name: str,
    a: Layout,
    packing: Packing,
    dtype: DType,
    body: Body,
    info: Info,
    spec: Spec,
    inside: Inside | None = None,
    grain: int = 0,
    variant: str = "",
    fetched: Sequence[Fetched] = (),
) -> tuple[TileProgram, ...]:
    """The programs, side by side, of a product and of a body over its result, whose one given block is the product. With
    `inside`, a task is all columns of some rows, and a link of a chain. The first program fetches what is `fetched`."""
    if dtype not in (F32, F64):
        raise TileError(f"products of {dtype} are left to tier 0")
    if any(isinstance(s, Read) and s.lookups for s in body.steps):
        raise TileError("a gather in the epilogue of a product is left to tier 0")
    if any(size == 0 for size in body.domain):
        raise TileError("a domain without points is left to tier 0")
    bodies = []
    if packing.whole != 0:
        bodies.append(_paneled(a, packing, dtype, body, info, 0, packing.whole, packing.panel))
    if packing.last != packing.panel:
        bodies.append(_paneled(a, packing, dtype, body, info, packing.whole, 1, packing.last))
    if inside is not None and fetched:
        raise TileError("a link of a chain fetches for nobody")
    return tuple(
        _program(name, paneled, info, spec, inside, grain, variant, () if place else fetched)
        for place, paneled in enumerate(bodies)
    )


def _paneled(a: Layout, packing: Packing, dtype: DType, body: Body, info: Info, first: Dim, count: Dim, width: int) -> Body:
    """The body over rows, panels and columns of a panel: `count` panels of `width` columns, from panel `first` on."""
    rows, panel = body.domain[:-1], packing.panel
    domain = (*rows, count, width)

    def split(strides: Sequence[Dim]) -> tuple[Dim, ...]:
        return (*strides[:-1], strides[-1] * panel, strides[-1])

    def moved(offset: Dim, strides: Sequence[Dim]) -> Dim:
        return offset + first * panel * strides[-1]

    a_strides = broadcast_strides(Layout("", 0, a.shape[:-1], a.strides[:-1]), rows)
    batches = Layout("", 0, packing.panels.shape[:-1], packing.panels.strides[:-1])
    b_strides = broadcast_strides(batches, rows[:-1])
    start = packing.panels.offset + first * (packing.k * panel)
    product = Product(
        "",
        Read("", a.root, dtype, a.offset, (*a_strides, 0, 0)),
        Read("", packing.panels.root, info(packing.panels.root)[0], start, (*b_strides, 0, packing.k * panel, 1)),
        packing.k,
        a.strides[-1],
        width,
        dtype,
    )
    steps: list[Step] = []
    for step in body.steps:
        match step:
            case Given():
                steps.append(replace(product, name=step.name))
            case Read():
                steps.append(replace(step, offset=moved(step.offset, step.strides), strides=split(step.strides)))
            case _:
                steps.append(step)
    writes = tuple(replace(w, offset=moved(w.offset, w.strides), strides=split(w.strides)) for w in body.writes)
    fits = isinstance(packing.n, int) and isinstance(first, int) and isinstance(count, int)
    fits = fits and (first + count - 1) * panel + width <= packing.n  # type: ignore[operator]
    limits = () if fits else (Limit(first * panel, (*(0,) * len(rows), panel, 1), packing.n),)
    return Body(domain, 0, tuple(steps), writes, limits)


def _program(
    name: str,
    paneled: Body,
    info: Info,
    spec: Spec,
    inside: Inside | None,
    grain: int,
    variant: str,
    fetched: Sequence[Fetched],
) -> TileProgram:
    body = joined(paneled, apart=2)
    product = next(s for s in body.steps if isinstance(s, Product))
    nest = make_nest(name, body, info, keep=False)
    *outer, rows, panels, columns = nest.kept
    width = body.domain[-1]
    assert isinstance(width, int)
    order = order_product(body, product, spec, None if inside is None else inside.rows, grain, variant)
    program = coarsen(nest.program, columns, width)
    program = inline(widen(program, columns, width, axis=1), columns)
    count = body.domain[-2]
    block = NARROW_BLOCK if isinstance(count, int) and count * width <= NARROW else BLOCK
    if not isinstance(product.length, int) or product.length > block:
        program = in_parts(program, "k", block)
    if inside is not None:
        if outer:
            raise TileError("rows of several matrices make no chain")
        program = coarsen(coarsen(program, panels, body.domain[-2]), rows, order.chunk)
        program = interchange(keep_inside(program, rows, inside), rows, panels)
    else:
        program = coarsen(program, rows, order.chunk)
    program = _tiles(program, rows, order)
    lines = sum(one.lines for one in fetched)
    if not lines:
        program = _fetch_ahead(program, product, [*outer, rows, panels], width)
    if inside is None and lines + 1 <= MOST_FETCHES:
        program = _fetch_next_panel(program, product, [*outer, rows, panels], width, order)
    if spec.vector_registers < 32 and has_loop(program, "k"):
        program = unroll(program, "k", TURNS)
    grid = {a.var for a in program.grid}
    program = reorder(program, [v for v in (*outer, *_in_order(order, panels, f"{rows}.t")) if v in grid])
    if inside is None and f"{rows}.t" in grid:
        program = partition(program, f"{rows}.t")
    for one in fetched:
        program = _fetch_for_another(program, product, rows, order, one, info, spec.l2_bytes // (SHARE * len(fetched)))
    woven = [f"each step of k fetches {one.lines} lines of what is read beside it" for one in fetched]
    return replace(prune(program), notes=(order.reason, *woven))


def _in_order(order: ProductOrder, panels: str, chunks: str) -> tuple[str, str]:
    return (panels, chunks) if order.panels_outside else (chunks, panels)


def _tiles(program: TileProgram, rows: str, order: ProductOrder) -> TileProgram:
    """Tiles of rows: whole ones, then lower and lower ones for the rows that are left."""
    loop = rows
    for height in order.heights:
        if height == 1 or not has_loop(program, loop):
            break
        rest = f"{rows}.{height}"
        program = peel(program, loop, height, rest)
        if has_loop(program, loop):
            program = widen(program, loop, height, axis=0)
        loop = rest
    return program


def _fetch_ahead(program: TileProgram, product: Product, variables: Sequence[str], width: int) -> TileProgram:
    """The tall tiles fetch what they will read of b some steps of k from now; at its end a panel runs on into the next one."""
    if not has_loop(program, "k"):
        return program
    ahead = product.b.offset + (symbol("k") + AHEAD) * width
    for variable, stride in zip(variables, product.b.strides, strict=False):
        ahead = ahead + symbol(variable) * stride
    return prefetch(program, "k", Access(product.b.root, ahead, 0, 1, (1, width)))


def _fetch_next_panel(
    program: TileProgram, product: Product, variables: Sequence[str], width: int, order: ProductOrder
) -> TileProgram:
    """Over all tiles of a chunk the tall ones fetch the panel after this one, which this thread mostly takes next; after the
    last panel that is what follows in memory, where the next product's weights are (`runtime/shelf`)."""
    if not has_loop(program, "k") or not isinstance(product.length, int):
        return program
    rows, chunks = variables[-2], f"{variables[-2]}.t"
    begin = symbol(chunks) * order.chunk if chunks in {a.var for a in program.grid} else 0
    turn = floordiv(symbol(rows) - begin, order.rows)
    each = -(-width * order.rows // order.chunk)  # elements with each step of k
    place = product.b.offset + product.b.strides[len(variables) - 1] + (turn * product.length + symbol("k")) * each
    for variable, stride in zip(variables, product.b.strides, strict=False):
        place = place + symbol(variable) * stride
    return prefetch(program, "k", Access(product.b.root, place, 0, 1, (1, 1)))


def _fetch_for_another(
    program: TileProgram, product: Product, rows: str, order: ProductOrder, fetched: Fetched, info: Info, room: int
) -> TileProgram:
    """Over all steps of k of a task's tall tiles, the part of another kernel's input that the task's share of it is about; no
    more of it than `room` bytes."""
    if not has_loop(program, "k"):
        raise TileError("its sums have no steps that could fetch anything")
    task: Dim = 0
    for axis in program.grid:
        task = task * axis.count + symbol(axis.var)
    chunks, turn = f"{rows}.t", symbol(rows) if has_loop(program, rows) else 0
    if chunks in {a.var for a in program.grid} and has_loop(program, rows):
        turn = turn - symbol(chunks) * order.chunk
    turn = floordiv(turn, order.rows)
    share = ceildiv(fetched.size, maximum(program.tasks, 1))
    steps = maximum(product.length, 1) * (order.chunk // order.rows)
    buffer = Buffer(fetched.root, *info(fetched.root))
    # where it is more than the steps can fetch, or than the cache holds, its first part: hardware follows no gaps
    most = minimum(share, room // buffer.dtype.bytes)
    each = minimum(LINE // buffer.dtype.bytes, ceildiv(most, steps * fetched.lines))
    place = fetched.offset + task * share + (turn * product.length + symbol("k")) * fetched.lines * each
    return fetch_for_another(program, "k", buffer, place, each, fetched.lines, NEAREST)
