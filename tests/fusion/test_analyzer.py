"""The analyzer: arithmetic and bytes counted by hand, and from how far bytes come in a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotfuse.fusion.analyzer import Analyzer, analyse, numbers
from hotfuse.fusion.arithmetic import steps_of
from hotfuse.fusion.candidates import find
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.fusion.whereabouts import located
from hotfuse.hardware.pairs import STRIPS
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.work import GATHERED, STRIDED, Touch, Work
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, I64, TensorType
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.specimens import specimen
from tests.fusion.graphs import Case

F = 4


def rows(builder: GraphBuilder, *shape: object, name: str = "x") -> Value:
    return builder.input(name, TensorType(F32, shape))  # type: ignore[arg-type]


def works(graph: Graph, **sizes: int) -> list[Work]:
    places = layouts(graph, graph.values)
    return analyse(fuse(graph, graph.values, places), graph, graph.values, places, sizes)


def test_an_elementwise_chain_moves_what_goes_in_and_comes_out() -> None:
    b = GraphBuilder()
    x, y = rows(b, 100, 50), rows(b, 50, name="y")
    graph = b.build([b.add("tanh", b.add("add", x, y))])
    (work,) = works(graph)
    assert (work.kind, work.points, work.inner, work.row) == ("rows", 5000, 50, 1)
    assert work.read == (5000 + 50) * F
    assert work.written == 5000 * F
    assert work.steps == 5000 * (steps_of("add") + steps_of("tanh"))
    assert work.products == 0
    assert work.intensity == pytest.approx(work.steps / work.moved)


@pytest.mark.parametrize(("shape", "times"), [((30, 1), 30), ((1, 70), 30 * 70), ((), 30)])
def test_what_a_row_has_one_of_is_computed_once_for_each_row(shape: tuple[int, ...], times: int) -> None:
    b = GraphBuilder()
    graph = b.build([b.add("mul", b.add("tanh", rows(b, *shape)), rows(b, 30, 70, name="y"))])
    values = graph.values
    group = Fused("rows", graph.nodes, (30, 70))
    (work,) = analyse([group], graph, values, layouts(graph, values), {})
    (use,) = (use for use in work.uses if use.op == "tanh")
    assert (use.elements, use.is_single) == (times, times == 30)


def test_functions_are_worth_more_than_sums() -> None:
    assert steps_of("add") == 1
    assert steps_of("tanh") > steps_of("exp") > steps_of("div") > steps_of("add")


def test_sizes_of_symbols_are_put_in() -> None:
    b = GraphBuilder()
    graph = b.build([b.add("relu", rows(b, symbol("n"), 8))])
    assert works(graph, n=12)[0].points == 96
    assert works(graph)[0].points == numbers({})(symbol("n")) * 8


def test_a_row_is_what_is_folded() -> None:
    b = GraphBuilder()
    graph = b.build([b.add("softmax", rows(b, 30, 70), axis=-1)])
    (work,) = works(graph)
    assert (work.row, work.points) == (70, 2100)


def test_a_lookup_reads_what_comes_out_and_not_its_table() -> None:
    b = GraphBuilder()
    table = b.constant(np.zeros((1000, 16), np.float32), "table")
    places = b.input("i", TensorType(I64, (10,)))
    graph = b.build([b.add("gather", table, places, axis=0)])
    (work,) = works(graph)
    found = {touch.name: touch for touch in work.reads}
    assert (found["table"].bytes, found["table"].access, found["table"].is_weight) == (160 * F, GATHERED, True)
    assert found["i"].bytes == 80


def test_a_transposed_operand_is_strided() -> None:
    b = GraphBuilder()
    graph = b.build([b.add("relu", b.add("transpose", rows(b, 20, 30), perm=(1, 0)))])
    (work,) = works(graph)
    assert work.reads[0].access == STRIDED
    assert work.reads[0].name == "x"


def test_attention_and_products_multiply() -> None:
    b = GraphBuilder()
    q, k, v = (rows(b, 2, 3, 10, 16, name=n) for n in "qkv")
    graph = b.build([b.add("attention", q, k, v, scale=1.0)])
    (work,) = works(graph)
    assert work.products == 2 * 2 * 3 * 10 * 10 * 16
    assert work.steps >= 2 * 3 * 10 * 10


def test_from_how_far_bytes_come() -> None:
    def piece(reads: dict[str, int], writes: dict[str, int]) -> Work:
        touched = [tuple(Touch(name, float(size), 0.0) for name, size in part.items()) for part in (reads, writes)]
        return Work("rows", 1.0, 1.0, 1.0, 0.0, 0.0, *touched, 1.0)  # type: ignore[arg-type]

    plan = [piece({"x": 10, "w": 100}, {"a": 10}), piece({"a": 10}, {"y": 10})]
    first, second = located(plan, {"a": 10.0}, {"x", "w", "y"})
    by_name = {t.name: t.distance for work in (first, second) for t in work.reads}
    assert by_name["a"] == 10  # just written
    assert by_name["w"] == pytest.approx(20 + 100)  # one call ago: all that the second piece moved, and itself
    assert by_name["x"] == pytest.approx(20 + 10)
    assert {t.name: t.distance for t in second.writes} == {"y": pytest.approx(120 + 10)}


def test_work_of_a_group_wherever_it_runs() -> None:
    b = GraphBuilder()
    x = rows(b, 4, 8)
    y = b.add("relu", x)
    graph = b.build([b.add("neg", y), y])
    places = layouts(graph, graph.values)
    group = Fused("rows", graph.nodes, (4, 8))
    work = Analyzer(graph, graph.values, places, {}).work(group)
    assert {touch.name for touch in work.writes} == set(graph.outputs)  # both are wanted outside


@pytest.mark.parametrize(
    ("shape", "variant", "grain", "tasks"),
    [
        ((1483, 419), "", 0, 1),  # one block of columns
        ((1483, 419), "", 2, 1),
        ((1483, 5000), "", 0, 2),
        ((1483, 419), STRIPS, 0, 7),
        ((1483, 419), STRIPS, 1, 14),
        ((8, 1483, 419), "", 0, 8),
    ],
)
def test_what_folds_columns_has_few_tasks(shape: tuple[int, ...], variant: str, grain: int, tasks: int) -> None:
    b = GraphBuilder()
    axis = len(shape) - 2
    graph = b.build([b.add("reduce_max", rows(b, *shape), axes=(axis,), keepdims=True)])
    group = Fused("rows", graph.nodes, shape, (axis,), grain=grain, variant=variant)
    assert Analyzer(graph, graph.values, layouts(graph, graph.values), {}).work(group).tasks == tasks


@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_of_groups_is_what_would_be_counted(seed: int) -> None:
    graph = hoist(native_form(skeleton(specimen(8000 + seed, blocks=12).graph), host_spec()), ()).main
    found = Case(graph, layouts(graph, graph.values))
    draft = Draft(graph, found.layouts, found.groups(1 << 20))
    groups = [*draft.groups, *(made for candidate in find(draft, found.legality, draft) for made in candidate.made)]
    assert len(groups) > len(draft.groups)
    analyzer = Analyzer(graph, graph.values, found.layouts, {})
    works = [analyzer.work(group) for group in groups]
    for group, work in zip(groups, works, strict=True):
        assert analyzer.work(group) == work == Analyzer(graph, graph.values, found.layouts, {}).work(group)


def test_finer_tasks_and_other_cuts_are_the_same_work() -> None:
    b = GraphBuilder()
    graph = b.build([b.add("reduce_max", rows(b, 1483, 419), axes=(0,), keepdims=True)])
    group = Fused("rows", graph.nodes, (1483, 419), (0,))
    analyzer = Analyzer(graph, graph.values, layouts(graph, graph.values), {})
    whole, strips = analyzer.work(group), analyzer.work(replace(group, variant=STRIPS, grain=1))
    assert strips.uses is whole.uses  # nobody counted them again
    assert strips == replace(whole, tasks=strips.tasks, lanes=strips.lanes, cut=strips.cut)
    assert strips.tasks > whole.tasks
