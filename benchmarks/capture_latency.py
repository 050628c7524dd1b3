"""Latency while a capture runs beside the client, against eager's own: the bound is a p99 of 1.2x, client at half load.

python -m benchmarks.capture_latency [--model minilm] [--seconds 12] [--processes 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

_CHILD = """
import json, sys, time
import torch
from hotfuse.cli.bench.models import Case, make_torch
made = make_torch(Case(sys.argv[2]))
module = made.module
captured = 0
with torch.no_grad():
    for _ in range(3):
        module(made.value)
    call = module
    if sys.argv[1] == "hotfuse":
        import hotfuse
        call = hotfuse.compile(module)
    seconds = []
    end = time.perf_counter() + float(sys.argv[3])
    while time.perf_counter() < end:
        started = time.perf_counter()
        call(made.value)
        took = time.perf_counter() - started
        seconds.append(took)
        time.sleep(took)
if sys.argv[1] == "hotfuse":
    captured = sum(e.kind.startswith("capture") for e in call.events) if hasattr(call, "events") else -1
print(json.dumps({"seconds": seconds, "captured": captured}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    p99: dict[str, list[float]] = {"eager": [], "hotfuse": []}
    for _ in range(options.processes):
        for engine, found in p99.items():
            arguments = [sys.executable, "-c", _CHILD, engine, options.model, str(options.seconds)]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            seconds = sorted(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])
            found.append(seconds[int(0.99 * (len(seconds) - 1))])
    medians = {engine: statistics.median(found) for engine, found in p99.items()}
    ratio = medians["hotfuse"] / medians["eager"]
    eager, beside = medians["eager"] * 1e3, medians["hotfuse"] * 1e3
    print(f"{options.model}: p99 eager {eager:.1f} ms, with capture {beside:.1f} ms, ratio {ratio:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"p99_s": p99, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
