"""Quantities and tables as they are shown."""

from __future__ import annotations

import pytest

from hotfuse.cli.view import make_console, make_table, show_ms, show_quantity
from hotfuse.ir.dim import symbol


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (102_100, "102.1 kB"), (3_500_000_000, "3.5 GB")]
)
def test_quantities_have_a_prefix(amount: int, shown: str) -> None:
    assert show_quantity(amount, "B") == shown


def test_symbolic_quantities_stay_symbolic() -> None:
    assert show_quantity(4 * symbol("batch"), "B") == "4*batch"
    assert len(show_quantity("x" * 200)) == 60


@pytest.mark.parametrize(("seconds", "shown"), [(1.2e-5, "0.012 ms"), (0.00345, "3.45 ms"), (1.5, "1,500 ms")])
def test_times_are_in_milliseconds(seconds: float, shown: str) -> None:
    assert show_ms(seconds) == shown


def test_brackets_of_types_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(make_table("T", ("type", ">n"), [("f32[red]", 1)]))
    assert "f32[red]" in capsys.readouterr().out


def test_names_between_colons_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    console.print(make_table("T", ("name",), [("chain:a:32MB",)]))
    console.print("chain:b:32MB", markup=False)
    shown = capsys.readouterr().out
    assert "chain:a:32MB" in shown
    assert "chain:b:32MB" in shown
