"""`hotfuse calibrate`: what is measured is shown and kept, and what is known is not measured again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hotfuse.cli import calibrate
from hotfuse.cli.main import main
from hotfuse.config import Config
from hotfuse.fusion.strategies import context, new_policy
from hotfuse.hardware.rates import Rates
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import probes
from hotfuse.runtime.planning import keep_policy


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "SIZES", (1 << 14, 1 << 18))
    monkeypatch.setattr(probes, "ROUND_S", 0.0001)
    monkeypatch.setenv("HOTFUSE_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["calibrate", "--seconds", "0", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def never(*arguments: object) -> Rates:
    raise AssertionError("it was measured again")


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("--show", "--json", str(tmp_path / "first.json"))
    monkeypatch.setattr(calibrate, "measure_rates", never)
    run("--show", "--json", str(tmp_path / "second.json"))
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("first.json", "second.json"))
    assert first == second
    assert first["rates"]["read"]["bytes"] == [1 << 14, 1 << 18]
    with pytest.raises(AssertionError, match="measured again"):  # who does not ask what is known has it measured
        CliRunner().invoke(main, ["--debug", "calibrate"], catch_exceptions=False)


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
    for text in ("16 KiB", "256 KiB", "multiply-adds", "AMX", "barrier", "memory in all"):
        assert text in output


def test_who_keeps_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_CACHE", "off")
    assert "could not be kept" in run()
