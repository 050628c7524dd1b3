"""Groups that are edited: merged against the rules, or taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotfuse.codegen.native_form import native_graph
from hotfuse.errors import IllegalEdit
from hotfuse.fusion.engine import Planner, Revision
from hotfuse.fusion.grouping import AS_PLANNED, Grouping, _parts, joints, make_plan, name_of
from hotfuse.fusion.rules import Fused
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, tensor
from tests.fusion.graphs import case
from tests.fusion.test_engine import MODEL, SPEC, Biased, two_readers

N = symbol("n", 1)
SMALL, LARGE = 1 << 10, 1 << 30


def feed_forward() -> Graph:
    b = GraphBuilder()
    x, w, v = (b.input(name, tensor(F32, *shape)) for name, shape in (("x", (N, 64)), ("w", (64, 64)), ("v", (64, 64))))
    y = b.add("softmax", b.add("matmul", b.add("relu", b.add("matmul", x, w)), v), axis=-1)
    return native_graph(b.build([y]), host_spec())


def groups(graph: Graph, cache_bytes: int, grouping: Grouping = AS_PLANNED) -> list[Fused]:
    found = list(make_plan(graph, graph.values, layouts(graph, graph.values), cache_bytes, grouping).groups)
    return [group for group in found if group.kind != "pack"]


def test_groups_are_merged_however_large_their_weights() -> None:
    graph = feed_forward()
    plain = groups(graph, SMALL)
    assert [g.kind for g in plain] == ["product", "product", "rows"]
    first, second, _ = map(name_of, plain)
    assert [g.kind for g in groups(graph, SMALL, Grouping(merged=((first, second),)))] == ["chain", "rows"]
    (whole,) = groups(graph, SMALL, Grouping(merged=(tuple(map(name_of, plain)),)))
    assert len(whole.links) == 3


def test_a_chain_is_taken_apart_into_its_links_and_a_group_around_its_anchor() -> None:
    graph = feed_forward()
    (chain,) = groups(graph, LARGE)
    apart = groups(graph, LARGE, Grouping(apart=(name_of(chain),)))
    assert [g.kind for g in apart] == ["product", "product", "rows"]
    first = name_of(groups(graph, SMALL)[0])  # a product, and the elementwise node after it
    assert [[n.op for n in g.nodes] for g in groups(graph, SMALL, Grouping(apart=(first,)))[:2]] == [["panel_matmul"], ["relu"]]


def test_what_goes_in_other_loops_is_taken_apart_as_what_it_was() -> None:
    graph = feed_forward()
    first = groups(graph, SMALL)[0]
    varied = replace(first, variant="sweep", parts=(first,))
    found = _parts(varied, graph, graph.values, layouts(graph, graph.values))
    assert [[n.op for n in g.nodes] for g in found] == [["panel_matmul"], ["relu"]]


def test_joints_are_where_merging_is_legal() -> None:
    graph = feed_forward()
    places = layouts(graph, graph.values)
    plain = make_plan(graph, graph.values, places, SMALL).groups
    found = joints(plain, graph, graph.values, places)
    names = [name_of(g) for g in plain if g.kind != "pack"]
    assert [j.groups for j in found] == [(names[0], names[1]), (names[1], names[2])]
    assert found[0].bytes == N * 64 * 4
    assert found[0].weights == 2 * 64 * 64 * 4
    for joint in found:
        make_plan(graph, graph.values, places, SMALL, Grouping(merged=(joint.groups,)))


@pytest.mark.parametrize("far", [False, True])
def test_what_cannot_be_had_is_refused(far: bool) -> None:
    graph = feed_forward()
    names = list(map(name_of, groups(graph, SMALL)))
    if far:
        with pytest.raises(IllegalEdit, match=r"does not read the other.s last result"):
            groups(graph, SMALL, Grouping(merged=((names[0], names[2]),)))
    with pytest.raises(IllegalEdit, match="no group nobody"):
        groups(graph, SMALL, Grouping(apart=("nobody",)))
    with pytest.raises(IllegalEdit, match="has no parts"):
        groups(graph, SMALL, Grouping(apart=(names[2],)))


class Torn(Biased):
    """Nobody can be sure of any edit that fuses."""

    said = (0.1, 1.5)


def test_what_the_engine_is_unsure_of_is_made_where_that_is_asked() -> None:
    graph = case(two_readers).graph
    places, planner = layouts(graph, graph.values), Planner(Torn(MODEL.rates, 2), SPEC, {})
    plain = make_plan(graph, graph.values, places, SMALL, AS_PLANNED, planner)
    assert [len(group.nodes) for group in plain.groups] == [1, 1, 1]
    assert plain.unsure
    gains = [step.gain_s + step.spread_s for step in plain.unsure]
    assert gains == sorted(gains, reverse=True)
    assert len({step.revision for step in plain.unsure}) == len(plain.unsure)
    for step in plain.unsure:
        found = make_plan(graph, graph.values, places, SMALL, Grouping(revised=(step.revision,)), planner)
        made = found.steps[-1]
        assert (made.revision, made.digest) == (step.revision, step.digest)
        assert {n.id for g in found.groups for n in g.nodes} == {n.id for g in plain.groups for n in g.nodes}
        before, after = (set(p.groups) for p in (plain, found))
        assert {name_of(g) for g in before - after} == set(step.groups)
        assert {name_of(g) for g in after - before} == set(made.made)
        assert not found.unsure


@pytest.mark.parametrize(
    "revision",
    [Revision("registers", ("nobody", "nothing")), Revision("tiles", ("neg_0",)), Revision("registers", ("neg_0",), 3)],
)
def test_edits_that_there_are_not_are_refused(revision: Revision) -> None:
    graph = case(two_readers).graph
    places, planner = layouts(graph, graph.values), Planner(Torn(MODEL.rates, 2), SPEC, {})
    with pytest.raises(IllegalEdit, match="no edit of this plan"):
        make_plan(graph, graph.values, places, SMALL, Grouping(revised=(revision,)), planner)


def test_rules_have_nothing_to_revise() -> None:
    graph = case(two_readers).graph
    with pytest.raises(IllegalEdit, match="never unsure"):
        make_plan(graph, graph.values, layouts(graph, graph.values), SMALL, Grouping(revised=(Revision("grain", ("x",)),)))


def test_layers_alike_are_one_edit_to_the_policy() -> None:
    """By what is done and not by the names of what it is done to; other sizes are another edit."""

    def twice(b: GraphBuilder) -> list[Value]:
        found = []
        for rows, name in ((4096, "x"), (4096, "y"), (2048, "z")):
            y = b.add("neg", b.input(name, tensor(F32, rows, 256)))
            found += [b.add("reduce_max", y, axes=(1,), keepdims=False), b.add("reduce_sum", y, axes=(1,), keepdims=True)]
        return found

    graph = case(twice).graph
    planned = make_plan(
        graph, graph.values, layouts(graph, graph.values), SMALL, AS_PLANNED, Planner(Torn(MODEL.rates, 2), SPEC, {})
    )
    siblings = [step.digest for step in planned.unsure if step.strategy == "siblings"]
    assert len(siblings) == 3
    assert len(set(siblings)) == 2
