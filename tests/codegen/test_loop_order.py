"""Which way the loops run: each side of each decision of the model, and that a program's notes say why."""

from __future__ import annotations

import dataclasses

import pytest

from hotfuse.codegen.body import Body, Fold, Given, Lookup, Product, Read, Scan, Step, Write
from hotfuse.codegen.loop_order import (
    CHUNK_TILES,
    DEAR_POINTS,
    DEAR_ROW,
    LEAST_TILES,
    MOST_TILES,
    WHOLE_VECTORS,
    RowOrder,
    order_product,
    order_rows,
    tile_of,
)
from hotfuse.codegen.lower_gemm import Packing, lower_gemm
from hotfuse.codegen.lower_rows import lower_rows
from hotfuse.codegen.nest import DEAR
from hotfuse.codegen.tile import For, Load, Map, Store, TileProgram, walk
from hotfuse.codegen.tile_check import check
from hotfuse.fusion import analyzer, variants
from hotfuse.fusion.walks import KEPT
from hotfuse.hardware.spec import Spec
from hotfuse.ir.dim import Dim, symbol
from hotfuse.ir.layout import Layout
from hotfuse.ir.types import F32, F64, I64, DType, Shape, numel

M, N = symbol("m"), symbol("n")
KIB = 1 << 10
AVX2 = Spec("avx2", "haswell", "", (), (), 32, 16, 32 * KIB, 256 * KIB, 2048 * KIB, 2, 2, (0, 1), None)
AVX512 = dataclasses.replace(AVX2, isa="avx512", vector_bytes=64, vector_registers=32)
LANES = 8  # of AVX2


def rows(shape: Shape, strides: tuple[Dim, ...], folded: int = 1, writes: tuple[Dim, ...] | None = None) -> Body:
    """x - max(x) along the last axes, of an x with these strides; written in order, unless said otherwise."""
    steps: tuple[Step, ...] = (Read("a", "x", F32, 0, strides),)
    if folded:
        steps += (Fold("f", "max", "a", F32),)
    order = writes if writes is not None else tuple(numel(shape[axis + 1 :]) for axis in range(len(shape)))
    return Body(shape, folded, steps, (Write("f" if folded else "a", "y", F32, order),))


def order_of(body: Body, spec: Spec = AVX2, size: Dim = 1000) -> RowOrder:
    return order_rows(body, lambda root: (F32, size), spec)


def program_of(body: Body, spec: Spec = AVX2) -> TileProgram:
    elements = numel(body.domain)
    program = lower_rows("p", body, lambda root: (I64 if root == "i" else F32, elements), spec)
    check(program)
    return program


def loads(program: TileProgram) -> set[tuple[int, int]]:
    return {it.at.shape for it in walk(program.body) if isinstance(it, Load) and it.at.buffer == "x"}


def running(strides: tuple[Dim, Dim]) -> Body:
    """A running total along the second axis."""
    return Body((M, N), 1, (Read("a", "x", F32, 0, strides), Scan("s", "sum", "a", F32)), (Write("s", "y", F32, strides),))


# vectors along the walk or along a kept axis


def test_vectors_run_along_the_walk_where_its_elements_are_neighbours() -> None:
    body = rows((M, N), (N, 1), writes=(1, 0))
    order = order_of(body)
    assert (order.axis, order.along_walks) == (1, True)
    program = program_of(body)
    assert program.notes == order.reasons
    assert program.notes[0] == (
        "vectors along axis 1 of mxn, 32 elements at a time; bytes a point touches by axis: axis 0: 68, axis 1: 4"
    )
    assert loads(program) == {(1, 32), (1, LANES)}


@pytest.mark.parametrize(
    ("size", "rest"),
    [(32 * 7 + 1, {(1, 8)}), (32 * 7 + 17, {(1, 24)}), (32 * 7 + 31, {(1, 32)}), (32 * 7, set()), (N, {(1, 8)})],
    ids=["one element", "three vectors", "a block that lacks one", "nothing", "unknown"],
)
def test_what_is_left_behind_whole_blocks_goes_by_as_few_vectors_as_it_takes(size: Dim, rest: set[tuple[int, int]]) -> None:
    body = rows((M, size), (size, 1), writes=(1, 0))
    assert not order_of(body).is_whole
    assert loads(program_of(body)) == {(1, 32)} | rest


def test_vectors_run_along_the_rows_where_those_are_neighbours() -> None:
    """The reduction of the first axis: columns are walked side by side."""
    body = rows((N, M), (1, N), writes=(1, 0))
    order = order_of(body)
    assert (order.axis, order.along_walks) == (0, False)
    program = program_of(body)
    assert program.notes[0].endswith("bytes a point touches by axis: axis 0: 8, axis 1: 64")
    assert next(it.var for it in walk(program.body) if isinstance(it, For)) == "i0"


def test_of_equal_axes_the_last_one_wins() -> None:
    assert order_of(rows((M, N), (7, 7), folded=0, writes=(7 * N, 7))).axis == 1


def test_a_broadcast_costs_nothing() -> None:
    """Strides of 0 along the last axis; along the first one each element is a line of its own."""
    order = order_of(rows((M, N), (5, 0), folded=0))
    assert "axis 0: 128, axis 1: 4" in order.reasons[0]


@pytest.mark.parametrize(
    ("body", "axis"),
    [
        (rows((1, N), (N, 1), folded=0), 1),  # an axis of one element is no axis
        (rows((M, 1), (1, 1), folded=0, writes=(3, 1)), 0),
        (running((1, M)), 0),
        (
            Body(
                (M, N), 0, (Read("a", "x", F32, 0, (0, 1), (Lookup("i", 0, (1, 0), 9, N),)),), (Write("a", "y", F32, (N, 1)),)
            ),
            1,
        ),
        (
            Body(
                (M, N), 0, (Read("a", "x", F32, 0, (1, 0), (Lookup("i", 0, (0, 1), 9, N),)),), (Write("a", "y", F32, (N, 1)),)
            ),
            0,
        ),
    ],
    ids=["one row", "one column", "a running total", "rows gathered", "columns gathered"],
)
def test_axes_that_vectors_cannot_run_along(body: Body, axis: int) -> None:
    assert order_of(body).axis == axis


def test_a_running_total_along_neighbours_goes_element_by_element() -> None:
    order = order_of(running((N, 1)))
    assert order.axis is None
    assert order.reasons == ("single elements: a running total goes along the axis that has the neighbours",)


def test_without_an_axis_for_vectors_there_are_single_elements() -> None:
    looks = (Lookup("i", 0, (N, 1), 9, 1),)
    body = Body((M, N), 0, (Read("a", "x", F32, 0, (0, 0), looks),), (Write("a", "y", F32, (N, 1)),))
    order = order_of(body)
    assert order.axis is None
    assert order.reasons == ("single elements: no axis has neighbours for vectors",)
    program = program_of(body)
    assert program.notes == order.reasons
    assert loads(program) == {(1, 1)}


# a row as one block, or block by block


@pytest.mark.parametrize(
    ("size", "whole"),
    [(WHOLE_VECTORS * LANES, True), (WHOLE_VECTORS * LANES + 1, False), (N, False)],
    ids=["short", "long", "free"],
)
def test_short_rows_are_one_block(size: Dim, whole: bool) -> None:
    body = rows((M, size), (size, 1), writes=(1, 0))
    order = order_of(body)
    assert order.is_whole is whole
    assert ("a row is one block" if whole else "32 elements at a time") in order.reasons[0]
    program = program_of(body)
    assert program.notes == order.reasons
    assert loads(program) == ({(1, size)} if whole else {(1, 32), (1, LANES)})


def test_wider_vectors_make_wider_blocks() -> None:
    order = order_of(rows((M, N), (N, 1), writes=(1, 0)), AVX512)
    assert order.width == 64
    assert "64 elements at a time" in order.reasons[0]
    assert order_of(rows((M, 24 * 16), (24 * 16, 1), writes=(1, 0)), AVX512).is_whole


@pytest.mark.parametrize(("folded", "vectors"), [(0, DEAR_POINTS), (1, DEAR_ROW)])
def test_functions_of_many_elements_are_no_block(folded: int, vectors: int) -> None:
    """Their code would be fetched for longer than it runs."""
    for size, whole in ((vectors * LANES, True), (vectors * LANES + 1, False)):
        plain = rows((M, size), (size, 1), folded)
        assert order_of(plain).is_whole
        dear = dataclasses.replace(plain, steps=(*plain.steps, Map("e", "exp", ("a",))))
        assert order_of(dear).is_whole is whole


def test_a_function_of_what_a_row_has_one_of_is_no_part_of_its_block() -> None:
    size = (DEAR_ROW + 1) * LANES
    plain = rows((M, size), (size, 1))
    for arg, whole in (("f", True), ("a", False)):
        steps = (*plain.steps, Map("e", "exp", (arg,)), Map("s", "add", ("a", "e")))
        assert order_of(dataclasses.replace(plain, steps=steps)).is_whole is whole


@pytest.mark.parametrize(("size", "whole"), [(32 * LANES, True), (32 * LANES + 1, False)])
def test_a_short_axis_of_the_grid_is_one_block(size: int, whole: bool) -> None:
    assert order_of(rows((M, size), (size, 1), folded=0)).is_whole is whole


def test_a_row_of_two_axes_is_no_block() -> None:
    """Its walk is two loops, and a block is the turns of one."""
    assert not order_of(rows((M, 4, 8), (100, 10, 1), folded=2, writes=(1, 0, 0))).is_whole


# past the caches


@pytest.mark.parametrize(("elements", "streamed"), [(1024 * KIB // 4, False), (1024 * KIB // 4 + 1, True)])
def test_results_go_past_the_caches_when_more_moves_than_they_hold(elements: int, streamed: bool) -> None:
    body = Body((elements,), 0, (Read("a", "x", F32, 0, (1,)),), (Write("a", "y", F32, (1,)),))
    order = order_of(body, size=elements)
    assert order.streamed == (("y",) if streamed else ())
    program = program_of(body)
    assert any(isinstance(it, Store) and it.stream for it in walk(program.body)) is streamed
    assert ("y past the caches: more than 2097152 bytes move" in program.notes) is streamed


def test_a_small_result_of_much_stays_in_the_caches() -> None:
    wide = Body((M, N), 1, (Read("a", "x", F32, 0, (N, 1)), Fold("s", "sum", "a", F32)), (Write("s", "y", F32, (1, 0)),))
    sizes = {"x": 4096 * KIB, "y": 512}
    assert order_rows(wide, lambda root: (F32, sizes[root]), AVX2).streamed == ()


def test_what_is_read_or_of_unknown_size_stays_in_the_caches() -> None:
    large = 2048 * KIB
    again = Body((large,), 0, (Read("a", "y", F32, 0, (1,)),), (Write("a", "y", F32, (1,)),))
    assert order_of(again, size=large).streamed == ()
    assert order_of(rows((M, N), (N, 1), folded=0), size=M * N).streamed == ()


# products


def product(m: Dim, panels: Dim, width: int, k: Dim, dtype: DType = F32) -> tuple[Body, Product]:
    step = Product("p", Read("a", "a", dtype, 0, (k, 0, 0)), Read("b", "b", dtype, 0, (0, k * width, 1)), k, 1, width, dtype)
    body = Body((m, panels, width), 0, (step,), (Write("p", "y", dtype, (panels * width, width, 1)),))
    return body, step


@pytest.mark.parametrize(
    ("spec", "n", "dtype", "tile"),
    [
        (AVX2, N, F32, (6, 16)),
        (AVX2, 8, F32, (6, 8)),
        (AVX2, 9, F32, (6, 16)),
        (AVX2, N, F64, (6, 8)),
        (AVX512, N, F32, (8, 48)),
        (AVX512, 17, F32, (8, 32)),
        (AVX512, 5, F32, (8, 16)),
    ],
)
def test_accumulators_fill_the_registers(spec: Spec, n: Dim, dtype: DType, tile: tuple[int, int]) -> None:
    assert tile_of(spec, n, dtype) == tile
    height, width = tile
    vectors = width * dtype.bytes // spec.vector_bytes
    assert height * vectors + vectors + 1 <= spec.vector_registers


def test_panels_outside_fetch_weights_once_while_a_core_holds_the_rows() -> None:
    order = order_product(*product(96, 64, 16, 256), AVX2)
    a, b = 96 * 256 * 4, 256 * 64 * 16 * 4
    assert a <= AVX2.l2_bytes // 2
    assert order.panels_outside
    assert (
        order.reason == f"6 x 16 accumulators of 16 registers; panels outside fetch {b + a} bytes, chunks outside {a + 2 * b}"
    )


def test_chunks_outside_fetch_rows_once_where_they_do_not_fit() -> None:
    order = order_product(*product(4800, 8, 16, 256), AVX2)
    a, b = 4800 * 256 * 4, 256 * 8 * 16 * 4
    assert a > AVX2.l2_bytes // 2
    assert not order.panels_outside
    assert order.reason.endswith(f"panels outside fetch {b + 8 * a} bytes, chunks outside {a + 100 * b}")


def test_rows_that_do_not_fit_are_fetched_for_every_panel() -> None:
    """Two panels fetch the rows twice, and a chunk that holds all rows fetches the weights once; one panel is no worse."""
    assert AVX2.l2_bytes // 2 < 48 * 4096 * 4
    assert not order_product(*product(48, 2, 16, 4096), AVX2).panels_outside
    assert order_product(*product(48, 1, 16, 4096), AVX2).panels_outside


@pytest.mark.parametrize(("k", "tiles"), [(16, MOST_TILES), (512, 10), (65536, LEAST_TILES)])
def test_rows_that_are_not_counted_come_in_chunks_that_the_cache_holds(k: int, tiles: int) -> None:
    order = order_product(*product(M, 64, 16, k), AVX2)
    assert (order.chunk, order.panels_outside) == (6 * tiles, False)
    assert f"chunks of {6 * tiles} rows outside: the cache holds them" in order.reason
    fits = order.chunk * k * 4 <= AVX2.l2_bytes // 2
    assert fits == (tiles != LEAST_TILES)


def test_sums_of_unknown_length_let_weights_move_once() -> None:
    order = order_product(*product(M, 64, 16, M), AVX2)
    assert (order.chunk, order.panels_outside) == (6 * CHUNK_TILES, True)
    assert "panels outside, as sizes are not known and weights move once then" in order.reason


@pytest.mark.parametrize(("m", "chunk"), [(1, 6), (7, 12), (1000, 48)])
def test_a_chunk_is_no_larger_than_the_rows(m: int, chunk: int) -> None:
    assert order_product(*product(m, 4, 16, 64), AVX2).chunk == chunk


@pytest.mark.parametrize(("m", "n", "k", "first"), [(96, 1024, 256, "panels"), (4800, 128, 256, "chunks")])
def test_tasks_follow_the_order_and_its_reason_is_noted(m: int, n: int, k: int, first: str) -> None:
    packing = Packing(Layout("b", 0, (n * k,), (1,)), k, n, 16, 16)
    body = Body((m, n), 0, (Given("p"),), (Write("p", "y", F32, (n, 1)),))
    sizes = {"a": m * k, "b": n * k, "y": m * n}
    (program,) = lower_gemm("p", Layout("a", 0, (m, k), (k, 1)), packing, F32, body, lambda root: (F32, sizes[root]), AVX2)
    check(program)
    assert [a.var for a in program.grid] == (["i1", "i0.t"] if first == "panels" else ["i0.t", "i1"])
    (note,) = program.notes
    fetched = {
        words.split()[0]: int(words.split()[-1 if "chunks" in words else 3]) for words in note.split("; ")[1].split(", ")
    }
    assert min(fetched, key=lambda side: fetched[side]) == first


def test_the_roofline_counts_on_the_same_blocks() -> None:
    """Fusion knows nothing of code: what it believes of rows that are one block, with vectors of 16, is told twice."""
    assert (analyzer.WHOLE_ROW, analyzer.DEAR_ROW) == (16 * WHOLE_VECTORS, 16 * DEAR_ROW)
    assert variants.MOST_WIDTH == 16 * WHOLE_VECTORS
    assert {op for op in DEAR if not op.startswith(("gelu", "exp2"))} <= KEPT
