"""From a loaded ONNX model to its first validated native answer, with a warm cache, in fresh processes: the bound is 0.3 s.

python -m benchmarks.warm_start [--model minilm] [--processes 7] [--json FILE]

  pieces   what has to be done, each by itself, with nobody else at work
  whole    calls in a row after `hotfuse.load`, until one is answered by published kernels: with an empty cache once, then warm
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

BOUND_S = 0.3
ANSWER_TIMEOUT_S = 300.0

_START = """
import json, sys, time
import numpy as np
import hotfuse
session = hotfuse.load(sys.argv[1], **json.loads(sys.argv[2]))
feeds = dict(np.load(sys.argv[3]))
laps, last = {}, (time.perf_counter(), time.process_time())
def lap(name):
    global last
    now = time.perf_counter(), time.process_time()
    laps[name], last = [now[0] - last[0], now[1] - last[1]], now
"""
_PIECES = """
graph = session.graph
weight = lambda name: graph.constants[name].glance()
from hotfuse.runtime import build_cache
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.build_request import BuildRequest, ProveRequest
from hotfuse.runtime.kernels import link_kernels
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
lap("imports")
build_cache.version()
lap("version of the sources")
reply = build_cache.cached_build(BuildRequest(skeleton(graph), session.config))
lap("read the build")
asked = ProveRequest(reply.build, reply.objects, feeds, session.config)
asked = build_cache.with_digests(asked, weight)
lap("hash the weights")
proof = build_cache.cached_proof(asked)
lap("read the proof")
kernels = link_kernels(reply.build.programs, reply.objects)
lap("link")
main = attached(reply.build.hoisted, graph.constants)
lap("prepare weights")
executor = build_executor(main, reply.build, kernels, NUMPY, session.config)
given = [feeds[i.name] for i in session.inputs]
answer = executor.run(given)
lap("bind, and answer")
executor.run(given)
lap("(a second answer)")
assert proof is not None and all(v.ok for v in proof.verdicts)
assert "llvmlite" not in sys.modules
for got, want in zip(answer, session.run(None, feeds)):
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
print(json.dumps(laps))
"""
_WHOLE = """
begun = time.perf_counter()
while not session.events.counts["tier.publish"]:
    session.run(None, feeds)
    assert time.perf_counter() - begun < float(sys.argv[4])
session.run(None, feeds)
lap("native answer")
import threading
session.observer.settled(60.0)
for thread in threading.enumerate():
    if thread.name == "hotfuse-cache":
        thread.join()
time.sleep(1.0)  # the worker writes to the disk
print(json.dumps(laps))
"""
_FILL = """
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_cache import keep_proof, with_digests
from hotfuse.runtime.build_request import BuildRequest, ProveRequest
from hotfuse.runtime.build_work import build_here, prove_here
weight = lambda name: session.graph.constants[name].glance()
reply = build_here(BuildRequest(skeleton(session.graph), session.config))
lap("build")
asked = with_digests(ProveRequest(reply.build, reply.objects, feeds, session.config), weight)
keep_proof(asked, prove_here(asked, weight))
lap("prove")
import threading
for thread in threading.enumerate():
    if thread.name == "hotfuse-cache":
        thread.join()
print(json.dumps(laps))
"""


def export(model: str, folder: Path) -> tuple[Path, Path]:
    """The model's ONNX file and the file of its inputs."""
    from hotfuse.cli.bench import subject
    from hotfuse.cli.bench.models import Case

    call, path, feeds = subject.torch_call(Case(model), folder), folder / "model.onnx", folder / "feeds.npz"
    reason = subject.export(call, path)
    if reason:
        raise SystemExit(f"{model}: {reason}")
    np.savez(feeds, **dict(zip(call.names, (tensor.numpy() for tensor in call.tensors), strict=True)))
    return path, feeds


def laps(code: str, path: Path, feeds: Path, cache: Path, **options: Any) -> dict[str, tuple[float, float]]:
    """The seconds that each step of a fresh process took, and its CPU seconds."""
    command = [sys.executable, "-c", _START + code, str(path), json.dumps(options), str(feeds), str(ANSWER_TIMEOUT_S)]
    environment = {**os.environ, "HOTFUSE_CACHE": str(cache)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return {name: (wall, cpu) for name, (wall, cpu) in found.items()}


def show(name: str, found: list[tuple[float, float]]) -> None:
    wall, cpu = (statistics.median(times) * 1e3 for times in zip(*found, strict=True))
    print(f"  {name:<24} {wall:7.1f} ms, CPU {cpu:7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compileall.compile_dir(Path(__file__).parents[1] / "hotfuse", quiet=2)  # an installed package comes with its bytecode
    with tempfile.TemporaryDirectory() as folder:
        path, feeds = export(options.model, Path(folder))
        warm, served = Path(folder) / "pieces", Path(folder) / "whole"
        made = laps(_FILL, path, feeds, warm, tier=0)
        pieces = [laps(_PIECES, path, feeds, warm, tier=0) for _ in range(options.processes)]
        cold = laps(_WHOLE, path, feeds, served)
        whole = [laps(_WHOLE, path, feeds, served) for _ in range(options.processes)]
    print(f"{options.model}, with an empty cache:")
    for name, times in (made | cold).items():
        show(name, [times])
    print(f"with a warm one, medians of {options.processes} processes (bound {BOUND_S * 1e3:.0f} ms):")
    for name in pieces[0]:
        show(name, [found[name] for found in pieces])
    counted = [[times for name, times in found.items() if not name.startswith("(")] for found in pieces]
    show("all pieces", [(sum(w for w, _ in found), sum(c for _, c in found)) for found in counted])
    show("native answer", [found["native answer"] for found in whole])
    if options.json:
        options.json.write_text(json.dumps({"made": made, "cold": cold, "pieces": pieces, "whole": whole}, indent=2))


if __name__ == "__main__":
    main()
