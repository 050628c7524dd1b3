"""`hotfuse run` and the inputs it makes up."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import hotfuse
from hotfuse.cli.feeds import default_size, free_sizes, index_limit, make_feeds
from hotfuse.cli.main import main
from hotfuse.errors import InputError

VOCABULARY = 7


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any]) -> str:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return str(path)


@pytest.fixture
def scaling(tmp_path: Path) -> str:
    """y = 2 x over [batch, 3]."""
    info = helper.make_tensor_value_info
    return save(
        tmp_path / "scaling.onnx",
        [helper.make_node("Mul", ["x", "two"], ["y"], name="double")],
        [info("x", TensorProto.FLOAT, ["batch", 3])],
        [info("y", TensorProto.FLOAT, ["batch", 3])],
        {"two": np.float32(2)},
    )


@pytest.fixture
def embedding(tmp_path: Path) -> str:
    """Token ids through a cast into a table of 7 rows, times a mask."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["rows"], axis=0),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["y"]),
    ]
    return save(
        tmp_path / "embedding.onnx",
        nodes,
        [info("ids", TensorProto.INT32, ["batch", "seq"]), info("attention_mask", TensorProto.INT64, ["batch", "seq"])],
        [info("y", TensorProto.FLOAT, ["batch", "seq", 4])],
        {"table": np.ones((VOCABULARY, 4), np.float32), "last": np.array([-1])},
    )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_a_model_runs_on_random_inputs(scaling: str) -> None:
    result = invoke("run", scaling, "--dim", "batch=5", "--repeat", "3", "--profile")
    assert result.exit_code == 0, result.output
    assert "float32[5, 3]" in result.output
    assert "median of 3" in result.output
    assert "double Mul" in result.output
    assert "none opaque" in result.output


def test_a_given_input_gives_its_own_output(scaling: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3]], dtype=np.float32))
    result = invoke("run", scaling, "--input", f"x={tmp_path / 'x.npy'}", "--repeat", "1", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out.json").read_text())
    (y,) = data["outputs"]
    assert (y["name"], y["min"], y["max"], y["mean"]) == ("y", 2.0, 6.0, 4.0)
    assert data["calls"] == 1
    assert data["first_call_ms"] > 0
    assert data["median_ms"] <= data["p99_ms"]


def test_json_on_the_standard_output_is_alone_there(scaling: str) -> None:
    result = invoke("run", scaling, "--repeat", "1", "--json", "-")
    assert json.loads(result.stdout)["model"] == scaling
    assert "Timing" in result.stderr


def test_a_seed_gives_the_same_inputs_again(scaling: str) -> None:
    def outputs(seed: str) -> Any:
        return json.loads(invoke("run", scaling, "--repeat", "1", "--seed", seed, "--json", "-").stdout)["outputs"]

    assert outputs("1") == outputs("1") != outputs("2")


def test_ids_stay_inside_the_table_and_masks_are_ones(embedding: str) -> None:
    session = hotfuse.load(embedding)
    assert index_limit(session.graph, "ids") == VOCABULARY
    feeds = make_feeds(session.graph, session.inputs, given={}, shapes={}, dims={"batch": 50, "seq": 40}, seed=0)
    assert feeds["ids"].dtype == np.int32
    assert feeds["ids"].shape == (50, 40)
    assert set(feeds["ids"].reshape(-1).tolist()) == set(range(VOCABULARY))
    assert feeds["attention_mask"].all()
    assert invoke("run", embedding, "--repeat", "1").exit_code == 0


def test_a_given_shape_fixes_the_sizes_of_the_other_inputs(embedding: str) -> None:
    session = hotfuse.load(embedding)
    feeds = make_feeds(session.graph, session.inputs, given={}, shapes={"ids": (2, 9)}, dims={}, seed=0)
    assert feeds["attention_mask"].shape == (2, 9)


def test_free_sizes_have_defaults_by_name_and_place(embedding: str) -> None:
    assert free_sizes(hotfuse.load(embedding).inputs) == {"batch": 1, "seq": 16}
    assert [default_size("?", axis, 4) for axis in range(4)] == [1, 16, 224, 224]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--dim", "height=3"], "no free size 'height'; its free sizes are batch", 1),
        (["--shape", "z=1,3"], "no input 'z'; its inputs are x", 1),
        (["--shape", "x=1,4"], "must have shape", 1),
        (["--dim", "batch=two"], "a size is a whole number", 2),
        (["--dim", "batch"], "not of the form NAME=VALUE", 2),
        (["--repeat", "0"], "--repeat", 2),
        (["--input", "x=nowhere.npy"], "No such file", 1),
    ],
)
def test_wrong_options_are_refused_in_one_line(scaling: str, arguments: list[str], message: str, code: int) -> None:
    result = invoke("run", scaling, *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_an_array_that_needs_pickle_is_refused(scaling: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    result = invoke("run", scaling, "--input", f"x={tmp_path / 'x.npy'}")
    assert result.exit_code == 1
    assert "'x'" in result.stderr
    assert "numpy.save" in result.stderr


def test_an_input_of_free_rank_needs_a_shape(tmp_path: Path) -> None:
    x = onnx.ValueInfoProto(name="x")
    x.type.tensor_type.elem_type = TensorProto.FLOAT
    path = save(tmp_path / "free.onnx", [helper.make_node("Relu", ["x"], ["y"])], [x], [onnx.ValueInfoProto(name="y")], {})
    session = hotfuse.load(path)
    with pytest.raises(InputError, match="--shape x="):
        make_feeds(session.graph, session.inputs, given={}, shapes={}, dims={}, seed=0)
    assert invoke("run", path, "--shape", "x=2,2", "--repeat", "1").exit_code == 0


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08"])
def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    result = invoke("run", str(path))
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "defect" not in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_debug_shows_the_traceback(scaling: str) -> None:
    result = invoke("--debug", "run", scaling, "--shape", "z=1")
    assert isinstance(result.exception, InputError)


def test_a_missing_file_is_one_clear_line() -> None:
    result = invoke("run", "nowhere.onnx")
    assert result.exit_code == 1
    assert "nowhere.onnx" in result.stderr


def test_an_exported_program_runs(tmp_path: Path) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(module, (torch.ones(3, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "net.pt2")
    x = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    np.save(tmp_path / "x.npy", x)
    (name,) = [s.name for s in hotfuse.load(tmp_path / "net.pt2").inputs]
    arguments = ["--input", f"{name}={tmp_path / 'x.npy'}", "--repeat", "1", "--profile", "--json", "-"]
    result = invoke("run", str(tmp_path / "net.pt2"), *arguments)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    (y,) = data["outputs"]
    with torch.no_grad():
        expected = module(torch.from_numpy(x))
    assert y["type"] == "float32[5, 2]"
    assert y["max"] == pytest.approx(float(expected.max()), rel=1e-5)
    assert "gelu" in {step["op"] for step in data["profile"]}
    assert invoke("explain", str(tmp_path / "net.pt2")).exit_code == 0


@pytest.mark.parametrize("command", ["run", "explain"])
def test_torch_does_not_warn_about_itself(command: str, tmp_path: Path) -> None:
    import torch

    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), tmp_path / "net.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        result = invoke(command, str(tmp_path / "net.pt2"))
    assert result.exit_code == 0, result.output
