"""`hotfuse explain`: counts, costs and reasons agree with what the model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from hotfuse.cli import story as told
from hotfuse.cli.explain import explanation, layer_of
from hotfuse.cli.main import main
from hotfuse.fusion.engine import Engine
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime import planning


@pytest.fixture
def model(tmp_path: Path) -> str:
    """relu(x @ W) of [batch, 8] x [8, 4], then an operator that only onnx's evaluator knows."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="/encoder/layer.0/MatMul"),
        helper.make_node("Relu", ["h"], ["r"], name="/encoder/layer.0/Relu"),
        helper.make_node("Binarizer", ["r"], ["y"], name="/head/Binarizer", domain="ai.onnx.ml", threshold=0.5),
    ]
    graph = helper.make_graph(
        nodes,
        "explained",
        [info("x", TensorProto.FLOAT, ["batch", 8])],
        [info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "W")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "explained.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return str(path)


def explain(*arguments: str) -> dict:
    result = CliRunner().invoke(main, ["explain", *arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_operators_costs_and_layers(model: str) -> None:
    data = explain(model, "--dim", "batch=10")
    operators = {row["name"]: row for row in data["operators"]}
    assert {name: row["opaque"] for name, row in operators.items()} == {"matmul": False, "relu": False, "Binarizer": True}
    assert operators["matmul"]["flops"] == 2 * 10 * 8 * 4
    assert operators["matmul"]["bytes_moved"] == 4 * (10 * 8 + 8 * 4 + 10 * 4)
    assert data["constant_bytes"] == 8 * 4 * 4
    assert [row["name"] for row in data["layers"]] == ["encoder/layer.0", "head"]
    assert data["nodes"] == 3


def test_costs_are_symbolic_in_the_free_sizes(model: str) -> None:
    data = explain(model)
    assert "batch" in data["flops"]
    assert data["sizes"] == {"batch": 1}


def test_what_is_opaque_is_named_with_its_place_and_reason(model: str) -> None:
    (opaque,) = explain(model)["opaque"]
    assert opaque["operator"] == "Binarizer"
    assert "/head/Binarizer" in opaque["origin"]
    assert opaque["reason"]
    assert "Opaque nodes" in CliRunner().invoke(main, ["explain", model]).output


def test_an_unknown_size_is_refused(model: str) -> None:
    result = CliRunner().invoke(main, ["explain", model, "--dim", "height=1"])
    assert result.exit_code == 1
    assert "its free sizes are batch" in result.stderr


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("/encoder/layer.0/fc/MatMul", "encoder/layer.0"),
        ("model.layers.3.mlp", "model.layers"),
        ("conv", "(top)"),
        ("", "(top)"),
    ],
)
def test_layers_are_the_first_parts_of_a_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_an_opaque_operator_that_is_named_like_one_of_ours_is_told_apart() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 4))
    attrs = {"op_type": "relu", "reason": "its domain is not ours"}
    (y,) = builder.add_node("onnx_op", [x], attrs, outputs=1, types=[tensor(F32, 4)])
    found = explanation(builder.build([builder.add("tanh", y)]), {})
    assert {row["name"]: row["opaque"] for row in found["operators"]} == {"relu": True, "tanh": False}


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are there with the first call, and nobody waits for more."""
    monkeypatch.setenv("HOTFUSE_TIER", "1")
    monkeypatch.setenv("HOTFUSE_WAIT", "1")
    monkeypatch.setattr(told, "QUIET_S", 0.0)


@pytest.mark.usefixtures("native")
def test_stories_are_listed_and_told(model: str) -> None:
    listed = explain(model, "--dim", "batch=4", "--story")
    assert listed["settled"]
    fused = [s for s in listed["subgraphs"] if s["subgraph"]["kind"] == "fused"]
    (first,) = [s for s in fused if "relu" in s["subgraph"]["operators"]]
    assert [s["state"] for s in listed["subgraphs"] if s["subgraph"]["operators"] == ["Binarizer"]] == ["serves"]
    for id in (first["subgraph"]["id"][:6], first["subgraph"]["nodes"][-1]):
        (one,) = explain(model, "--story", id)["subgraphs"]
        assert one["subgraph"] == first["subgraph"]
        assert [c["kind"] for c in one["chapters"]] == ["native.made"]
        shown = CliRunner().invoke(main, ["explain", model, "--story", id]).output
        assert all(text in shown for text in ("made from", "object code", "native.made", "/encoder/layer.0/Relu"))


@pytest.mark.usefixtures("native")
def test_where_no_story_fits_all_are_listed(model: str) -> None:
    result = CliRunner().invoke(main, ["explain", model, "--story", "nothing"])
    assert result.exit_code == 1
    assert "there is no subgraph 'nothing'" in result.stderr
    assert "Binarizer" in result.stdout


@pytest.mark.usefixtures("native")
def test_an_exported_program_has_stories(tmp_path: Path) -> None:
    import torch

    path = str(tmp_path / "model.pt2")
    torch.export.save(
        torch.export.export(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), (torch.ones(2, 4),)), path
    )
    found = explain(path, "--story")["subgraphs"]
    assert [s["state"] for s in found if s["subgraph"]["kind"] == "fused"] == ["serves"]


def test_a_model_is_called_no_longer_than_allowed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "QUIET_S", 60.0)
    assert not explain(model, "--story", "--seconds", "0.1")["settled"]


@pytest.fixture
def with_shapes(tmp_path: Path) -> str:
    """relu((x @ (V @ V)) reshaped by its own shape), twice the same relu: of some nodes nothing is left in a call."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["V", "V"], ["W"], name="square"),
        helper.make_node("MatMul", ["x", "W"], ["h"], name="product"),
        helper.make_node("Shape", ["h"], ["s"], name="shape"),
        helper.make_node("Reshape", ["h", "s"], ["t"], name="reshape"),
        helper.make_node("Relu", ["t"], ["y"], name="rectified"),
        helper.make_node("Relu", ["t"], ["z"], name="again"),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [info("x", TensorProto.FLOAT, ["batch", 512])],
        [info(name, TensorProto.FLOAT, ["batch", 512]) for name in "yz"],
        [numpy_helper.from_array(np.ones((512, 512), np.float32), "V")],
    )
    path = tmp_path / "shapes.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return str(path)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("product", "rectified"), "the rules make one of them"),
        (("square", "rectified"), "computed once"),
        (("shape", "rectified"), "gone since the model was loaded"),
        (("rectified", "again"), "gone since the model was loaded"),
    ],
)
def test_any_two_nodes_of_a_file_have_an_answer(with_shapes: str, pair: tuple[str, str], said: str) -> None:
    assert said in " ".join(explain(with_shapes, "--why", *pair)["why"])


def test_kernels_for_some_sizes_are_another_plan(with_shapes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves all calls was planned for no size; what is made for a hot form, for its own."""
    planned: list[tuple[Any, ...]] = []

    def spy(graph: Graph, *rest: Any) -> Engine:
        planned.append(graph.type("x").shape)  # type: ignore[union-attr]
        return Engine(graph, *rest)

    monkeypatch.setattr(planning, "Engine", spy)
    explain(with_shapes, "--why", "product", "rectified")
    explain(with_shapes, "--dim", "batch=3", "--why", "product", "rectified")
    free, given = planned
    assert given == (3, 512)
    assert not isinstance(free[0], int)


def test_a_node_that_never_was_is_named(with_shapes: str) -> None:
    result = CliRunner().invoke(main, ["explain", with_shapes, "--why", "product", "nobody"])
    assert "there is no node 'nobody'" in result.output


def test_plans_of_rules_are_explained_as_such(with_shapes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_FUSION", "rules")
    lines = explain(with_shapes, "--why", "product", "rectified")["why"]
    assert "fusion is 'rules'" in lines[0]
    assert "make one of them" in lines[0]
    assert all(line.startswith("the engine would say") for line in lines[1:])
