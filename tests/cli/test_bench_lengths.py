"""`hotfuse bench --suite lengths`: files with free and with baked sizes, one build for all lengths, wrong and dying ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.cli.bench import lengths as length_suite
from hotfuse.cli.bench.length_subjects import generic_path, make_lengths
from hotfuse.cli.bench.rounds import Player
from hotfuse.cli.bench.subject import read_subject
from hotfuse.cli.main import main
from hotfuse.ir.dim import symbols_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = str(Path(hotfuse.__file__).parent.parent)
SIZES = (1, 17)


def bench_lengths() -> Any:
    arguments = ["bench", "--suite", "lengths", "--quick", "--json", "-"]
    return CliRunner(env={"PYTHONPATH": ROOT, "COLUMNS": "160"}).invoke(main, arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lengths") / "made"
    before = torch.is_grad_enabled()
    try:
        make_lengths(length_suite.QUICK_MODEL, SIZES, place)
    finally:
        torch.set_grad_enabled(before)
    return place


def test_the_list_of_lengths() -> None:
    assert len(length_suite.LENGTHS) == 20
    assert (length_suite.LENGTHS[0], length_suite.LENGTHS[-1]) == (1, 512)
    assert sorted(set(length_suite.LENGTHS)) == list(length_suite.LENGTHS)


def test_one_file_has_free_sizes_and_the_others_have_none(folder: Path) -> None:
    """The graphs are the same, and of a baked one every size is a number."""
    nodes = onnx.load(str(folder / "generic.onnx"), load_external_data=False).graph.node
    for size in SIZES:
        subject = read_subject(folder / str(size))
        assert generic_path(subject) == str(folder / "generic.onnx")
        assert list(onnx.load(subject.onnx_path, load_external_data=False).graph.node) == list(nodes)
        generic, baked = hotfuse.load(generic_path(subject)), hotfuse.load(subject.onnx_path, tier=0)
        assert [str(d) for d in generic.inputs[0].type.shape] == ["batch", "sequence"]  # type: ignore[union-attr]
        assert list(baked.inputs[0].type.shape) == [1, size]  # type: ignore[union-attr]
        for value in baked.graph.values.values():
            assert list(symbols_of(value.type.shape or ())) == []  # type: ignore[union-attr]


def test_both_files_compute_the_original(folder: Path) -> None:
    """By ONNX Runtime, which made none of them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    for size in SIZES:
        subject = read_subject(folder / str(size))
        (original,) = subject.arrays("original").values()
        assert original.shape[:2] == (1, size)
        for path in (generic_path(subject), subject.onnx_path):
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            np.testing.assert_allclose(session.run(None, subject.feeds())[0], original, atol=1e-4)


def test_a_quick_run_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_suite, "QUICK_LENGTHS", SIZES)
    done = bench_lengths()
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["model"] == length_suite.QUICK_MODEL
    assert [one["length"] for one in report["lengths"]] == list(SIZES)
    counts = []
    for one in report["lengths"]:
        (result,) = one["results"]
        rows = {row["engine"]: row for row in result["rows"]}
        assert {name: row["status"] for name, row in rows.items()} == {"hotfuse-generic": "ok", "hotfuse-onnx": "ok"}
        times = [rows[name]["timing"]["median_s"] for name in ("hotfuse-generic", "hotfuse-onnx")]
        assert one["ratio"] == pytest.approx(times[0] / times[1])
        counts.append(rows["hotfuse-generic"]["facts"]["compiled"])
    assert counts[0] == counts[1] > 0
    assert report["compiled_later"] == 0
    wanted = {c["what"]: (c["figure"], c["met"]) for c in report["criteria"]}
    assert wanted["kernels compiled after the first length"] == (0, True)
    assert wanted["lengths at which both gave right answers by generated code"] == (2, True)
    assert "generic / baked" in done.stderr


@pytest.fixture
def made_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite finds its subjects ready."""
    ask = Player.ask

    def answer(self: Player, limit_s: float, **request: Any) -> dict[str, Any]:
        if request["do"] == "lengths":
            Path(request["folder"]).symlink_to(folder)
            return {}
        return ask(self, limit_s, **request)

    monkeypatch.setattr(Player, "ask", answer)
    monkeypatch.setattr(length_suite, "QUICK_LENGTHS", SIZES)


@pytest.mark.usefixtures("made_before")
def test_a_generic_build_with_a_wrong_answer_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_suite, "GENERIC", "tests.cli.bench_engines:perturbed")
    done = bench_lengths()
    assert done.exit_code == 1
    assert "bert-tiny-s17: tests.cli.bench_engines:perturbed is wrong" in done.stderr
    assert [c["met"] for c in json.loads(done.stdout)["criteria"]] == [False] * 4


@pytest.mark.usefixtures("made_before")
def test_a_generic_build_that_dies_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_suite, "GENERIC", "tests.cli.bench_engines:crashing")
    report = json.loads(bench_lengths().stdout)
    rows = [one["results"][0]["rows"] for one in report["lengths"]]
    assert [row[0]["status"] for row in rows] == ["failed", "failed"]
    assert all("SIGSEGV" in row[0]["reason"] for row in rows)
    assert [row[1]["status"] for row in rows] == ["ok", "ok"]
    assert report["compiled_later"] is None


def test_a_model_that_cannot_be_made_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_suite, "QUICK_MODEL", "no-such-model")
    done = bench_lengths()
    assert done.exit_code == 1
    assert "no-such-model" in done.stderr
    assert not any(c["met"] for c in json.loads(done.stdout)["criteria"])
