"""The `hotfuse` command. Each subcommand is imported only when it is used, so that `hotfuse --help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

from hotfuse import __version__
from hotfuse.errors import HotfuseError

COMMANDS = (
    ("run", "Run a model and time it."),
    ("bench", "Time engines against each other on a model, with every answer checked."),
    ("explain", "Show what a model consists of, what it costs, and what is opaque."),
    ("conformance", "Count how many tests of a public suite pass."),
    ("asm", "Look at, run and compare tile programs."),
    ("replay", "Run a kernel that was found wrong again, and make it smaller."),
    ("cache", "Look at the kernel cache on disk, check it, and make it smaller."),
    ("calibrate", "Measure what this machine can do."),
    ("doctor", "Show what this machine offers, what is missing, and what to do."),
    ("demo", "Train, load and run a small real model, with a view of each step."),
)
YIELDING = ("calibrate",)  # whoever else uses the machine comes first, from their first import on


class Commands(click.Group):
    """The subcommands of `COMMANDS`: `NAME` is the object `command` of the module `hotfuse.cli.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _ in COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = _imported(name).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        """Errors become one line and exit code 1; with --debug they pass with their traceback."""
        try:
            return super().invoke(ctx)
        except (HotfuseError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(_one_line(error)) from error
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            message = f"{type(error).__name__}: {_one_line(error)} (a defect of hotfuse; `hotfuse --debug ...` shows where)"
            raise click.ClickException(message) from error


def _imported(name: str) -> Any:
    def load() -> Any:
        return importlib.import_module(f"hotfuse.cli.{name}")

    if name not in YIELDING:
        return load()
    from hotfuse.runtime.quiet import in_back_seat

    return in_back_seat(load)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, message="hotfuse %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """An adaptive, fusing compiler and runtime for neural networks.

    \b
    hotfuse demo                          see it work on this machine
    hotfuse run model.onnx --dim batch=8  run a model on random inputs and time it
    hotfuse explain model.onnx            see what it consists of
    """


if __name__ == "__main__":
    main()
