"""Tier 0 against ONNX Runtime with its graph optimisations off: the bound is 3x.

python -m benchmarks.tier0 [--rounds 9] [--calls 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.models import onnx_file
from benchmarks.rounds import interleave

PAIRS = (
    ("resnet-50", "hotfuse", "onnxruntime-plain", 3.0),
    ("bert-base", "hotfuse", "onnxruntime-plain", 3.0),
    ("bert-base", "hotfuse-torch", "eager", 1.3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("model", "engine", "median ms", "against", "median ms", "ratio", "bound")
    rows = []
    for model, engine, peer, bound in PAIRS:
        onnx_file(model)
        found = interleave([engine, peer], model, options.rounds, options.calls)
        ours, theirs = found[engine].median_s * 1e3, found[peer].median_s * 1e3
        rows.append({"model": model, "engine": engine, "ms": ours, "peer": peer, "peer_ms": theirs, "ratio": ours / theirs})
        table.add_row(model, engine, f"{ours:.1f}", peer, f"{theirs:.1f}", f"{ours / theirs:.2f}", f"{bound}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
