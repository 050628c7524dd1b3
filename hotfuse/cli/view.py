"""How results look: one console, plain tables, quantities with units. Right on a terminal and in a file alike.

A report goes to the standard output. With `--json -` the data goes there and the report to the standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hotfuse.ir.dim import Dim

json_option = click.option(
    "--json", "json_path", metavar="FILE", help="Write the results as JSON to FILE; `-` is the standard output."
)


def make_console(json_path: str | None = None) -> Console:
    """The console of one command. Outside a terminal lines are not cut at 80 columns. `:a:` in a name is no emoji."""
    to_errors = json_path == "-"
    stream = sys.stderr if to_errors else sys.stdout
    return Console(stderr=to_errors, width=None if stream.isatty() else 120, highlight=False, soft_wrap=False, emoji=False)


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; a column whose name starts with `>` is aligned right."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    return table


def make_progress(console: Console) -> Progress:
    """A bar that counts, for a terminal, and gone when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _plain(cell: Any) -> str:
    """Text as it is: brackets of shapes are not markup."""
    from rich.markup import escape

    return escape(str(cell))


def write_json(path: str | None, data: Any) -> None:
    """Write `data` where `--json` says; without the option, nowhere."""
    if path is None:
        return
    text = json.dumps(data, indent=2, default=str)
    if path == "-":
        click.echo(text)
    else:
        Path(path).write_text(text + "\n")


def show_ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 100 else f"{ms:,.0f} ms"


def show_quantity(amount: Dim | str, unit: str = "") -> str:
    """A number with a metric prefix; a symbolic size as it is."""
    if not isinstance(amount, int):
        text = str(amount)
        return text if len(text) <= 60 else text[:57] + "..."
    value, prefix = float(amount), ""
    for step in ("k", "M", "G", "T"):
        if value < 1000:
            break
        value, prefix = value / 1000, step
    number = f"{value:.0f}" if value == int(value) and not prefix else f"{value:.1f}"
    return f"{number} {prefix}{unit}".rstrip()
