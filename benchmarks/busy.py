"""Serving while the machine is busy with our own work: the bound is a p99 of 1.2 times that of the same serving alone.

One process serves a model at half load: after each call it rests for as long as the call took. In every other phase all of this
goes on at once:

    compiling     behind the calls of the process that serves: builds, one after the other
    tuning        in a process of its own: plans of random graphs, measured edit by edit
    calibrating   in a process of its own: `hotfuse calibrate`, from its start on

Phases with and without it take turns. What each of them got done is told, too: who stands still all the time disturbs nobody.

python -m benchmarks.busy [--model minilm] [--seconds 12] [--rounds 4] [--without compiling,...] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BOUND = 1.2
WORK = ("compiling", "tuning", "calibrating")
GRAPHS = 12  # random ones that are built, and as many that are tuned
TUNE_S = 3.0  # for each
WARM = 50  # calls that nobody times

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--without", default="", help=f"of {', '.join(WORK)}, what does not go on")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tune", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tune:
        tune()
    elif options.export:
        export(options.model, options.export)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    chosen = [name for name in WORK if name not in options.without.split(",")]
    phases: dict[str, list[list[float]]] = {"alone": [], "busy": []}
    done = dict.fromkeys(chosen, 0.0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        call = serving(options.model, Path(folder))
        works = {name: stack.enter_context(_START[name](Path(folder))) for name in chosen}
        for _ in range(WARM):
            call()
        for _ in range(options.rounds):
            phases["alone"].append(at_half_load(call, options.seconds))
            with ExitStack() as busy:
                for name, work in works.items():
                    busy.enter_context(work(lambda had, name=name: done.__setitem__(name, done[name] + had)))
                phases["busy"].append(at_half_load(call, options.seconds))
    report(options, phases, done)


def report(options: argparse.Namespace, phases: dict[str, list[list[float]]], done: dict[str, float]) -> None:
    p99 = {how: float(np.quantile(np.concatenate(found), 0.99)) for how, found in phases.items()}
    p50 = {how: float(np.quantile(np.concatenate(found), 0.5)) for how, found in phases.items()}
    each = {how: [float(np.quantile(calls, 0.99)) for calls in found] for how, found in phases.items()}
    ratio = p99["busy"] / p99["alone"]
    for how, found in phases.items():
        shown = " ".join(f"{1e3 * value:.2f}" for value in each[how])
        calls = sum(map(len, found))
        print(f"{how:6}{calls:7} calls   p50 {1e3 * p50[how]:.2f} ms   p99 {1e3 * p99[how]:.2f} ms   by phase {shown}")
    for name, had in done.items():
        print(f"{name}: {had:.1f} s of a core in {options.rounds * options.seconds:.0f} s")
    apart = statistics.median(each["busy"]) / statistics.median(each["alone"])
    print(f"p99 busy / alone: {ratio:.2f} (the bound is {BOUND}); of the medians of phases {apart:.2f}")
    if options.json:
        found = {"p99_s": p99, "p50_s": p50, "p99_by_phase_s": each, "ratio": ratio, "bound": BOUND, "core_s": done}
        options.json.write_text(json.dumps(found, indent=2))


# what is served


def serving(model: str, folder: Path) -> Call:
    """A call of the model in generated code. Another process exports it: this one does not load PyTorch."""
    import hotfuse

    path = folder / "model.onnx"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.busy", "--model", model, "--export", str(path)], check=True
    )
    session = hotfuse.load(str(path), tier=1, wait=True)
    with np.load(path.with_suffix(".npz")) as found:
        feeds = dict(found)
    return lambda: session.run(None, feeds)


def export(model: str, path: Path) -> None:
    from hotfuse.cli.bench.models import Case
    from hotfuse.cli.bench.subject import export as write
    from hotfuse.cli.bench.subject import torch_call

    call = torch_call(Case(model), path.parent)
    if why := write(call, path):
        raise SystemExit(why)
    feeds = {name: tensor.numpy() for name, tensor in zip(call.names, call.tensors, strict=True)}
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **feeds)


def at_half_load(call: Call, seconds: float) -> list[float]:
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
        time.sleep(taken[-1])
    return taken


# what goes on meanwhile: each is made ready once, and a phase has it go on; it tells how much of a core it had

Had = Callable[[float], None]


@contextmanager
def compiling(folder: Path) -> Iterator[Any]:
    """Builds behind the calls of this process, without a cache: one worker, and always one more job that waits."""
    from hotfuse.config import Config
    from hotfuse.runtime.build import skeleton
    from hotfuse.runtime.build_jobs import build_job
    from hotfuse.runtime.build_pool import build_pool
    from hotfuse.runtime.build_request import BuildReply, BuildRequest
    from hotfuse.runtime.specimens import specimen

    config, on = Config(cache="off"), threading.Event()
    pool = build_pool(config)
    graphs = itertools.cycle([skeleton(specimen(seed).graph) for seed in range(2_000_000, 2_000_000 + GRAPHS)])
    spent: list[float] = []

    def submit(result: BuildReply | BaseException | None = None) -> None:
        if isinstance(result, BuildReply):
            spent.append(result.cpu_s)
        if on.is_set():
            asked = BuildRequest(next(graphs), config)
            pool.submit(build_job("specimen", lambda: asked, submit, config))

    @contextmanager
    def phase(had: Had) -> Iterator[None]:
        on.set()
        submit()
        submit()
        try:
            yield
        finally:
            on.clear()
            while pool.unfinished:
                time.sleep(0.05)
            had(sum(spent))
            spent.clear()

    yield phase


@contextmanager
def tuning(folder: Path) -> Iterator[Any]:
    """A process that tunes is stopped between phases: it is another one's turn."""
    command = [sys.executable, "-m", "benchmarks.busy", "--tune"]
    environment = {**os.environ, "HOTFUSE_CACHE": str(folder / "tuning")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)

        @contextmanager
        def phase(had: Had) -> Iterator[None]:
            before = _cpu_s(process.pid)
            process.send_signal(signal.SIGCONT)
            try:
                yield
            finally:
                process.send_signal(signal.SIGSTOP)
                had(_cpu_s(process.pid) - before)

        yield phase
    finally:
        process.kill()
        process.wait()


def tune() -> None:
    """Tune plans of random graphs, until somebody ends it."""
    from hotfuse.config import Config
    from hotfuse.hardware.spec import host_spec
    from hotfuse.passes.hoist import hoist
    from hotfuse.runtime.build import attached, skeleton
    from hotfuse.runtime.building import native_form
    from hotfuse.runtime.specimens import specimen
    from hotfuse.runtime.tuned import tuned_plan

    config, spec = Config(tier=2, wait=True), host_spec()
    subjects = []
    for seed in range(3_000_000, 3_000_000 + GRAPHS):
        drawn = specimen(seed)
        hoisted = hoist(native_form(skeleton(drawn.graph), spec), ())
        given = [drawn.inputs[name] for name in hoisted.main.inputs]
        subjects.append((hoisted, hoisted.main, attached(hoisted, drawn.graph.constants), given))
    print("ready", flush=True)
    for subject in itertools.cycle(subjects):
        tuned_plan(*subject, {}, spec, config, TUNE_S)


@contextmanager
def calibrating(folder: Path) -> Iterator[Any]:
    """The command, as users start it; it goes on where it was when it was ended."""
    command = [sys.executable, "-m", "hotfuse.cli.main", "calibrate", "--seconds", "3600"]
    environment = {**os.environ, "HOTFUSE_CACHE": str(folder / "calibrating")}

    @contextmanager
    def phase(had: Had) -> Iterator[None]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        try:
            yield
        finally:
            had(_cpu_s(process.pid))
            process.kill()
            process.wait()

    yield phase


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


_START = {"compiling": compiling, "tuning": tuning, "calibrating": calibrating}


if __name__ == "__main__":
    main()
