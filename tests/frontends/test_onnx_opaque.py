"""Nodes that onnx's evaluator runs: what is known of their results, so that everything after them stays ours, and what happens
where that knowledge is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import hotfuse
from hotfuse.errors import ExecutionError
from hotfuse.ir.types import ANY, F32, TensorType

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Declared = tuple[int, Sequence[int | str] | None]
NORMALIZER = helper.make_node("Normalizer", ["x"], ["a"], domain="ai.onnx.ml", norm="MAX")
# No rule tells this result's type: in ai.onnx.ml 3 it may be of three, and onnx's inference refuses a float64 input.
ENCODER = helper.make_node("LabelEncoder", ["x"], ["a"], domain="ai.onnx.ml", keys_int64s=[1, 2], values_floats=[3.0, 4.0])


def chain(first: onnx.NodeProto, x: np.ndarray[Any, Any], declared: Declared | None = None) -> onnx.ModelProto:
    """x -> first -> a -> Neg -> Exp -> y, with a declaration of `a`."""
    nodes = [first, helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Exp", ["b"], ["y"])]
    infos = [] if declared is None else [helper.make_tensor_value_info("a", *declared)]
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph(nodes, "chain", [given], [onnx.ValueInfoProto(name="y")], value_info=infos)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    "declared", [None, (TensorProto.FLOAT, [2, 3]), (TensorProto.FLOAT, ["n", 9]), (TensorProto.FLOAT, None)]
)
def test_what_follows_an_opaque_node_is_ours(declared: Declared | None) -> None:
    model = chain(NORMALIZER, X, declared)
    session = hotfuse.load(model)
    assert [(op, reason) for _, op, reason in session.opaque] == [("Normalizer", "no operator here corresponds to it")]
    assert [n.op for n in session.graph.nodes] == ["onnx_op", "neg", "exp"]
    (found,) = session.run(None, {"x": X})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": X})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_declaration_tells_the_rank_but_no_sizes() -> None:
    graph = hotfuse.load(chain(NORMALIZER, X, (TensorProto.FLOAT, [2, 3]))).graph
    type = graph.values[graph.nodes[0].id].type
    assert isinstance(type, TensorType)
    assert type.dtype is F32
    assert type.rank == 2
    assert not any(isinstance(d, int) for d in type.shape or ())


def test_a_type_parameter_is_that_of_the_input() -> None:
    imputer = helper.make_node(
        "Imputer", ["x"], ["a"], domain="ai.onnx.ml", imputed_value_floats=[9.0], replaced_value_float=2.0
    )
    graph = hotfuse.load(chain(imputer, X)).graph
    assert graph.values[graph.nodes[0].id].type == TensorType(F32, None)


def test_without_any_type_the_reason_is_the_true_one() -> None:
    session = hotfuse.load(chain(ENCODER, X.astype(np.float64)))
    assert session.graph.values[session.graph.nodes[0].id].type is ANY
    reasons = {op: reason for _, op, reason in session.opaque}
    assert "type of an input is not known" in reasons["Neg"]
    (found,) = session.run(None, {"x": X.astype(np.float64)})
    assert found.dtype == np.float32


def test_only_the_declaration_tells_the_type() -> None:
    x = X.astype(np.float64)
    model = chain(ENCODER, x, (TensorProto.FLOAT, ["n", "m"]))
    session = hotfuse.load(model)
    assert [op for _, op, _ in session.opaque] == ["LabelEncoder"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize("wrong", [(TensorProto.DOUBLE, [2, 3]), (TensorProto.FLOAT, [2]), (TensorProto.FLOAT, [2, 3, 1])])
def test_a_wrong_declaration_is_refused_when_it_shows(wrong: Declared) -> None:
    x = X.astype(np.float64)
    session = hotfuse.load(chain(ENCODER, x, wrong))
    with pytest.raises(ExecutionError, match=r"LabelEncoder.*value_info"):
        session.run(None, {"x": x})


def test_a_wrong_rank_of_a_ruled_type_is_refused() -> None:
    session = hotfuse.load(chain(NORMALIZER, X, (TensorProto.FLOAT, [6])))
    with pytest.raises(ExecutionError, match=r"Normalizer.*value_info"):
        session.run(None, {"x": X})


SCALER = helper.make_node("Scaler", ["x"], ["a"], domain="ai.onnx.ml", offset=[0.5, 0.5, 0.5], scale=[0.5, 0.5, 0.5])


def test_float64_that_onnx_says_is_float32_is_rounded() -> None:
    (found,) = hotfuse.load(chain(SCALER, X.astype(np.float64))).run(None, {"x": X.astype(np.float64)})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.exp(-(X - 0.5) * 0.5), rtol=1e-6)


def test_an_evaluator_that_breaks_onnx_rules_is_refused() -> None:
    """It computes this in integers, where onnx says float32: 0.5 would be taken for 0."""
    with pytest.raises(ExecutionError, match=r"int64.*cast the inputs to float32"):
        hotfuse.load(chain(SCALER, X.astype(np.int64))).run(None, {"x": X.astype(np.int64)})


def test_declarations_of_a_nested_graph_are_its_own() -> None:
    inner = [ENCODER, helper.make_node("Neg", ["a"], ["b"])]
    info = [helper.make_tensor_value_info("a", TensorProto.FLOAT, [None, None])]
    branch = helper.make_graph(inner, "branch", [], [onnx.ValueInfoProto(name="b")], value_info=info)
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    x = X.astype(np.float64)
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2, 3]),
    ]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    session = hotfuse.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert {op for _, op, _ in session.opaque} == {"LabelEncoder"}
    (found,) = session.run(None, {"c": np.array(True), "x": x})
    np.testing.assert_array_equal(found, -np.select([x == 1, x == 2], [3.0, 4.0], 0.0).astype(np.float32))
