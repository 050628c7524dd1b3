"""False alarms: right kernels of random models go through the proof, and none may be blamed (at most one in a thousand).

python -m benchmarks.false_alarms [--kernels 10000] [--state FILE] [--json FILE]

Each random model is built and proved as a build worker does it: on the inputs of a call, then at other sizes. Models are judged
in processes of their own, a batch in each: a kernel that crashes ends its batch and counts as an alarm.
With `--state` each model's judgement is a line of that file, and a second run goes on after the last line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hotfuse
from hotfuse.codegen.tile_text import print_program
from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_request import BuildReply, BuildRequest, ProveRequest
from hotfuse.runtime.build_work import build_here, prove_here
from hotfuse.runtime.verdict import UnitVerdict
from tests.fuzz.onnx_models import make

CONFIG = Config(threads=2, strict=True, cache="off")  # strict: a defect of the proof is raised, and counts
BATCH = 100  # models of one process
ALLOWED = 1e-3  # of all kernels


@dataclass(frozen=True)
class Judgement:
    """Of one random model: its kernels that were judged, by digest, those that were blamed and why; `failed` says why the
    model as a whole was not proved."""

    seed: int
    kernels: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    failed: str = ""


def judge(seed: int) -> Judgement:
    """Build and prove the kernels of one random model, on one of its settings."""
    case = make(seed)
    setting = seed % len(case.draft.settings)
    try:
        graph = hotfuse.load(case.proto, tier=0).graph
        reply = build_here(BuildRequest(skeleton(graph), CONFIG))
    except HotfuseError as error:
        return Judgement(seed, failed=f"not built: {type(error).__name__}: {error}")
    request = ProveRequest(reply.build, reply.objects, case.feeds(setting), CONFIG)
    try:
        with np.errstate(all="ignore"):
            verdicts = prove_here(request, lambda name: graph.constants[name].numpy()).verdicts
    except Exception as error:  # no kernel of the model could serve then
        return Judgement(seed, failed=f"not proved: {type(error).__name__}: {error}")
    return _judgement(seed, reply, verdicts, dict(case.draft.settings[setting]))


def _judgement(seed: int, reply: BuildReply, verdicts: Iterable[UnitVerdict], sizes: dict[str, int]) -> Judgement:
    kernels: list[str] = []
    blamed: list[str] = []
    alarms: list[str] = []
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        unit = reply.build.units[verdict.unit]
        counts["proved" if verdict.ok else "alarm" if verdict.tried else "not tried"] += 1
        if not verdict.tried:
            continue
        found = [hashlib.sha256(print_program(r.program).encode()).hexdigest()[:24] for r in unit.recipes]
        kernels += found
        if not verdict.ok:
            blamed += found
            ops = ", ".join(reply.build.main.by_id[id].op for id in unit.nodes)
            alarms.append(f"sizes {sizes}, {ops}: {verdict.what}: {verdict.reason}")
    return Judgement(seed, tuple(kernels), tuple(blamed), tuple(alarms), dict(counts))


@dataclass
class Tally:
    """State: what was judged so far."""

    models: int = 0
    kernels: set[str] = field(default_factory=set)
    blamed: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, found: Judgement) -> None:
        self.models += 1
        self.kernels |= set(found.kernels)
        self.blamed |= set(found.blamed)
        self.counts.update(found.counts)
        self.notes += [f"seed {found.seed}, {alarm}" for alarm in found.alarms]
        if found.failed:
            self.counts[found.failed.partition(":")[0]] += 1
            self.notes.append(f"seed {found.seed}, {found.failed}")

    @property
    def share(self) -> float:
        """Of kernels that were blamed."""
        return len(self.blamed) / max(1, len(self.kernels))

    def figures(self) -> dict[str, Any]:
        return {
            "models": self.models,
            "kernels": len(self.kernels),
            "blamed": len(self.blamed),
            "share": self.share,
            "counts": dict(self.counts),
            "notes": self.notes,
        }


def judge_here(seeds: Iterable[int], kernels: int) -> Tally:
    """Judge models in this process until there were enough kernels."""
    tally = Tally()
    for seed in seeds:
        tally.add(judge(seed))
        if len(tally.kernels) >= kernels:
            break
    return tally


def judge_apart(first: int) -> Iterator[Judgement]:
    """Judge a batch of models in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name if __spec__ else "benchmarks.false_alarms"]
    with subprocess.Popen([*command, "--batch", str(first)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        seed = first
        for line in child.stdout:
            found = _read(line)
            seed = found.seed + 1
            yield found
    if child.returncode > 0:
        sys.exit(child.returncode)  # nothing was judged; it has said why
    if child.returncode:
        yield Judgement(seed, blamed=(f"of {seed}",), failed=f"crashed: status {child.returncode}")


def _read(line: str) -> Judgement:
    found = json.loads(line)
    return Judgement(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=10_000)
    parser.add_argument("--state", type=Path, help="judgements so far, one in a line")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch is not None:
        for seed in range(options.batch, options.batch + BATCH):
            print(json.dumps(asdict(judge(seed))), flush=True)
        return
    tally, seed = Tally(), 0
    if options.state and options.state.exists():
        for line in options.state.read_text().splitlines():
            found = _read(line)
            tally.add(found)
            seed = found.seed + 1
    while len(tally.kernels) < options.kernels:
        for found in judge_apart(seed):
            tally.add(found)
            seed = found.seed + 1
            if options.state:
                with options.state.open("a") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
        print(f"{tally.models} models, {len(tally.kernels)} kernels, {len(tally.blamed)} blamed", file=sys.stderr, flush=True)
    print(*tally.notes, sep="\n")
    found = f"{len(tally.blamed)} of {len(tally.kernels)} kernels blamed ({tally.share:.3%}), {tally.models} models"
    print(found, dict(tally.counts))
    if options.json:
        options.json.write_text(json.dumps(tally.figures(), indent=2))
    sys.exit(tally.share > ALLOWED)


if __name__ == "__main__":
    main()
