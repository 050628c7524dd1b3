"""`hotfuse demo`: the model it fits is good, and hotfuse and ONNX Runtime run it as scikit-learn does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnxruntime import InferenceSession

import hotfuse
from hotfuse.cli import demo
from hotfuse.cli.digits import Digits, fit_digits, write_onnx
from hotfuse.cli.main import main


@pytest.fixture(scope="module")
def digits() -> Digits:
    return fit_digits()


def test_the_classifier_is_good(digits: Digits) -> None:
    assert (digits.probabilities.argmax(axis=1) == digits.labels).mean() >= 0.97


def test_the_model_computes_what_scikit_learn_does(digits: Digits) -> None:
    model = write_onnx(digits)
    feeds = {"image": digits.images}
    for session in (hotfuse.load(model), InferenceSession(model)):
        probabilities, chosen = session.run(None, feeds)
        np.testing.assert_allclose(probabilities, digits.probabilities, atol=1e-5)
        np.testing.assert_array_equal(chosen, digits.probabilities.argmax(axis=1))


def test_the_demo_shows_each_step_outside_a_terminal(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "fit_digits", lambda: digits)
    monkeypatch.setattr(demo, "BUDGET_S", 0.05)
    result = CliRunner().invoke(main, ["demo", "--save", str(tmp_path / "digits.onnx")])
    assert result.exit_code == 0, result.output
    for line in ("fit", "write", "import", "plan", "load", "conv Conv", "One graph, any batch", "accuracy on 450"):
        assert line in result.output
    assert "same digit as scikit-learn: 450 of 450" in result.output
    assert "\x1b" not in result.output


def test_a_wrong_answer_fails_the_demo(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "fit_digits", lambda: digits)
    monkeypatch.setattr(demo, "BUDGET_S", 0.05)
    right = demo.write_onnx

    changed = replace(digits, biases=(digits.biases[0], digits.biases[1][::-1]))
    monkeypatch.setattr(demo, "write_onnx", lambda given: right(changed))
    result = CliRunner().invoke(main, ["demo", "--save", str(tmp_path / "digits.onnx")])
    assert result.exit_code == 1
    assert "disagree" in result.stderr


def test_a_cache_that_cannot_be_written_does_not_stop_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "cache_folder", lambda: Path("/proc/hotfuse"))
    path = demo._save(b"model", None)
    assert path.read_bytes() == b"model"
    path.unlink()
    path.parent.rmdir()


def test_an_image_is_drawn() -> None:
    image = np.zeros((8, 8))
    image[0, 0] = 16
    assert demo.draw(image)[0] == "@@" + " " * 14
