"""`hotfuse run`: load a model, feed it, time it, and say what came out."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

import hotfuse
from hotfuse.cli.feeds import make_feeds
from hotfuse.cli.view import json_option, make_console, make_table, show_ms, write_json
from hotfuse.errors import InputError
from hotfuse.runtime.profiler import StepTime

SLOWEST = 15  # rows of the table of single steps


@click.command(
    "run",
    epilog="""\b
Examples:
  hotfuse run model.onnx
  hotfuse run bert.onnx --dim batch=8 --dim sequence=128 --repeat 50 --profile
  hotfuse run net.onnx --input image=cat.npy --json result.json""",
)
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="Feed this input from a file.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="The shape of a random input.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="The size of a free dim of the inputs.")
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(1), help="Timed calls after the first.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--profile", is_flag=True, help="Time each operator as well.")
@json_option
def command(
    model: str,
    inputs: Sequence[str],
    shapes: Sequence[str],
    dims: Sequence[str],
    repeat: int,
    seed: int,
    profile: bool,
    json_path: str | None,
) -> None:
    """Run MODEL (.onnx or .pt2) on random or given inputs, and time it."""
    console = make_console(json_path)
    with console.status(f"loading {model}"):
        started = time.perf_counter()
        session = hotfuse.load(model)
        load_s = time.perf_counter() - started
    feeds = make_feeds(
        session.graph,
        session.inputs,
        given={name: _read_array(name, path) for name, path in _pairs(inputs, "--input").items()},
        shapes={name: _read_shape(name, text) for name, text in _pairs(shapes, "--shape").items()},
        dims=read_sizes(dims, "--dim"),
        seed=seed,
    )
    started = time.perf_counter()
    outputs = session.run(None, feeds)
    first_s = time.perf_counter() - started
    times = _time_calls(console, session, feeds, repeat)
    steps = session.profile(feeds) if profile else []

    result = {
        "model": model,
        "inputs": [_summary(name, value) for name, value in feeds.items()],
        "outputs": [_summary(name, value) for name, value in zip(_output_names(session, outputs), outputs, strict=True)],
        "nodes": len(session.graph.nodes),
        "opaque": [{"origin": o, "operator": op, "reason": why} for o, op, why in session.opaque],
        "load_ms": load_s * 1e3,
        "first_call_ms": first_s * 1e3,
        "median_ms": statistics.median(times) * 1e3,
        "p99_ms": float(np.percentile(times, 99)) * 1e3,
        "calls": repeat,
        "why": session.report().why,
    }
    if profile:
        result["profile"] = [{"node": t.node.id, "op": t.node.op, "median_ms": t.median_s * 1e3} for t in steps]
    _show(console, result)
    if profile:
        _show_profile(console, steps)
    write_json(json_path, result)


def _output_names(session: Any, outputs: Sequence[Any]) -> list[str]:
    """Names of the outputs; an exported program's answer may have other leaves than its graph, and they are numbered."""
    names = [s.name for s in session.outputs]
    return names if len(names) == len(outputs) else [f"output {i}" for i in range(len(outputs))]


def _time_calls(console: Console, session: Any, feeds: Mapping[str, Any], repeat: int) -> list[float]:
    times = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for _ in progress.track(range(repeat), description="running"):
            started = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - started)
    return times


def _show(console: Console, result: Mapping[str, Any]) -> None:
    for kind in ("inputs", "outputs"):
        rows = [(r["name"], r["type"], r.get("range", "")) for r in result[kind]]
        console.print(make_table(kind.capitalize(), ("name", "type", "values"), rows))
        console.print()
    timing = [
        ("load", result["load_ms"]),
        ("first call", result["first_call_ms"]),
        (f"median of {result['calls']}", result["median_ms"]),
        ("p99", result["p99_ms"]),
    ]
    console.print(make_table("Timing", ("what", ">time"), [(what, show_ms(ms / 1e3)) for what, ms in timing]))
    opaque = len(result["opaque"])
    tail = f", {opaque} of them opaque (`hotfuse explain` says why)" if opaque else ", none opaque"
    console.print(f"\n{result['nodes']} nodes{tail}")
    console.print(f"why it is not faster yet: {result['why']}", markup=False)


def _show_profile(console: Console, steps: Sequence[StepTime]) -> None:
    total = sum(t.median_s for t in steps) or 1.0
    by_op: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        by_op[_shown_op(step)].append(step.median_s)
    ranked = sorted(by_op.items(), key=lambda item: -sum(item[1]))
    rows = [(op, len(t), show_ms(sum(t)), f"{sum(t) / total:.1%}") for op, t in ranked]
    console.print()
    console.print(make_table("Time by operator", ("operator", ">steps", ">time", ">share"), rows))
    slowest = sorted(steps, key=lambda t: -t.median_s)[:SLOWEST]
    single = [(t.node.id, _shown_op(t), t.node.origin, show_ms(t.median_s)) for t in slowest]
    console.print()
    console.print(make_table("Slowest steps", ("node", "operator", "origin", ">time"), single))


def _shown_op(step: StepTime) -> str:
    return str(step.node.attrs.get("op_type") or step.node.attrs.get("target") or step.node.op)


def _summary(name: str, value: Any) -> dict[str, Any]:
    """A value in one line: its type and, for numbers, their range."""
    if not isinstance(value, np.ndarray | np.generic):
        return {"name": name, "type": type(value).__name__}
    array = np.asarray(value)
    found: dict[str, Any] = {"name": name, "type": f"{array.dtype}[{', '.join(map(str, array.shape))}]"}
    if array.size and array.dtype != object and array.dtype.kind != "c":
        numbers = array.astype(np.float64)
        found |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
        found["range"] = f"{found['min']:.4g} .. {found['max']:.4g}, mean {found['mean']:.4g}"
        if np.isnan(numbers).any():
            found["nan"] = int(np.isnan(numbers).sum())
            found["range"] = f"{found['nan']} NaN"
    return found


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} {text!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _read_array(name: str, path: str) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InputError(f"input {name!r}: {path} is not an array in .npy format ({error}); save it with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {name!r}: {path} holds several arrays; save the one you want with numpy.save")
    return array


def _read_shape(name: str, text: str) -> tuple[int, ...]:
    return tuple(_read_size(name, part) for part in text.split(",") if part.strip())


def read_sizes(texts: Sequence[str], option: str) -> dict[str, int]:
    """Sizes by name, from NAME=N."""
    return {name: _read_size(name, text) for name, text in _pairs(texts, option).items()}


def _read_size(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise click.UsageError(f"{name}={text!r}: a size is a whole number")
    return int(text)
