"""Many shapes: calls of a model, each of another batch and length, in random order. Tails, memory, and how much is kept.

python -m benchmarks.shapes [--model minilm] [--shapes 1000] [--engines hotfuse,eager,...] [--json FILE]

Each engine runs in a process of its own, with nothing in its caches, on the same calls. Half of the lengths are short, as those
of requests are. Ratios are to eager for PyTorch and to ONNX Runtime for ONNX, call by call. Memory is what the process holds at
the end, against what it held after a fifth of the calls, the largest of which came first. Answers are compared, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.cli.bench.engines import cold_caches
from hotfuse.cli.bench.models import WORDS, Case, make_torch, one_output
from hotfuse.runtime.child import resident_bytes

BATCHES, LENGTH = 8, 512
WARM = 0.2  # of the calls
FLAT = 0.02
TRACED = 12  # the length that the model is exported with
ALIKE = 1e-3  # of a mean: another answer is another model's

Call = Callable[[Any], Any]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """What one engine did: seconds and the mean magnitude of the answer by call, and what it holds at the end."""

    engine: str
    seconds: list[float]
    means: list[float]
    warm_bytes: int
    end_bytes: int
    kept: dict[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        return self.end_bytes / self.warm_bytes - 1


def draw_shapes(count: int, seed: int = 0) -> list[Shape]:
    """Distinct batches and lengths, the largest first: memory has its high-water mark from then on."""
    if not 1 <= count <= BATCHES * LENGTH // 2:
        raise SystemExit(f"--shapes must be from 1 to {BATCHES * LENGTH // 2}")
    draw = random.Random(seed)
    found = {(BATCHES, LENGTH): None}
    while len(found) < count:
        length = int(LENGTH ** draw.random()) if draw.random() < 0.5 else draw.randint(1, LENGTH)
        found[draw.randint(1, BATCHES), max(1, length)] = None
    return list(found)


# engines: each returns a call of an array of token ids, and what it keeps


def _hotfuse_onnx(folder: Path, model: str) -> tuple[Call, Callable[[], dict[str, int]]]:
    import hotfuse

    session = hotfuse.load(folder / "generic.onnx")

    def kept() -> dict[str, int]:
        report = session.report()
        return {"kernels": session.kernels, "bound shapes": report.bound_shapes}

    return lambda ids: session.run(None, {session.inputs[0].name: ids})[0], kept


def _onnxruntime(folder: Path, model: str) -> tuple[Call, Callable[[], dict[str, int]]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "generic.onnx"), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda ids: session.run(None, {name: ids})[0], dict


def _torch(wrap: Callable[[Any], Any], kept: Callable[[Any], dict[str, int]]) -> Any:
    def engine(folder: Path, model: str) -> tuple[Call, Callable[[], dict[str, int]]]:
        import torch

        torch.set_grad_enabled(False)
        made = wrap(one_output(make_torch(Case(model, sequence=TRACED))))
        return lambda ids: made(torch.from_numpy(ids)).numpy(), lambda: kept(made)

    return engine


def _hotfuse_kept(made: Any) -> dict[str, int]:
    from hotfuse.runtime.torch_module import controls

    classes = [served for member in controls(made).family.all() for served in member.classes]
    executors = [served.runner.executor for served in classes]
    kernels, bound = sum(e.kernels for e in executors), sum(e.bound_shapes for e in executors)
    return {"classes": len(classes), "kernels": kernels, "bound shapes": bound}


def _compiled_by_hotfuse(module: Any) -> Any:
    import hotfuse

    return hotfuse.compile(module)


def _compiled_by_torch(module: Any) -> Any:
    import torch

    return torch.compile(module, dynamic=True)


def _graphs(made: Any) -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {"graphs": int(counters["stats"]["unique_graphs"])}


ENGINES: Mapping[str, Any] = {
    "onnxruntime": _onnxruntime,
    "hotfuse-onnx": _hotfuse_onnx,
    "eager": _torch(lambda module: module, lambda made: {}),
    "hotfuse": _torch(_compiled_by_hotfuse, _hotfuse_kept),
    "torch.compile": _torch(_compiled_by_torch, _graphs),
}
ORIGINALS = {"hotfuse-onnx": "onnxruntime", "hotfuse": "eager", "torch.compile": "eager"}


def run_here(engine: str, folder: Path, model: str, shapes: Sequence[Shape]) -> Run:
    """Call an engine once with each shape."""
    call, kept = ENGINES[engine](folder, model)
    rng = np.random.default_rng(0)
    seconds, means, warm_bytes = [], [], 0
    for number, shape in enumerate(shapes):
        ids = rng.integers(0, WORDS, shape)
        begun = time.perf_counter()
        answer = call(ids)
        seconds.append(time.perf_counter() - begun)
        means.append(float(np.abs(answer, dtype=np.float64).mean()))
        if number == int(WARM * len(shapes)):
            warm_bytes = _resident_bytes()
    return Run(engine, seconds, means, warm_bytes, _resident_bytes(), kept())


def _resident_bytes() -> int:
    gc.collect()
    return resident_bytes(os.getpid())


def export_generic(folder: Path, model: str) -> None:
    import torch

    from hotfuse.cli.bench.subject import export, torch_call

    torch.set_grad_enabled(False)
    call = torch_call(Case(model, sequence=TRACED), folder)
    axes = {0: "batch", 1: "sequence"}
    failed = export(call, folder / "generic.onnx", {**dict.fromkeys(call.names, axes), "answer": axes})
    if failed:
        raise SystemExit(f"{model} cannot be exported with free sizes: {failed}")


# the table


def row(run: Run, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The figures of one engine, in milliseconds, and its ratios to the original where there is one beside it."""
    seconds = np.asarray(run.seconds)
    found: dict[str, Any] = {
        "engine": run.engine,
        **{f"p{p:g}_ms": float(np.percentile(seconds, p)) * 1e3 for p in (50, 99, 99.9)},
        "total_s": float(seconds.sum()),
        "memory_mib": run.end_bytes >> 20,
        "growth": run.growth,
        "is_flat": run.growth <= FLAT,
        **run.kept,
    }
    original = runs.get(ORIGINALS.get(run.engine, ""))
    if original is not None:
        ratios = seconds / np.asarray(original.seconds)
        off = np.abs(np.asarray(run.means) / np.asarray(original.means) - 1) > ALIKE
        found |= {f"ratio_p{p:g}": float(np.percentile(ratios, p)) for p in (50, 99)}
        found |= {"wrong": int(off.sum())}
    return found


def show(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = dict.fromkeys(name for one in rows for name in one)
    cells = [list(columns), *([_cell(one.get(name)) for name in columns] for one in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="a model of `hotfuse bench` that reads token ids")
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes = draw_shapes(options.shapes)
    if options.here:
        engine, folder = options.here
        if engine == "export":
            export_generic(Path(folder), options.model)
        else:
            print(json.dumps(asdict(run_here(engine, Path(folder), options.model, shapes))))
        return
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.shapes", "--model", options.model]
        command += ["--shapes", str(options.shapes), "--here"]
        if {"onnxruntime", "hotfuse-onnx"} & set(options.engines.split(",")):
            subprocess.run([*command, "export", folder], check=True, stdout=subprocess.DEVNULL)
        for engine in options.engines.split(","):
            environment = {**os.environ, **cold_caches(os.path.join(folder, engine))}
            done = subprocess.run([*command, engine, folder], env=environment, stdout=subprocess.PIPE, text=True, check=True)
            runs[engine] = Run(**json.loads(done.stdout.splitlines()[-1]))
            print(f"{engine}: {sum(runs[engine].seconds):.1f} s", file=sys.stderr, flush=True)
    rows = [row(run, runs) for run in runs.values()]
    print(show(rows))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "runs": [asdict(run) for run in runs.values()]}, indent=2))


if __name__ == "__main__":
    main()
