"""Why two nodes are one kernel or are not: an answer for any two."""

from __future__ import annotations

import pytest

from hotfuse.errors import InputError
from hotfuse.fusion.engine import Engine, Planner
from hotfuse.fusion.why import Why, find_node, why
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import EDITS
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import Case, case, rows, weight
from tests.hardware.test_model import RATES


def model(b: GraphBuilder) -> list[Value]:
    x = rows(b, 4096, 256)
    hidden = b.add("relu", b.add("matmul", x, weight(b, 256, 256)))
    top = b.add("reduce_max", hidden, axes=(1,), keepdims=True)
    turned = b.add("transpose", hidden, perm=(1, 0))
    both = b.add("abs", rows(b, 65536, 256, name="z"))
    folded = [b.add(op, both, axes=(1,), keepdims=False) for op in ("reduce_min", "reduce_sum")]
    return [b.add("sub", hidden, top), b.add("neg", turned), b.add("lgamma", x), *folded]


FOUND: Case = case(model)


def asked(first: str, second: str) -> Why:
    engine = Engine(FOUND.graph, FOUND.graph.values, FOUND.layouts, Planner(Model(RATES, 2), host_spec(), {}))
    planned = engine.run()
    return why(engine, planned, find_node(FOUND.graph, first), find_node(FOUND.graph, second))


def test_what_the_rules_fused() -> None:
    found = asked("matmul_0", "relu_0")  # a product has another name in native form
    assert found.together
    assert "the rules" in found.lines[0]


def test_what_the_engine_fused_has_its_scores() -> None:
    found = asked("reduce_min_0", "reduce_sum_0")
    assert found.together
    assert any(edit in found.lines[-1] for edit in EDITS)
    assert "locality" in found.lines[-1]


def test_what_is_refused_has_its_reasons() -> None:
    found = asked("relu_0", "neg_0")
    assert not found.together
    assert any("not legal" in line for line in found.lines)


def test_views_and_what_has_no_native_code() -> None:
    assert "a view" in asked("transpose_0", "neg_0").lines[0]
    assert "no native code" in asked("lgamma_0", "neg_0").lines[0]


def test_every_two_nodes_have_an_answer() -> None:
    for first in FOUND.graph.nodes:
        for second in FOUND.graph.nodes:
            assert asked(first.id, second.id).lines


def test_nobody_there() -> None:
    with pytest.raises(InputError, match="no node 'nobody'"):
        asked("nobody", "relu_0")
