"""`hotfuse calibrate`: what is measured is shown and kept, and what is known is not measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotfuse.cli import calibrate
from hotfuse.cli.main import main
from hotfuse.hardware.rates import Rates
from hotfuse.runtime import probes
from hotfuse.runtime.quiet import Quiet, Told, untold


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
    assert first == second
    assert first["rates"]["read"]["bytes"] == [1 << 14, 1 << 18]
    with pytest.raises(AssertionError, match="measured again"):  # who does not ask what is known has it measured
        CliRunner().invoke(main, ["--debug", "calibrate", "--now"], catch_exceptions=False)


def test_the_tables_name_every_rate() -> None:
    output = run()
    for text in ("16 KiB", "256 KiB", "multiply-adds", "AMX", "barrier", "memory in all"):
        assert text in output


def test_who_keeps_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_CACHE", "off")
    assert "could not be kept" in run()


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
