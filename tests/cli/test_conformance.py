"""`hotfuse conformance`: every test is counted once, whatever becomes of it; the core is what its definition says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from hotfuse.cli.conformance import summarize
from hotfuse.cli.main import main
from hotfuse.cli.onnx_suite import is_core
from hotfuse.cli.suite_pool import Job, run_pool
from hotfuse.errors import HotfuseError

TOY = (sys.executable, str(Path(__file__).parent / "toy_suite.py"))


@pytest.fixture(scope="module")
def toy() -> dict[str, dict]:
    job = Job("toy", workers=2, limit_s=1.5, command=TOY)
    listed, *outcomes = run_pool(job, lambda name, core: True)
    assert len(listed["tests"]) == len(outcomes) == 10
    return {o["name"]: o for o in outcomes}


def test_every_test_is_counted_once(toy: dict[str, dict]) -> None:
    assert sorted(toy) == ["bad", "crash", "exit", "good", "hang", "loud", "more_0", "more_1", "more_2", "more_3"]
    assert {name for name, o in toy.items() if o["passed"]} == {"good", "loud", "more_0", "more_1", "more_2", "more_3"}


def test_a_crash_a_hang_and_an_exit_are_failures_of_their_test(toy: dict[str, dict]) -> None:
    assert "SIGSEGV" in toy["crash"]["reason"]
    assert "more than 1.5 s" in toy["hang"]["reason"]
    assert "ended with code 3" in toy["exit"]["reason"]
    assert "the last words" in toy["exit"]["reason"]
    assert toy["bad"]["reason"] == "wrong"


def test_the_summary_counts_everything(toy: dict[str, dict]) -> None:
    found = summarize(list(toy.values()))
    assert (found["tests"], found["passed"], found["core_tests"], found["core_passed"], found["crashed"]) == (10, 6, 4, 4, 3)


def test_only_wanted_tests_run() -> None:
    listed, *outcomes = run_pool(Job("toy", command=TOY), lambda name, core: core)
    assert set(listed["tests"]) == {o["name"] for o in outcomes} == {f"more_{i}" for i in range(4)}


def test_a_suite_that_cannot_start_is_an_error() -> None:
    with pytest.raises(HotfuseError, match="could not be started"):
        list(run_pool(Job("toy", command=(sys.executable, "-c", "raise SystemExit('no such suite')")), lambda name, core: True))


def model(*nodes: onnx.NodeProto, dtype: int = TensorProto.FLOAT, out: onnx.TypeProto | None = None) -> onnx.ModelProto:
    result = onnx.ValueInfoProto(name="y", type=out or helper.make_tensor_type_proto(dtype, [1]))
    graph = helper.make_graph(list(nodes), "g", [helper.make_tensor_value_info("x", dtype, [1])], [result])
    return helper.make_model(graph)


def test_the_core_is_ordinary_numbers() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    for dtype in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT8, TensorProto.BOOL):
        assert is_core(model(relu, dtype=dtype))
    for dtype in (TensorProto.STRING, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1, TensorProto.INT4, TensorProto.UINT2):
        assert not is_core(model(relu, dtype=dtype))
    assert not is_core(model(relu, out=sequence))
    assert not is_core(model(relu, out=optional))
    assert not is_core(model(helper.make_node("Bernoulli", ["x"], ["y"])))
    assert not is_core(model(helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml")))
    branch = helper.make_graph([helper.make_node("RandomNormal", [], ["r"])], "b", [], [onnx.ValueInfoProto(name="r")])
    assert not is_core(model(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)))


def test_the_onnx_suite_is_whole_and_runs() -> None:
    cores = {}

    def wanted(name: str, core: bool) -> bool:
        cores[name] = core
        return name in ("test_relu_cpu", "test_string_concat_cpu")

    _, *outcomes = run_pool(Job("onnx"), wanted)
    assert (len(cores), sum(cores.values())) == (2033, 1628)
    assert {o["name"]: (o["passed"], o["core"], o["opaque"]) for o in outcomes} == {
        "test_relu_cpu": (True, True, []),
        "test_string_concat_cpu": (True, False, ["StringConcat"]),
    }


def test_the_command_counts_writes_and_judges(tmp_path: Path) -> None:
    path = tmp_path / "onnx.json"
    arguments = ["--filter", "^test_(relu|neg|string_concat)_cpu$", "--jobs", "1", "--json", str(path)]
    result = CliRunner().invoke(main, ["conformance", "onnx", *arguments, "--without-reference", "--expect", "3"])
    assert result.exit_code == 1
    assert "2 tests passed, 3 were expected" in result.stderr
    assert "onnx.reference was unimportable" in result.output
    data = json.loads(path.read_text())
    assert (data["summary"]["tests"], data["summary"]["passed"], data["summary"]["core_tests"]) == (3, 2, 2)
    assert [t["name"] for t in data["tests"]] == ["test_neg_cpu", "test_relu_cpu", "test_string_concat_cpu"]
    assert "reference evaluator cannot be imported" in data["tests"][2]["reason"]


@pytest.mark.parametrize(("status", "code"), [("wrong", 1), ("error", 0), ("right", 0)])
def test_wrong_answers_can_be_forbidden(monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    outcomes = [{"name": "a", "passed": status == "right", "status": status, "reason": ""}]
    monkeypatch.setattr("hotfuse.cli.conformance._run", lambda *arguments: outcomes)
    result = CliRunner().invoke(main, ["conformance", "opinfo", "--none-wrong"])
    assert result.exit_code == code, result.output
    assert ("1 tests got a wrong answer" in result.stderr) == (status == "wrong")


def test_the_opinfo_suite_is_whole_and_runs() -> None:
    names = set()

    def wanted(name: str, core: bool) -> bool:
        names.add(name)
        return name in ("add", "nn.functional.softmin")

    _, *outcomes = run_pool(Job("opinfo"), wanted)
    assert len(names) == 677
    assert {o["name"]: (o["status"], o["reached"], o["ran"]) for o in outcomes} == {
        "add": ("right", True, True),
        "nn.functional.softmin": ("right", True, True),
    }
    found = summarize(outcomes)
    assert (found["right"], found["reached"], found["ran"], found["noted"], found["tests"]) == (2, 2, 2, 0, 2)
    assert found["operators"] >= 2


def test_a_wrong_filter_is_refused() -> None:
    result = CliRunner().invoke(main, ["conformance", "onnx", "--filter", "("])
    assert result.exit_code == 2
    assert "not a regular expression" in result.stderr
