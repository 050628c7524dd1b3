"""The command line as a whole: help, versions, and how defects look."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.cli.main import COMMANDS, main


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, _ in COMMANDS:
        assert f"  {name} " in result.output


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_each_command_has_help_with_examples(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert f"  hotfuse {name}" in result.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"hotfuse {hotfuse.__version__}\n"


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["fly"])
    assert result.exit_code == 2
    assert "fly" in result.stderr


def test_a_defect_is_one_line_and_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(hotfuse, "load", fail)
    result = CliRunner().invoke(main, ["run", "model.onnx"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ZeroDivisionError: a b (a defect of hotfuse")
    assert isinstance(CliRunner().invoke(main, ["--debug", "run", "model.onnx"]).exception, ZeroDivisionError)
