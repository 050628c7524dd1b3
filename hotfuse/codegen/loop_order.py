"""Which way the loops run, and how large their tiles are: the choice that decides how often memory is touched.

The model counts, for each candidate, the bytes that cross from one level of memory to the next, and divides them by what that
level gives; the cheapest candidate wins, and the reason goes into the program's notes.

Rows. A vector along an axis reads `neighbours` (stride 1) at the price of their bytes, and anything else element by element, a
cache line each. So vectors run along the axis where the accesses of a point cost least:

    cost(axis) = sum over accesses of    0 where the stride is 0,    its bytes where it is 1,    a line of 64 bytes otherwise

Where another access has its neighbours along another axis (a transpose), points are taken in squares, which are turned in
registers: both then move whole vectors.

Products. Accumulators fill the registers but for a row of the panel and a broadcast: of rows x vectors tiles that is the one
with the most multiplications for each load. Two orders of tasks compete, with the bytes that they fetch from beyond the
second-level cache (of k x n weights b and m x k rows a, with panels of `panel` columns and chunks of `chunk` rows):

    panels outside:  b once, and a for every panel, unless a core's half of the cache holds all of a
    chunks outside:  a once, and b for every chunk

Where m is not known, chunks of rows that this half holds are outside: as long as there is one chunk, b moves once all the same.

Chains. Products that read each other's rows, and norms between them, may run as one, a few rows at a time, so that what they
hand on never leaves the core. Every task then goes through all weights of the chain. That pays where these stay in the
second-level cache: a chain has weights of at most half of it. Larger ones would be fetched again for every few rows, which is
more than what is handed on.

Variants (`fusion/variants`) overrule the model of bytes, where somebody predicted or measured that they pay.

Where all that a kernel reads and writes exceeds the last-level cache, its large results are stored past it: they would be
written back from there before anyone reads them, and a store that goes through the cache reads the line first.
"""

from __future__ import annotations

from dataclasses import replace

from hotfuse.codegen.body import Body, Place, Product, Scan
from hotfuse.codegen.body_axes import accesses, reads, varying
from hotfuse.codegen.nest import DEAR, Info
from hotfuse.codegen.tile import Map
from hotfuse.errors import TileError
from hotfuse.fusion.variants import NARROW
from hotfuse.hardware.pairs import ABREAST, ACROSS, HEIGHTS, STRIPS, SWEEP
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.types import F32, DType
from hotfuse.records import dataclass

LINE = 64
BLOCK_VECTORS = 4  # of a long row at a time: enough independent work to hide the latency of each
CHAIN_TILES = 2  # tiles of rows in a task of a chain
CHUNK_TILES = 8  # tiles of rows in a task
LEAST_TILES = 4  # where rows are not counted: with fewer, weights are fetched too often
MOST_TILES = 16  # with more, cores have nothing to do
FOUR_VECTORS = 12  # of a row of which four go abreast; of longer ones two do, or their vectors do not fit the registers
WHOLE_VECTORS = 24  # of a short row, which is then one block
WHOLE_POINTS = 32  # vectors of points that are one block
DEAR_ROW, DEAR_POINTS = 8, 4  # the same with functions: code that runs once is fetched for as long as it runs


@dataclass(frozen=True)
class RowOrder:
    """Vectors along an axis of the joined domain (None: single elements), `width` elements at a time or the axis as a whole.
    `turned` is an axis along which something else has its neighbours: points are taken in squares of both axes then. With
    `across` the rows of the last axis are whole columns of blocks; with `strips` each block along the axis is a task. So many
    rows go `abreast`. What is left behind whole blocks goes by `lanes`, as many at once as there are surely left."""

    axis: int | None
    along_walks: bool
    width: int
    is_whole: bool
    streamed: tuple[str, ...]
    reasons: tuple[str, ...]
    turned: int | None = None
    across: bool = False
    strips: bool = False
    abreast: int = 1
    lanes: int = 1  # elements of a vector


def order_rows(body: Body, info: Info, spec: Spec, variant: str = "", grain: int = 0) -> RowOrder:
    """The order for a joined body. TileError where it has no such variant; strips get narrower with a finer `grain`."""
    if variant == ACROSS:
        return _order_across(body, spec)
    order = _order_by_bytes(body, info, spec)
    if variant == ABREAST:
        return _order_abreast(body, order, spec)
    return _order_strips(body, order, spec, grain) if variant == STRIPS else order


def _order_across(body: Body, spec: Spec) -> RowOrder:
    lanes = spec.vector_bytes // 4
    axis = len(body.domain) - 2
    if body.folded > 1 or axis < 0 or not isinstance(body.domain[-1], int):
        raise TileError("its rows are not the last axis of several")
    if body.domain[-1] > NARROW:  # axes were joined: what is turned in registers has to fit them
        raise TileError(f"rows of {body.domain[-1]} elements fill vectors by themselves")
    if axis not in _candidates(body, axis + 1):
        raise TileError("no vectors can run across its rows")
    size = body.domain[axis]
    if isinstance(size, int) and size < lanes:
        raise TileError(f"{size} rows fill no vector")
    words = f"vectors across rows, along axis {axis} of {_shape(body)}: {lanes} rows at a time, turned in registers"
    return RowOrder(axis, False, lanes, False, (), (words,), across=True, lanes=lanes)


def _order_abreast(body: Body, order: RowOrder, spec: Spec) -> RowOrder:
    """Rows are one block each here, of functions that are dear, too, though rows alone would not be (DEAR_ROW)."""
    length = body.domain[-1]
    is_short = isinstance(length, int) and length <= WHOLE_VECTORS * (spec.vector_bytes // 4)
    if not order.along_walks or not is_short or body.folded != 1 or len(body.domain) < 2:
        raise TileError("its rows are not one block each")
    assert isinstance(length, int)
    rows = 4 if -(-length // (spec.vector_bytes // 4)) <= FOUR_VECTORS else 2
    return replace(order, is_whole=True, abreast=rows, reasons=(f"{rows} rows abreast; {order.reasons[0]}", *order.reasons[1:]))


def _order_strips(body: Body, order: RowOrder, spec: Spec, grain: int) -> RowOrder:
    if order.axis is None or order.along_walks or order.turned is not None or not body.folded:
        raise TileError("it folds no columns that lie side by side")
    width = max(1, BLOCK_VECTORS >> grain) * (spec.vector_bytes // 4)
    words = f"strips of {width} columns along axis {order.axis} of {_shape(body)}, a task each"
    return replace(order, width=width, is_whole=False, reasons=(words, *order.reasons[1:]), strips=True)


def _order_by_bytes(body: Body, info: Info, spec: Spec) -> RowOrder:
    kept = len(body.domain) - body.folded
    lanes = spec.vector_bytes // 4
    costs = {axis: _row_cost(body, axis, lanes) for axis in _candidates(body, kept)}
    streamed = _streamed(body, info, spec)
    reasons: list[str] = [f"{', '.join(streamed)} past the caches: more than {spec.l3_bytes} bytes move"] if streamed else []
    if not costs:
        return RowOrder(None, False, 1, False, streamed, (*reasons, "single elements: no axis has neighbours for vectors"))
    best = min(costs, key=lambda axis: (costs[axis], -axis))
    if any(isinstance(s, Scan) for s in body.steps) and costs[best] >= LINE:
        words = "single elements: a running total goes along the axis that has the neighbours"
        return RowOrder(None, False, 1, False, streamed, (*reasons, words))
    size = body.domain[best]
    along_walks = best >= kept
    turned = None if body.folded else _turned(body, best)
    if turned is not None:
        words = f"squares of axes {turned} and {best} of {_shape(body)}, {lanes} x {lanes}: both have neighbours in memory"
        return RowOrder(best, False, lanes, False, streamed, (words, *reasons), turned, lanes=lanes)
    blocks = varying(body) if along_walks else {s.name for s in body.steps}  # what a row has one of is no part of its block
    is_dear = any(isinstance(s, Map) and s.op in DEAR and s.name in blocks for s in body.steps)
    most = (DEAR_ROW if is_dear else WHOLE_VECTORS) if along_walks else (DEAR_POINTS if is_dear else WHOLE_POINTS)
    is_whole = isinstance(size, int) and size <= most * lanes and (body.folded == 1 or not along_walks)
    shown = ", ".join(f"axis {axis}: {costs[axis]}" for axis in costs)
    how = "a row is one block" if is_whole else f"{BLOCK_VECTORS * lanes} elements at a time"
    reasons.insert(0, f"vectors along axis {best} of {_shape(body)}, {how}; bytes a point touches by axis: {shown}")
    return RowOrder(best, along_walks, BLOCK_VECTORS * lanes, is_whole, streamed, tuple(reasons), lanes=lanes)


@dataclass(frozen=True)
class ProductOrder:
    """Rows of a tile, rows of a chunk (a task), and whether tasks go through all chunks of a panel first. `heights` are those
    of tiles, whole ones first and then those for the rows that are left."""

    rows: int
    chunk: int
    panels_outside: bool
    reason: str
    rest: int = 0  # rows of the last tile, where these are known and it is to be one

    @property
    def heights(self) -> tuple[int, ...]:
        found = [self.rows, self.rest] if self.rest else [self.rows]
        while found[-1] > 1:
            found.append((found[-1] + 1) // 2 if found[-1] != 3 else 1)
        return tuple(found)


def tile_of(spec: Spec, n: Dim, dtype: DType) -> tuple[int, int]:
    """Rows and columns of a register tile, for products of n columns."""
    lanes = spec.vector_bytes // dtype.bytes
    vectors = 3 if spec.vector_registers >= 32 else 2
    rows = min((spec.vector_registers - vectors - 1) // vectors, 8 if vectors == 3 else 6)
    if isinstance(n, int) and n < vectors * lanes:
        vectors = max(1, -(-n // lanes))
    return rows, vectors * lanes


def chain_rows(spec: Spec, grain: int = 0) -> int:
    """Rows of a task of a chain: a few tiles, so that what is handed on stays in the nearest cache and tasks are many."""
    return max(1, CHAIN_TILES >> grain) * tile_of(spec, symbol("n"), F32)[0]


def order_product(
    body: Body, product: Product, spec: Spec, link: int | None = None, grain: int = 0, variant: str = ""
) -> ProductOrder:
    """The order of a product over a joined domain of rows, panels and columns of a panel; of a link of a chain, which has
    `link` rows at a time. With a finer `grain` tasks have half as many tiles, and half again. TileError where it has no such
    variant."""
    order = _product_by_bytes(body, product, spec, link, grain)
    if variant == SWEEP:
        words = f"{order.reason}; and yet {'chunks' if order.panels_outside else 'panels'} are outside"
        return replace(order, panels_outside=not order.panels_outside, reason=words)
    return _even(order, body, product, grain) if variant == HEIGHTS else order


def _even(order: ProductOrder, body: Body, product: Product, grain: int) -> ProductOrder:
    """Tiles of equal heights, but for the last."""
    m = body.domain[-3]
    if not isinstance(m, int):
        raise TileError("its rows are not counted")
    tiles = -(-m // order.rows)
    rows = -(-m // tiles)
    if rows == order.rows and m % rows in (0, *order.heights):
        raise TileError("its tiles are of equal heights")
    chunk = rows * max(1, tiles >> grain)
    words = f"{rows} x {body.domain[-1]} accumulators: {m} rows in {tiles} tiles of equal heights"
    return replace(order, rows=rows, chunk=chunk, rest=m % rows, reason=words)


def _product_by_bytes(body: Body, product: Product, spec: Spec, link: int | None, grain: int) -> ProductOrder:
    *_, panels, width = body.domain
    rows, _ = tile_of(spec, panels * width, product.dtype)
    m = body.domain[-3]
    tiles = min(CHUNK_TILES, -(-m // rows)) if isinstance(m, int) else CHUNK_TILES
    chunk = rows * max(1, tiles >> grain)
    size = product.dtype.bytes
    tile = f"{rows} x {width} accumulators of {spec.vector_registers} registers"
    if link is not None:
        return ProductOrder(rows, link, True, f"{tile}; a link of a chain, {link} rows at a time: its weights stay near")
    if not isinstance(m, int) and isinstance(product.length, int):
        fitting = spec.l2_bytes // 2 // (size * max(1, product.length * rows))
        chunk = rows * max(1, min(max(LEAST_TILES, fitting), MOST_TILES) >> grain)
        return ProductOrder(rows, chunk, False, f"{tile}; chunks of {chunk} rows outside: the cache holds them")
    if not (isinstance(m, int) and isinstance(panels, int) and isinstance(product.length, int) and isinstance(width, int)):
        return ProductOrder(rows, chunk, True, f"{tile}; panels outside, as sizes are not known and weights move once then")
    a, b = m * product.length * size, product.length * panels * width * size
    inside = b + (a if a <= spec.l2_bytes // 2 else a * panels)
    outside = a + b * -(-m // chunk)
    panels_outside = inside <= outside
    words = f"panels outside fetch {inside} bytes, chunks outside {outside}"
    return ProductOrder(rows, chunk, panels_outside, f"{tile}; {words}")


def _turned(body: Body, best: int) -> int | None:
    """The axis along which an access has its neighbours that has none along the best axis. A write must move along both."""
    for access in accesses(body):
        if access.strides[best] not in (0, 1):
            for axis, stride in enumerate(access.strides):
                if axis != best and stride == 1 and all(w.strides[axis] != 0 for w in body.writes):
                    return axis if not any(k.strides[axis] != 0 for r in reads(body) for k in r.lookups) else None
    return None


def _shape(body: Body) -> str:
    return "x".join(str(d) for d in body.domain)


def _candidates(body: Body, kept: int) -> list[int]:
    """Axes that vectors may run along: no index differs along them, every write moves, and no running total does."""
    scans = any(isinstance(s, Scan) for s in body.steps)
    looks = [k for r in reads(body) for k in r.lookups]
    last_folded = len(body.domain) - 1 if body.folded and not scans else None
    found = []
    for axis in [*range(kept), *([] if last_folded is None else [last_folded])]:
        if any(k.strides[axis] != 0 for k in looks) or body.domain[axis] == 1:
            continue
        if not all(isinstance(s.strides[axis], int) for s in body.steps if isinstance(s, Place)):
            continue
        if axis < kept and any(w.strides[axis] == 0 for w in body.writes):
            continue
        if axis >= kept and not all(isinstance(w.strides[axis], int) for w in body.writes):  # it may be 0: turns would meet
            continue
        found.append(axis)
    return found


def _row_cost(body: Body, axis: int, lanes: int) -> int:
    """Bytes that a point touches. Where a row is folded along several axes (a window), the lanes that a short axis leaves empty
    count, elements a few places apart share a line, and a vector along the fold is folded itself in the end."""
    if body.folded < 2:
        return sum(_touched(a.strides[axis], a.dtype.bytes) for a in accesses(body))
    size = body.domain[axis]
    found = sum(_spread(a.strides[axis], a.dtype.bytes) for a in accesses(body))
    if not isinstance(size, int):
        return found
    fold = 4 * lanes if axis >= len(body.domain) - body.folded else 0
    return (found * -(-size // lanes) * lanes + fold) // size


def _touched(stride: Dim, size: int) -> int:
    return 0 if stride == 0 else size if stride == 1 else LINE


def _spread(stride: Dim, size: int) -> int:
    return min(abs(stride) * size, LINE) if isinstance(stride, int) else LINE


def _streamed(body: Body, info: Info, spec: Spec) -> tuple[str, ...]:
    """Results that will have left the caches before anybody reads them; smaller ones than a part of them stay there."""
    sizes = {a.root: info(a.root) for a in accesses(body)}
    bytes_of = {root: size * dtype.bytes if isinstance(size, int) else 0 for root, (dtype, size) in sizes.items()}
    if sum(bytes_of.values()) <= spec.l3_bytes:
        return ()
    read = {r.root for r in reads(body)}
    written = dict.fromkeys(w.root for w in body.writes)
    return tuple(root for root in written if root not in read and bytes_of[root] * 4 > spec.l3_bytes)
