"""The first call of `hotfuse.compile(m)(x)` against eager's, in fresh processes: the bound is 1.1x.

python -m benchmarks.first_call [--model bert-base] [--processes 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import subprocess
import sys
from pathlib import Path

_CHILD = """
import sys, time
import torch
from hotfuse.cli.bench.models import Case, make_torch
made = make_torch(Case(sys.argv[2]))
module = made.module
for name in [n for n in sys.modules if n.split(".")[0] == "hotfuse"]:
    del sys.modules[name]  # the models come from there, but importing hotfuse is part of a user's first call
with torch.no_grad():
    started = time.perf_counter()
    if sys.argv[1] == "hotfuse":
        import hotfuse
        module = hotfuse.compile(module)
    module(made.value)
    print(time.perf_counter() - started)
"""


def first_call_s(engine: str, model: str) -> float:
    """Seconds from the model in hand to its first answer (importing hotfuse counts)."""
    command = [sys.executable, "-c", _CHILD, engine, model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compileall.compile_dir(Path(__file__).parents[1] / "hotfuse", quiet=2)  # an installed package comes with its bytecode
    seconds: dict[str, list[float]] = {"eager": [], "hotfuse": []}
    for _ in range(options.processes):
        for engine, found in seconds.items():
            found.append(first_call_s(engine, options.model))
    medians = {engine: statistics.median(found) for engine, found in seconds.items()}
    ratio = medians["hotfuse"] / medians["eager"]
    print(
        f"{options.model}: eager {medians['eager'] * 1e3:.0f} ms, hotfuse {medians['hotfuse'] * 1e3:.0f} ms, ratio {ratio:.2f}"
    )
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
