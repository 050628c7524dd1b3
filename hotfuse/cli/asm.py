"""`hotfuse asm`: tile programs by hand.

`dump` shows one in its normal form, `run` interprets it on random inputs, `diff` runs two on the same inputs and says where
they differ, in results and in text.
"""

from __future__ import annotations

import collections
import difflib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from hotfuse.cli.run import read_sizes
from hotfuse.cli.view import json_option, make_console, make_table, show_ms, write_json
from hotfuse.codegen.interpret import evaluate, poison, run
from hotfuse.codegen.tile import TileProgram, walk
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_feeds import make_inputs, widened
from hotfuse.codegen.tile_files import file_name
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.config import Config
from hotfuse.entry import load_model
from hotfuse.errors import InputError, ParseError, TileError
from hotfuse.hardware.spec import host_spec
from hotfuse.numerics import Verdict, close_to_exact, same_bits
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.building import make_build

MOST_BYTES = 1 << 30  # of all buffers together; the interpreter is for small sizes
ROW = 64  # flat outputs are judged in pieces of this many elements, so that a wrong tail does not hide in a mean

Array = np.ndarray[Any, Any]

size_option = click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A run-time size of the program.")
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of the inputs and of the order of tasks.")
file_type = click.Path(exists=True, dir_okay=False)


@click.group(
    "asm",
    epilog="""\b
Examples:
  hotfuse asm dump softmax.tile
  hotfuse asm dump model.onnx --to tiles && HOTFUSE_TILES=tiles hotfuse bench model.onnx
  hotfuse asm run softmax.tile --size m=64 --size n=100
  hotfuse asm diff before.tile after.tile --size m=64 --size n=100""",
)
def command() -> None:
    """Look at, run and compare tile programs (FILE.tile)."""


@command.command("dump")
@click.argument("file", type=file_type)
@click.option("--to", "folder", metavar="FOLDER", help="Write each program into a file of FOLDER instead.")
@click.option("--isa", default="native", show_default=True, help="Instruction set that a model's programs are for.")
def dump(file: str, folder: str | None, isa: str) -> None:
    """Print the program in FILE.tile in its normal form, or all programs that FILE.onnx becomes.

    Files written with --to may be edited; with HOTFUSE_TILES=FOLDER they are used in place of the originals.
    """
    programs = programs_of(file, isa) if file.endswith(".onnx") else [read_program(file)]
    for program in programs:
        if folder is None:
            click.echo(print_program(program))
            continue
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / file_name(program)
        path.write_text(print_program(program))
        click.echo(str(path))


def programs_of(path: str, isa: str) -> list[TileProgram]:
    """The different programs that a model's groups become when it is served."""
    config = Config(isa=isa)
    graph = load_model(path, Config(tier=0), {}).graph
    return list(make_build(skeleton(graph), host_spec(isa), config, lambda program: None).programs)


@command.command("run")
@click.argument("file", type=file_type)
@size_option
@seed_option
@json_option
def run_file(file: str, sizes: Sequence[str], seed: int, json_path: str | None) -> None:
    """Interpret the program in FILE on random inputs; print what came out and how long it took."""
    program = read_program(file)
    given = _sizes_for([program], sizes)
    memory = _memory(program, given, make_inputs(program, given, seed))
    started = time.perf_counter()
    status = run(program, memory, given, seed)
    result = {
        "program": program.name,
        "sizes": given,
        "tasks": evaluate(program.tasks, given),
        "status": status,
        "interpreted_ms": (time.perf_counter() - started) * 1e3,
        "buffers": [{"kind": b.kind, **_summary(b.name, memory[b.name])} for b in program.arguments],
    }
    _show_run(make_console(json_path), result)
    write_json(json_path, result)


@command.command("diff")
@click.argument("first", type=file_type)
@click.argument("second", type=file_type)
@size_option
@seed_option
@json_option
@click.pass_context
def diff(context: click.Context, first: str, second: str, sizes: Sequence[str], seed: int, json_path: str | None) -> None:
    """Run the programs in FIRST and SECOND on the same inputs and compare them; exit code 1 if the results differ.

    Results with other bits are held to the float64 rule: SECOND must be about as close as FIRST to FIRST computed in float64.
    """
    programs = [read_program(first), read_program(second)]
    _require_same_arguments(*programs)
    given = _sizes_for(programs, sizes)
    inputs = make_inputs(programs[0], given, seed)
    memories = [_memory(p, given, inputs) for p in programs]
    statuses = [run(p, m, given, seed) for p, m in zip(programs, memories, strict=True)]
    exact = widened(programs[0])
    exact_memory = _memory(exact, given, inputs)
    run(exact, exact_memory, given, seed)
    outputs = [
        {"name": b.name, **_compare(memories[1][b.name], memories[0][b.name], exact_memory[b.name])}
        for b in programs[0].arguments
        if b.kind == "output"
    ]
    same = statuses[0] == statuses[1] and all(o["ok"] for o in outputs)
    texts = [print_program(p).splitlines() for p in programs]
    counts = [collections.Counter(type(i).__name__.lower() for i in walk(p.body)) for p in programs]
    result = {
        "sizes": given,
        "same_results": same,
        "status": statuses,
        "outputs": outputs,
        "instructions": {k: [c[k] for c in counts] for k in sorted(counts[0] | counts[1])},
        "text": list(difflib.unified_diff(texts[0], texts[1], first, second, lineterm="", n=1)),
    }
    _show_diff(make_console(json_path), result)
    write_json(json_path, result)
    if not same:
        context.exit(1)


def read_program(file: str) -> TileProgram:
    """The checked program of a file; errors name the file."""
    try:
        program = parse_program(Path(file).read_text())
        check(program)
    except (ParseError, TileError) as error:
        raise type(error)(f"{file}: {error}") from error
    except UnicodeDecodeError as error:
        raise ParseError(f"{file}: not text, so no tile program") from error
    return program


def _sizes_for(programs: Sequence[TileProgram], texts: Sequence[str]) -> dict[str, int]:
    given = read_sizes(texts, "--size")
    wanted = [name for p in programs for name in p.sizes]
    missing = [name for name in dict.fromkeys(wanted) if name not in given]
    if missing:
        raise InputError(f"the program has sizes that were not given; add {' '.join(f'--size {name}=N' for name in missing)}")
    for name in given:
        if name not in wanted:
            raise InputError(f"the program has no size {name!r}; its sizes are {', '.join(wanted) or 'none'}")
    total = sum(evaluate(b.size, given) * b.dtype.bytes for p in programs for b in p.buffers)
    if total > MOST_BYTES:
        raise InputError(f"buffers of {total:,} bytes are too much for the interpreter; give smaller sizes")
    return given


def _memory(program: TileProgram, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Memory for every argument: copies of the inputs in their types, and poisoned outputs."""
    return {
        b.name: inputs[b.name].astype(b.dtype.numpy) if b.kind == "input" else poison(b.dtype, evaluate(b.size, sizes))
        for b in program.arguments
    }


def _require_same_arguments(first: TileProgram, second: TileProgram) -> None:
    a, b = ([(x.name, str(x.dtype), str(x.size), x.kind) for x in p.arguments] for p in (first, second))
    if a != b:
        odd = next((x for x, y in zip(a, b, strict=False) if x != y), None) or max(a, b, key=len)[min(len(a), len(b))]
        raise InputError(f"the programs do not take the same arguments: {odd[3]} {odd[0]} {odd[1]}[{odd[2]}] is in one only")


def _compare(ours: Array, original: Array, exact: Array) -> dict[str, Any]:
    if same_bits(ours, original):
        return {"ok": True, "verdict": "the same bits"}
    whole = ours.size // ROW * ROW
    pieces = [(slice(0, whole), (-1, ROW)), (slice(whole, None), (-1,))]
    verdicts = [
        close_to_exact(*(x[part].reshape(shape) for x in (ours, original, exact))) for part, shape in pieces if ours[part].size
    ]
    wrong: Verdict | None = next((v for v in verdicts if not v), None)
    far = float(np.nanmax(np.abs(ours.astype(np.float64) - original.astype(np.float64))))
    return {
        "ok": wrong is None,
        "verdict": "within the float64 rule" if wrong is None else wrong.reason,
        "largest_difference": far,
    }


def _summary(name: str, array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "type": f"{array.dtype}[{array.size}]"}
    found["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()[:16]
    if array.size:
        wide = array.astype(np.float64)
        found |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return found


def _show_run(console: Console, result: Mapping[str, Any]) -> None:
    rows = [
        (
            b["kind"],
            b["name"],
            b["type"],
            b["sha256"],
            f"{b['min']:.4g} .. {b['max']:.4g}, mean {b['mean']:.4g}" if "min" in b else "",
        )
        for b in result["buffers"]
    ]
    console.print(make_table(f"Program {result['program']}", ("kind", "name", "type", "sha256", "values"), rows))
    failed = "; an index was out of range" if result["status"] else ""
    took = show_ms(result["interpreted_ms"] / 1e3)
    console.print(f"\n{result['tasks']} tasks interpreted in {took}{failed}", markup=False)


def _show_diff(console: Console, result: Mapping[str, Any]) -> None:
    rows = [
        (o["name"], o["verdict"], f"{o['largest_difference']:.3g}" if "largest_difference" in o else "")
        for o in result["outputs"]
    ]
    console.print(make_table("Results", ("output", "verdict", ">largest difference"), rows))
    if result["status"][0] != result["status"][1]:
        console.print(f"\nan index was out of range in only one of them (status {result['status']})", markup=False)
    counts = [(k, *c) for k, c in result["instructions"].items() if c[0] != c[1]]
    if counts:
        console.print()
        console.print(make_table("Instructions", ("kind", ">first", ">second"), counts))
    console.print()
    for line in result["text"] or ["the programs are the same text"]:
        console.print(line, markup=False)
    console.print(f"\n{'the results agree' if result['same_results'] else 'the results differ'}", markup=False)
