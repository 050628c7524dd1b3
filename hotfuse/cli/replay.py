"""`hotfuse replay`: a wrong kernel that was found while a model served, run again and made smaller."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hotfuse.cli.view import json_option, make_console, make_progress, make_table, show_quantity, write_json
from hotfuse.config import Config
from hotfuse.errors import ParseError
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.build import Unit
from hotfuse.runtime.building import build_hoisted
from hotfuse.runtime.replay import COMPILED, TODAY, UNJUDGED, WRONG, Finding, meaning, reproduces, ways_of
from hotfuse.runtime.replayer import Replayer, config_for
from hotfuse.runtime.reproduction import Reproduction, circumstances_of
from hotfuse.runtime.reproduction_folder import Written, read_reproduction, reproductions_path, write_reproduction
from hotfuse.runtime.shrink import MOST_TRIES, Shrunk, shrink
from hotfuse.runtime.wrong_place import WrongPlace

MOST_SHOWN = 12  # operators


class BadInput(click.ClickException):
    """There is nothing to replay."""

    exit_code = 2


@click.command(
    "replay",
    epilog="""\b
Examples:
  hotfuse replay ~/.local/state/hotfuse/reproductions/rows-0123456789ab
  hotfuse replay rows-0123456789ab --shrink
  hotfuse replay rows-0123456789ab --shrink --keep small --json -""",
)
@click.argument("path", type=click.Path())
@click.option("--shrink", "smaller", is_flag=True, help="Make it smaller while it is still wrong, and keep the result.")
@click.option("--keep", "folder", metavar="FOLDER", help="Where the smaller one is kept; by default beside PATH.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds that one way of running it may take.")
@json_option
def command(path: str, smaller: bool, folder: str | None, timeout_s: float, json_path: str | None) -> None:
    """Run the wrong kernel of the reproduction in the folder PATH again, in three ways, against the original operators.

    Exit code 0 if nothing is wrong any more, 1 if it is wrong still, 2 if PATH is no reproduction. The saved programs are
    compiled and run, in a process of their own: replay what you would run.
    """
    console = make_console(json_path)
    try:
        reproduction = read_reproduction(Path(path))
    except (ParseError, OSError) as error:
        raise BadInput(" ".join(str(error).split())) from error
    config = config_for(reproduction, Config.from_environment())
    _show_what(console, reproduction, config)
    with Replayer(config, timeout_s) as replayer:
        findings = _replay(console, replayer, reproduction)
        console.print(make_table("Replayed", COLUMNS, [_row(finding) for finding in findings]))
        said = meaning(findings)
        console.print(f"\n{said}", markup=False)
        wrong = reproduces(findings)
        report: dict[str, Any] = {"reproduces": wrong, "meaning": said, "findings": [_plain(f) for f in findings]}
        if smaller and wrong:
            shrunk = _shrink(console, replayer, reproduction, findings, config)
            report["shrunk"] = _show_shrunk(console, reproduction, shrunk, _keep(shrunk.reproduction, folder, Path(path)))
    write_json(json_path, report)
    if wrong:
        raise click.exceptions.Exit(1)
    if all(finding.verdict == UNJUDGED for finding in findings):
        raise BadInput(f"{path}: nothing of it could be judged; the table says why")


COLUMNS = ("way", "unit", "verdict", "where", "first wrong: ours, tier 0, float64", ">largest error")


def _row(finding: Finding) -> Sequence[str]:
    place = finding.place
    head = finding.way, clean(finding.unit), clean(f"{finding.verdict}: {finding.reason or finding.what}")
    if place is None:
        return *head, "", "", ""
    row = f", row {place.row}" if len(place.first) > 1 else ""
    where = f"{place.name}{list(place.first)}{row}; {place.wrong:,} of {place.elements:,}"
    numbers = ", ".join(f"{number:.7g}" for number in (place.ours, place.original, place.exact))
    return *head, clean(where), numbers, f"{place.largest_error:.3g}"


def clean(text: str) -> str:
    """Text of a file from anywhere on one line: it is not to steer the terminal."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())


def _plain(finding: Finding) -> dict[str, Any]:
    """A finding for JSON, without the values that it was found on."""
    fields = {f.name: getattr(finding, f.name) for f in dataclasses.fields(Finding) if f.name not in ("reads", "place")}
    return {**fields, "place": _plain_place(finding.place)}


def _plain_place(place: WrongPlace | None) -> dict[str, Any] | None:
    """JSON has no infinity."""
    fields = {} if place is None else dataclasses.asdict(place)
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()} or None


def _show_what(console: Console, reproduction: Reproduction, config: Config) -> None:
    """What it is, what was said of it, and what is different here."""
    graph, then, now = reproduction.graph, reproduction.circumstances, circumstances_of(config)
    names = list(dict.fromkeys(node.op for node in graph.nodes))
    operators = " ".join(names[:MOST_SHOWN]) + (" ..." if len(names) > MOST_SHOWN else "")
    sizes = ", ".join(f"{name} = {size}" for name, size in reproduction.sizes.items())
    held = f"{_count(len(graph.nodes), 'node')}, {_count(len(reproduction.programs), 'program')}"
    console.print(clean(f"{operators} ({held}{', ' if sizes else ''}{sizes})"), markup=False)
    console.print(clean(f"it was wrong: {reproduction.reason}"), markup=False)
    for name in ("hotfuse", "generator", "numpy", "isa", "machine"):
        was, here = getattr(then, name), getattr(now, name)
        if was != here:
            console.print(clean(f"{name} was {was or 'unknown'}, and is {here} here"), markup=False)
    if then.edited:
        console.print("its programs came from a folder of edited ones (HOTFUSE_TILES)", markup=False)
    console.print()


def _replay(console: Console, replayer: Replayer, reproduction: Reproduction) -> list[Finding]:
    found: list[Finding] = []
    with make_progress(console) as progress:
        ways = ways_of(reproduction)
        bar = progress.add_task("", total=len(ways))
        for way in ways:
            progress.update(bar, description=way)
            found += replayer.judge(reproduction, way)
            progress.advance(bar)
    return found


def _shrink(
    console: Console, replayer: Replayer, reproduction: Reproduction, findings: Sequence[Finding], config: Config
) -> Shrunk:
    """The smallest that shows the fault in the way that showed it first: of native code, if that is wrong."""
    wrong = [finding for finding in findings if finding.verdict == WRONG]
    native = [finding for finding in wrong if finding.way in (COMPILED, TODAY)]
    finding = (native or wrong)[0]
    lower = (lambda graph: _lowered(graph, config)) if any(f.way == TODAY for f in wrong) else None
    if finding.way == TODAY:
        reproduction = dataclasses.replace(reproduction, units=_lowered(reproduction.graph, config))
    way = COMPILED if finding.way == TODAY else finding.way
    with make_progress(console) as progress:
        bar = progress.add_task("", total=MOST_TRIES)

        def still(candidate: Reproduction) -> Finding | None:
            return next((f for f in replayer.judge(candidate, way) if f.verdict == WRONG), None)

        def tell(text: str, tries: int) -> None:
            progress.update(bar, description=text, completed=tries)

        return shrink(reproduction, finding, still, lower, config, tell)


def _lowered(graph: Graph, config: Config) -> tuple[Unit, ...]:
    return build_hoisted(Hoisted(graph), host_spec(config.isa), config, lambda program: None).units


def _keep(reproduction: Reproduction, folder: str | None, path: Path) -> Written:
    """Write the smaller one. Of a folder that somebody chose nothing is removed."""
    chosen = str(path.resolve().parent) if folder is None else folder
    own = chosen == reproductions_path(Config.from_environment())
    return write_reproduction(chosen, reproduction, "or let --keep name another folder", bounded=own)


def _show_shrunk(console: Console, before: Reproduction, shrunk: Shrunk, kept: Written) -> dict[str, Any]:
    after = shrunk.reproduction
    sizes = [
        (text, count(before), count(after))
        for text, count in (
            ("nodes", lambda r: len(r.graph.nodes)),
            ("programs", lambda r: len(r.programs)),
            ("elements", lambda r: r.elements),
            ("not zero", lambda r: r.not_zero),
        )
    ]
    console.print()
    rows = [(text, show_quantity(old), show_quantity(new)) for text, old, new in sizes]
    console.print(make_table(f"Made smaller in {shrunk.tries} tries", ("", ">before", ">after"), rows))
    where = f"kept at {kept.path}" if kept.path else f"not kept: {kept.reason}"
    console.print(f"\n{clean(shrunk.finding.reason)}\n{where}", markup=False, soft_wrap=True)
    counts = {text: new for text, _, new in sizes}
    return {"path": str(kept.path or ""), "reason": kept.reason, "tries": shrunk.tries, **counts}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
