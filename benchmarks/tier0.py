"""Tier 0 against ONNX Runtime with its graph optimisations off: the bound is 3x; generated code against eager: 1x.

python -m benchmarks.tier0 [--rounds 9] [--seconds 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotfuse.cli.bench.contest import Rules, hold
from hotfuse.cli.bench.engines import Settings
from hotfuse.cli.bench.models import Case

# model, engine, peer, bound, tier; a torch model is answered by the module itself at tier 0
PAIRS = (
    ("resnet-50", "hotfuse-onnx", "onnxruntime-plain", 3.0, 0),
    ("bert-base", "hotfuse-onnx", "onnxruntime-plain", 3.0, 0),
    ("bert-base", "hotfuse-torch", "eager", 1.0, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("model", "engine", "median ms", "against", "median ms", "ratio", "bound", "answer")
    rows = []
    for model, engine, peer, bound, tier in PAIRS:
        rules = Rules(Settings(threads=2, tier=tier), options.rounds, options.seconds)
        ours, theirs = hold(Case(model), [engine, peer], rules, print).rows
        if ours.timing is None or theirs.timing is None:
            raise SystemExit(f"{model}: {ours.reason or theirs.reason}")
        ms, peer_ms = ours.timing.median_s * 1e3, theirs.timing.median_s * 1e3
        rows.append({"model": model, "engine": engine, "ms": ms, "peer": peer, "peer_ms": peer_ms, "ratio": ms / peer_ms})
        table.add_row(model, engine, f"{ms:.1f}", peer, f"{peer_ms:.1f}", f"{ms / peer_ms:.2f}", f"{bound}", ours.status)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
