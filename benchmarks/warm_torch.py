"""A second process: from a PyTorch model in hand to its first answer by native code, with a cache that another process filled.

python -m benchmarks.warm_torch [--model minilm] [--processes 5] [--pause-ms 5] [--json FILE]

The bound is 1 s. The first process finds an empty cache; the others print what happened when, after `hotfuse.compile`.
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

_CHILD = """
import json, sys, time
import torch
from hotfuse.cli.bench.models import Case, make_torch
import hotfuse
from hotfuse.runtime.torch_module import controls

begun = time.time()
made = make_torch(Case(sys.argv[1]))
compiled = time.time()
with torch.no_grad():
    fast = hotfuse.compile(made.module)
    inner = controls(fast)
    first = None
    while time.time() - compiled < float(sys.argv[3]) and not inner.root.answered:
        answer = fast(made.value)
        first = first or time.time()
        time.sleep(float(sys.argv[2]))
    answered = time.time()
    time.sleep(float(sys.argv[4]))  # what is written for the next process is written
    assert inner.root.answered, [f"{event.kind} {event.reason}" for event in inner.events]
    torch.testing.assert_close(fast(made.value), made.module(made.value), rtol=1e-3, atol=1e-3)
steps = [(event.kind, event.time_s - compiled) for event in inner.events if event.kind != "guard.miss"]
took = {"model made": compiled - begun, "first call": first - compiled, "native": answered - compiled}
print(json.dumps({**took, "steps": steps}))
"""


def run(model: str, cache: str, pause_s: float, limit_s: float, rest_s: float) -> dict[str, Any]:
    """What one process says of itself."""
    command = [sys.executable, "-c", _CHILD, model, str(pause_s), str(limit_s), str(rest_s)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOTFUSE_CACHE": cache})
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--pause-ms", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compileall.compile_dir(Path(__file__).parents[1] / "hotfuse", quiet=2)  # an installed package comes with its bytecode
    with tempfile.TemporaryDirectory() as folder:
        cache, pause_s = f"{folder}/cache", options.pause_ms / 1e3
        cold = run(options.model, cache, pause_s, 300.0, 3.0)
        warm = [run(options.model, cache, pause_s, 30.0, 0.0) for _ in range(options.processes)]
    print(f"{options.model}: cold {cold['native']:.2f} s")
    median_s = statistics.median(run["native"] for run in warm)
    print(f"warm {median_s:.2f} s from the model in hand to the first native answer (the bound is 1); in the best process:")
    for kind, time_s in min(warm, key=lambda run: run["native"])["steps"]:
        print(f"  {time_s:6.3f}  {kind}")
    captured = sum(kind == "capture.cached" for run in warm for kind, _ in run["steps"])
    print(f"captures from the cache: {captured} in {len(warm)} processes")
    if options.json:
        options.json.write_text(json.dumps({"cold": cold, "warm": warm}, indent=2))


if __name__ == "__main__":
    main()
