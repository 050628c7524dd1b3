"""`hotfuse cache`: what the kernel cache on disk holds, whether it is sound, and making it smaller.

What was learned of models' kernels lies in a folder within the cache's, as a cache with a limit of its own.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from hotfuse.adaptive.remembered import kept_lessons
from hotfuse.cli.view import json_option, make_console, make_progress, make_table, show_quantity, write_json
from hotfuse.config import Config
from hotfuse.errors import ConfigError, HotfuseError
from hotfuse.runtime.cache import Damaged, DiskCache, Removed, Stats, open_cache, refused_reason

MOST_SHOWN = 50  # entries; `--all` and the JSON file have the rest
KEY_SHOWN = 60  # characters
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

folder_option = click.option(
    "--folder", metavar="PATH", help="The cache's folder; by default HOTFUSE_CACHE, or the user's cache folder."
)


@click.group(
    "cache",
    epilog="""\b
Examples:
  hotfuse cache stats
  hotfuse cache ls --kind object
  hotfuse cache verify
  hotfuse cache prune --limit 200M
  hotfuse cache clear --yes""",
)
def command() -> None:
    """Look at the kernel cache on disk, check it, and make it smaller.

    Everything in it can be made again: removing entries costs time at the next start, and no more.
    """


def _open(folder: str | None) -> tuple[DiskCache, ...]:
    """The cache that the command is about, and the lessons in it; an error that says why there is none."""
    config = Config.from_environment() if folder is None else Config.from_environment(cache=folder)
    cache = open_cache(config)
    if cache is None and config.cache == "off":
        raise ConfigError("the cache is off (HOTFUSE_CACHE=off); unset the variable, or name a folder with --folder")
    if cache is None:
        raise HotfuseError(refused_reason(config))
    lessons = kept_lessons(cache, config)
    return (cache,) if lessons is None else (cache, lessons)


@command.command(
    "ls", epilog="\b\nExamples:\n  hotfuse cache ls\n  hotfuse cache ls --kind proof --all\n  hotfuse cache ls --json -"
)
@click.option("--kind", help="Only entries of this kind (object, build, proof, graph, memory: lessons).")
@click.option("--all", "show_all", is_flag=True, help=f"Show more than the {MOST_SHOWN} entries used last.")
@folder_option
@json_option
def ls(kind: str | None, show_all: bool, folder: str | None, json_path: str | None) -> None:
    """List the entries, most recently used first. Their data is not read."""
    console = make_console(json_path)
    entries = [entry for cache in _open(folder) for entry in cache.entries() if kind in (None, entry.kind)]
    entries.sort(key=lambda entry: -entry.used_s)
    shown = entries if show_all else entries[:MOST_SHOWN]
    now = time.time()
    rows = [
        (
            _short(e.kind),
            show_quantity(e.bytes, "B"),
            show_age(now - e.used_s),
            show_age(now - e.made_s),
            e.name[:12],
            _short(e.key),
        )
        for e in shown
    ]
    title = "Entries" if len(shown) == len(entries) else f"Entries, {len(shown)} of {len(entries)}"
    console.print(make_table(title, ("kind", ">data", ">used", ">made", "name", "key"), rows))
    write_json(json_path, [dataclasses.asdict(e) for e in entries])


@command.command("stats", epilog="\b\nExamples:\n  hotfuse cache stats\n  hotfuse cache stats --json -")
@folder_option
@json_option
def stats(folder: str | None, json_path: str | None) -> None:
    """Show how much the cache holds, of what, and how much it may hold."""
    console = make_console(json_path)
    own, *others = (cache.stats() for cache in _open(folder))
    found = _together(own, *others)
    share = f", {own.bytes / own.limit_bytes:.0%} of what it may hold" if own.limit_bytes else ""
    console.print(found.folder, markup=False, soft_wrap=True)
    console.print(f"{_entries(found.entries)}, {show_quantity(found.bytes, 'B')} on disk{share}", markup=False)
    if found.leftovers:
        text = f"half-written files: {found.leftovers:,}; `hotfuse cache prune` removes those of dead writers"
        console.print(text, markup=False)
    console.print()
    rows = [(_short(kind), f"{count:,}", show_quantity(taken, "B")) for kind, (count, taken) in sorted(found.kinds.items())]
    console.print(make_table("Kinds", ("kind", ">entries", ">on disk"), rows))
    # What this process did says nothing of others, so it is left out.
    kinds = {kind: {"entries": count, "bytes": taken} for kind, (count, taken) in found.kinds.items()}
    whole = {name: getattr(found, name) for name in ("folder", "limit_bytes", "entries", "bytes", "leftovers")}
    write_json(json_path, {**whole, "kinds": kinds})


@command.command("verify", epilog="\b\nExamples:\n  hotfuse cache verify\n  hotfuse cache verify --remove")
@click.option("--remove", is_flag=True, help="Remove what is damaged.")
@folder_option
@json_option
def verify(remove: bool, folder: str | None, json_path: str | None) -> None:
    """Read every entry whole and check its digest. Exit code 1 if something is damaged.

    A damaged entry is never used: it is a miss, and goes when it is met. A link, or a file that others may write to, stays.
    """
    console, read, damaged = make_console(json_path), 0, list[Damaged]()
    with make_progress(console) as progress:
        for cache in _open(folder):
            bar, before = progress.add_task("verifying", total=None), read

            def tell(done: int, total: int, bar: Any = bar, before: int = before) -> None:
                nonlocal read
                read = before + done
                progress.update(bar, completed=done, total=total)

            damaged += cache.verify(tell, remove)
    if damaged:
        console.print(make_table("Damaged", ("entry", "why"), [(d.name, d.reason) for d in damaged]))
        console.print()
    after = "was removed" if remove else "is never used; `hotfuse cache verify --remove` removes it"
    verdict = f"{len(damaged):,} damaged: what is damaged {after}" if damaged else "all sound"
    console.print(f"{_entries(read)} read, {verdict}", markup=False)
    write_json(json_path, {"entries": read, "damaged": [dataclasses.asdict(d) for d in damaged], "removed": remove})
    if damaged:
        raise click.exceptions.Exit(1)


@command.command("prune", epilog="\b\nExamples:\n  hotfuse cache prune\n  hotfuse cache prune --limit 200M")
@click.option("--limit", metavar="BYTES", help="What may stay: 500000, 200M, 1G. By default HOTFUSE_MAX_CACHE_BYTES.")
@folder_option
@json_option
def prune(limit: str | None, folder: str | None, json_path: str | None) -> None:
    """Remove the least recently used entries until the rest fits, and what dead writers left."""
    limit_bytes = None if limit is None else read_bytes(limit)
    cache, *lessons = _open(folder)
    _tell_removed([cache.prune(limit_bytes), *(other.prune() for other in lessons)], json_path)


@command.command("clear", epilog="\b\nExamples:\n  hotfuse cache clear\n  hotfuse cache clear --yes")
@click.option("--yes", is_flag=True, help="Do not ask.")
@folder_option
@json_option
def clear(yes: bool, folder: str | None, json_path: str | None) -> None:
    """Remove every entry, and what was learned of models' kernels. Other files of the folder stay."""
    caches = _open(folder)
    if not yes:
        found = _together(*(cache.stats() for cache in caches))
        held = f"{_entries(found.entries)} ({show_quantity(found.bytes, 'B')})"
        click.confirm(f"Remove {held} from {found.folder}?", abort=True, err=True)
    _tell_removed([cache.clear() for cache in caches], json_path)


def _together(own: Stats, *others: Stats) -> Stats:
    """What is in a cache and in others within it."""
    kinds = Counter[str](), Counter[str]()
    for each in (own, *others):
        for kind, counted in each.kinds.items():
            for total, count in zip(kinds, counted, strict=True):
                total[kind] += count
    entries, taken = (sum(total.values()) for total in kinds)
    both = {kind: (kinds[0][kind], kinds[1][kind]) for kind in kinds[0]}
    leftovers = sum(each.leftovers for each in (own, *others))
    return dataclasses.replace(own, entries=entries, bytes=taken, kinds=both, leftovers=leftovers)


def _tell_removed(each: Sequence[Removed], json_path: str | None) -> None:
    removed = Removed(sum(r.entries for r in each), sum(r.bytes for r in each))
    text = f"{_entries(removed.entries)} removed, {show_quantity(removed.bytes, 'B')}"
    make_console(json_path).print(text, markup=False)
    write_json(json_path, dataclasses.asdict(removed))


def read_bytes(text: str) -> int:
    """A number of bytes, with a metric prefix if there is one: 200M is 200,000,000."""
    match = re.fullmatch(r"(\d{1,15})([kMGT]?)B?", text.strip())
    if match is None:
        raise click.UsageError(f"--limit {text!r} is no number of bytes; give one such as 500000, 200M or 1G")
    return int(match[1]) * _PREFIXES[match[2]]


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def show_age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:,.0f} {unit} ago"
    return "now"


def _short(key: str) -> str:
    """A key on one line; many are whole programs. Names in it come from models, and are not to steer the terminal."""
    line = " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in key).split())
    return line if len(line) <= KEY_SHOWN else line[: KEY_SHOWN - 3] + "..."
