"""Kernels in other loops than those chosen by bytes; three ways against tier 0, and that their programs really are others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.codegen.lower import lower
from hotfuse.codegen.native_form import native_graph
from hotfuse.codegen.tile import Dot, Load, TileProgram, walk
from hotfuse.codegen.tile_types import types as types_of
from hotfuse.config import Config
from hotfuse.errors import TileError
from hotfuse.hardware.pairs import ABREAST, ACROSS, HEIGHTS, STRIPS, SWEEP
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import symbol
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, F64, TensorType
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.native import Workshop
from tests.codegen.lowering import check_all_ways, graph_of, groups_of, recipes, run_native

LANES = host_spec().vector_bytes // 4
N = symbol("n", 1)
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def check(make: Any, variant: str, *shapes: tuple[int, ...], general: bool = False) -> None:
    """With these inputs x, y, ...; the rows of x and of what has as many are a symbol in the general form."""
    feeds = {name: normal(*shape) for name, shape in zip("xyz", shapes, strict=False)}
    rows = shapes[0][0]
    types = {n: TensorType(F32, tuple(N if general and d == rows else d for d in a.shape)) for n, a in feeds.items()}
    check_all_ways(make, types, feeds, {"n": rows} if general else {}, variant)


def program_of(make: Any, variant: str, *shapes: tuple[Any, ...], dtype: Any = F32) -> TileProgram:
    graph = graph_of(make, {name: TensorType(dtype, shape) for name, shape in zip("xyz", shapes, strict=False)})
    found = recipes(native_graph(graph, host_spec()), variant)
    return next(r.program for r in found if "pack" not in r.program.name)


def norm(b: Any, x: Any) -> Any:
    return b.add("exp", b.add("layer_norm", x, axis=-1, epsilon=1e-5))


def shifted(b: Any, x: Any, y: Any) -> Any:
    """Nothing is folded: a row of y for each row of x."""
    return b.add("tanh", b.add("add", x, y))


FOLDS = {
    "layer_norm": norm,
    "softmax": lambda b, x: b.add("neg", b.add("softmax", x, axis=-1)),
    "mean": lambda b, x: b.add("sub", x, b.add("reduce_mean", x, axes=(1,), keepdims=True)),
    "max": lambda b, x: b.add("reduce_max", b.add("exp", x), axes=(1,), keepdims=False),
    "argmax": lambda b, x: b.add("argmax", x, axis=1),
}


@pytest.mark.parametrize("width", [2, 3, 8, 10, 16, 31, 32])
@pytest.mark.parametrize("fold", FOLDS)
def test_vectors_across_rows(fold: str, width: int) -> None:
    check(FOLDS[fold], ACROSS, (3 * LANES + 5, width))


@pytest.mark.parametrize("rows", [1, 7, 33, 700])
def test_across_rows_that_are_counted_later(rows: int) -> None:
    check(norm, ACROSS, (rows, 10), general=True)


@pytest.mark.parametrize("other", [(10,), (700, 1), (1, 10)])
def test_across_rows_of_which_nothing_is_folded(other: tuple[int, ...]) -> None:
    check(shifted, ACROSS, (700, 10), other)


def test_across_rows_in_batches_that_lie_apart() -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("softmax", b.add("mul", x, y), axis=-1)

    check(make, ACROSS, (5, 37, 6), (5, 1, 6))


def test_across_blocks_have_whole_rows_as_columns() -> None:
    program = program_of(norm, ACROSS, (700, 10))
    assert {it.at.shape for it in walk(program.body) if isinstance(it, Load)} == {(10, LANES)}
    assert "across rows" in program.notes[0]


@pytest.mark.parametrize("width", [2, 10, 16, 31, 64, 101, 192])
@pytest.mark.parametrize("fold", FOLDS)
def test_rows_abreast(fold: str, width: int) -> None:
    check(FOLDS[fold], ABREAST, (23, width))  # some rows are left over


@pytest.mark.parametrize("rows", [1, 3, 4, 33])
def test_rows_abreast_that_are_counted_later(rows: int) -> None:
    check(norm, ABREAST, (rows, 40), general=True)


def test_rows_abreast_in_batches_that_lie_apart() -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.add("softmax", b.add("mul", b.add("transpose", x, perm=(1, 0, 2)), y), axis=-1)

    check(make, ABREAST, (13, 5, 40), (5, 1, 40))


@pytest.mark.parametrize(("vectors", "rows"), [(12, 4), (13, 2)])
def test_rows_abreast_are_rows_of_a_block_as_long_as_they_fit(vectors: int, rows: int) -> None:
    program = program_of(norm, ABREAST, (64, vectors * LANES))
    assert {it.at.shape for it in walk(program.body) if isinstance(it, Load)} == {(rows, vectors * LANES)}
    assert program.notes[0].startswith(f"{rows} rows abreast")


def test_rows_abreast_have_the_bits_of_rows_alone() -> None:
    """Where those are one block each, too."""
    width = 8 * LANES
    graph, feeds = graph_of(norm, {"x": TensorType(F32, (23, width))}), {"x": normal(23, width)}
    alone, abreast = (run_native(graph, feeds, variant=variant)[0] for variant in ("", ABREAST))
    assert np.array_equal(alone, abreast)


DOWN = {
    "max": lambda b, x: b.add("reduce_max", b.add("abs", x), axes=(0,), keepdims=True),
    "centred": lambda b, x: b.add("sub", x, b.add("reduce_mean", x, axes=(0,), keepdims=True)),
    "softmax": lambda b, x: b.add("softmax", x, axis=0),
    "cumsum": lambda b, x: b.add("cumsum", x, axis=0),
}


@pytest.mark.parametrize("columns", [32, 65, 393, 700])
@pytest.mark.parametrize("fold", DOWN)
def test_strips_of_columns(fold: str, columns: int) -> None:
    check(DOWN[fold], STRIPS, (23, columns))


def test_a_strip_is_a_task_and_finer_with_its_grain() -> None:
    def tasks(variant: str, grain: int = 0) -> Any:
        graph = native_graph(graph_of(DOWN["centred"], {"x": TensorType(F32, (68, 12 * LANES))}), host_spec())
        (group,) = groups_of(graph, variant)
        (recipe,) = lower(graph, graph.values, layouts(graph, graph.values), replace(group, grain=grain), host_spec())
        return [axis.count for axis in recipe.program.grid]

    assert tasks("") == []
    assert tasks(STRIPS) == [3]
    assert tasks(STRIPS, 1) == [6]
    assert tasks(STRIPS, 2) == [12]


def product(b: Any, x: Any, y: Any, z: Any) -> Any:
    return b.add("relu", b.add("add", b.add("matmul", x, y), z))


@pytest.mark.parametrize("rows", [3, 5, 7, 9, 11, 13, 17, 28, 63])
def test_tiles_of_equal_heights(rows: int) -> None:
    check(product, HEIGHTS, (rows, 70), (70, 101), (101,))


def test_few_rows_are_one_tile() -> None:
    program = program_of(product, HEIGHTS, (3, 70), (70, 96), (96,))
    known = types_of(program)
    assert {known[it.name][1][0] for it in walk(program.body) if isinstance(it, Dot)} == {3}
    plain = program_of(product, "", (3, 70), (70, 96), (96,))
    known = types_of(plain)
    assert {known[it.name][1][0] for it in walk(plain.body) if isinstance(it, Dot)} == {2, 1}


@pytest.mark.parametrize("rows", [70, 130])
def test_tasks_in_the_other_order(rows: int) -> None:
    check(product, SWEEP, (rows, 40), (40, 101), (101,))
    check(product, SWEEP, (rows, 40), (40, 101), (101,), general=True)


def test_the_other_order_is_another() -> None:
    shapes = (130, 40), (40, 192), (192,)
    plain, other = (program_of(product, variant, *shapes) for variant in ("", SWEEP))
    assert [axis.var for axis in plain.grid] == [axis.var for axis in other.grid][::-1]


@pytest.mark.parametrize(
    ("make", "shapes", "variant", "words"),
    [
        (product, ((LANES // 2, 70), (70, 96), (96,)), HEIGHTS, "equal heights"),
        (
            lambda b, x: b.add("softmax", b.add("transpose", x, perm=(1, 0, 2)), axis=-1),
            ((3, 64, 4),),
            ACROSS,
            "fill no vector",
        ),
        (  # rows lie down the columns, and vectors run along those
            lambda b, x: b.add("reduce_max", b.add("transpose", x, perm=(1, 0)), axes=(1,), keepdims=True),
            ((40, 64),),
            ABREAST,
            "not one block each",
        ),
        (  # of which rows are joined to long ones
            lambda b, x, y: b.add("exp", b.add("mul", b.add("add", x, y), y)),
            ((64, 40, 5), (40, 5)),
            ACROSS,
            "rows of 200 elements fill vectors",
        ),
    ],
)
def test_where_no_such_loops_can_be_made_the_group_serves_as_it_is(
    make: Any, shapes: tuple[tuple[int, ...], ...], variant: str, words: str
) -> None:
    graph = native_graph(
        graph_of(make, {name: TensorType(F32, shape) for name, shape in zip("xyz", shapes, strict=False)}), host_spec()
    )
    places, groups = layouts(graph, graph.values), groups_of(graph, variant)
    varied = next(group for group in groups if group.variant)
    with pytest.raises(TileError, match=words):
        lower(graph, graph.values, places, varied, host_spec())
    config = Config(cache="off")
    shop = Workshop(config)
    build = build_groups(Hoisted(graph), graph, groups, shop.spec, config, shop)
    assert not build.reasons
    assert {unit.nodes for unit in build.units} == {tuple(node.id for node in group.nodes) for group in groups}


def test_double_precision_goes_across_as_well() -> None:
    assert program_of(norm, ACROSS, (700, 10), dtype=F64).notes
