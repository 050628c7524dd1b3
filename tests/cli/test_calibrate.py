"""`hotfuse calibrate`: what is measured is shown and kept, and what is known is not measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.cli import calibrate, calls
from hotfuse.cli.main import main
from hotfuse.config import Config
from hotfuse.errors import InputError
from hotfuse.fusion.strategies import context, new_policy
from hotfuse.hardware.counters import Counts
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.retrain import TrainReply
from hotfuse.hardware.samples import Samples
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import probes
from hotfuse.runtime.calibrating import Series
from hotfuse.runtime.calibration import TIMES
from hotfuse.runtime.planning import keep_policy
from hotfuse.runtime.quiet import Quiet, Told, untold
from hotfuse.runtime.specimens import specimen
from tests.hardware.test_samples import drawn


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "SIZES", (1 << 14, 1 << 18))
    monkeypatch.setattr(probes, "ROUND_S", 0.0001)
    monkeypatch.setenv("HOTFUSE_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["calibrate", "--seconds", "0", "--now", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def never(*arguments: object) -> Rates:
    raise AssertionError("it was measured again")


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("--show", "--json", str(tmp_path / "first.json"))
    monkeypatch.setattr(calibrate, "measure_rates", never)
    run("--show", "--json", str(tmp_path / "second.json"))
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("first.json", "second.json"))
    assert {**first, "counters": {}} == {**second, "counters": {}}  # of what happens meanwhile
    assert first["rates"]["read"]["bytes"] == [1 << 14, 1 << 18]
    with pytest.raises(AssertionError, match="measured again"):  # who does not ask what is known has it measured
        CliRunner().invoke(main, ["--debug", "calibrate", "--now"], catch_exceptions=False)


def test_what_edits_taught_is_shown(tmp_path: Path) -> None:
    config = Config.from_environment()
    row = context("tiles", 1e-4, 5e-5, 1e-5, [])[None]
    policy = new_policy().learned(row, np.array([0.2]), np.ones(1, bool), ["a" * 16])
    policy = policy.learned(row, np.array([-0.3]), np.ones(1, bool), ["b" * 16])
    assert keep_policy(config, host_spec(config.isa), policy)
    output = run("--show", "--json", str(tmp_path / "shown.json"))
    assert json.loads((tmp_path / "shown.json").read_text())["policy"] == {
        "rewards": 2,
        "edits": 2,
        "regret": pytest.approx(0.3),
    }
    assert "2, 1" in output
    assert "0.30, 0.150 for each" in output


def test_the_tables_name_every_rate() -> None:
    output = run()
    for text in ("16 KiB", "256 KiB", "multiply-adds", "AMX", "barrier", "memory in all", "softmax", "page faults"):
        assert text in output


def test_who_keeps_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_CACHE", "off")
    assert "could not be kept" in run()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[rows, 96] x) => (float[rows, 96] y) { a = Exp(x)  b = Softmax(a)  y = Add(a, b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["calibrate", "--seconds", "0", *arguments])
    assert result.exit_code != 0
    return result.output


def test_kernels_of_a_model_are_timed_at_the_sizes_of_its_calls(model: Path, tmp_path: Path) -> None:
    for rows in (5, 300):
        np.savez(tmp_path / f"{rows}.npz", x=np.ones((rows, 96), np.float32))
    files = [text for rows in (5, 300) for text in ("--inputs", str(tmp_path / f"{rows}.npz"))]
    output = run("--seconds", "0.5", "--model", str(model), *files, "--json", str(tmp_path / "found.json"))
    assert "mine.onnx: its kernels" in output
    assert "mine.onnx: edits of its plans" in output
    assert json.loads((tmp_path / "found.json").read_text())["samples"]["samples"] > 0


def test_a_forest_is_judged_by_what_it_was_not_trained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it knows what it was trained of by heart, and nothing of the rest."""
    samples = drawn(range(10))
    asked: list[Samples] = []

    def error(calibration: object, samples: Samples, subject: object) -> float:
        asked.append(samples)
        return 0.5

    monkeypatch.setattr(calibrate, "_error", error)
    monkeypatch.setattr(calibrate, "retrain", lambda *_: TrainReply(b"", None, None, 0.0, 0.0))
    series = Series("mine", 2, specimen, 5)  # sources 2 to 6, of which 4 is held out
    found = calibrate._retrained(None, samples, Config(), TIMES, series)  # type: ignore[arg-type]
    assert (found.count, found.held) == (50, 10)
    assert [set(each.source.tolist()) for each in asked] == [{4}, {4}]
    ((what, said),) = calibrate.own_rows("mine", found)
    assert what == "mine: its kernels, 50 timed: median error on 10 held out, before and now"
    assert said == "50.0 %, 50.0 %"
    ((_, said),) = calibrate.own_rows("mine", replace(found, held=0, before=None, after=None))
    assert "none were held out" in said


def test_without_inputs_random_ones_are_timed(model: Path) -> None:
    assert "mine.onnx: its kernels" in run("--model", str(model))


def test_inputs_need_a_model_and_showing_none(model: Path) -> None:
    assert "name it with --model" in refused("--inputs", "call.npz")
    assert "leave it out" in refused("--show", "--model", str(model))


def test_a_file_that_is_no_archive_is_refused_with_what_to_do(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("nothing of ours")
    np.save(tmp_path / "one.npy", np.ones(3))
    for name in ("text.npz", "one.npy", "missing.npz"):
        output = refused("--model", str(model), "--inputs", str(tmp_path / name))
        assert name in output
        assert "numpy.savez" in output.replace("\n", "")


def test_inputs_that_do_not_fit_are_refused_by_file_and_name(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", z=np.ones((5, 96), np.float32))
    np.savez(tmp_path / "narrow.npz", x=np.ones((5, 7), np.float32))
    for name, told in (("other.npz", "'z'"), ("narrow.npz", "(5, 7)")):
        output = refused("--model", str(model), "--inputs", str(tmp_path / name))
        assert name in output
        assert told in output


def test_a_model_whose_weights_are_no_constants_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Archive:
        graph = type("Graph", (), {"weights": ("w",)})
        inputs = ()

        def __enter__(self) -> Archive:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(hotfuse, "load", lambda *_, **__: Archive())
    with pytest.raises(InputError, match=r"m\.pt2: .*torch\.onnx\.export"):
        calls.read_calls("m.pt2", ())


def test_counters_are_shown_or_said_to_be_absent() -> None:
    found = Counts(2.0, {"cycles": 1000.0, "instructions": 2500.0, "energy": 30.0}, {"cache misses": "Permission denied"})
    rows = dict(calibrate.counter_rows(found))
    assert rows == {
        "cycles": "1,000",
        "instructions": "2,500",
        "energy": "30 J",
        "instructions for each cycle": "2.50",
        "power": "15.0 W",
        "cache misses": "absent: Permission denied",
    }


def test_beside_others_nothing_is_measured_and_what_is_known_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(Quiet):
        def wait(self, told: Told = untold) -> bool:
            return False

    monkeypatch.setattr(calibrate, "Quiet", Busy)
    refused = CliRunner().invoke(main, ["calibrate", "--seconds", "0"])
    assert refused.exit_code == 1
    assert "hotfuse calibrate --now" in refused.output
    run()
    known = CliRunner().invoke(main, ["calibrate", "--seconds", "60"])  # which it does not take
    assert known.exit_code == 0, known.output
    assert "those that were measured before" in known.output
