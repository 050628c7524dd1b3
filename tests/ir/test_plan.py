"""Plans: edits keep every rule, or are refused with the rule that forbids them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.config import Config
from hotfuse.errors import IllegalEdit
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.device import place
from hotfuse.ir.graph import Graph
from hotfuse.ir.group import Group
from hotfuse.ir.plan import Plan, check_plan, fuse, reorder, split, trivial_plan
from hotfuse.ir.text import parse_plan, print_plan
from hotfuse.ir.types import F32, tensor
from hotfuse.ir.verify import verify_plan
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY


def diamond() -> Plan:
    """a -> b -> d and a -> c -> d."""
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 8))
    (a,) = builder.add_node("exp", [x], names=["a"])
    (b,) = builder.add_node("neg", [a], names=["b"])
    (c,) = builder.add_node("abs", [a], names=["c"])
    (d,) = builder.add_node("add", [b, c], names=["d"])
    return trivial_plan(builder.build([d]))


def ids(plan: Plan) -> list[tuple[str, ...]]:
    return [g.nodes for g in plan.groups]


def test_fuse_moves_dependents_behind() -> None:
    plan = fuse(diamond(), ["a", "c"], "same data")
    assert ids(plan) == [("a", "c"), ("b",), ("d",)]
    check_plan(plan)
    assert plan.groups[0].lineage == ("a", "c")
    assert plan.history[-1].reason == "same data"
    assert [e.kind for e in plan.story(plan.groups[0].id)] == ["fuse"]


def test_fuse_refuses_a_cycle() -> None:
    with pytest.raises(IllegalEdit, match="makes a cycle: 'b' needs one of them and feeds 'd'"):
        fuse(diamond(), ["a", "d"])


def test_fuse_refuses_one_group_and_unknown_groups() -> None:
    with pytest.raises(IllegalEdit, match="at least two"):
        fuse(diamond(), ["a", "a"])
    with pytest.raises(IllegalEdit, match="no group 'z'"):
        fuse(diamond(), ["a", "z"])


def test_a_refused_edit_changes_nothing() -> None:
    plan = diamond()
    before = ids(plan)
    with pytest.raises(IllegalEdit):
        fuse(plan, ["a", "d"])
    assert ids(plan) == before
    assert plan.history == ()


def test_split_undoes_fuse() -> None:
    whole = fuse(fuse(diamond(), ["a", "b"]), ["c", "d"])
    plan = split(whole, whole.groups[0].id, [["a"], ["b"]])
    check_plan(plan)
    assert ids(plan) == [("a",), ("b",), ("c", "d")]
    assert [e.kind for e in plan.story("b")] == ["fuse", "split"]


def test_split_refusals() -> None:
    plan = fuse(diamond(), ["a", "b"])
    id = plan.groups[0].id
    with pytest.raises(IllegalEdit, match="at least two parts"):
        split(plan, id, [["a", "b"]])
    with pytest.raises(IllegalEdit, match="exactly once"):
        split(plan, id, [["a"], ["a", "b"]])
    with pytest.raises(IllegalEdit, match="is empty"):
        split(plan, id, [["a", "b"], []])
    with pytest.raises(IllegalEdit, match="comes after it"):
        split(plan, id, [["b"], ["a"]])


def test_reorder() -> None:
    plan = reorder(diamond(), "c", 1)
    assert ids(plan) == [("a",), ("c",), ("b",), ("d",)]
    check_plan(plan)
    with pytest.raises(IllegalEdit, match="cannot go behind 'd'"):
        reorder(plan, "b", 3)
    with pytest.raises(IllegalEdit, match="cannot go before 'a'"):
        reorder(plan, "b", 0)
    with pytest.raises(IllegalEdit, match="outside the plan"):
        reorder(plan, "b", 9)


def test_check_plan_refusals() -> None:
    plan = diamond()
    a, b, c, d = plan.groups
    for groups, message in (
        ((a, b, c), "'d' is in no group"),
        ((a, b, c, d, Group("e", ("a",))), "in two groups"),
        ((a, b, c, d, Group("e", ())), "has no nodes"),
        ((a, b, c, Group("d", ("zzz",))), "no node of the graph"),
        ((b, a, c, d), "before group 'a' computes it"),
        ((Group("ab", ("b", "a")), c, d), "comes before 'a'"),
        ((a, b, c, replace(d, device="sim:0")), "runs on cpu"),
        ((a, b, replace(c, id="b"), d), "one id"),
    ):
        with pytest.raises(IllegalEdit, match=message):
            check_plan(Plan(plan.graph, groups))


def two_devices() -> Graph:
    return place(diamond().graph, lambda node: "sim:0" if node.op in ("neg", "add") else "cpu")


def test_a_plan_over_two_devices_verifies_runs_and_round_trips() -> None:
    plan = verify_plan(trivial_plan(two_devices()))
    moves = [n for n in plan.graph.nodes if n.op == "transfer"]
    assert len(moves) == 3  # a and c to the device, d back
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    expected = Executor(diamond(), NUMPY, Config()).run([x])
    np.testing.assert_array_equal(Executor(plan, NUMPY, Config()).run([x]), expected)
    text = print_plan(plan)
    back = verify_plan(parse_plan(text))
    assert print_plan(back) == text
    np.testing.assert_array_equal(Executor(back, NUMPY, Config()).run([x]), expected)


def test_groups_stay_on_one_device_and_transfers_alone() -> None:
    plan = trivial_plan(two_devices())
    with pytest.raises(IllegalEdit, match="different devices"):
        fuse(plan, ["a", "b"])
    with pytest.raises(IllegalEdit, match="moves data between devices"):
        fuse(plan, ["a@sim:0", "b"])


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    builder = GraphBuilder()
    values = [builder.input("x", tensor(F32, 4))]
    for _ in range(draw(st.integers(2, 12))):
        picks = [draw(st.sampled_from(values)) for _ in range(2)]
        values.append(builder.add("add", *picks))
    return trivial_plan(builder.build(values[-1:]))


@settings(max_examples=150, deadline=None)
@given(random_plans(), st.data())
def test_any_accepted_edit_keeps_the_rules_and_the_result(plan: Plan, data: st.DataObject) -> None:
    x = np.arange(4, dtype=np.float32)
    expected = Executor(plan, NUMPY, Config()).run([x])
    for _ in range(6):
        group = data.draw(st.sampled_from(plan.groups))
        other = data.draw(st.sampled_from(plan.groups))
        try:
            match data.draw(st.sampled_from(["fuse", "split", "reorder"])):
                case "fuse":
                    plan = fuse(plan, [group.id, other.id])
                case "split":
                    cut = data.draw(st.integers(0, len(group.nodes)))
                    plan = split(plan, group.id, [group.nodes[:cut], group.nodes[cut:]])
                case _:
                    plan = reorder(plan, group.id, data.draw(st.integers(0, len(plan.groups) - 1)))
        except IllegalEdit:
            continue
        check_plan(plan)
    np.testing.assert_array_equal(Executor(plan, NUMPY, Config()).run([x]), expected)
